//! Retry tokens: proof that a client receives what is sent to its address (RFC 9000, section 8.1.2).
//!
//! ```text
//!  0        1                    9        10                  10+n        26+n
//!  +--------+--------------------+--------+-------------------+-----------+
//!  | 0xE1   | expiry, Unix s     | n      | original DCID     | MAC       |
//!  +--------+--------------------+--------+-------------------+-----------+
//! ```
//!
//! No state is kept. The MAC also covers the client's address and port and the connection ID of the Retry packet, so a
//! token is valid for one address and one attempt until it expires. Its key changes every hour by derivation from a
//! master key that all workers share; the previous hour's key is still accepted.
//!
//! With keys that other servers have too ([`SharedRetryKeys`]), tokens have a second form, and any of these servers
//! accepts them: a token does not contain the server's own address.
//!
//! ```text
//!  0        1                    9        10                  10+n     11+n        27+n
//!  +--------+--------------------+--------+-------------------+--------+-----------+
//!  | 0xE3   | expiry, Unix s     | n      | original DCID     | key    | MAC       |
//!  +--------+--------------------+--------+-------------------+--------+-----------+
//! ```
//!
//! The byte `key` is derived from the master key. Of the accepted keys, it selects those with which a token may have
//! been made. The hour is that of the expiry, so that servers agree on it although their clocks may differ, by less
//! than a token's lifetime.
//!
//! With keys that filters in front of the server have too, tokens have the form of [`FilterTokens`], so that filter and
//! server accept each other's.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use boring::error::ErrorStack;
use boring::hash::hmac_sha256;

use super::cid::MAX_CID_LENGTH;
use super::filter_token::FilterTokens;

/// The longest token, in bytes.
pub const MAX_TOKEN_LENGTH: usize = 10 + MAX_CID_LENGTH + 1 + MAC_LENGTH;

const MAC_LENGTH: usize = 16;
const FORMAT: u8 = 0xe1;
const SHARED_FORMAT: u8 = 0xe3;
const KEY_PERIOD: u64 = 3600;

/// How much later than its lifetime from now, in seconds, a token of another server may expire: that server's clock may be ahead by
/// so much. Behind it may be by less than the lifetime.
const TOLERANCE: u64 = 60;

/// What a token in an Initial packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The address is proven; the connection ID of the client's first Initial.
    Valid(&'a [u8]),
    /// One of our tokens, but expired, for another address, or altered.
    Invalid,
    /// Not one of ours: as if there was none (RFC 9000, section 8.1.3).
    Foreign,
}

/// Masters of Retry token keys that several servers have: the first makes tokens, those of all are taken.
#[derive(Clone)]
pub struct SharedRetryKeys(Vec<SharedMaster>);

#[derive(Clone)]
struct SharedMaster {
    id: u8,
    master: [u8; 32],
}

impl std::fmt::Debug for SharedRetryKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SharedRetryKeys(..)")
    }
}

impl SharedRetryKeys {
    /// Those masters, of which there should be few: each may have to be tried.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn new(masters: &[[u8; 32]]) -> Result<Self, ErrorStack> {
        let of = |master: &[u8; 32]| {
            Ok(SharedMaster { id: hmac_sha256(master, b"retry key id")?[0], master: *master })
        };
        masters.iter().map(of).collect::<Result<_, _>>().map(Self)
    }
}

/// Shared keys that all workers have, replaced as a whole.
pub(crate) type SharedRetry = Arc<ArcSwapOption<SharedRetryKeys>>;

/// Mints and verifies Retry tokens.
#[derive(Clone)]
pub struct RetryTokens {
    master: [u8; 32],
    lifetime: Duration,
    filter: FilterTokens,
    shared: SharedRetry,
}

impl RetryTokens {
    /// Tokens under `master`, good for `lifetime`; those of `filter` too, and if it has keys, made in its form.
    pub fn new(master: [u8; 32], lifetime: Duration, filter: FilterTokens) -> Self {
        Self { master, lifetime, filter, shared: SharedRetry::default() }
    }

