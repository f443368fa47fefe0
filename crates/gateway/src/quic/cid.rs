//! Connection IDs: their format, and how our own are recognised.
//!
//! A connection ID that we issue has 16 bytes:
//!
//! ```text
//!  0       1                          13       14      16
//!  +-------+--------------------------+--------+-------+
//!  | first | 12 random bytes          | worker | check |
//!  +-------+--------------------------+--------+-------+
//!  | first | server ID | random bytes | worker | check |    behind a load balancer
//!  | first | encrypted: the same 12   | worker | check |    behind one that has the key
//! ```
//!
//! The worker number is not encrypted because the kernel's socket selector and other workers read it without a key. The
//! random bytes make IDs unguessable and unlinkable (RFC 9000, section 5.1).
//!
//! The check is a truncated SipHash-2-4 over the rest. It distinguishes an ID that a worker of this server issued from
//! one that a client chose for its first Initial, so that only the former is handed over to the worker it names. It
//! also distinguishes it from an ID of another server with the same certificate, which is not answered by a stateless
//! reset. XDP programs can compute the check too: with [`CheckKeys`] from a file that a filter in front of the server
//! also reads, the filter drops packets with IDs that no server issued.
//!
//! The first byte follows draft-ietf-quic-load-balancers, section 3: three bits of configuration, and five that look
//! random to others. These five are the generation: the number of the process among those that follow each other
//! without losing a connection. It is combined with bits that depend on the key of the check, so that nobody else sees
//! which connections belong to one process.
//!
//! With [`Routable`] the server ID follows, and a balancer finds the server whatever address the client has. The random
//! bytes up to the worker number are the draft's nonce, at least 8. With a key, server ID and nonce are encrypted
//! together in the draft's four passes; the bytes after them are "for the server's own use" (section 5.4). Without
//! [`Routable`], the configuration bits say that the ID is not routable, so that a balancer does not take random bytes
//! for a server ID. IDs of an earlier configuration stay valid, because this server recognises its own by the check.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;

use expressway_wire::siphash::SipKey;

use super::quic_lb::Encryption;

/// Length of the connection IDs that this server issues, in bytes.
pub const CID_LENGTH: usize = 16;

/// Where the worker's number stands.
pub const WORKER_OFFSET: usize = 13;

/// Generations that IDs tell apart: what five bits hold.
pub const GENERATIONS: u8 = 32;

/// The longest server ID that leaves 8 random bytes.
pub const MAX_SERVER_ID: usize = 4;

/// The configuration bits of an ID that is not routable, and the greatest that are.
const UNROUTABLE: u8 = 7;

/// What load balancers read in IDs (draft-ietf-quic-load-balancers).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Routable {
    config: u8,
    server_id: [u8; MAX_SERVER_ID],
    length: u8,
    key: Option<[u8; 16]>,
}

/// The key is not printed.
impl fmt::Debug for Routable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routable")
            .field("config", &self.config)
            .field("server_id", &&self.server_id[..usize::from(self.length)])
            .field("encrypted", &self.key.is_some())
            .finish()
    }
}

impl Routable {
    /// IDs with the rotation codepoint `config`, 0 to 6, and `server_id` of 1 to 4 bytes, encrypted if there is a key; `None`
    /// for others.
    pub fn new(config: u8, server_id: &[u8], key: Option<[u8; 16]>) -> Option<Self> {
        if config >= UNROUTABLE || !(1..=MAX_SERVER_ID).contains(&server_id.len()) {
            return None;
        }
        let mut bytes = [0; MAX_SERVER_ID];
        bytes[..server_id.len()].copy_from_slice(server_id);
        Some(Self { config, server_id: bytes, length: server_id.len() as u8, key })
    }
}

/// The longest connection ID of QUIC version 1, in bytes (RFC 9000, section 17.2).
pub const MAX_CID_LENGTH: usize = 20;

/// A connection ID of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cid(pub [u8; CID_LENGTH]);

impl Cid {
    /// The worker that owns the connection.
    pub fn worker(&self) -> usize {
        usize::from(self.0[WORKER_OFFSET])
    }

