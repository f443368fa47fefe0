//! `[acme]`: certificates from an authority.

use std::path::{Path, PathBuf};

use expressway_acme::{Challenge, LETS_ENCRYPT, MAX_NAMES};
use expressway_settings::{ConfigError, named};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Config, is_host};

/// `[acme]`: whom to ask, and for what.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acme {
    /// Whom the authority may write to.
    #[serde(default)]
    pub(crate) email: Option<Spanned<String>>,
    /// Folder of the account and of what was obtained.
    #[serde(default = "Acme::directory")]
    pub(crate) directory: PathBuf,
    /// The authority's directory.
    #[serde(default = "Acme::url")]
    pub(crate) url: Spanned<String>,
    /// PEM file of what signs the authority's own certificate, instead of the system's authorities.
    #[serde(default)]
    pub(crate) ca: Option<Spanned<PathBuf>>,
    /// Names; absent: the hosts of the sites that no other certificate has.
    #[serde(default)]
    pub(crate) names: Option<Spanned<Vec<String>>>,
    /// How the authority checks names.
    #[serde(default)]
    pub(crate) challenge: ChallengeKind,
}

impl Acme {
    fn directory() -> PathBuf {
        "/var/lib/expressway/acme".into()
    }

    fn url() -> Spanned<String> {
        Spanned::new(0..0, LETS_ENCRYPT.to_owned())
    }
}

/// How the authority checks names: `[acme] challenge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChallengeKind {
    /// By TLS on port 443.
    #[default]
    TlsAlpn,
    /// By HTTP on port 80.
    Http,
}

impl ChallengeKind {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 2] =
        [("tls-alpn-01", Self::TlsAlpn), ("http-01", Self::Http)];

    /// As ACME knows it.
    pub(crate) fn challenge(self) -> Challenge {
        match self {
            Self::TlsAlpn => Challenge::TlsAlpn01,
            Self::Http => Challenge::Http01,
        }
    }
}

named!(ChallengeKind);

impl Config {
    /// Names that ACME may be asked for: those of the section, or the hosts of the sites that are no wildcards.
    pub(crate) fn acme_names(&self) -> Vec<String> {
        match self.acme.as_ref().map(|acme| &acme.names) {
            None => Vec::new(),
            Some(Some(names)) => names.get_ref().clone(),
            Some(None) => {
                let hosts = self.sites.iter().flat_map(|site| site.hosts.get_ref());
                hosts.filter(|host| !host.starts_with("*.")).cloned().collect()
            }
        }
    }

    pub(super) fn check_acme(&self) -> Result<(), ConfigError> {
        let Some(acme) = &self.acme else { return Ok(()) };
        if !acme.url.get_ref().starts_with("https://") {
            return Err(self.at(acme.url.span(), "give the https URL of the authority's directory"));
        }
        if let Some(email) = &acme.email
            && (!email.get_ref().contains('@') || email.get_ref().contains(char::is_whitespace))
        {
            return Err(self.at(email.span(), "not an e-mail address"));
        }
        let Some(names) = &acme.names else { return Ok(()) };
        for name in names.get_ref() {
            if name.starts_with("*.") {
                return Err(
                    self.at(names.span(), format!("`{name}`: wildcards need DNS-01, which is not supported"))
                );
            }
            if !is_host(name) {
                return Err(self.at(names.span(), format!("`{name}` is not a host name in lower case")));
            }
        }
        if names.get_ref().is_empty() || names.get_ref().len() > MAX_NAMES {
            return Err(self.at(names.span(), format!("give 1 to {MAX_NAMES} names, or leave the key out")));
        }
        Ok(())
    }

    pub(super) fn resolve_acme_paths(&mut self, base: &Path) {
        let Some(acme) = &mut self.acme else { return };
        acme.directory = base.join(&acme.directory);
        if let Some(ca) = &mut acme.ca {
            *ca.get_mut() = base.join(ca.get_ref());
        }
    }
}
