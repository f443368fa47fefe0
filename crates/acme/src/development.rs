//! Certificates for development: a local authority, whose certificate is given to clients, and the leaf certificates
//! that it signs.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use expressway_tls::{Identity, Validity};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// The authority outlives its leaves: ten years.
const CA_DAYS: u64 = 3650;

/// Subject of every authority made here.
const CA_NAME: &str = "Expressway development CA";

/// First line of an authority's key file: its subject is known then.
const CA_MARK: &str = "# Expressway development CA";

/// Certificates start an hour ago, for clients whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// What is made for this machine itself: its names, its days, and how long before its end it is made anew.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const LOCAL_DAYS: u16 = 90;
const LOCAL_LEFT: Duration = Duration::from_secs(30 * 86_400);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum DevelopmentError {
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The authority's key is not one that was made here, or damaged.
    #[error("{}: {problem}; remove it to create a new CA", path.display())]
    Authority {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A name that no certificate can have.
    #[error("{names}: {source}")]
    Name {
        /// All that were asked for.
        names: String,
        /// What is wrong.
        source: rcgen::Error,
    },
    /// A key or certificate cannot be made.
    #[error("certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// Neither XDG_STATE_HOME nor HOME says where it is to be kept.
    #[error("HOME is not set, so there is nowhere to keep a development certificate")]
    NoHome,
}

/// Where things were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The authority's certificate, for clients.
    pub ca: PathBuf,
    /// The leaf with the authority behind it.
    pub certificate: PathBuf,
    /// The leaf's key.
    pub private_key: PathBuf,
}

impl Files {
    fn of(folder: &Path) -> Self {
        let [ca, certificate, private_key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
        Self { ca, certificate, private_key }
    }
}

/// A leaf for these names in a folder, signed by the authority there, which is made if there is none.
///
/// # Errors
/// Names what cannot be written or is damaged.
pub fn issue(folder: &Path, names: &[String], days: u16) -> Result<Files, DevelopmentError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(|source| DevelopmentError::File { path: folder.to_owned(), source })?;
    let (files, ca_key) = (Files::of(folder), folder.join("ca-key.pem"));
    let (ca_pem, issuer) = match read_ca(&files.ca, &ca_key)? {
        Some(ca) => ca,
        None => make_ca(&files.ca, &ca_key)?,
    };
    let key = KeyPair::generate()?;
    let leaf = leaf(names, days)?.signed_by(&key, &issuer)?;
    write(&files.certificate, &(leaf.pem() + &ca_pem), 0o644)?;
    write(&files.private_key, &key.serialize_pem(), 0o600)?;
    Ok(files)
}

/// A certificate for this machine itself (`localhost`), made once and reused until it ends in a month: in
/// `$XDG_STATE_HOME/expressway`, or else `~/.local/state/expressway`.
///
/// # Errors
/// As [`issue`], and when no folder is known.
pub fn localhost() -> Result<Files, DevelopmentError> {
    let folder = state(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    reuse(&folder.ok_or(DevelopmentError::NoHome)?)
}

fn reuse(folder: &Path) -> Result<Files, DevelopmentError> {
    let files = Files::of(folder);
    if let Ok(identity) = Identity::load(&files.certificate, &files.private_key) {
        let ends = SystemTime::now() + LOCAL_LEFT;
        let named = identity.names().iter().any(|name| name == LOCAL[0]);
        if files.ca.exists() && named && identity.validity() == Validity::Valid && identity.not_after() > ends
        {
            return Ok(files);
        }
    }
    issue(folder, &LOCAL.map(str::to_owned), LOCAL_DAYS)
}

/// Relative paths do not count (XDG Base Directory Specification).
fn state(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let folder = xdg.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".local/state")))?;
    Some(folder.join("expressway"))
}

