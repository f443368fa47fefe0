//! The cryptography of WebRTC by BoringSSL, which everything else uses too, so no second library is needed.
//!
//! * [`dtls`]: handshakes (DTLS 1.2, RFC 6347), whose state machine is dimpl's.
//! * [`srtp`]: packets (RFC 3711, RFC 7714).

use std::sync::Arc;

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hmac::Hmac;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use str0m::config::DtlsCert;
use str0m::crypto::{CryptoProvider, Sha1HmacProvider, Sha256Provider};

mod dtls;
mod srtp;

/// Octets of an authentication tag of GCM.
const TAG: usize = 16;

/// What sessions are given.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        srtp_provider: &srtp::Srtp,
        sha1_hmac_provider: &Digests,
        sha256_provider: &Digests,
        dtls_provider: &dtls::Dtls,
    })
}

/// Octets that nobody can guess.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut octets = [0; N];
    boring::rand::rand_bytes(&mut octets).expect("BoringSSL ends the process where the kernel has none");
    octets
}

/// A certificate of its own for this process. Who it is of is said by its fingerprint, which travels in the answer (RFC 8827,
/// section 6.5); names in it mean nothing.
pub(super) fn certificate() -> Result<DtlsCert, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "WebRTC");
    // Firefox takes two certificates of one issuer and number for one.
    let mut serial = random::<16>();
    serial[0] &= 0x7f;
    params.serial_number = Some(serial.to_vec().into());
    let certificate = params.self_signed(&key)?;
    Ok(DtlsCert { certificate: certificate.der().to_vec(), private_key: key.serialize_der() })
}

/// The HMAC of these parts, one after the other.
fn hmac(digest: MessageDigest, key: &[u8], parts: &[&[u8]]) -> Result<Vec<u8>, ErrorStack> {
    let mut hmac = Hmac::init(key, &digest)?;
    parts.iter().try_for_each(|part| hmac.update(part))?;
    hmac.finalize()
}

#[derive(Debug)]
struct Digests;

impl Sha1HmacProvider for Digests {
    fn sha1_hmac(&self, key: &[u8], payloads: &[&[u8]]) -> [u8; 20] {
        let mut out = [0; 20];
        out.copy_from_slice(
            &hmac(MessageDigest::sha1(), key, payloads).expect("memory is all that it takes"),
        );
        out
    }
}

impl Sha256Provider for Digests {
    fn sha256(&self, data: &[u8]) -> [u8; 32] {
        boring::sha::sha256(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_sha1_of_rfc_2202() {
        let (key, text) = (b"Jefe", [&b"what do ya want "[..], &b"for nothing?"[..]]);
        let expected = [
            0xef, 0xfc, 0xdf, 0x6a, 0xe5, 0xeb, 0x2f, 0xa2, 0xd2, 0x74, 0x16, 0xd5, 0xf1, 0x84, 0xdf, 0x9c,
            0x25, 0x9a, 0x7c, 0x79,
        ];
        assert_eq!(Digests.sha1_hmac(key, &text), expected);
    }

    #[test]
    fn certificates_differ() {
        let (one, other) = (certificate().unwrap(), certificate().unwrap());
        assert_ne!(one.certificate, other.certificate);
    }
}