    /// The same, made under keys that other servers have too, while there are some.
    #[must_use]
    pub(crate) fn with_shared(self, shared: SharedRetry) -> Self {
        Self { shared, ..self }
    }

    /// Writes a token into `out` and returns its length.
    pub fn mint(
        &self,
        out: &mut [u8; MAX_TOKEN_LENGTH],
        client: SocketAddr,
        original_dcid: &[u8],
        retry_scid: &[u8],
        now: SystemTime,
    ) -> Result<usize, ErrorStack> {
        debug_assert!(original_dcid.len() <= MAX_CID_LENGTH);
        let seconds = unix(now);
        if let Some(token) = self.filter.mint(client, original_dcid, retry_scid, seconds) {
            out[..token.len()].copy_from_slice(&token);
            return Ok(token.len());
        }
        let mut end = 10 + original_dcid.len();
        out[0] = FORMAT;
        let expiry = seconds + self.lifetime.as_secs();
        out[1..9].copy_from_slice(&expiry.to_be_bytes());
        out[9] = original_dcid.len() as u8;
        out[10..end].copy_from_slice(original_dcid);
        let shared = self.shared.load();
        let (mut master, mut period) = (&self.master, seconds / KEY_PERIOD);
        if let Some(current) = shared.as_ref().and_then(|keys| keys.0.first()) {
            out[0] = SHARED_FORMAT;
            out[end] = current.id;
            end += 1;
            (master, period) = (&current.master, expiry / KEY_PERIOD);
        }
        let mac = mac(master, period, &out[..end], client, retry_scid)?;
        out[end..end + MAC_LENGTH].copy_from_slice(&mac);
        Ok(end + MAC_LENGTH)
    }

    /// Judges the token of an Initial that came from `client` and was addressed to `dcid`.
    pub fn verify<'a>(
        &self,
        token: &'a [u8],
        client: SocketAddr,
        dcid: &[u8],
        now: SystemTime,
    ) -> Verdict<'a> {
        if let Some(verdict) = self.filter.verify(token, client, dcid, unix(now)) {
            return verdict;
        }
        if token.len() < 10 + MAC_LENGTH || token.len() > MAX_TOKEN_LENGTH {
            return Verdict::Foreign;
        }
        let end = token.len() - MAC_LENGTH;
        let shared = self.shared.load();
        // Behind the connection ID is the byte that names the key.
        let (id_end, key) = match token[0] {
            FORMAT => (end, None),
            SHARED_FORMAT if shared.is_some() && end > 10 => (end - 1, Some(token[end - 1])),
            _ => return Verdict::Foreign,
        };
        if usize::from(token[9]) != id_end - 10 || id_end - 10 > MAX_CID_LENGTH {
            return Verdict::Foreign;
        }
        let mut expiry = [0; 8];
        expiry.copy_from_slice(&token[1..9]);
        let (expiry, seconds) = (u64::from_be_bytes(expiry), unix(now));
        if expiry < seconds {
            return Verdict::Invalid;
        }
        let is_under = |master: &[u8; 32], period| {
            mac(master, period, &token[..end], client, dcid)
                .is_ok_and(|mac| boring::memcmp::eq(&mac, &token[end..]))
        };
        let is_valid = match key {
            None => {
                let period = seconds / KEY_PERIOD;
                is_under(&self.master, period) || is_under(&self.master, period.wrapping_sub(1))
            }
            Some(_) if expiry - seconds > self.lifetime.as_secs() + TOLERANCE => false,
            Some(key) => shared.as_ref().is_some_and(|keys| {
                let mut named = keys.0.iter().filter(|one| one.id == key);
                named.any(|one| is_under(&one.master, expiry / KEY_PERIOD))
            }),
        };
        if is_valid { Verdict::Valid(&token[10..id_end]) } else { Verdict::Invalid }
    }
}

