//! All TLS settings of a server, and the contexts made from them.

use std::sync::Arc;

use boring::ssl::{
    AlpnError, ClientHello, ExtensionType, NameType, SelectCertError, SniError, SslAlert, SslContextBuilder,
    SslMethod, SslMode, SslOptions, SslRef, SslSessionCacheMode, SslVersion,
};

use crate::certificates::Certificates;
use crate::client_auth::ClientAuth;
use crate::credential::set_session_lifetime;
use crate::ech::EchKeys;
use crate::error::TlsError;
use crate::identity::Identity;
use crate::issued::{ACME_TLS_ALPN, Issued};
use crate::ticket::{self, TicketKeys};

/// Key agreement, the best first: with ML-KEM against those who record now and have a quantum computer later. A client's
/// own order counts, so that one that has sent a share of another group is not sent round again.
const GROUPS: &str = "X25519MLKEM768:X25519:P-256:P-384";

/// For TLS 1.2: forward secrecy and authenticated encryption only (RFC 9325, section 4.2).
const CIPHERS: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
                       ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";

/// What becomes of clients that ask for a name which no certificate has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownName {
    /// They get the default certificate.
    #[default]
    Default,
    /// The alert unrecognized_name (RFC 6066, section 3). Clients that name no server get the default certificate.
    Reject,
}

/// What outlives reloads.
#[derive(Clone, Debug)]
pub struct Lasting {
    /// Keys of session tickets.
    pub tickets: Arc<TicketKeys>,
    /// What ACME has obtained, and its challenges.
    pub issued: Arc<Issued>,
}

impl Lasting {
    /// Random ticket keys, and nothing issued.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn new() -> Result<Self, TlsError> {
        Ok(Self { tickets: Arc::new(TicketKeys::random()?), issued: Arc::new(Issued::new()?) })
    }
}

/// What a configuration says.
#[derive(Debug, Default)]
pub struct TlsOptions {
    /// Clients that ask for other names.
    pub unknown_name: UnknownName,
    /// Certificates of clients.
    pub client_auth: ClientAuth,
    /// Encrypted Client Hello.
    pub ech: Option<EchKeys>,
    /// The first identity is a stopgap: whoever would get it as the default gets the first that was issued, once there is
    /// one.
    pub stopgap: bool,
    /// Seconds for which a session can be resumed; tickets of keys that are forgotten earlier cannot.
    pub session_lifetime: Option<u32>,
}

/// All of a server's TLS.
#[derive(Debug)]
pub struct Tls {
    /// At least one.
    certificates: Arc<Certificates>,
    options: TlsOptions,
    lasting: Lasting,
}

impl Tls {
    /// Serves with `identities`, the first of which is the default.
    ///
    /// # Errors
    /// When there is none, or too many.
    pub fn new(
        identities: Vec<Arc<Identity>>,
        options: TlsOptions,
        lasting: Lasting,
    ) -> Result<Self, TlsError> {
        if identities.is_empty() {
            return Err(TlsError::None);
        }
        Ok(Self { certificates: Arc::new(Certificates::new(identities)?), options, lasting })
    }