    /// The ID in `bytes`, if they have this server's length.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// A connection ID that a client made up for its first packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientCid {
    bytes: [u8; MAX_CID_LENGTH],
    length: u8,
}

impl From<&[u8]> for ClientCid {
    /// A copy of `cid`, of which a parsed header or token has no more than [`MAX_CID_LENGTH`] bytes.
    fn from(cid: &[u8]) -> Self {
        let mut bytes = [0; MAX_CID_LENGTH];
        bytes[..cid.len()].copy_from_slice(cid);
        Self { bytes, length: cid.len() as u8 }
    }
}

impl Deref for ClientCid {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Keys of the check: IDs are issued with the first, and those of either are ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CheckKeys {
    current: SipKey,
    former: Option<SipKey>,
    bytes: ([u8; 16], Option<[u8; 16]>),
}

/// The keys are not printed.
impl fmt::Debug for CheckKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckKeys(..)")
    }
}

impl CheckKeys {
    /// Keys of 16 bytes each; `former` is for IDs issued before `current` replaced it.
    pub fn new(current: &[u8; 16], former: Option<&[u8; 16]>) -> Self {
        let bytes = (*current, former.copied());
        Self { current: SipKey::new(current), former: former.map(SipKey::new), bytes }
    }

    /// What they were made of, the one in use first: for the process that succeeds this one.
    pub fn bytes(&self) -> ([u8; 16], Option<[u8; 16]>) {
        self.bytes
    }

    /// The generation that issued `cid`, if who has these keys did (or a guess hit one of 65,536).
    pub fn generation(&self, cid: &Cid) -> Option<u8> {
        let is_of = |key: &SipKey| check(*key, &cid.0) == cid.0[14..];
        let key = Some(self.current).filter(is_of).or_else(|| self.former.filter(is_of))?;
        Some((cid.0[0] ^ mask(key, &cid.0)) % GENERATIONS)
    }
}

/// Creates connection IDs for one worker and recognises those of all workers.
pub struct CidIssuer {
    worker: u8,
    generation: u8,
    keys: CheckKeys,
    routable: Option<Routable>,
    /// With the key of `routable`, from the first ID on.
    encryption: Option<Encryption>,
    /// Random bytes drawn ahead: one draw from the generator serves many IDs.
    pool: [u8; 13 * 32],
    used: usize,
}

impl CidIssuer {
    /// An issuer for `worker` with keys that are the same on all workers, of generation 0.
    pub fn new(worker: u8, keys: CheckKeys) -> Self {
        Self {
            worker,
            generation: 0,
            keys,
            routable: None,
            encryption: None,
            pool: [0; 13 * 32],
            used: 13 * 32,
        }
    }

    /// Makes IDs of that generation, modulo [`GENERATIONS`].
    #[must_use]
    pub fn of_generation(self, generation: u8) -> Self {
        Self { generation: generation % GENERATIONS, ..self }
    }

    /// The keys of the check.
    pub fn keys(&self) -> &CheckKeys {
        &self.keys
    }

    /// The generation of its IDs.
    pub fn generation(&self) -> u8 {
        self.generation
    }

    /// Makes IDs that load balancers can route, or not, from the next one on.
    pub fn set_routable(&mut self, routable: Option<Routable>) {
        self.routable = routable;
        self.encryption = None;
    }

    /// A new ID. Fails when the system's random generator or the cipher does.
    pub fn issue(&mut self) -> Result<Cid, boring::error::ErrorStack> {
        if self.used == self.pool.len() {
            boring::rand::rand_bytes(&mut self.pool)?;
            self.used = 0;
        }
        let mut cid = [0; CID_LENGTH];
        cid[..13].copy_from_slice(&self.pool[self.used..self.used + 13]);
        self.used += 13;
        let config = match &self.routable {
            Some(Routable { config, server_id, length, key }) => {
                let length = usize::from(*length);
                cid[1..1 + length].copy_from_slice(&server_id[..length]);
                if let Some(key) = key {
                    let encryption = match &mut self.encryption {
                        Some(ready) => ready,
                        none => none.insert(Encryption::new(key)?),
                    };
                    encryption.encrypt(&mut cid[1..WORKER_OFFSET])?;
                }
                *config
            }
            None => UNROUTABLE,
        };
        cid[WORKER_OFFSET] = self.worker;
        cid[0] = config << 5 | mask(self.keys.current, &cid) ^ self.generation;
        let check = check(self.keys.current, &cid);
        cid[14..].copy_from_slice(&check);
        Ok(Cid(cid))
    }