fn mac(
    master: &[u8; 32],
    period: u64,
    body: &[u8],
    client: SocketAddr,
    retry_scid: &[u8],
) -> Result<[u8; MAC_LENGTH], ErrorStack> {
    let key = hmac_sha256(master, &period.to_be_bytes())?;
    let mut text = [0u8; MAX_TOKEN_LENGTH + 16 + 2 + 1 + MAX_CID_LENGTH];
    let address = match client.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut at = 0;
    let port = client.port().to_be_bytes();
    let length = [retry_scid.len() as u8];
    for part in [body, &address.octets()[..], &port, &length, retry_scid] {
        text[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let mac = hmac_sha256(&key, &text[..at])?;
    let mut short = [0; MAC_LENGTH];
    short.copy_from_slice(&mac[..MAC_LENGTH]);
    Ok(short)
}

fn unix(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn tokens() -> RetryTokens {
        RetryTokens::new([9; 32], Duration::from_secs(15), FilterTokens::default())
    }

    fn mint(client: SocketAddr, seconds: u64) -> Vec<u8> {
        let mut out = [0; MAX_TOKEN_LENGTH];
        let length = tokens().mint(&mut out, client, &[1; 8], &[2; 16], at(seconds)).unwrap();
        out[..length].to_vec()
    }

    #[test]
    fn a_token_gives_back_the_original_id_until_it_expires() {
        let client = "192.0.2.1:5000".parse().unwrap();
        let token = mint(client, NOW);
        assert_eq!(tokens().verify(&token, client, &[2; 16], at(NOW + 15)), Verdict::Valid(&[1; 8]));
        assert_eq!(tokens().verify(&token, client, &[2; 16], at(NOW + 16)), Verdict::Invalid);
    }

    #[test]
    fn a_token_survives_the_change_of_keys() {
        let client = "[2001:db8::1]:5000".parse().unwrap();
        let end_of_hour = NOW - NOW % KEY_PERIOD + KEY_PERIOD - 1;
        let token = mint(client, end_of_hour);
        assert_eq!(tokens().verify(&token, client, &[2; 16], at(end_of_hour + 5)), Verdict::Valid(&[1; 8]));
    }

    #[test]
    fn another_address_port_attempt_or_bit_is_invalid() {
        let client: SocketAddr = "192.0.2.1:5000".parse().unwrap();
        let token = mint(client, NOW);
        for other in ["192.0.2.2:5000", "192.0.2.1:5001"] {
            let verdict = tokens().verify(&token, other.parse().unwrap(), &[2; 16], at(NOW));
            assert_eq!(verdict, Verdict::Invalid);
        }
        assert_eq!(tokens().verify(&token, client, &[3; 16], at(NOW)), Verdict::Invalid);
        for index in 0..token.len() {
            let mut bad = token.clone();
            bad[index] ^= 1;
            let verdict = tokens().verify(&bad, client, &[2; 16], at(NOW));
            assert!(!matches!(verdict, Verdict::Valid(_)), "byte {index}");
        }
    }

    #[test]
    fn with_a_filter_in_front_both_forms_are_taken_and_its_own_is_made() {
        let client = "192.0.2.1:5000".parse().unwrap();
        let of_old = mint(client, NOW);
        let shared = FilterTokens::new(&[[3; 16]]);
        let tokens = RetryTokens::new([9; 32], Duration::from_secs(15), shared);
        assert_eq!(tokens.verify(&of_old, client, &[2; 16], at(NOW)), Verdict::Valid(&[1; 8]));
        let mut out = [0; MAX_TOKEN_LENGTH];
        let length = tokens.mint(&mut out, client, &[1; 8], &[2; 16], at(NOW)).unwrap();
        assert_eq!(tokens.verify(&out[..length], client, &[2; 16], at(NOW)), Verdict::Valid(&[1; 8]));
        assert_eq!(
            super::tests::tokens().verify(&out[..length], client, &[2; 16], at(NOW)),
            Verdict::Foreign
        );
    }

    /// A server whose own master is `own`, and that has these shared ones.
    fn sharing(own: u8, masters: &[[u8; 32]]) -> RetryTokens {
        let keys = SharedRetryKeys::new(masters).unwrap();
        RetryTokens::new([own; 32], Duration::from_secs(15), FilterTokens::default())
            .with_shared(Arc::new(ArcSwapOption::from_pointee(keys)))
    }

    fn mint_by(tokens: &RetryTokens, client: SocketAddr, id: &[u8]) -> Vec<u8> {
        let mut out = [0; MAX_TOKEN_LENGTH];
        let length = tokens.mint(&mut out, client, id, &[2; 16], at(NOW)).unwrap();
        out[..length].to_vec()
    }

    #[test]
    fn servers_take_each_others_tokens_a_rotation_apart_and_no_further() {
        let client = "192.0.2.1:5000".parse().unwrap();
        let [a, b, c, d] = [[1; 32], [2; 32], [3; 32], [4; 32]];
        // Current, next, previous.
        let (behind, ahead, far) =
            (sharing(8, &[b, c, a]), sharing(9, &[c, d, b]), sharing(9, &[d, [5; 32], c]));
        for id in [&[][..], &[1; 8], &[7; 20]] {
            for (by, to) in [(&behind, &ahead), (&ahead, &behind), (&ahead, &ahead)] {
                let token = mint_by(by, client, id);
                assert_eq!(to.verify(&token, client, &[2; 16], at(NOW + 15)), Verdict::Valid(id));
                assert_eq!(to.verify(&token, client, &[2; 16], at(NOW + 16)), Verdict::Invalid);
                let mut bad = token.clone();
                for bit in 0..token.len() * 8 {
                    bad[bit / 8] ^= 1 << (bit % 8);
                    assert!(
                        !matches!(to.verify(&bad, client, &[2; 16], at(NOW)), Verdict::Valid(_)),
                        "{bit}"
                    );
                    bad[bit / 8] ^= 1 << (bit % 8);
                }
            }
            let token = mint_by(&behind, client, id);
            assert_eq!(far.verify(&token, client, &[2; 16], at(NOW)), Verdict::Invalid);
            assert_eq!(tokens().verify(&token, client, &[2; 16], at(NOW)), Verdict::Foreign);
        }
        // Those from before there were shared keys, of a server with the same private key.
        let own = mint(client, NOW);
        assert_eq!(ahead.verify(&own, client, &[2; 16], at(NOW)), Verdict::Valid(&[1; 8]));
        assert_eq!(behind.verify(&own, client, &[2; 16], at(NOW)), Verdict::Invalid);
    }

    #[test]
    fn servers_whose_clocks_differ_across_the_hour_take_each_others_tokens() {
        let client = "192.0.2.1:5000".parse().unwrap();
        let (one, other) = (sharing(8, &[[1; 32]]), sharing(9, &[[1; 32]]));
        let hour = NOW - NOW % KEY_PERIOD + KEY_PERIOD;
        for made in hour - 30..hour + 30 {
            let mut token = [0; MAX_TOKEN_LENGTH];
            let length = one.mint(&mut token, client, &[1; 8], &[2; 16], at(made)).unwrap();
            let token = &token[..length];
            let verdict = |now| other.verify(token, client, &[2; 16], at(now));
            // Behind by up to a minute, or ahead by up to the lifetime.
            for now in made - TOLERANCE..=made + 15 {
                assert_eq!(verdict(now), Verdict::Valid(&[1; 8]), "{made} {now}");
            }
            assert_eq!(verdict(made - TOLERANCE - 1), Verdict::Invalid);
            assert_eq!(verdict(made + 16), Verdict::Invalid);
        }
    }

    #[test]
    fn a_strangers_token_is_foreign_and_never_panics() {
        let client = "192.0.2.1:5000".parse().unwrap();
        for length in 0..80 {
            for tokens in [tokens(), sharing(9, &[[1; 32]])] {
                let zeros = vec![0; length];
                assert_eq!(tokens.verify(&zeros, client, &[2; 16], at(NOW)), Verdict::Foreign);
                for fill in [FORMAT, SHARED_FORMAT] {
                    let mut token = vec![fill; length];
                    for number in 0..=u8::MAX {
                        if let Some(claimed) = token.get_mut(9) {
                            *claimed = number;
                        }
                        let verdict = tokens.verify(&token, client, &[2; 16], at(NOW));
                        assert!(!matches!(verdict, Verdict::Valid(_)));
                    }
                }
            }
        }
    }
}
