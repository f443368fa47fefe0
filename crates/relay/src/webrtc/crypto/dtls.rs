//! DTLS 1.2: dimpl keeps the state of a handshake, and calls BoringSSL for everything that needs keys.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use boring::aead::{AeadCtx, Algorithm};
use boring::bn::BigNumContext;
use boring::derive::Deriver;
use boring::ec::{EcGroup, EcKey, EcPoint, PointConversionForm};
use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::{PKey, Private};
use boring::sha::{Sha256, Sha384};
use boring::sign::{Signer, Verifier};
use boring::symm::{self, Cipher as BlockCipher};
use boring::x509::X509;
use dimpl::crypto::{
    Aad, ActiveKeyExchange, Buf, Cipher, CryptoProvider, Dtls12CipherSuite, Dtls13CipherSuite, HashAlgorithm,
    HashContext, HashProvider, HmacProvider, KeyProvider, NamedGroup, Nonce, SecureRandom,
    SignatureAlgorithm, SignatureVerifier, SigningKey, SupportedDtls12CipherSuite,
    SupportedDtls13CipherSuite, SupportedKxGroup, TmpBuf, check_verify_scheme,
};
use dimpl::{CryptoError, CryptoOperation};
use str0m::config::{DtlsCert, DtlsVersion};
use str0m::crypto::CryptoError as Failure;
use str0m::crypto::dtls::{DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, ProtocolVersion};

use super::TAG;

#[derive(Debug)]
pub(super) struct Dtls;

impl DtlsProvider for Dtls {
    /// Sessions are given that of the process.
    fn generate_certificate(&self) -> Option<DtlsCert> {
        super::certificate().ok()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        _version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, Failure> {
        // Checked once: dimpl tests a provider by keys and signatures.
        static CONFIG: OnceLock<Result<Arc<dimpl::Config>, String>> = OnceLock::new();
        let config = CONFIG.get_or_init(|| {
            // ICE has shown that the peer has its address, which is what cookies are for.
            let builder = dimpl::Config::builder().use_server_cookie(false).with_crypto_provider(provider());
            let builder = mtu.into_iter().fold(builder, |builder, mtu| builder.mtu(mtu));
            builder.build().map(Arc::new).map_err(|error| error.to_string())
        });
        let config = config.as_ref().map_err(|error| Failure::Other(error.clone()))?;
        let certificate = dimpl::DtlsCertificate {
            certificate: certificate.certificate.clone(),
            private_key: certificate.private_key.clone(),
        };
        Ok(Box::new(Handshake(dimpl::Dtls::new_12(Arc::clone(config), certificate, now))))
    }
}

struct Handshake(dimpl::Dtls);

impl std::fmt::Debug for Handshake {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Handshake(..)")
    }
}

impl DtlsInstance for Handshake {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        self.0.poll_output(buffer)
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<(), DtlsImplError> {
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}

/// P-256 and both lengths of AES-GCM, which all of WebRTC speaks (RFC 8827, section 6.5). Keys are exchanged by no other curve: a flight of
/// a handshake is one piece of work, and P-384 takes longer.
fn provider() -> CryptoProvider {
    static SUITES: [&dyn SupportedDtls12CipherSuite; 2] = [&AES_128, &AES_256];
    static SUITES_13: [&dyn SupportedDtls13CipherSuite; 1] = [&Unoffered];
    static GROUPS: [&dyn SupportedKxGroup; 1] = [&P256];
    CryptoProvider {
        kx_groups: &GROUPS,
        signature_verification: &Boring,
        key_provider: &Boring,
        secure_random: &Boring,
        hash_provider: &Boring,
        hmac_provider: &Boring,
        cipher_suites: &SUITES,
        dtls13_cipher_suites: &SUITES_13,
    }
}

fn failed(what: CryptoOperation) -> impl Fn(ErrorStack) -> CryptoError {
    move |_| CryptoError::OperationFailed(what)
}

#[derive(Debug)]
struct Boring;

impl SecureRandom for Boring {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), CryptoError> {
        boring::rand::rand_bytes(buffer).map_err(failed(CryptoOperation::FillRandom))
    }
}

fn digest(hash: HashAlgorithm) -> Option<MessageDigest> {
    match hash {
        HashAlgorithm::SHA256 => Some(MessageDigest::sha256()),
        HashAlgorithm::SHA384 => Some(MessageDigest::sha384()),
        _ => None,
    }
}

/// What was hashed so far.
enum Transcript {
    Sha256(Sha256),
    Sha384(Sha384),
}

impl std::fmt::Debug for Transcript {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Transcript(..)")
    }
}

