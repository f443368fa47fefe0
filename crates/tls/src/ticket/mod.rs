//! Keys of session tickets (RFC 5077, section 4; RFC 8446, section 4.6.1).
//!
//! Three keys open tickets. The *current* key also makes them. Tickets of the *previous* key are replaced by new ones.
//! Another node of the same service may already use the *next* key.
//!
//! Whoever has a key can read what was sent under its tickets: all data in TLS 1.2, 0-RTT data in TLS 1.3. Keys are
//! therefore forgotten: after two rotations no copy is left.
//!
//! Tickets use AES-256-CBC and HMAC-SHA256, as nginx does with files of 80 bytes.

mod callback;
mod file;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use boring::error::ErrorStack;

use crate::error::{TlsError, read};

pub(crate) use callback::install;

/// Bytes of a file of keys at most.
const MAX_FILE: u64 = 16 << 10;

/// One key: a name by which tickets say what they were made with, and two secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey {
    name: [u8; 16],
    hmac: [u8; 32],
    aes: [u8; 32],
}

impl TicketKey {
    /// Bytes of a key: name (16), HMAC key (32), AES key (32), as nginx's `ssl_session_ticket_key` has them.
    pub const BYTES: usize = 80;

    /// A key from bytes in nginx's order.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut key = Self { name: [0; 16], hmac: [0; 32], aes: [0; 32] };
        key.name.copy_from_slice(&bytes[..16]);
        key.hmac.copy_from_slice(&bytes[16..48]);
        key.aes.copy_from_slice(&bytes[48..]);
        key
    }

    /// A random key.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn random() -> Result<Self, ErrorStack> {
        let mut bytes = [0; Self::BYTES];
        boring::rand::rand_bytes(&mut bytes)?;
        Ok(Self::from_bytes(&bytes))
    }
}

impl std::fmt::Debug for TicketKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TicketKey(..)")
    }
}

/// Keys in use at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ring {
    current: TicketKey,
    next: Option<TicketKey>,
    previous: Option<TicketKey>,
}

/// What a key is to the one who is shown a ticket.
enum Age {
    /// Current, or the next.
    Fresh,
    /// The ticket is taken, and the client given a new one.
    Old,
}

impl Ring {
    fn random() -> Result<Self, ErrorStack> {
        Ok(Self { current: TicketKey::random()?, next: Some(TicketKey::random()?), previous: None })
    }

    fn find(&self, name: &[u8; 16]) -> Option<(&TicketKey, Age)> {
        let named = |key: &&TicketKey| key.name == *name;
        let fresh = [Some(&self.current), self.next.as_ref()].into_iter().flatten().find(named);
        fresh
            .map(|key| (key, Age::Fresh))
            .or_else(|| self.previous.as_ref().filter(named).map(|key| (key, Age::Old)))
    }
}

/// The keys of a server, which outlive reloads; all transports and workers have the same.
#[derive(Debug)]
pub struct TicketKeys {
    ring: ArcSwap<Ring>,
    rotated: Mutex<Rotated>,
}

#[derive(Debug)]
struct Rotated {
    at: Instant,
    /// The keys are a file's, which rotates them.
    from_file: bool,
}

