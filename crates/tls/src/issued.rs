//! Identities that come and go without a reload: certificates from ACME, and those that answer its TLS-ALPN-01
//! challenges (RFC 8737).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::certificates::{Certificates, MAX_CERTIFICATES};
use crate::error::TlsError;
use crate::identity::Identity;

/// The protocol that a server of an authority offers to be shown the answer to a challenge (RFC 8737, section 4).
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// Identities that come and go while a server runs. Lookups take no lock.
#[derive(Debug)]
pub struct Issued {
    certificates: ArcSwap<Certificates>,
    challenges: ArcSwap<HashMap<String, Arc<Identity>>>,
    /// Held by whoever changes something.
    writer: Mutex<()>,
}

impl Issued {
    /// Nothing yet.
    ///
    /// # Errors
    /// None that can come up.
    pub(crate) fn new() -> Result<Self, TlsError> {
        Ok(Self {
            certificates: ArcSwap::from_pointee(Certificates::new(Vec::new())?),
            challenges: ArcSwap::default(),
            writer: Mutex::new(()),
        })
    }

    /// Serves these from now on, in place of those before.
    ///
    /// # Errors
    /// [`TlsError::TooMany`].
    pub fn replace(&self, identities: Vec<Arc<Identity>>) -> Result<(), TlsError> {
        let certificates = Arc::new(Certificates::new(identities)?);
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.certificates.store(certificates);
        Ok(())
    }

    /// Those that are served.
    pub fn certificates(&self) -> Arc<Certificates> {
        self.certificates.load_full()
    }

    /// Answers the challenge for a name with this identity, or, with `None`, no more.
    ///
    /// # Errors
    /// [`TlsError::TooMany`].
    pub fn set_challenge(&self, name: &str, identity: Option<Arc<Identity>>) -> Result<(), TlsError> {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut challenges = HashMap::clone(&self.challenges.load());
        match identity {
            Some(_) if challenges.len() >= MAX_CERTIFICATES => return Err(TlsError::TooMany),
            Some(identity) => challenges.insert(name.to_ascii_lowercase(), identity),
            None => challenges.remove(&name.to_ascii_lowercase()),
        };
        self.challenges.store(Arc::new(challenges));
        Ok(())
    }

    /// What answers the challenge for a name.
    pub(crate) fn challenge(&self, name: &[u8]) -> Option<Arc<Identity>> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        self.challenges.load().get(&name).cloned()
    }
}