impl HashContext for Transcript {
    fn update(&mut self, data: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(data),
            Self::Sha384(hash) => hash.update(data),
        }
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        out.clear();
        match self {
            Self::Sha256(hash) => out.extend_from_slice(&hash.clone().finish()),
            Self::Sha384(hash) => out.extend_from_slice(&hash.clone().finish()),
        }
    }
}

impl HashProvider for Boring {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        Box::new(match algorithm {
            HashAlgorithm::SHA384 => Transcript::Sha384(Sha384::new()),
            _ => Transcript::Sha256(Sha256::new()),
        })
    }
}

impl HmacProvider for Boring {
    fn hmac(
        &self,
        hash: HashAlgorithm,
        key: &[u8],
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let digest = digest(hash).ok_or(CryptoError::UnsupportedHmacHash(hash))?;
        let hmac = super::hmac(digest, key, &[data]).map_err(failed(CryptoOperation::ComputeHmac))?;
        out[..hmac.len()].copy_from_slice(&hmac);
        Ok(hmac.len())
    }
}

/// AES-GCM of one key.
struct Gcm(AeadCtx);

impl std::fmt::Debug for Gcm {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Gcm(..)")
    }
}

impl Gcm {
    fn create(algorithm: &Algorithm, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        let context = AeadCtx::new_default_tag(algorithm, key);
        Ok(Box::new(Self(context.map_err(failed(CryptoOperation::CreateCipher))?)))
    }
}

impl Cipher for Gcm {
    fn encrypt(&mut self, text: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let mut tag = [0; TAG];
        let sealed = self.0.seal_in_place_mut(&nonce, text.as_mut(), &mut tag, &aad);
        sealed.map_err(failed(CryptoOperation::Encrypt))?;
        text.extend_from_slice(&tag);
        Ok(())
    }

    fn decrypt(&mut self, text: &mut TmpBuf<'_>, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let too_short = CryptoError::CiphertextTooShort { minimum: TAG as u8, actual: text.len() as u8 };
        let length = text.len().checked_sub(TAG).ok_or(too_short)?;
        let (body, tag) = text.as_mut().split_at_mut(length);
        self.0.open_in_place_mut(&nonce, body, tag, &aad).map_err(failed(CryptoOperation::Decrypt))?;
        text.truncate(length);
        Ok(())
    }
}

/// ECDHE with ECDSA and AES-GCM (RFC 5289), by what its two key lengths differ in.
#[derive(Debug)]
struct Suite {
    name: Dtls12CipherSuite,
    hash: HashAlgorithm,
    key: usize,
    algorithm: fn() -> Algorithm,
}

static AES_128: Suite = Suite {
    name: Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256,
    hash: HashAlgorithm::SHA256,
    key: 16,
    algorithm: Algorithm::aes_128_gcm,
};

static AES_256: Suite = Suite {
    name: Dtls12CipherSuite::ECDHE_ECDSA_AES256_GCM_SHA384,
    hash: HashAlgorithm::SHA384,
    key: 32,
    algorithm: Algorithm::aes_256_gcm,
};

impl SupportedDtls12CipherSuite for Suite {
    fn suite(&self) -> Dtls12CipherSuite {
        self.name
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.hash
    }

    fn key_lengths(&self) -> (usize, usize, usize) {
        (0, self.key, 4)
    }

    fn explicit_nonce_len(&self) -> usize {
        8
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        Gcm::create(&(self.algorithm)(), key)
    }
}

/// DTLS 1.3 is not offered: dimpl wants a suite of it to be there.
#[derive(Debug)]
struct Unoffered;

impl SupportedDtls13CipherSuite for Unoffered {
    fn suite(&self) -> Dtls13CipherSuite {
        Dtls13CipherSuite::AES_128_GCM_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_len(&self) -> usize {
        16
    }

    fn iv_len(&self) -> usize {
        12
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        Gcm::create(&Algorithm::aes_128_gcm(), key)
    }

    /// The mask of a record number (RFC 9147, section 4.2.3).
    fn encrypt_sn(&self, key: &[u8], sample: &[u8; 16]) -> [u8; 16] {
        let blocks = symm::encrypt(BlockCipher::aes_128_ecb(), key, None, sample);
        let mut mask = [0; 16];
        mask.copy_from_slice(&blocks.expect("a key of the cipher's length")[..16]);
        mask
    }
}

/// The curve for the exchange of keys.
#[derive(Debug)]
struct P256;

fn curve() -> Result<EcGroup, ErrorStack> {
    EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)
}

struct KeyShare {
    key: EcKey<Private>,
    public: Vec<u8>,
}

impl std::fmt::Debug for KeyShare {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("KeyShare(..)")
    }
}

