//! `[tls]`, `[[certificate]]` and `[acme]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use expressway_settings::{ConfigError, Span, named};
use expressway_tls::{ClientAuthMode, UnknownName};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Config, SourceFile};

/// `[tls]`: the default certificate, and what is the same for all.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// PEM file with the leaf first and its chain behind.
    pub(crate) certificate: Option<Spanned<PathBuf>>,
    /// PEM file with the private key.
    pub(crate) private_key: Option<Spanned<PathBuf>>,
    /// OCSP response in DER.
    pub(crate) ocsp: Option<Spanned<PathBuf>>,
    /// Clients that ask for a name which no certificate has.
    pub(crate) unknown_name: Unknown,
    /// File of session ticket keys, for several nodes.
    pub(crate) ticket_keys: Option<Spanned<PathBuf>>,
    /// How often ticket keys are replaced that are not a file's.
    pub(crate) ticket_rotation: Spanned<Span>,
    /// PEM file with the authorities of clients.
    pub(crate) client_ca: Option<Spanned<PathBuf>>,
    /// Whether clients are asked for certificates.
    pub(crate) client_auth: Spanned<ClientAuth>,
    /// Folder of keys for Encrypted Client Hello.
    pub(crate) ech_keys: Option<Spanned<PathBuf>>,
    /// File that TLS secrets are appended to in the SSLKEYLOGFILE format, for debugging.
    pub(crate) keylog: Option<PathBuf>,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            certificate: None,
            private_key: None,
            ocsp: None,
            unknown_name: Unknown::default(),
            ticket_keys: None,
            ticket_rotation: Spanned::new(0..0, Span(Duration::from_secs(12 * 3600))),
            client_ca: None,
            client_auth: Spanned::new(0..0, ClientAuth::default()),
            ech_keys: None,
            keylog: None,
        }
    }
}

/// `[[certificate]]`: one more.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Certificate {
    /// PEM file with the leaf first and its chain behind.
    pub(crate) certificate: Spanned<PathBuf>,
    /// PEM file with the private key.
    pub(crate) private_key: Spanned<PathBuf>,
    /// OCSP response in DER.
    #[serde(default)]
    pub(crate) ocsp: Option<Spanned<PathBuf>>,
}

impl Certificate {
    fn files(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        [&mut self.certificate, &mut self.private_key].into_iter().chain(&mut self.ocsp)
    }
}

/// Whether clients are asked for a certificate: `[tls] client_auth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientAuth {
    /// No.
    #[default]
    None,
    /// Asked; one that is shown must be good.
    Optional,
    /// Without a good one there is no connection.
    Required,
}

impl ClientAuth {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("none", Self::None), ("optional", Self::Optional), ("required", Self::Required)];

    /// As TLS knows it.
    pub(crate) fn mode(self) -> ClientAuthMode {
        match self {
            Self::None => ClientAuthMode::None,
            Self::Optional => ClientAuthMode::Optional,
            Self::Required => ClientAuthMode::Required,
        }
    }
}

/// Clients that ask for a name which no certificate has: `[tls] unknown_name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// They get the default certificate.
    #[default]
    Default,
    /// They are refused.
    Reject,
}

impl Unknown {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 2] =
        [("default", Self::Default), ("reject", Self::Reject)];

    /// As TLS knows it.
    pub(crate) fn policy(self) -> UnknownName {
        match self {
            Self::Default => UnknownName::Default,
            Self::Reject => UnknownName::Reject,
        }
    }
}

named!(ClientAuth);
named!(Unknown);

impl Config {
    /// All certificates, the default first.
    pub(crate) fn certificates(&self) -> Vec<Certificate> {
        let first = self.tls.certificate.clone().zip(self.tls.private_key.clone()).map(
            |(certificate, private_key)| Certificate {
                certificate,
                private_key,
                ocsp: self.tls.ocsp.clone(),
            },
        );
        first.into_iter().chain(self.certificates.iter().cloned()).collect()
    }

    /// What `[tls]` and `[[certificate]]` name: files, and the folder of `ech_keys`.
    pub(crate) fn tls_paths(&self) -> Vec<Spanned<PathBuf>> {
        let mut paths: Vec<_> = self
            .certificates()
            .iter_mut()
            .flat_map(|one| one.files().map(|path| path.clone()).collect::<Vec<_>>())
            .collect();
        let ca = self.acme.as_ref().and_then(|acme| acme.ca.as_ref());
        paths.extend(ca.cloned());
        let others = [&self.tls.ticket_keys, &self.tls.client_ca, &self.tls.ech_keys];
        paths.extend(others.into_iter().flatten().cloned());
        paths
    }

    pub(super) fn check_tls_files(&self) -> Result<(), ConfigError> {
        for path in self.tls_paths() {
            std::fs::File::open(path.get_ref())
                .map_err(|error| self.at(path.span(), format!("{}: {error}", path.get_ref().display())))?;
        }
        Ok(())
    }

    pub(super) fn check_tls(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        match (&tls.certificate, &tls.private_key, &tls.ocsp) {
            (Some(certificate), None, _) => {
                return Err(self.at(certificate.span(), "give private_key too"));
            }
            (None, Some(key), _) => return Err(self.at(key.span(), "give certificate too")),
            (None, None, Some(ocsp)) => {
                return Err(self.at(ocsp.span(), "give certificate and private_key too"));
            }
            _ => {}
        }
        if self.certificates().is_empty() && self.acme.is_none() {
            let problem =
                "no certificate: give certificate and private_key in [tls] or [[certificate]], or [acme]";
            return Err(SourceFile::whole(self.file(), problem));
        }
        let rotation = tls.ticket_rotation.get_ref().0;
        if !(Duration::from_secs(60)..=Duration::from_secs(7 * 86_400)).contains(&rotation) {
            return Err(self.at(tls.ticket_rotation.span(), "give a time between \"1m\" and \"168h\""));
        }
        let asks = *tls.client_auth.get_ref() != ClientAuth::None;
        match &tls.client_ca {
            None if asks => Err(self.at(tls.client_auth.span(), "give client_ca too")),
            Some(authority) if !asks => {
                Err(self.at(authority.span(), "give client_auth = \"optional\" or \"required\" too"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn resolve_tls_paths(&mut self, base: &Path) {
        let join = |path: &mut Spanned<PathBuf>| *path.get_mut() = base.join(path.get_ref());
        let tls = &mut self.tls;
        let files = [&mut tls.certificate, &mut tls.private_key, &mut tls.ocsp, &mut tls.ticket_keys];
        let more = [&mut tls.client_ca, &mut tls.ech_keys];
        files.into_iter().chain(more).flatten().for_each(join);
        self.certificates.iter_mut().flat_map(Certificate::files).for_each(join);
    }
}