type Ca = (String, Issuer<'static, KeyPair>);

fn read_ca(certificate: &Path, key: &Path) -> Result<Option<Ca>, DevelopmentError> {
    let read = |path: &Path| match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DevelopmentError::File { path: path.to_owned(), source }),
    };
    let (Some(pem), Some(key_pem)) = (read(certificate)?, read(key)?) else { return Ok(None) };
    let unusable = |problem: String| DevelopmentError::Authority { path: key.to_owned(), problem };
    if !key_pem.starts_with(CA_MARK) {
        return Err(unusable("not created by `expressway cert`".into()));
    }
    let pair = KeyPair::from_pem(&key_pem).map_err(|error| unusable(error.to_string()))?;
    Ok(Some((pem, Issuer::new(ca_params()?, pair))))
}

fn make_ca(certificate: &Path, key_file: &Path) -> Result<Ca, DevelopmentError> {
    let params = ca_params()?;
    let key = KeyPair::generate()?;
    let ca = params.self_signed(&key)?;
    write(certificate, &ca.pem(), 0o644)?;
    write(key_file, &format!("{CA_MARK}\n{}", key.serialize_pem()), 0o600)?;
    Ok((ca.pem(), Issuer::new(params, key)))
}

/// The same for every authority made here, so that an issuer can be made anew from its key alone.
fn ca_params() -> Result<CertificateParams, DevelopmentError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, CA_DAYS);
    Ok(params)
}

fn leaf(names: &[String], days: u16) -> Result<CertificateParams, DevelopmentError> {
    let mut params = CertificateParams::new(names.to_vec())
        .map_err(|source| DevelopmentError::Name { names: names.join(", "), source })?;
    if let Some(first) = names.first() {
        params.distinguished_name.push(DnType::CommonName, first.clone());
    }
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, u64::from(days));
    Ok(params)
}

fn validity(params: &mut CertificateParams, days: u64) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + Duration::from_secs(days * 86_400)).into();
}

/// Writes a file under another name and moves it into place, so that a reload never reads half of it.
///
/// # Errors
/// Names the file.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<(), DevelopmentError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || -> std::io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        DevelopmentError::File { path: path.to_owned(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_for_this_machine_is_reused_while_it_is_good() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("state/expressway");
        let first = reuse(&folder).unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (ca, leaf) = (text(&first.ca), text(&first.certificate));
        assert_eq!(reuse(&folder).unwrap(), first);
        assert_eq!(text(&first.certificate), leaf);
        issue(&folder, &["other.test".to_owned()], 90).unwrap();
        let other = text(&first.certificate);
        assert_eq!(reuse(&folder).unwrap(), first);
        assert_ne!(text(&first.certificate), other, "not for another name");
        issue(&folder, &["localhost".to_owned()], 20).unwrap();
        let ending = text(&first.certificate);
        reuse(&folder).unwrap();
        assert_ne!(text(&first.certificate), ending, "not one that ends soon");
        assert_eq!(text(&first.ca), ca, "the authority stays");
    }

    #[test]
    fn the_folder_is_where_the_desktop_says() {
        let at = |xdg: Option<&str>, home: Option<&str>| state(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(at(Some("/x"), Some("/home/a")), Some("/x/expressway".into()));
        assert_eq!(at(None, Some("/home/a")), Some("/home/a/.local/state/expressway".into()));
        assert_eq!(at(Some("x"), Some("/home/a")), Some("/home/a/.local/state/expressway".into()));
        assert_eq!(at(Some(""), None), None);
    }

    #[test]
    fn a_key_that_was_not_made_here_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        issue(directory.path(), &["a.test".to_owned()], 1).unwrap();
        let key = directory.path().join("ca-key.pem");
        std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let error = issue(directory.path(), &["a.test".to_owned()], 1).unwrap_err().to_string();
        assert!(error.contains("ca-key.pem: not created by `expressway cert`"), "{error}");
        let error = issue(&directory.path().join("new"), &["ä.test".to_owned()], 1).unwrap_err().to_string();
        assert!(error.starts_with("ä.test: "), "{error}");
    }
}
