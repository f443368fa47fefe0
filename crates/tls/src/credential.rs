//! A certificate chain with its key, in the form of which BoringSSL takes several per connection. The library uses
//! the first that suits the client's signature algorithms, and in TLS 1.2 its ciphers. The `boring` crate covers
//! neither these calls nor the lifetime of sessions.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use boring::error::ErrorStack;
use boring::pkey::{PKey, Private};
use boring::ssl::{SslContextBuilder, SslRef};
use boring::x509::X509;
use boring_sys as ffi;
use foreign_types_shared::ForeignTypeRef;

/// A `SSL_CREDENTIAL` with its own reference, not changed once it is made.
pub(crate) struct Credential(NonNull<ffi::SSL_CREDENTIAL>);

// SAFETY: the reference count is atomic, and nothing else of a complete credential is written to.
unsafe impl Send for Credential {}
// SAFETY: as above.
unsafe impl Sync for Credential {}

impl Drop for Credential {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and given back once.
        unsafe { ffi::SSL_CREDENTIAL_free(self.0.as_ptr()) }
    }
}

/// A `CRYPTO_BUFFER` with its own reference.
struct Buffer(NonNull<ffi::CRYPTO_BUFFER>);

impl Buffer {
    fn new(bytes: &[u8]) -> Result<Self, ErrorStack> {
        // SAFETY: pointer and length are those of a slice, which is copied; without a pool.
        let buffer = unsafe { ffi::CRYPTO_BUFFER_new(bytes.as_ptr(), bytes.len(), ptr::null_mut()) };
        NonNull::new(buffer).map(Self).ok_or_else(ErrorStack::get)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and given back once.
        unsafe { ffi::CRYPTO_BUFFER_free(self.0.as_ptr()) }
    }
}

fn done(result: c_int) -> Result<(), ErrorStack> {
    if result == 1 { Ok(()) } else { Err(ErrorStack::get()) }
}

impl Credential {
    /// The chain, the server's own first, its key, and an OCSP response in DER to staple.
    pub(crate) fn new(chain: &[X509], key: &PKey<Private>, ocsp: Option<&[u8]>) -> Result<Self, ErrorStack> {
        let buffers: Vec<Buffer> = chain
            .iter()
            .map(|certificate| Buffer::new(&certificate.to_der()?))
            .collect::<Result<_, ErrorStack>>()?;
        let pointers: Vec<_> = buffers.iter().map(|buffer| buffer.0.as_ptr()).collect();
        // SAFETY: takes nothing and returns a new reference, or null.
        let credential = unsafe { ffi::SSL_CREDENTIAL_new_x509() };
        let credential = Self(NonNull::new(credential).ok_or_else(ErrorStack::get)?);
        let raw = credential.0.as_ptr();
        // SAFETY: `raw` lives and nobody else has it; the array has as many buffers as is said, whose references the
        // library takes for itself.
        done(unsafe { ffi::SSL_CREDENTIAL_set1_cert_chain(raw, pointers.as_ptr(), pointers.len()) })?;
        // SAFETY: as above; the library takes its own reference of the key.
        done(unsafe { ffi::SSL_CREDENTIAL_set1_private_key(raw, key.as_ptr()) })?;
        if let Some(ocsp) = ocsp {
            let buffer = Buffer::new(ocsp)?;
            // SAFETY: as above; the library takes its own reference of the buffer.
            done(unsafe { ffi::SSL_CREDENTIAL_set1_ocsp_response(raw, buffer.0.as_ptr()) })?;
        }
        Ok(credential)
    }

    /// Gives it to a connection, behind those that it has.
    pub(crate) fn add_to(&self, ssl: &mut SslRef) -> Result<(), ErrorStack> {
        // SAFETY: both live; the library takes its own reference.
        done(unsafe { ffi::SSL_add1_credential(ssl.as_ptr(), self.0.as_ptr()) })
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Credential(..)")
    }
}

/// How long sessions can be resumed, in seconds, and what tickets tell of it.
pub(crate) fn set_session_lifetime(context: &mut SslContextBuilder, seconds: u32) {
    // SAFETY: the context lives and is still being made.
    unsafe {
        ffi::SSL_CTX_set_timeout(context.as_ptr(), seconds);
        ffi::SSL_CTX_set_session_psk_dhe_timeout(context.as_ptr(), seconds);
    }
}