    /// Serves everybody with one identity.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn single(identity: Arc<Identity>) -> Result<Self, TlsError> {
        Self::new(vec![identity], TlsOptions::default(), Lasting::new()?)
    }

    /// The default identity: the first.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.certificates.all()[0]
    }

    /// Whether the configuration has a certificate for a name.
    pub fn has_certificate(&self, name: &str) -> bool {
        self.certificates.find(name.as_bytes()).is_some()
    }

    /// All identities that are served, those of the configuration first.
    pub fn identities(&self) -> Vec<Arc<Identity>> {
        let issued = self.lasting.issued.certificates();
        self.certificates.all().iter().chain(issued.all()).cloned().collect()
    }

    /// What outlives reloads.
    pub fn lasting(&self) -> &Lasting {
        &self.lasting
    }

    /// A context for QUIC: TLS 1.3 (RFC 9001, section 4.2). The engine sets its protocols and 0-RTT.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn quic(&self) -> Result<SslContextBuilder, TlsError> {
        let mut context = SslContextBuilder::new(SslMethod::tls())?;
        context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
        self.set_up(&mut context)?;
        Ok(context)
    }

    /// A context for TCP: TLS 1.2 and 1.3. `protocols` are those of ALPN, the preferred first, such as `h2` and
    /// `http/1.1`; a client that offers only others is refused (RFC 7301, section 3.2). `acme-tls/1` is added to them
    /// while a challenge waits: a connection that has selected it is to be closed when the handshake is done.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn tcp(&self, protocols: &'static [&'static [u8]]) -> Result<SslContextBuilder, TlsError> {
        let mut context = SslContextBuilder::new(SslMethod::tls())?;
        context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        context.set_cipher_list(CIPHERS)?;
        context.set_options(SslOptions::NO_RENEGOTIATION);
        // A write that found no room is repeated from wherever its octets are by then; idle connections keep no buffers.
        context.set_mode(
            SslMode::AUTO_RETRY
                | SslMode::ACCEPT_MOVING_WRITE_BUFFER
                | SslMode::ENABLE_PARTIAL_WRITE
                | SslMode::RELEASE_BUFFERS,
        );
        // Clients keep their sessions, in tickets; of those without, thousands would be kept here.
        context.set_session_cache_mode(SslSessionCacheMode::OFF);
        self.set_up(&mut context)?;
        let issued = self.lasting.issued.clone();
        context.set_alpn_select_callback(move |ssl, offered| {
            if offers_acme(offered) {
                let name = ssl.servername_raw(NameType::HOST_NAME).unwrap_or_default();
                let waits = issued.challenge(name).is_some();
                return if waits { Ok(&offered[1..]) } else { Err(AlpnError::ALERT_FATAL) };
            }
            protocols
                .iter()
                .find_map(|protocol| list(offered).find(|offer| offer == protocol))
                .ok_or(AlpnError::ALERT_FATAL)
        });
        Ok(context)
    }

    fn set_up(&self, context: &mut SslContextBuilder) -> Result<(), TlsError> {
        context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
        context.set_curves_list(GROUPS)?;
        self.options.client_auth.install(context)?;
        ticket::install(context, self.lasting.tickets.clone());
        if let Some(seconds) = self.options.session_lifetime {
            set_session_lifetime(context, seconds);
        }
        if let Some(ech) = &self.options.ech {
            ech.install(context)?;
        }
        let (certificates, issued) = (self.certificates.clone(), self.lasting.issued.clone());
        let stopgap = self.options.stopgap;
        context.set_select_certificate_callback(move |mut hello| {
            select(&certificates, &issued, stopgap, &mut hello)
        });
        if self.options.unknown_name == UnknownName::Reject {
            let (certificates, issued) = (self.certificates.clone(), self.lasting.issued.clone());
            context.set_servername_callback(move |ssl, alert| {
                let Some(name) = ssl.servername_raw(NameType::HOST_NAME) else { return Ok(()) };
                let known = certificates.find(name).is_some()
                    || issued.certificates().find(name).is_some()
                    || issued.challenge(name).is_some();
                if known {
                    return Ok(());
                }
                *alert = SslAlert::UNRECOGNIZED_NAME;
                Err(SniError::ALERT_FATAL)
            });
        }
        Ok(())
    }
}

/// Gives a connection the certificates for the name that its client asks for.
fn select(
    certificates: &Certificates,
    issued: &Issued,
    stopgap: bool,
    hello: &mut ClientHello<'_>,
) -> Result<(), SelectCertError> {
    let offers = hello.get_extension(ExtensionType::APPLICATION_LAYER_PROTOCOL_NEGOTIATION);
    // The extension begins with the length of the list.
    let acme = offers.and_then(|list| list.get(2..)).is_some_and(offers_acme);
    let ssl = hello.ssl_mut();
    let name = ssl.servername_raw(NameType::HOST_NAME).unwrap_or_default().to_vec();
    if acme {
        let answer = issued.challenge(&name).ok_or(SelectCertError::ERROR)?;
        return add(ssl, &[answer]);
    }
    if let Some(found) = certificates.find(&name) {
        return add(ssl, found);
    }
    let issued = issued.certificates();
    match issued.find(&name) {
        Some(found) => add(ssl, found),
        None if stopgap && !issued.all().is_empty() => add(ssl, issued.default_identities()),
        None => add(ssl, certificates.default_identities()),
    }
}

fn add(ssl: &mut SslRef, identities: &[Arc<Identity>]) -> Result<(), SelectCertError> {
    identities
        .iter()
        .try_for_each(|identity| identity.credential().add_to(ssl))
        .map_err(|_| SelectCertError::ERROR)
}

/// Whether a list of protocols is that of an authority's server: nothing but `acme-tls/1` (RFC 8737, section 4).
fn offers_acme(protocols: &[u8]) -> bool {
    protocols
        .split_first()
        .is_some_and(|(length, rest)| usize::from(*length) == rest.len() && rest == ACME_TLS_ALPN)
}

/// The protocols of a list whose entries have their length in front; ends where it is damaged.
fn list(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first()?;
        let (protocol, behind) = behind.split_at_checked(usize::from(*length))?;
        rest = behind;
        Some(protocol)
    })
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
