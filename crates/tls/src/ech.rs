//! Encrypted Client Hello (RFC 9849). Keys are in PEM files as RFC 9934 describes them, which OpenSSL, nginx and
//! curl use too.
//!
//! A folder has one file per key. A client may use the configuration of any of them. A client with an unknown
//! configuration is told the one from the file whose name sorts last. To rotate a key, add a file with a later name,
//! publish its configuration in DNS, and remove the old file when the old record has expired.

use std::path::Path;

use boring::base64;
use boring::error::ErrorStack;
use boring::hpke::HpkeKey;
use boring::pkey::{Id, PKey};
use boring::ssl::{SslContextBuilder, SslEchKeys};

use crate::error::{TlsError, read};

/// Keys of a folder at most.
pub const MAX_ECH_KEYS: usize = 16;

/// Bytes of a key file at most.
const MAX_FILE: u64 = 64 << 10;

/// ECHConfig's version (RFC 9849, section 4).
const VERSION: u16 = 0xfe0d;

/// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM and ChaCha20Poly1305 (RFC 9180, section 7).
const KEM: u16 = 0x0020;
const KDF: u16 = 0x0001;
const AEADS: [u16; 2] = [0x0001, 0x0003];

const BEGIN: &str = "-----BEGIN ECHCONFIG-----";
const END: &str = "-----END ECHCONFIG-----";

/// Keys for Encrypted Client Hello.
pub struct EchKeys(SslEchKeys);

impl std::fmt::Debug for EchKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EchKeys(..)")
    }
}

impl EchKeys {
    /// Reads the files `*.pem` of a folder.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        let failed = |source| TlsError::Read { path: folder.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "pem") {
                files.push(path);
            }
            if files.len() > MAX_ECH_KEYS {
                return Err(TlsError::content(folder, format!("more than {MAX_ECH_KEYS} files *.pem")));
            }
        }
        files.sort_unstable();
        files.reverse();
        if files.is_empty() {
            return Err(TlsError::content(
                folder,
                "no files *.pem; make one with `expressway cert --ech NAME`",
            ));
        }
        let mut keys = SslEchKeys::builder()?;
        for (index, path) in files.iter().enumerate() {
            let text =
                String::from_utf8(read(path, MAX_FILE)?).map_err(|_| TlsError::content(path, "not PEM"))?;
            let (config, private) = parse(&text).map_err(|problem| TlsError::content(path, problem))?;
            let key = HpkeKey::dhkem_p256_sha256(&private)?;
            keys.add_key(index == 0, &config, key).map_err(|_| {
                TlsError::content(path, "the configuration is not for this key, or not for X25519")
            })?;
        }
        Ok(Self(keys.build()))
    }

    pub(crate) fn install(&self, context: &SslContextBuilder) -> Result<(), ErrorStack> {
        context.set_ech_keys(&self.0)
    }
}

/// The ECHConfig and the private key of a file.
fn parse(text: &str) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    const NO_KEY: &str = "no X25519 private key (\"-----BEGIN PRIVATE KEY-----\")";
    let key = PKey::private_key_from_pem(text.as_bytes()).map_err(|_| NO_KEY)?;
    if key.id() != Id::X25519 {
        return Err(NO_KEY);
    }
    let mut private = [0; 32];
    let private = key.raw_private_key(&mut private).map_err(|_| NO_KEY)?.to_vec();
    let encoded = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let (encoded, _) = encoded.ok_or("no \"-----BEGIN ECHCONFIG-----\"")?;
    let encoded: String = encoded.split_ascii_whitespace().collect();
    const DAMAGED: &str = "the ECHCONFIG is damaged";
    let list = base64::decode_block(&encoded).map_err(|_| DAMAGED)?;
    let one = list
        .split_first_chunk()
        .filter(|(length, rest)| usize::from(u16::from_be_bytes(**length)) == rest.len());
    let (_, config) = one.ok_or(DAMAGED)?;
    let whole = match config {
        [_, _, high, low, rest @ ..] => usize::from(u16::from_be_bytes([*high, *low])) == rest.len(),
        _ => false,
    };
    if !whole {
        return Err("the ECHCONFIG has more than one configuration, or is damaged");
    }
    Ok((config.to_vec(), private))
}

/// Makes a key for clients that shall seem to ask for `public_name`: the PEM file, and the value of `ech=` in an HTTPS
/// record (RFC 9848, section 3).
///
/// # Errors
/// When the name is no host name of at most 254 bytes, or the library fails.
pub fn generate_ech(public_name: &str) -> Result<(String, String), TlsError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let labels = public_name.split('.').all(|label| (1..=63).contains(&label.len()));
    if public_name.len() > 254 || !public_name.bytes().all(allowed) || !labels {
        return Err(TlsError::content(Path::new(public_name), "not a host name"));
    }
    let key = PKey::generate(Id::X25519)?;
    let mut public = [0; 32];
    let public = key.raw_public_key(&mut public)?.to_vec();
    let mut id = [0];
    boring::rand::rand_bytes(&mut id)?;
    let list = base64::encode_block(&config_list(id[0], &public, public_name));
    let pem = key.private_key_to_pem_pkcs8()?;
    let pem = String::from_utf8_lossy(&pem);
    Ok((format!("{pem}{BEGIN}\n{list}\n{END}\n"), list))
}

/// ECHConfigList with one ECHConfig (RFC 9849, section 4).
fn config_list(id: u8, public_key: &[u8], public_name: &str) -> Vec<u8> {
    let long = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        out.extend_from_slice(bytes);
    };
    let mut contents = vec![id];
    contents.extend_from_slice(&KEM.to_be_bytes());
    long(&mut contents, public_key);
    let suites: Vec<u8> =
        AEADS.iter().flat_map(|aead| [KDF.to_be_bytes(), aead.to_be_bytes()].concat()).collect();
    long(&mut contents, &suites);
    // Names are padded to this length: long enough for most.
    contents.push(64);
    contents.push(public_name.len() as u8);
    contents.extend_from_slice(public_name.as_bytes());
    long(&mut contents, &[]);
    let mut config = VERSION.to_be_bytes().to_vec();
    long(&mut config, &contents);
    let mut list = Vec::new();
    long(&mut list, &config);
    list
}
