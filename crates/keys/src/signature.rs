//! Who signs documents, and whose signatures count: Ed25519 keys in PEM, as OpenSSL makes them.

use std::fmt;
use std::path::Path;

use boring::error::ErrorStack;
use boring::pkey::{Id, PKey, Private, Public};
use boring::sign::{Signer as Signing, Verifier};

use expressway_settings::secret::Access;

use crate::store::open;

/// Bytes of a signature (RFC 8032, section 5.1.6).
pub(crate) const SIGNATURE_LENGTH: usize = 64;

/// Public keys at once: that of the signer, and that of who is to take over.
pub const MAX_SIGNERS: usize = 4;

const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";

/// Signs documents.
pub struct Signer {
    key: PKey<Private>,
}

/// The key is not printed.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(..)")
    }
}

impl Signer {
    /// One with a random key.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn random() -> Result<Self, ErrorStack> {
        Ok(Self { key: PKey::generate(Id::ED25519)? })
    }

    /// The one whose private key (PKCS #8, PEM) is in a file that its owner alone may read.
    ///
    /// # Errors
    /// What is wrong, and what to do, without the file's name.
    pub fn read(file: &Path) -> Result<Self, String> {
        let (bytes, mode) = open(file).map_err(|refusal| refusal.to_string())?;
        Access::Owner.check(mode)?;
        let key = PKey::private_key_from_pem(&bytes).ok().filter(|key| key.id() == Id::ED25519);
        let key = key.ok_or(
            "no Ed25519 private key in PEM, as `expressway keys new` and `openssl genpkey -algorithm ed25519` make them",
        )?;
        Ok(Self { key })
    }

    /// Its private key in PEM.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn private_pem(&self) -> Result<Vec<u8>, ErrorStack> {
        self.key.private_key_to_pem_pkcs8()
    }

    /// Its public key in PEM.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn public_pem(&self) -> Result<Vec<u8>, ErrorStack> {
        self.key.public_key_to_pem()
    }

    /// Those whose signatures count, if it is this one alone.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn public(&self) -> Result<Signers, ErrorStack> {
        Ok(Signers { keys: vec![PKey::public_key_from_pem(&self.public_pem()?)?] })
    }

    pub(crate) fn sign(&self, text: &[u8]) -> Result<[u8; SIGNATURE_LENGTH], ErrorStack> {
        let mut signature = [0; SIGNATURE_LENGTH];
        Signing::new_without_digest(&self.key)?.sign_oneshot(&mut signature, text)?;
        Ok(signature)
    }
}

/// Whose signatures count.
pub struct Signers {
    keys: Vec<PKey<Public>>,
}

impl fmt::Debug for Signers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signers({})", self.keys.len())
    }
}

impl Signers {
    /// Those of a file: 1 to [`MAX_SIGNERS`] public keys in PEM, one behind the other.
    ///
    /// # Errors
    /// What is wrong, and what to do, without the file's name.
    pub fn read(file: &Path) -> Result<Self, String> {
        let (bytes, _) = open(file).map_err(|refusal| refusal.to_string())?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Self::NONE.to_owned())?;
        Self::from_pem(text)
    }

    const NONE: &str =
        "no Ed25519 public key in PEM, as `expressway keys new` and `openssl pkey -pubout` write them";

    fn from_pem(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(BEGIN) {
            let end = rest[start..].find(END).ok_or(Self::NONE)? + start + END.len();
            let key = PKey::public_key_from_pem(&rest.as_bytes()[start..end]).ok();
            keys.push(key.filter(|key| key.id() == Id::ED25519).ok_or(Self::NONE)?);
            rest = &rest[end..];
        }
        match keys.len() {
            0 => Err(Self::NONE.to_owned()),
            1..=MAX_SIGNERS => Ok(Self { keys }),
            more => Err(format!("{more} public keys; give 1 to {MAX_SIGNERS}")),
        }
    }

    /// Whether one of them has signed the text.
    pub(crate) fn have_signed(&self, text: &[u8], signature: &[u8; SIGNATURE_LENGTH]) -> bool {
        self.keys.iter().any(|key| {
            Verifier::new_without_digest(key)
                .and_then(|mut verifier| verifier.verify_oneshot(signature, text))
                .unwrap_or(false)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A signer, and its public key as others read it.
    pub(crate) fn pair() -> (Signer, Signers) {
        let signer = Signer::random().unwrap();
        let pem = String::from_utf8(signer.public_pem().unwrap()).unwrap();
        (signer, Signers::from_pem(&pem).unwrap())
    }

    /// A text with its signature behind.
    pub(crate) fn sign_text(signer: &Signer, text: &str) -> String {
        format!(
            "{text}# signature = {}\n",
            data_encoding::HEXLOWER.encode(&signer.sign(text.as_bytes()).unwrap())
        )
    }

    #[test]
    fn several_signers_count() {
        let signers: Vec<Signer> = (0..5).map(|_| Signer::random().unwrap()).collect();
        let pem = |signers: &[Signer]| {
            let one = |signer: &Signer| String::from_utf8(signer.public_pem().unwrap()).unwrap();
            signers.iter().map(one).collect::<String>()
        };
        let two = Signers::from_pem(&pem(&signers[..2])).unwrap();
        let verdict = |signer: &Signer| two.have_signed(b"text", &signer.sign(b"text").unwrap());
        assert_eq!(signers.iter().map(verdict).collect::<Vec<_>>(), [true, true, false, false, false]);
        assert!(!two.have_signed(b"texts", &signers[0].sign(b"text").unwrap()));
        assert!(Signers::from_pem(&pem(&signers)).unwrap_err().contains("5 public keys"));
    }

    #[test]
    fn what_is_no_key_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        let write = |bytes: &[u8], mode| {
            std::fs::write(&file, bytes).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let signer = Signer::random().unwrap();
        let rsa = PKey::generate(Id::X25519).unwrap();
        write(&signer.private_pem().unwrap(), 0o600);
        assert!(Signer::read(&file).is_ok());
        assert!(Signers::read(&file).unwrap_err().contains("no Ed25519 public key"), "a private one");
        write(&signer.private_pem().unwrap(), 0o640);
        assert!(Signer::read(&file).unwrap_err().contains("chmod 600"));
        write(&rsa.private_key_to_pem_pkcs8().unwrap(), 0o600);
        assert!(Signer::read(&file).unwrap_err().contains("no Ed25519 private key"));
        write(&signer.public_pem().unwrap(), 0o644);
        assert!(Signers::read(&file).is_ok());
        for bytes in
            [b"".to_vec(), vec![0xff; 9], BEGIN.as_bytes().to_vec(), rsa.public_key_to_pem().unwrap()]
        {
            write(&bytes, 0o644);
            assert!(Signers::read(&file).unwrap_err().contains("no Ed25519 public key"));
        }
    }
}
