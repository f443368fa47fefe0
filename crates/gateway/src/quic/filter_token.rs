//! Retry tokens that filters in front of the server also make and accept (`bpf/include/guard_retry.h`).
//!
//! ```text
//!  0        1        2           6                      26        34
//!  +--------+--------+-----------+----------------------+---------+
//!  | 0xE2   | n      | Unix s    | original DCID, zeros | MAC     |
//!  +--------+--------+-----------+----------------------+---------+
//! ```
//!
//! The MAC is SipHash-2-4 over 64 bytes: everything before it, the client's port, the connection ID of the Retry packet
//! (20 bytes, padded with zeros) and the client's address (16 bytes, IPv4 in ::ffff:0:0/96). A token is valid for one
//! address, port and attempt, and for [`LIFETIME`]; forging one takes 2^63 attempts within that time.

use std::net::{IpAddr, SocketAddr};

use expressway_wire::siphash::SipKey;

use super::cid::MAX_CID_LENGTH;
use super::token::Verdict;

/// Length of a token, in bytes.
pub const FILTER_TOKEN_LENGTH: usize = SIGNED + 8;

/// Seconds that a token is good for.
pub const LIFETIME: i32 = 10;

/// Seconds that the clock of who made it may be ahead.
pub const SKEW: i32 = 5;

const FORMAT: u8 = 0xe2;
const SIGNED: usize = 26;
const ID: usize = 6;

/// Makes and verifies such tokens; without keys, none.
#[derive(Clone, Debug, Default)]
pub struct FilterTokens {
    keys: Vec<SipKey>,
}

impl FilterTokens {
    /// With keys of 16 bytes, of which tokens are made with the first.
    pub fn new(keys: &[[u8; 16]]) -> Self {
        Self { keys: keys.iter().map(SipKey::new).collect() }
    }

    /// Whether there are keys.
    pub fn are_made(&self) -> bool {
        !self.keys.is_empty()
    }

    /// A token for `client`, whose first Initial was for `original_dcid` and is answered with `retry_scid`, of up to 20 bytes
    /// each; `now` is Unix time in seconds.
    pub fn mint(
        &self,
        client: SocketAddr,
        original_dcid: &[u8],
        retry_scid: &[u8],
        now: u64,
    ) -> Option<[u8; FILTER_TOKEN_LENGTH]> {
        let key = self.keys.first()?;
        let mut token = [0; FILTER_TOKEN_LENGTH];
        token[0] = FORMAT;
        token[1] = original_dcid.len() as u8;
        token[2..ID].copy_from_slice(&(now as u32).to_be_bytes());
        token[ID..ID + original_dcid.len()].copy_from_slice(original_dcid);
        let mac = key.hash(&text(&token, client, retry_scid));
        token[SIGNED..].copy_from_slice(&mac.to_le_bytes());
        Some(token)
    }

    /// Judges a token of an Initial that came from `client` and was addressed to `dcid`, of up to 20 bytes; `None` if it is not
    /// of this form.
    pub fn verify<'a>(
        &self,
        token: &'a [u8],
        client: SocketAddr,
        dcid: &[u8],
        now: u64,
    ) -> Option<Verdict<'a>> {
        let token: &[u8; FILTER_TOKEN_LENGTH] = token.try_into().ok()?;
        if token[0] != FORMAT || self.keys.is_empty() {
            return None;
        }
        let text = text(token, client, dcid);
        let is_of = |key: &SipKey| boring::memcmp::eq(&key.hash(&text).to_le_bytes(), &token[SIGNED..]);
        let made = u32::from_be_bytes([token[2], token[3], token[4], token[5]]);
        let age = (now as u32).wrapping_sub(made).cast_signed();
        let length = usize::from(token[1]);
        let is_valid =
            length <= MAX_CID_LENGTH && (-SKEW..=LIFETIME).contains(&age) && self.keys.iter().any(is_of);
        Some(if is_valid { Verdict::Valid(&token[ID..ID + length]) } else { Verdict::Invalid })
    }
}

/// What is signed.
fn text(token: &[u8; FILTER_TOKEN_LENGTH], client: SocketAddr, retry_scid: &[u8]) -> [u8; 64] {
    let address = match client.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut text = [0; 64];
    text[..SIGNED].copy_from_slice(&token[..SIGNED]);
    text[26..28].copy_from_slice(&client.port().to_be_bytes());
    text[28..28 + retry_scid.len()].copy_from_slice(retry_scid);
    text[48..].copy_from_slice(&address.octets());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn tokens() -> FilterTokens {
        FilterTokens::new(&[[3; 16], [4; 16]])
    }

    #[test]
    fn a_token_is_good_for_seconds_and_gives_back_the_first_id() {
        let client = "192.0.2.1:5000".parse().unwrap();
        for length in 0..=20u8 {
            let id: Vec<u8> = (1..=length).collect();
            let token = tokens().mint(client, &id, &[7; 8], NOW).unwrap();
            for (now, valid) in
                [(NOW, true), (NOW + 10, true), (NOW + 11, false), (NOW - 5, true), (NOW - 6, false)]
            {
                let verdict = tokens().verify(&token, client, &[7; 8], now).unwrap();
                assert_eq!(verdict, if valid { Verdict::Valid(&id) } else { Verdict::Invalid }, "{now}");
            }
        }
    }

    #[test]
    fn another_address_port_attempt_key_or_bit_is_invalid() {
        let client: SocketAddr = "[2001:db8::1]:5000".parse().unwrap();
        let token = tokens().mint(client, &[1; 8], &[7; 8], NOW).unwrap();
        let verify = |token: &[u8], client: &str, id: &[u8]| {
            let valid =
                matches!(tokens().verify(token, client.parse().unwrap(), id, NOW), Some(Verdict::Valid(_)));
            valid
        };
        assert!(verify(&token, "[2001:db8::1]:5000", &[7; 8]));
        assert!(!verify(&token, "[2001:db8::2]:5000", &[7; 8]));
        assert!(!verify(&token, "[2001:db8::1]:5001", &[7; 8]));
        assert!(!verify(&token, "[2001:db8::1]:5000", &[8; 8]));
        for bit in 0..token.len() * 8 {
            let mut bad = token;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&bad, "[2001:db8::1]:5000", &[7; 8]), "bit {bit}");
        }
        let before = FilterTokens::new(&[[4; 16]]).mint(client, &[1; 8], &[7; 8], NOW).unwrap();
        assert!(verify(&before, "[2001:db8::1]:5000", &[7; 8]), "of the key before");
        let other = FilterTokens::new(&[[5; 16]]).mint(client, &[1; 8], &[7; 8], NOW).unwrap();
        assert!(!verify(&other, "[2001:db8::1]:5000", &[7; 8]));
    }

    #[test]
    fn other_lengths_and_forms_are_not_ours() {
        let client: SocketAddr = "192.0.2.1:5000".parse().unwrap();
        for length in (0..64).filter(|length| *length != FILTER_TOKEN_LENGTH) {
            assert_eq!(tokens().verify(&vec![FORMAT; length], client, &[], NOW), None);
        }
        assert_eq!(tokens().verify(&[0; FILTER_TOKEN_LENGTH], client, &[], NOW), None);
        let all = tokens().verify(&[FORMAT; FILTER_TOKEN_LENGTH], client, &[7; 20], NOW);
        assert_eq!(all, Some(Verdict::Invalid));
        assert_eq!(FilterTokens::default().verify(&[FORMAT; FILTER_TOKEN_LENGTH], client, &[], NOW), None);
    }
}
