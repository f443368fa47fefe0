//! Seals or opens one packet in place. The header of RTP stays in the clear, and so do the first eight bytes of
//! RTCP.

use aes::Aes128;
use boring::aead::{AeadCtx, Algorithm};
use boring::hash::MessageDigest;
use boring::hmac::Hmac;
use boring::memcmp;
use ctr::cipher::KeyInit;

use super::keys::{Keys, Label, Profile, apply};

/// Session keys of RTP or of RTCP.
pub(super) struct Cipher(Kind);

enum Kind {
    Cm { key: Box<Aes128>, authentication: [u8; 20], salt: [u8; 14] },
    Gcm { context: AeadCtx, salt: [u8; 12] },
}

/// What of a packet goes into its nonce and its tag besides its octets.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketIndex<'a> {
    pub(super) ssrc: u32,
    /// Of RTP 48 bits, of RTCP 31.
    pub(super) index: u64,
    /// What stands behind the packet, or is known to both sides, and is authenticated with it.
    pub(super) trailer: &'a [u8],
}

/// BoringSSL has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

impl Cipher {
    pub(super) fn rtp(keys: &Keys) -> Self {
        Self::new(keys, [Label::RtpKey, Label::RtpAuthentication, Label::RtpSalt])
    }

    pub(super) fn rtcp(keys: &Keys) -> Self {
        Self::new(keys, [Label::RtcpKey, Label::RtcpAuthentication, Label::RtcpSalt])
    }

    fn new(keys: &Keys, [key, authentication, salt]: [Label; 3]) -> Self {
        let key: [u8; 16] = keys.derive(key);
        Self(match keys.profile {
            Profile::AesCm128HmacSha1_80 => Kind::Cm {
                key: Box::new(Aes128::new(&key.into())),
                authentication: keys.derive(authentication),
                salt: keys.derive(salt),
            },
            Profile::AeadAes128Gcm => Kind::Gcm {
                context: AeadCtx::new_default_tag(&Algorithm::aes_128_gcm(), &key)
                    .expect("a key of the algorithm's length"),
                salt: keys.derive(salt),
            },
        })
    }

    /// Seals a packet whose first `clear` octets stay, and gives its tag.
    pub(super) fn seal(
        &mut self,
        packet: &mut [u8],
        clear: usize,
        about: PacketIndex<'_>,
        tag: &mut [u8],
    ) -> Result<(), Failed> {
        match &mut self.0 {
            Kind::Cm { key, authentication, salt } => {
                apply(key, &counter(salt, about), &mut packet[clear..]);
                tag.copy_from_slice(&hmac(authentication, packet, about.trailer)?[..tag.len()]);
                Ok(())
            }
            Kind::Gcm { context, salt } => {
                let (head, text) = packet.split_at_mut(clear);
                let sealed = match about.trailer {
                    [] => context.seal_in_place_mut(&nonce(salt, about), text, tag, head),
                    trailer => {
                        context.seal_in_place_mut(&nonce(salt, about), text, tag, &[head, trailer].concat())
                    }
                };
                sealed.map(drop).map_err(|_| Failed)
            }
        }
    }

    /// Opens it. False: it is not what was sealed.
    pub(super) fn open(
        &mut self,
        packet: &mut [u8],
        clear: usize,
        about: PacketIndex<'_>,
        tag: &[u8],
    ) -> bool {
        match &mut self.0 {
            Kind::Cm { key, authentication, salt } => {
                let Ok(expected) = hmac(authentication, packet, about.trailer) else { return false };
                if !memcmp::eq(&expected[..tag.len()], tag) {
                    return false;
                }
                apply(key, &counter(salt, about), &mut packet[clear..]);
                true
            }
            Kind::Gcm { context, salt } => {
                let (head, text) = packet.split_at_mut(clear);
                let nonce = nonce(salt, about);
                match about.trailer {
                    [] => context.open_in_place_mut(&nonce, text, tag, head),
                    trailer => context.open_in_place_mut(&nonce, text, tag, &[head, trailer].concat()),
                }
                .is_ok()
            }
        }
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Cipher(..)")
    }
}

/// RFC 3711, section 4.1.1.
fn counter(salt: &[u8; 14], about: PacketIndex<'_>) -> [u8; 16] {
    let mut iv = [0; 16];
    iv[..14].copy_from_slice(salt);
    xor(&mut iv[4..8], &about.ssrc.to_be_bytes());
    xor(&mut iv[8..14], &about.index.to_be_bytes()[2..]);
    iv
}

/// RFC 7714, sections 8.1 and 9.1: the SSRC, and the index in 48 bits.
fn nonce(salt: &[u8; 12], about: PacketIndex<'_>) -> [u8; 12] {
    let mut nonce = *salt;
    xor(&mut nonce[2..6], &about.ssrc.to_be_bytes());
    xor(&mut nonce[6..], &about.index.to_be_bytes()[2..]);
    nonce
}

fn xor(octets: &mut [u8], with: &[u8]) {
    octets.iter_mut().zip(with).for_each(|(octet, with)| *octet ^= with);
}

fn hmac(key: &[u8; 20], packet: &[u8], trailer: &[u8]) -> Result<Vec<u8>, Failed> {
    let whole = || {
        let mut hmac = Hmac::init(key, &MessageDigest::sha1())?;
        hmac.update(packet)?;
        hmac.update(trailer)?;
        hmac.finalize()
    };
    whole().map_err(|_: boring::error::ErrorStack| Failed)
}
