//! The callback by which BoringSSL asks for the key that makes or opens a ticket.

#![allow(unsafe_code)]

use std::sync::Arc;

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hmac::HmacCtxRef;
use boring::ssl::{SslContextBuilder, TicketKeyCallbackResult};
use boring::symm::{Cipher, CipherCtxRef};

use super::{Age, TicketKeys};

/// Has a context make and take tickets with these keys.
pub(crate) fn install(context: &mut SslContextBuilder, keys: Arc<TicketKeys>) {
    let answer = move |_: &_,
                       name: &mut [u8; 16],
                       iv: &mut [u8; 16],
                       cipher: &mut CipherCtxRef,
                       hmac: &mut HmacCtxRef,
                       encrypt| {
        let result =
            if encrypt { make(&keys, name, iv, cipher, hmac) } else { open(&keys, name, iv, cipher, hmac) };
        result.unwrap_or(TicketKeyCallbackResult::Error)
    };
    // SAFETY: when a ticket is made, `make` writes the key's name and 16 random bytes as IV, and sets up both contexts
    // with the same key; when one is opened, `open` sets up both with the key of that name, or says that there is none.
    unsafe { context.set_ticket_key_callback(answer) }
}

fn make(
    keys: &TicketKeys,
    name: &mut [u8; 16],
    iv: &mut [u8; 16],
    cipher: &mut CipherCtxRef,
    hmac: &mut HmacCtxRef,
) -> Result<TicketKeyCallbackResult, ErrorStack> {
    let ring = keys.ring.load();
    *name = ring.current.name;
    boring::rand::rand_bytes(iv)?;
    cipher.init_encrypt(&Cipher::aes_256_cbc(), &ring.current.aes, iv)?;
    hmac.init(&ring.current.hmac, &MessageDigest::sha256())?;
    Ok(TicketKeyCallbackResult::Success)
}

fn open(
    keys: &TicketKeys,
    name: &[u8; 16],
    iv: &[u8; 16],
    cipher: &mut CipherCtxRef,
    hmac: &mut HmacCtxRef,
) -> Result<TicketKeyCallbackResult, ErrorStack> {
    let ring = keys.ring.load();
    let Some((key, age)) = ring.find(name) else { return Ok(TicketKeyCallbackResult::Noop) };
    cipher.init_decrypt(&Cipher::aes_256_cbc(), &key.aes, iv)?;
    hmac.init(&key.hmac, &MessageDigest::sha256())?;
    Ok(match age {
        Age::Fresh => TicketKeyCallbackResult::Success,
        Age::Old => TicketKeyCallbackResult::DecryptSuccessRenew,
    })
}
