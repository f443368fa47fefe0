//! The folder in which ACME keeps its account, and a file per name with key and certificates. Files are replaced as
//! a whole, by renaming, and only their owner may read them.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use boring::error::ErrorStack;
use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_tls::{Identity, TlsError};
use instant_acme::AccountCredentials;

/// Octets of a file at most.
const MAX_FILE: u64 = 1 << 20;

/// What serves while there is nothing better.
const STOPGAP: &str = "self-signed.pem";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A key or certificate cannot be made.
    #[error("certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The TLS library refused.
    #[error("TLS: {0}")]
    Library(#[from] ErrorStack),
    /// The account's file is damaged.
    #[error("{}: {source}; remove it to make a new account", path.display())]
    Account {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
}

/// The folder.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

impl Store {
    /// Makes the folder if it is not there, for its owner alone.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| StoreError::File { path: folder.to_owned(), source })?;
        Ok(Self(folder.to_owned()))
    }

    /// A self-signed identity, made once and kept: what the server's secrets are derived from is the same at the next
    /// start.
    ///
    /// # Errors
    /// When the file cannot be written, or holds something else.
    pub fn stopgap(&self) -> Result<Identity, StoreError> {
        let path = self.0.join(STOPGAP);
        if let Some(pem) = optional(&path)? {
            return Ok(Identity::from_pem(&pem, &pem, &path, &path)?);
        }
        let pem = make_stopgap()?;
        write(&path, pem.as_bytes())?;
        Ok(Identity::from_pem(pem.as_bytes(), pem.as_bytes(), &path, &path)?)
    }

    /// Another such identity, which is kept nowhere: for a check of the configuration.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn passing_stopgap() -> Result<Identity, StoreError> {
        let (pem, path) = (make_stopgap()?, Path::new(STOPGAP));
        Ok(Identity::from_pem(pem.as_bytes(), pem.as_bytes(), path, path)?)
    }

    /// The identity of a name, if there is one.
    pub(crate) fn identity(&self, name: &str) -> Result<Option<Identity>, StoreError> {
        let path = self.path(name);
        let Some(pem) = optional(&path)? else { return Ok(None) };
        Ok(Some(Identity::from_pem(&pem, &pem, &path, &path)?))
    }

    /// Keeps what was obtained for a name, and reads it as the next start will.
    pub(crate) fn keep(&self, name: &str, key: &str, chain: &str) -> Result<Identity, StoreError> {
        let (path, pem) = (self.path(name), format!("{key}{chain}"));
        let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes(), &path, &path)?;
        write(&path, pem.as_bytes())?;
        Ok(identity)
    }

    /// The account at an authority, if there is one.
    pub(crate) fn account(&self, url: &str) -> Result<Option<AccountCredentials>, StoreError> {
        let path = self.account_path(url);
        let Some(text) = optional(&path)? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|source| StoreError::Account { path, source })
    }

    pub(crate) fn keep_account(&self, url: &str, account: &AccountCredentials) -> Result<(), StoreError> {
        let path = self.account_path(url);
        let text = serde_json::to_vec(account)
            .map_err(|source| StoreError::Account { path: path.clone(), source })?;
        write(&path, &text)
    }

    /// Names are host names: no slash, no dot in front.
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.cert.pem"))
    }

    /// Each authority has an account of its own.
    fn account_path(&self, url: &str) -> PathBuf {
        let digest = boring::sha::sha256(url.as_bytes());
        self.0.join(format!("account-{}.json", HEX.encode(&digest[..8])))
    }
}

/// Key and certificate, in PEM.
fn make_stopgap() -> Result<String, StoreError> {
    let key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(Vec::new())?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "Expressway: no certificate yet");
    Ok(key.serialize_pem() + &parameters.self_signed(&key)?.pem())
}

/// A file's bytes.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn optional(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match read(path) {
        Err(StoreError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Writes a file under another name and moves it into place.
fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || -> std::io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|source| StoreError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_stopgap_stays_the_same_and_is_the_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("acme");
        let der = || Store::open(&folder).unwrap().stopgap().unwrap().leaf().to_der().unwrap();
        assert_eq!(der(), der());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(STOPGAP))), (0o700, 0o600));
        std::fs::write(folder.join(STOPGAP), "").unwrap();
        let error = Store::open(&folder).unwrap().stopgap().unwrap_err().to_string();
        assert!(error.contains("self-signed.pem: no PEM certificate"), "{error}");
    }

    #[test]
    fn what_was_obtained_is_kept_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert!(store.identity("a.example").unwrap().is_none());
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        store.keep("a.example", &key, &chain).unwrap();
        assert_eq!(store.identity("a.example").unwrap().unwrap().names(), ["a.example"]);
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert!(store.keep("a.example", &other, &chain).is_err(), "a key that does not match");
        assert!(store.identity("a.example").unwrap().is_some(), "what was there is still there");
    }
}
