//! Master keys, and the session keys derived from them (RFC 3711, section 4.3; RFC 7714, section 11).

use aes::Aes128;
use ctr::cipher::{InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper};
use ctr::{CtrCore, flavors::Ctr32BE};
use expressway_settings::named;

/// Octets of a master key of both profiles.
const KEY: usize = 16;

/// What packets are protected by (RFC 4568, section 6.2; RFC 7714, section 14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// AES in counter mode and HMAC-SHA1, of which the tag has 80 bits.
    #[default]
    AesCm128HmacSha1_80,
    /// AES-GCM with a tag of 16 octets.
    AeadAes128Gcm,
}

impl Profile {
    pub(crate) const NAMES: [(&'static str, Self); 2] =
        [("AES_CM_128_HMAC_SHA1_80", Self::AesCm128HmacSha1_80), ("AEAD_AES_128_GCM", Self::AeadAes128Gcm)];

    /// Octets of a master salt.
    const fn salt(self) -> usize {
        match self {
            Self::AesCm128HmacSha1_80 => 14,
            Self::AeadAes128Gcm => 12,
        }
    }

    /// Octets of key and salt together, as they are configured.
    pub const fn material(self) -> usize {
        KEY + self.salt()
    }

    /// Octets of a tag.
    pub const fn tag(self) -> usize {
        match self {
            Self::AesCm128HmacSha1_80 => 10,
            Self::AeadAes128Gcm => 16,
        }
    }
}

named!(Profile);

/// A master key and salt. They are shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// What they are for.
    pub profile: Profile,
    key: [u8; KEY],
    /// Of GCM, with zeros behind.
    salt: [u8; 14],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Keys({:?}, ..)", self.profile)
    }
}

/// What is derived of a master key, by label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Label {
    RtpKey = 0,
    RtpAuthentication = 1,
    RtpSalt = 2,
    RtcpKey = 3,
    RtcpAuthentication = 4,
    RtcpSalt = 5,
}

impl Keys {
    /// The master key.
    pub(crate) const fn key(&self) -> &[u8; KEY] {
        &self.key
    }

    /// Of key and salt, one behind the other; `None`: not as many octets as the profile has.
    pub fn new(profile: Profile, material: &[u8]) -> Option<Self> {
        if material.len() != profile.material() {
            return None;
        }
        let (key, own) = material.split_at(KEY);
        let mut salt = [0; 14];
        salt[..own.len()].copy_from_slice(own);
        Some(Self { profile, key: key.try_into().ok()?, salt })
    }

    /// A session key. Keys are derived once: the rate is 0.
    pub(super) fn derive<const N: usize>(&self, label: Label) -> [u8; N] {
        let mut iv = [0; 16];
        iv[..14].copy_from_slice(&self.salt);
        iv[7] ^= label as u8;
        let mut out = [0; N];
        apply(&Aes128::new(&self.key.into()), &iv, &mut out);
        out
    }
}

/// AES in counter mode (RFC 3711, section 4.1.1). A packet has fewer blocks than the 2^16 that the IV leaves to their number.
pub(crate) fn apply(key: &Aes128, iv: &[u8; 16], octets: &mut [u8]) {
    let core = CtrCore::<_, Ctr32BE>::inner_iv_init(key, iv.into());
    StreamCipherCoreWrapper::from_core(core).apply_keystream(octets);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_keys_of_rfc_3711() {
        // Appendix B.3.
        let material = [
            0xe1, 0xf9, 0x7a, 0x0d, 0x3e, 0x01, 0x8b, 0xe0, 0xd6, 0x4f, 0xa3, 0x2c, 0x06, 0xde, 0x41, 0x39,
            0x0e, 0xc6, 0x75, 0xad, 0x49, 0x8a, 0xfe, 0xeb, 0xb6, 0x96, 0x0b, 0x3a, 0xab, 0xe6,
        ];
        let keys = Keys::new(Profile::AesCm128HmacSha1_80, &material).unwrap();
        let key =
            [0xc6, 0x1e, 0x7a, 0x93, 0x74, 0x4f, 0x39, 0xee, 0x10, 0x73, 0x4a, 0xfe, 0x3f, 0xf7, 0xa0, 0x87];
        assert_eq!(keys.derive::<16>(Label::RtpKey), key);
        let salt = [0x30, 0xcb, 0xbc, 0x08, 0x86, 0x3d, 0x8c, 0x85, 0xd4, 0x9d, 0xb3, 0x4a, 0x9a, 0xe1];
        assert_eq!(keys.derive::<14>(Label::RtpSalt), salt);
        let authentication = [
            0xce, 0xbe, 0x32, 0x1f, 0x6f, 0xf7, 0x71, 0x6b, 0x6f, 0xd4, 0xab, 0x49, 0xaf, 0x25, 0x6a, 0x15,
            0x6d, 0x38, 0xba, 0xa4,
        ];
        assert_eq!(keys.derive::<20>(Label::RtpAuthentication), authentication);
    }

    #[test]
    fn material_has_its_length_and_is_not_shown() {
        for (_, profile) in Profile::NAMES {
            assert!(Keys::new(profile, &vec![0x5a; profile.material() - 1]).is_none());
            assert!(Keys::new(profile, &vec![0x5a; profile.material() + 1]).is_none());
            let keys = Keys::new(profile, &vec![0x5a; profile.material()]).unwrap();
            assert!(!format!("{keys:?}").contains("90"), "{keys:?}");
        }
    }
}