impl TicketKeys {
    /// Random keys.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn random() -> Result<Self, ErrorStack> {
        let rotated = Mutex::new(Rotated { at: Instant::now(), from_file: false });
        Ok(Self { ring: ArcSwap::from_pointee(Ring::random()?), rotated })
    }

    /// Reads a file and does not use it yet.
    ///
    /// # Errors
    /// Names the file and what is wrong.
    pub fn check(path: &Path) -> Result<(), TlsError> {
        file::parse(path, &read(path, MAX_FILE)?).map(|_| ())
    }

    /// Takes the keys of a file; says whether they are others than before.
    ///
    /// # Errors
    /// Names the file and what is wrong; the keys stay as they were.
    pub fn load(&self, path: &Path) -> Result<bool, TlsError> {
        Ok(self.take(file::parse(path, &read(path, MAX_FILE)?)?))
    }

    /// Takes keys that somebody else rotates, of different names; says whether they are others than before.
    pub fn set(&self, current: TicketKey, next: Option<TicketKey>, previous: Option<TicketKey>) -> bool {
        self.take(Ring { current, next, previous })
    }

    fn take(&self, ring: Ring) -> bool {
        let mut rotated = self.rotated.lock().unwrap_or_else(PoisonError::into_inner);
        *rotated = Rotated { at: Instant::now(), from_file: true };
        let changed = **self.ring.load() != ring;
        if changed {
            self.ring.store(Arc::new(ring));
        }
        changed
    }

    /// Goes on without a file: with random keys, if they were a file's.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn leave_file(&self) -> Result<(), ErrorStack> {
        let mut rotated = self.rotated.lock().unwrap_or_else(PoisonError::into_inner);
        if rotated.from_file {
            let old = self.ring.load().current.clone();
            self.ring.store(Arc::new(Ring { previous: Some(old), ..Ring::random()? }));
            *rotated = Rotated { at: Instant::now(), from_file: false };
        }
        Ok(())
    }

    /// Moves on to the next key if `every` has passed since the last time and no file has the keys; says whether it did.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn rotate_if_due(&self, now: Instant, every: Duration) -> Result<bool, ErrorStack> {
        let mut rotated = self.rotated.lock().unwrap_or_else(PoisonError::into_inner);
        if rotated.from_file || now.saturating_duration_since(rotated.at) < every {
            return Ok(false);
        }
        let ring = self.ring.load();
        let current = match &ring.next {
            Some(next) => next.clone(),
            None => TicketKey::random()?,
        };
        let next = Some(TicketKey::random()?);
        self.ring.store(Arc::new(Ring { current, next, previous: Some(ring.current.clone()) }));
        rotated.at = now;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keys: &TicketKeys) -> [Option<[u8; 16]>; 3] {
        let ring = keys.ring.load();
        [ring.next.as_ref(), Some(&ring.current), ring.previous.as_ref()].map(|key| key.map(|key| key.name))
    }

    #[test]
    fn a_rotation_moves_each_key_on_by_one_and_forgets_the_last() {
        let keys = TicketKeys::random().unwrap();
        let (start, every) = (Instant::now(), Duration::from_secs(43_200));
        assert!(!keys.rotate_if_due(start, every).unwrap());
        let [next, current, previous] = names(&keys);
        assert!(previous.is_none());
        assert!(keys.rotate_if_due(start + every + every, every).unwrap());
        assert!(!keys.rotate_if_due(start + every + every, every).unwrap());
        assert_eq!(names(&keys)[1..], [next, current]);
        assert!(keys.rotate_if_due(start + every * 4, every).unwrap());
        let all = names(&keys);
        assert_eq!(all[2], next);
        assert!(!all.contains(&current));
    }

    #[test]
    fn keys_of_a_file_are_rotated_by_the_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tickets");
        let keys = TicketKeys::random().unwrap();
        std::fs::write(&file, [7; 80]).unwrap();
        assert!(keys.load(&file).unwrap());
        assert!(!keys.load(&file).unwrap());
        let later = Instant::now() + Duration::from_secs(1 << 30);
        assert!(!keys.rotate_if_due(later, Duration::from_secs(1)).unwrap());
        let before = names(&keys);
        std::fs::write(&file, [7; 79]).unwrap();
        assert!(keys.load(&file).is_err());
        assert_eq!(names(&keys), before, "a bad file changes nothing");
        keys.leave_file().unwrap();
        assert_eq!(names(&keys)[2], Some([7; 16]));
        assert_ne!(names(&keys)[1], Some([7; 16]));
        assert_eq!(format!("{:?}", keys.ring.load().current), "TicketKey(..)");
    }
}
