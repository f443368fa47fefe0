//! The ciphers of SRTP.

use aes::Aes128;
use boring::aead::{AeadCtx, Algorithm};
use boring::error::ErrorStack;
use boring::symm::{self, Cipher};
use ctr::cipher::KeyInit;
use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, SrtpProvider,
    SupportedAeadAes128Gcm, SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};

use super::TAG;
use crate::srtp::keys::apply;

#[derive(Debug)]
pub(super) struct Srtp;

impl SrtpProvider for Srtp {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &Self
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Self
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &Self
    }

    fn srtp_aes_128_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        ecb(Cipher::aes_128_ecb(), key, input, output);
    }

    fn srtp_aes_256_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        ecb(Cipher::aes_256_ecb(), key, input, output);
    }
}

/// One block for the derivation of keys, and the block of padding behind it that its caller has room for.
fn ecb(cipher: Cipher, key: &[u8], input: &[u8], output: &mut [u8]) {
    let blocks = symm::encrypt(cipher, key, None, input).expect("a key of the cipher's length");
    output[..blocks.len()].copy_from_slice(&blocks);
}

impl SupportedAes128CmSha1_80 for Srtp {
    fn create_cipher(&self, key: [u8; 16], _encrypt: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        Box::new(CounterMode::new(key))
    }
}

impl SupportedAeadAes128Gcm for Srtp {
    fn create_cipher(&self, key: [u8; 16], _encrypt: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(Gcm::new(&Algorithm::aes_128_gcm(), &key))
    }
}

impl SupportedAeadAes256Gcm for Srtp {
    fn create_cipher(&self, key: [u8; 32], _encrypt: bool) -> Box<dyn AeadAes256GcmCipher> {
        Box::new(Gcm::new(&Algorithm::aes_256_gcm(), &key))
    }
}

fn failed(error: ErrorStack) -> CryptoError {
    CryptoError::Other(error.to_string())
}

/// AES in counter mode (RFC 3711, section 4.1.1), with the round keys of a session's direction.
///
/// BoringSSL has no safe call that gives a context of counter mode another IV. One for each packet costs more than the packet: its
/// memory, and all round keys.
struct CounterMode(Aes128);

impl CounterMode {
    fn new(key: [u8; 16]) -> Self {
        Self(Aes128::new(&key.into()))
    }
}

impl std::fmt::Debug for CounterMode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("CounterMode(..)")
    }
}

impl Aes128CmSha1_80Cipher for CounterMode {
    fn encrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        let Some(output) = output.get_mut(..input.len()) else {
            return Err(CryptoError::Other("no room for the packet".into()));
        };
        output.copy_from_slice(input);
        apply(&self.0, iv, output);
        Ok(())
    }

    fn decrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        self.encrypt(iv, input, output)
    }
}

/// AES-GCM (RFC 7714).
struct Gcm(AeadCtx);

impl std::fmt::Debug for Gcm {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Gcm(..)")
    }
}

impl Gcm {
    fn new(algorithm: &Algorithm, key: &[u8]) -> Self {
        Self(AeadCtx::new_default_tag(algorithm, key).expect("a key of the algorithm's length"))
    }

    fn seal(
        &mut self,
        iv: &[u8; 12],
        aad: &[u8],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        let (text, tag) = output.split_at_mut(input.len());
        text.copy_from_slice(input);
        self.0.seal_in_place_mut(iv, text, &mut tag[..TAG], aad).map(drop).map_err(failed)
    }

    fn open(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let Some(length) = input.len().checked_sub(TAG) else {
            return Err(CryptoError::Other("shorter than its tag".into()));
        };
        let joined;
        let aad = match aads {
            [one] => *one,
            several => {
                joined = several.concat();
                &joined
            }
        };
        let text = &mut output[..length];
        text.copy_from_slice(&input[..length]);
        self.0.open_in_place_mut(iv, text, &input[length..], aad).map_err(failed)?;
        Ok(length)
    }
}

// The same of both key lengths.
macro_rules! gcm {
    ($($cipher:ident)+) => {$(
        impl $cipher for Gcm {
            fn encrypt(
                &mut self,
                iv: &[u8; 12],
                aad: &[u8],
                input: &[u8],
                output: &mut [u8],
            ) -> Result<(), CryptoError> {
                self.seal(iv, aad, input, output)
            }

            fn decrypt(
                &mut self,
                iv: &[u8; 12],
                aads: &[&[u8]],
                input: &[u8],
                output: &mut [u8],
            ) -> Result<usize, CryptoError> {
                self.open(iv, aads, input, output)
            }
        }
    )+};
}

gcm! { AeadAes128GcmCipher AeadAes256GcmCipher }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_mode_of_rfc_3711() {
        // Appendix B.2: the key stream of the first block, by the encryption of zeros.
        let key =
            [0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c];
        let iv =
            [0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0x00, 0x00];
        let expected =
            [0xe0, 0x3e, 0xad, 0x09, 0x35, 0xc9, 0x5e, 0x80, 0xe1, 0x66, 0xb1, 0x6d, 0xd9, 0x2b, 0x4e, 0xb4];
        let mut out = [0; 16];
        let mut cipher = CounterMode::new(key);
        cipher.encrypt(&iv, &[0; 16], &mut out).unwrap();
        assert_eq!(out, expected);
        // Any other packet, and the first again: nothing of one is left to the next.
        cipher.encrypt(&[1; 16], &[0; 16], &mut out).unwrap();
        assert_ne!(out, expected);
        cipher.decrypt(&iv, &expected, &mut out).unwrap();
        assert_eq!(out, [0; 16]);
        assert!(cipher.encrypt(&iv, &[0; 17], &mut out).is_err(), "no room");
    }

    #[test]
    fn gcm_opens_what_it_sealed_and_nothing_else() {
        let mut gcm = Gcm::new(&Algorithm::aes_128_gcm(), &[7; 16]);
        let (iv, aad) = ([1; 12], [2; 12]);
        let mut sealed = vec![0; 5 + TAG];
        gcm.seal(&iv, &aad, b"media", &mut sealed).unwrap();
        let mut opened = [0; 5];
        assert_eq!(gcm.open(&iv, &[&aad[..4], &aad[4..]], &sealed, &mut opened).unwrap(), 5);
        assert_eq!(&opened, b"media");
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert!(gcm.open(&iv, &[&aad], &changed, &mut opened).is_err(), "octet {index}");
        }
        assert!(gcm.open(&iv, &[&aad], &sealed[..TAG - 1], &mut opened).is_err());
    }
}