impl SupportedKxGroup for P256 {
    fn name(&self) -> NamedGroup {
        NamedGroup::Secp256r1
    }

    fn start_exchange(&self, _: Buf) -> Result<Box<dyn ActiveKeyExchange>, CryptoError> {
        let start = || -> Result<KeyShare, ErrorStack> {
            let group = curve()?;
            let key = EcKey::generate(&group)?;
            let mut context = BigNumContext::new()?;
            let form = PointConversionForm::UNCOMPRESSED;
            let public = key.public_key().to_bytes(&group, form, &mut context)?;
            Ok(KeyShare { key, public })
        };
        Ok(Box::new(start().map_err(failed(CryptoOperation::GenerateEphemeralKey))?))
    }
}

impl ActiveKeyExchange for KeyShare {
    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn complete(self: Box<Self>, peer: &[u8], out: &mut Buf) -> Result<(), CryptoError> {
        let derive = || -> Result<Vec<u8>, ErrorStack> {
            let group = curve()?;
            let mut context = BigNumContext::new()?;
            // Points that are not on the curve are refused.
            let point = EcPoint::from_bytes(&group, peer, &mut context)?;
            let peer = PKey::from_ec_key(EcKey::from_public_key(&group, &point)?)?;
            let own = PKey::from_ec_key(self.key.clone())?;
            let mut deriver = Deriver::new(&own)?;
            deriver.set_peer(&peer)?;
            deriver.derive_to_vec()
        };
        let secret = derive().map_err(|_| CryptoError::InvalidPublicKey(self.group()))?;
        out.clear();
        out.extend_from_slice(&secret);
        Ok(())
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::Secp256r1
    }
}

struct Key(PKey<Private>);

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(..)")
    }
}

impl KeyProvider for Boring {
    fn load_private_key(&self, der: &[u8]) -> Result<Box<dyn SigningKey>, CryptoError> {
        let key = PKey::private_key_from_pkcs8(der).map_err(|_| CryptoError::InvalidPrivateKey)?;
        Ok(Box::new(Key(key)))
    }
}

impl SigningKey for Key {
    fn sign(&mut self, data: &[u8], hash: HashAlgorithm, out: &mut Buf) -> Result<(), CryptoError> {
        let unsupported =
            CryptoError::UnsupportedSignaturePair { signature: SignatureAlgorithm::ECDSA, hash };
        let digest = digest(hash).ok_or(unsupported)?;
        let sign = || -> Result<Vec<u8>, ErrorStack> {
            let mut signer = Signer::new(digest, &self.0)?;
            signer.update(data)?;
            signer.sign_to_vec()
        };
        let signature = sign().map_err(failed(CryptoOperation::Sign))?;
        out.clear();
        out.extend_from_slice(&signature);
        Ok(())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        &[HashAlgorithm::SHA256, HashAlgorithm::SHA384]
    }
}

impl SignatureVerifier for Boring {
    fn verify_signature(
        &self,
        certificate: &[u8],
        data: &[u8],
        signature: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), CryptoError> {
        let certificate = X509::from_der(certificate).map_err(|_| CryptoError::CertificateParseFailed)?;
        let key = certificate.public_key().map_err(|_| CryptoError::InvalidSubjectPublicKey)?;
        let curve = key.ec_key().map_err(|_| CryptoError::UnsupportedPublicKeyAlgorithm)?;
        let group = match curve.group().curve_name() {
            Some(Nid::X9_62_PRIME256V1) => NamedGroup::Secp256r1,
            // dimpl tests a provider by it.
            Some(Nid::SECP384R1) => NamedGroup::Secp384r1,
            _ => return Err(CryptoError::UnsupportedEcCurve),
        };
        check_verify_scheme(algorithm, hash, group)?;
        let refused = CryptoError::SignatureVerificationFailed { signature: algorithm, hash, group };
        let digest = digest(hash).ok_or(CryptoError::UnsupportedHmacHash(hash))?;
        let verify = || -> Result<bool, ErrorStack> {
            let mut verifier = Verifier::new(digest, &key)?;
            verifier.update(data)?;
            verifier.verify(signature)
        };
        if verify().unwrap_or(false) { Ok(()) } else { Err(refused) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By its vectors of hashes, HMAC, signatures, AES-GCM and exchanges of keys.
    #[test]
    fn dimpl_finds_the_provider_right() {
        provider().validate().unwrap();
    }

    #[test]
    fn a_point_off_the_curve_is_refused() {
        let exchange = P256.start_exchange(Buf::new()).unwrap();
        let mut point = exchange.pub_key().to_vec();
        point[64] ^= 1;
        assert!(exchange.complete(&point, &mut Buf::new()).is_err());
    }
}