    /// True if a worker that shares the key issued `cid` (or a guess hit one of 65,536).
    pub fn is_ours(&self, cid: &Cid) -> bool {
        self.keys.generation(cid).is_some()
    }
}

/// The five bits that hide the generation from who has not the key.
fn mask(key: SipKey, cid: &[u8; CID_LENGTH]) -> u8 {
    (key.hash(&cid[1..14]) % u64::from(GENERATIONS)) as u8
}

fn check(key: SipKey, cid: &[u8; CID_LENGTH]) -> [u8; 2] {
    let hash = key.hash(&cid[..14]).to_le_bytes();
    [hash[0], hash[1]]
}

/// Hashes issued IDs by 8 of their random bytes: only this server inserts them, so no one can aim
/// collisions at the table.
#[derive(Default)]
pub struct CidHasher(u64);

impl Hasher for CidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(random) = bytes.get(5..13).and_then(|slice| <[u8; 8]>::try_from(slice).ok()) {
            self.0 = u64::from_ne_bytes(random);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

/// See [`CidHasher`].
pub type CidHashBuilder = BuildHasherDefault<CidHasher>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issued_id_names_its_worker_and_is_known_by_every_worker() {
        let key = CheckKeys::new(&[7; 16], None);
        let mut first = CidIssuer::new(3, key);
        let second = CidIssuer::new(4, key);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let cid = first.issue().unwrap();
            assert_eq!(cid.worker(), 3);
            assert!(second.is_ours(&cid));
            assert!(seen.insert(cid), "issued twice");
        }
    }

    #[test]
    fn a_balancer_reads_the_server_and_the_worker_is_found_all_the_same() {
        let key = CheckKeys::new(&[7; 16], None);
        let mut issuer = CidIssuer::new(3, key);
        assert!((0..50).all(|_| issuer.issue().unwrap().0[0] >> 5 == 7), "not routable");
        let mut old = Vec::new();
        for (config, server_id) in [(0, &[0xc4, 0x60, 0x5e][..]), (1, &[9]), (6, &[192, 0, 2, 21])] {
            issuer.set_routable(Routable::new(config, server_id, None));
            let ids: Vec<Cid> = (0..50).map(|_| issuer.issue().unwrap()).collect();
            for cid in &ids {
                assert_eq!((cid.0[0] >> 5, &cid.0[1..1 + server_id.len()]), (config, server_id));
                assert_eq!(cid.worker(), 3);
            }
            let random: std::collections::HashSet<[u8; 8]> =
                ids.iter().map(|cid| cid.0[5..13].try_into().unwrap()).collect();
            assert_eq!(random.len(), ids.len());
            old.extend(ids);
        }
        assert!(old.iter().all(|cid| issuer.is_ours(cid)), "those of earlier configurations stay valid");
        for (config, server_id) in [(7, &[1][..]), (0, &[]), (0, &[1; 5])] {
            assert_eq!(Routable::new(config, server_id, None), None);
        }
    }

    #[test]
    fn with_a_key_only_its_owners_read_the_server() {
        let key = [0xaa; 16];
        let mut issuer = CidIssuer::new(3, CheckKeys::new(&[7; 16], None));
        let mut balancer = Encryption::new(&key).unwrap();
        for server_id in [&[9][..], &[0xc4, 0x60, 0x5e], &[192, 0, 2, 21]] {
            let routable = Routable::new(2, server_id, Some(key)).unwrap();
            assert!(!format!("{routable:?}").contains("170"), "the key is not printed");
            issuer.set_routable(Some(routable));
            let mut seen = std::collections::HashSet::new();
            for _ in 0..50 {
                let cid = issuer.issue().unwrap();
                assert_eq!((cid.0[0] >> 5, cid.worker()), (2, 3));
                assert!(issuer.is_ours(&cid));
                assert!(seen.insert(cid.0[1..13].to_vec()), "twice the same");
                let mut plain = cid.0;
                balancer.decrypt_halves(&mut plain[1..WORKER_OFFSET]);
                assert_eq!(&plain[1..1 + server_id.len()], server_id);
            }
        }
        issuer.set_routable(Routable::new(2, &[9], None));
        assert_eq!(issuer.issue().unwrap().0[1], 9, "in clear again");
    }

    #[test]
    fn a_made_up_id_is_not_ours() {
        let mut issuer = CidIssuer::new(0, CheckKeys::new(&[7; 16], None));
        let stranger = CidIssuer::new(0, CheckKeys::new(&[8; 16], None));
        let foreign = (0..64).filter(|_| stranger.is_ours(&issuer.issue().unwrap())).count();
        assert!(foreign < 4, "{foreign} of 64 passed another server's check");
        let mut changed = issuer.issue().unwrap();
        changed.0[5] ^= 1;
        assert!(!issuer.is_ours(&changed));
    }

    #[test]
    fn ids_of_the_key_before_stay_valid() {
        let old = CidIssuer::new(0, CheckKeys::new(&[7; 16], None)).issue().unwrap();
        let is_known = |keys| CidIssuer::new(0, keys).is_ours(&old);
        assert!(is_known(CheckKeys::new(&[8; 16], Some(&[7; 16]))));
        let mut issuer = CidIssuer::new(0, CheckKeys::new(&[8; 16], Some(&[7; 16])));
        let new: Vec<Cid> = (0..3).map(|_| issuer.issue().unwrap()).collect();
        let of_old = CidIssuer::new(0, CheckKeys::new(&[7; 16], None));
        assert!(new.iter().any(|cid| !of_old.is_ours(cid)), "issued with the key in use");
    }

    #[test]
    fn an_id_tells_its_generation_to_who_has_the_key_and_to_nobody_else() {
        let (key, stranger) = (CheckKeys::new(&[7; 16], None), CheckKeys::new(&[8; 16], None));
        for generation in [0, 1, 31] {
            let mut issuer = CidIssuer::new(3, key).of_generation(generation);
            let ids: Vec<Cid> = (0..200).map(|_| issuer.issue().unwrap()).collect();
            assert!(ids.iter().all(|cid| key.generation(cid) == Some(generation)));
            let bits: std::collections::HashSet<u8> = ids.iter().map(|cid| cid.0[0] & 0x1f).collect();
            assert!(bits.len() > 20, "the same bits for all of a generation: {bits:?}");
            assert!(ids.iter().filter(|cid| stranger.generation(cid).is_some()).count() < 4);
        }
        let former = CidIssuer::new(0, key).of_generation(5).issue().unwrap();
        assert_eq!(CheckKeys::new(&[8; 16], Some(&[7; 16])).generation(&former), Some(5));
        assert_eq!(CidIssuer::new(0, key).of_generation(33).generation(), 1);
        let ((current, before), text) = (key.bytes(), format!("{key:?}"));
        assert_eq!((CheckKeys::new(&current, before.as_ref()), text.as_str()), (key, "CheckKeys(..)"));
    }

    /// `bpf/include/guard_quic.h` computes the same.
    #[test]
    fn the_check_is_the_hash_of_all_before_it() {
        let key = core::array::from_fn(|at| at as u8);
        let cid = CidIssuer::new(9, CheckKeys::new(&key, None)).issue().unwrap();
        assert_eq!(SipKey::new(&key).hash(&cid.0[..14]).to_le_bytes()[..2], cid.0[14..]);
    }

    #[test]
    fn the_hasher_takes_its_bits_from_the_random_part() {
        use std::hash::BuildHasher;
        let build = CidHashBuilder::default();
        let mut cid = [1u8; CID_LENGTH];
        let one = build.hash_one(Cid(cid));
        cid[6] = 9;
        assert_ne!(one, build.hash_one(Cid(cid)));
    }
}
