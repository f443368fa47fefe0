//! Retry tokens: proof that a client receives what is sent to its address (RFC 9000, section 8.1.2).
//!
//! ```text
//!  0        1                    9        10                  10+n        26+n
//!  +--------+--------------------+--------+-------------------+-----------+
//!  | 0xE1   | expiry, Unix s     | n      | original DCID     | MAC       |
//!  +--------+--------------------+--------+-------------------+-----------+
//! ```
//!
//! Nothing is remembered. The MAC covers the client's address and port and the connection ID of the Retry
//! packet as well, so a token is good for one address and one attempt until it expires. Its key changes
//! every hour by derivation from a master that all workers share; the previous hour's key still verifies.
//!
//! With keys that filters in front of the server have too, tokens are of [`FilterTokens`]' form, so that a filter takes those of
//! a server and a server those of a filter.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use boring::error::ErrorStack;
use boring::hash::hmac_sha256;

use super::cid::MAX_CID_LENGTH;
use super::filter_token::FilterTokens;

/// The longest token, in bytes.
pub const MAX_TOKEN_LENGTH: usize = 10 + MAX_CID_LENGTH + MAC_LENGTH;

const MAC_LENGTH: usize = 16;
const FORMAT: u8 = 0xe1;
const KEY_PERIOD: u64 = 3600;

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

/// Mints and verifies Retry tokens.
#[derive(Clone)]
pub struct RetryTokens {
    master: [u8; 32],
    lifetime: Duration,
    filter: FilterTokens,
}

impl RetryTokens {
    /// Tokens under `master`, good for `lifetime`; those of `filter` too, and if it has keys, made in its form.
    pub fn new(master: [u8; 32], lifetime: Duration, filter: FilterTokens) -> Self {
        Self { master, lifetime, filter }
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
        let end = 10 + original_dcid.len();
        out[0] = FORMAT;
        out[1..9].copy_from_slice(&(seconds + self.lifetime.as_secs()).to_be_bytes());
        out[9] = original_dcid.len() as u8;
        out[10..end].copy_from_slice(original_dcid);
        let mac = self.mac(seconds / KEY_PERIOD, &out[..end], client, retry_scid)?;
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
        if token.len() < 10 + MAC_LENGTH || token.len() > MAX_TOKEN_LENGTH || token[0] != FORMAT {
            return Verdict::Foreign;
        }
        let end = token.len() - MAC_LENGTH;
        if usize::from(token[9]) != end - 10 {
            return Verdict::Foreign;
        }
        let mut expiry = [0; 8];
        expiry.copy_from_slice(&token[1..9]);
        let seconds = unix(now);
        if u64::from_be_bytes(expiry) < seconds {
            return Verdict::Invalid;
        }
        let period = seconds / KEY_PERIOD;
        let matches = |period| {
            self.mac(period, &token[..end], client, dcid)
                .is_ok_and(|mac| boring::memcmp::eq(&mac, &token[end..]))
        };
        if matches(period) || matches(period.wrapping_sub(1)) {
            Verdict::Valid(&token[10..end])
        } else {
            Verdict::Invalid
        }
    }

    fn mac(
        &self,
        period: u64,
        body: &[u8],
        client: SocketAddr,
        retry_scid: &[u8],
    ) -> Result<[u8; MAC_LENGTH], ErrorStack> {
        let key = hmac_sha256(&self.master, &period.to_be_bytes())?;
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

    #[test]
    fn a_strangers_token_is_foreign_and_never_panics() {
        let client = "192.0.2.1:5000".parse().unwrap();
        for length in 0..80 {
            let (zeros, formats) = (vec![0; length], vec![FORMAT; length]);
            assert_eq!(tokens().verify(&zeros, client, &[2; 16], at(NOW)), Verdict::Foreign);
            let verdict = tokens().verify(&formats, client, &[2; 16], at(NOW));
            assert!(!matches!(verdict, Verdict::Valid(_)));
        }
    }
}
