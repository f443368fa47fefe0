//! `expressway cert`: a development CA and leaf certificates signed by it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use crate::args::Cert;
use crate::fail::Failure;

/// The CA outlives its leaves: ten years.
const CA_DAYS: u64 = 3650;

/// Subject of every CA made here.
const CA_NAME: &str = "Expressway development CA";

/// First line of a CA's key file: its subject is known then.
const CA_MARK: &str = "# Expressway development CA";

/// Certificates start an hour ago, for clients whose clock is behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Makes the files.
pub(crate) fn run(arguments: &Cert) -> Result<ExitCode, Failure> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).map_err(|error| Failure::run_time(format!("{}: {error}", out.display())))?;
    let (ca_file, ca_key_file) = (out.join("ca.pem"), out.join("ca-key.pem"));
    let (ca_pem, issuer) = match read_ca(&ca_file, &ca_key_file)? {
        Some(ca) => ca,
        None => make_ca(&ca_file, &ca_key_file)?,
    };
    let (leaf_file, key_file) = (out.join("cert.pem"), out.join("key.pem"));
    let key = KeyPair::generate().map_err(|error| Failure::run_time(format!("key: {error}")))?;
    let leaf = leaf(&arguments.hosts, arguments.days)?
        .signed_by(&key, &issuer)
        .map_err(|error| Failure::run_time(format!("sign: {error}")))?;
    write(&leaf_file, &(leaf.pem() + &ca_pem), 0o644)?;
    write(&key_file, &key.serialize_pem(), 0o600)?;
    if arguments.json {
        let files = serde_json::json!({ "ca": ca_file, "certificate": leaf_file, "private_key": key_file });
        println!("{files}");
    } else {
        println!("{}\n{}\n{}", ca_file.display(), leaf_file.display(), key_file.display());
    }
    Ok(ExitCode::SUCCESS)
}

type Ca = (String, Issuer<'static, KeyPair>);

fn read_ca(certificate: &Path, key: &Path) -> Result<Option<Ca>, Failure> {
    let read = |path: &Path| match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::run_time(format!("{}: {error}", path.display()))),
    };
    let (Some(pem), Some(key_pem)) = (read(certificate)?, read(key)?) else { return Ok(None) };
    let unusable =
        |why: String| Failure::run_time(format!("{}: {why}; remove it to create a new CA", key.display()));
    if !key_pem.starts_with(CA_MARK) {
        return Err(unusable("not created by `expressway cert`".into()));
    }
    let pair = KeyPair::from_pem(&key_pem).map_err(|error| unusable(error.to_string()))?;
    Ok(Some((pem, Issuer::new(ca_params()?, pair))))
}

fn make_ca(certificate: &Path, key_file: &Path) -> Result<Ca, Failure> {
    let failed = |error: rcgen::Error| Failure::run_time(format!("CA: {error}"));
    let params = ca_params()?;
    let key = KeyPair::generate().map_err(failed)?;
    let ca = params.self_signed(&key).map_err(failed)?;
    write(certificate, &ca.pem(), 0o644)?;
    write(key_file, &format!("{CA_MARK}\n{}", key.serialize_pem()), 0o600)?;
    Ok((ca.pem(), Issuer::new(params, key)))
}

/// The same for every CA made here, so that an issuer can be made anew from its key alone.
fn ca_params() -> Result<CertificateParams, Failure> {
    let mut params =
        CertificateParams::new(Vec::new()).map_err(|error| Failure::run_time(format!("CA: {error}")))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, CA_DAYS);
    Ok(params)
}

fn leaf(hosts: &[String], days: u16) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(hosts.to_vec())
        .map_err(|error| Failure::usage(format!("--host {}: {error}", hosts.join(", "))))?;
    params.distinguished_name.push(DnType::CommonName, hosts[0].clone());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
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
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::run_time(format!("{}: {error}", path.display()));
    let mut temporary = PathBuf::from(path).into_os_string();
    temporary.push(".new");
    let write = || -> std::io::Result<()> {
        let mut file: File =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}
