//! The secret that both ends share, and the TLS connection that it authenticates.
//!
//! TLS 1.2 with ECDHE-PSK (RFC 5489) and ChaCha20-Poly1305 (RFC 7905): no certificates, and forward secrecy. An end without
//! the token gets no further than the handshake.

use std::path::Path;

use boring::error::ErrorStack;
use boring::ssl::{SslContext, SslContextBuilder, SslMethod, SslVersion};
use expressway_settings::secret::{self, Access};

use crate::{BenchError, io_error};

/// Shorter ones could be guessed; longer ones do not fit (PSK_MAX_PSK_LEN of BoringSSL's ssl.h).
const LENGTHS: std::ops::RangeInclusive<usize> = 32..=256;

/// Bytes of the file at most, white space included.
const LARGEST: u64 = 4096;

/// The PSK identity of both ends.
const IDENTITY: &[u8] = b"expressway-bench";

/// The shared secret.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// Reads it from a file that nobody but its owner may read. Surrounding white space is ignored.
    ///
    /// # Errors
    /// With the file, when it cannot be read, others may read it, or it is too short or too long.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let what = || format!("token {}", path.display());
        let wrong = |problem: String| BenchError::Missing(format!("{}: {problem}", what()));
        let (text, mode) = secret::read(path, LARGEST).map_err(io_error(what()))?;
        Access::Owner.check(mode).map_err(wrong)?;
        let token = text.trim_ascii();
        if !LENGTHS.contains(&token.len()) {
            let make = "make one with: openssl rand -hex 32";
            return Err(wrong(format!("{} bytes, must be 32 to 256; {make}", token.len())));
        }
        Ok(Self(token.to_vec()))
    }

    pub(super) fn server(&self) -> Result<SslContext, ErrorStack> {
        let mut context = context(SslMethod::tls())?;
        let token = self.0.clone();
        context.set_psk_server_callback(move |_, identity, key| {
            if identity != Some(IDENTITY) {
                return Ok(0);
            }
            Ok(put(&token, key))
        });
        Ok(context.build())
    }

    pub(super) fn client(&self) -> Result<SslContext, ErrorStack> {
        let mut context = context(SslMethod::tls())?;
        let token = self.0.clone();
        context.set_psk_client_callback(move |_, _, identity, key| {
            // With its terminating zero.
            let named = put(IDENTITY, identity);
            if let Some(end) = identity.get_mut(named) {
                *end = 0;
            }
            Ok(put(&token, key))
        });
        Ok(context.build())
    }
}

fn context(method: SslMethod) -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContextBuilder::new(method)?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    // BoringSSL has no external keys in TLS 1.3.
    context.set_max_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_cipher_list("ECDHE-PSK-CHACHA20-POLY1305")?;
    Ok(context)
}

/// Copies to the start of a buffer; gives the length, 0 when it does not fit, which fails the handshake.
fn put(from: &[u8], to: &mut [u8]) -> usize {
    match to.get_mut(..from.len()) {
        Some(place) => {
            place.copy_from_slice(from);
            from.len()
        }
        None => 0,
    }
}

#[cfg(test)]
pub(super) fn of(text: &str) -> Token {
    Token(text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_long_and_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            Token::read(&file).map(|token| token.0).map_err(|error| error.to_string())
        };
        let good = "0123456789abcdef0123456789abcdef";
        assert_eq!(read(&format!("{good}\n"), 0o600).unwrap(), good.as_bytes());
        assert!(read(good, 0o640).unwrap_err().contains("others than its owner (mode 640)"));
        assert!(read("short", 0o600).unwrap_err().contains("5 bytes, must be 32 to 256; make one"));
        assert!(read(&"x".repeat(257), 0o600).is_err());
        let error = Token::read(&folder.path().join("none")).err().unwrap().to_string();
        assert!(error.contains("none: No such file"), "{error}");
    }
}
