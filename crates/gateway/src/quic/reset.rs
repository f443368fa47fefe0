//! Stateless resets: how a peer learns that its connection is gone (RFC 9000, section 10.3).

use std::time::{Duration, Instant};

use boring::error::ErrorStack;
use boring::hash::hmac_sha256;

use super::cid::Cid;

/// The smallest packet that looks like a short-header packet and holds a token, in bytes.
const MIN_RESET: usize = 21;

/// Longer resets only help amplification.
const MAX_RESET: usize = 43;

/// Makes reset tokens and reset packets, at a bounded rate.
#[derive(Clone)]
pub struct Resets {
    key: [u8; 32],
    per_second: u32,
    left: u32,
    window: Option<Instant>,
}

impl Resets {
    /// Resets under `key`, at most `per_second`.
    pub fn new(key: [u8; 32], per_second: u32) -> Self {
        Self { key, per_second, left: per_second, window: None }
    }

    /// Follows a changed setting.
    pub fn set_rate(&mut self, per_second: u32) {
        self.per_second = per_second;
        self.left = self.left.min(per_second);
    }

    /// The token of `cid`, the same whenever and by whichever worker it is asked for.
    pub fn token(&self, cid: &Cid) -> Result<[u8; 16], ErrorStack> {
        let mac = hmac_sha256(&self.key, &cid.0)?;
        let mut token = [0; 16];
        token.copy_from_slice(&mac[..16]);
        Ok(token)
    }

    /// Writes into `out` the reset that answers a packet of `length` bytes addressed to `cid`.
    ///
    /// Returns its length, which is always less than `length` so that two endpoints cannot reset each other
    /// for ever (RFC 9000, section 10.3.3); `None` when the packet is too short to answer, the rate is spent
    /// or the random generator failed.
    pub fn write(&mut self, out: &mut [u8], cid: &Cid, length: usize, now: Instant) -> Option<usize> {
        let size = length.checked_sub(1)?.min(MAX_RESET);
        if size < MIN_RESET || !self.take(now) {
            return None;
        }
        let out = out.get_mut(..size)?;
        let (random, token) = out.split_at_mut(size - 16);
        boring::rand::rand_bytes(random).ok()?;
        random[0] = random[0] & 0x3f | 0x40;
        token.copy_from_slice(&self.token(cid).ok()?);
        Some(size)
    }

    fn take(&mut self, now: Instant) -> bool {
        let elapsed = self.window.is_none_or(|start| now.duration_since(start) >= Duration::from_secs(1));
        if elapsed {
            self.window = Some(now);
            self.left = self.per_second;
        }
        let granted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_shorter_than_its_trigger_and_ends_in_the_token() {
        let mut resets = Resets::new([1; 32], 1000);
        let cid = Cid([5; 16]);
        let now = Instant::now();
        let mut out = [0; 64];
        for length in 0..22 {
            assert_eq!(resets.write(&mut out, &cid, length, now), None, "at {length}");
        }
        for length in 22..100 {
            let size = resets.write(&mut out, &cid, length, now).unwrap();
            assert!(size < length && size <= MAX_RESET);
            assert_eq!(out[0] & 0xc0, 0x40, "looks like a short header");
            assert_eq!(out[size - 16..size], resets.token(&cid).unwrap());
        }
    }

    #[test]
    fn resets_are_bounded_by_the_second() {
        let mut resets = Resets::new([1; 32], 3);
        let cid = Cid([5; 16]);
        let now = Instant::now();
        let mut out = [0; 64];
        let mut sent = |now| (0..10).filter(|_| resets.write(&mut out, &cid, 60, now).is_some()).count();
        assert_eq!(sent(now), 3);
        assert_eq!(sent(now + Duration::from_millis(999)), 0);
        assert_eq!(sent(now + Duration::from_secs(1)), 3);
    }
}
