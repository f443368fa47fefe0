//! TLS of the running server: from the configuration to certificates, and what has to be done from time to time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use expressway_acme::{Acme, Answers, MAX_NAMES, Plan, Store, Tokens};
use expressway_tls::{ClientAuth, EchKeys, Identity, Lasting, TicketKeys, Tls, TlsError, TlsOptions};
use expressway_web::Handler;
use toml::Spanned;

use super::config::{Certificate, Config};
use super::keys::{self, SharedKeys};
use crate::fail::Failure;

/// How often a file of ticket keys is read again.
const TICKET_FILE: Duration = Duration::from_secs(60);

/// How often certificates are looked at that end soon, and what is soon.
const EXPIRY: Duration = Duration::from_secs(86_400);
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// What stays the same from the start to the end.
#[derive(Clone)]
pub(crate) struct Fixed {
    pub(crate) lasting: Lasting,
    /// Serves until ACME has brought a certificate.
    stopgap: Option<Arc<Identity>>,
    store: Option<Store>,
    tokens: Arc<Tokens>,
    /// Keys that other servers have too.
    pub(crate) keys: Option<Arc<SharedKeys>>,
}

impl Fixed {
    /// Reads the shared keys, and opens the folder of ACME, which is made if it is not there, unless `check`: then nothing is written.
    pub(crate) fn new(config: &Config, check: bool) -> Result<Self, Failure> {
        let lasting = Lasting::new().map_err(Failure::run_time)?;
        let keys = SharedKeys::open(config)?;
        let mut fixed = Self { lasting, stopgap: None, store: None, tokens: Arc::default(), keys };
        let Some(acme) = &config.acme else { return Ok(fixed) };
        let failed = |error| Failure::run_time(format!("[acme] directory: {error}"));
        let stopgap = if check {
            Store::passing_stopgap()
        } else {
            let store = Store::open(&acme.directory).map_err(failed)?;
            fixed.store.insert(store).stopgap()
        };
        fixed.stopgap = Some(Arc::new(stopgap.map_err(failed)?));
        Ok(fixed)
    }

    /// The certificate and key that secrets are derived from.
    pub(crate) fn identity(&self, config: &Config) -> Result<Arc<Identity>, Failure> {
        match config.certificates().first() {
            Some(first) => identity(config, first).map(Arc::new),
            None => self.stopgap.clone().ok_or_else(|| Failure::usage("[acme] takes effect after a restart")),
        }
    }

    /// Starts what obtains certificates, if the configuration says so.
    pub(crate) fn start_acme(&self, config: &Config, tls: &Tls) -> Result<Option<Acme>, Failure> {
        let (Some(store), Some(plan)) = (&self.store, plan(config, tls)) else { return Ok(None) };
        Acme::start(plan, store.clone(), self.lasting.issued.clone(), self.tokens.clone())
            .map(Some)
            .map_err(|error| Failure::run_time(format!("ACME: {error}")))
    }

    /// The handler, behind the answers to challenges if there may be any.
    pub(crate) fn behind_answers(&self, handler: Arc<dyn Handler>) -> Arc<dyn Handler> {
        match &self.store {
            Some(_) => Arc::new(Answers { tokens: self.tokens.clone(), next: handler }),
            None => handler,
        }
    }
}

/// What ACME is to obtain: names that no other certificate has.
pub(crate) fn plan(config: &Config, tls: &Tls) -> Option<Plan> {
    let acme = config.acme.as_ref()?;
    let mut names = config.acme_names();
    names.retain(|name| !tls.has_certificate(name));
    names.dedup();
    if names.len() > MAX_NAMES {
        tracing::warn!("[acme]: {} names; certificates are obtained for the first {MAX_NAMES}", names.len());
        names.truncate(MAX_NAMES);
    }
    Some(Plan {
        names,
        email: acme.email.as_ref().map(|email| email.get_ref().clone()),
        url: acme.url.get_ref().clone(),
        ca: acme.ca.as_ref().map(|ca| ca.get_ref().clone()),
        challenge: acme.challenge.challenge(),
    })
}

fn identity(config: &Config, one: &Certificate) -> Result<Identity, Failure> {
    let ocsp = one.ocsp.as_ref().map(|path| path.get_ref().as_path());
    Identity::load_with(one.certificate.get_ref(), one.private_key.get_ref(), ocsp)
        .map_err(at(config, &one.certificate))
}

/// An error about what a path leads to.
fn at(config: &Config, path: &Spanned<PathBuf>) -> impl FnOnce(TlsError) -> Failure {
    move |error| Failure::usage(config.at(path.span(), error.to_string()))
}

/// Reads all that the configuration names and changes nothing: ticket keys are taken by [`adopt`].
pub(crate) fn build(config: &Config, fixed: &Fixed) -> Result<Tls, Failure> {
    let certificates = config.certificates();
    let identities = certificates.iter().map(|one| identity(config, one).map(Arc::new));
    let mut identities = identities.collect::<Result<Vec<_>, _>>()?;
    let stopgap = identities.is_empty();
    if stopgap {
        identities.extend(fixed.stopgap.clone());
    }
    let tls = &config.tls;
    if let Some(path) = &tls.ticket_keys {
        TicketKeys::check(path.get_ref()).map_err(at(config, path))?;
    }
    let client_auth = match &tls.client_ca {
        Some(path) => {
            ClientAuth::load(tls.client_auth.get_ref().mode(), path.get_ref()).map_err(at(config, path))?
        }
        None => ClientAuth::default(),
    };
    let ech = tls.ech_keys.as_ref().map(|path| EchKeys::load(path.get_ref()).map_err(at(config, path)));
    let options = TlsOptions {
        unknown_name: tls.unknown_name.policy(),
        client_auth,
        ech: ech.transpose()?,
        // A key takes tickets for two rotations.
        session_lifetime: u32::try_from(2 * tls.ticket_rotation.get_ref().0.as_secs()).ok(),
        stopgap,
    };
    Tls::new(identities, options, fixed.lasting.clone()).map_err(Failure::usage)
}

/// Takes the ticket keys that the configuration says.
pub(crate) fn adopt(config: &Config, fixed: &Fixed) -> Result<(), Failure> {
    let tickets = &fixed.lasting.tickets;
    match (&config.tls.ticket_keys, &fixed.keys) {
        (_, Some(shared)) => keys::set_tickets(&shared.document(), tickets),
        (Some(path), None) => {
            tickets.load(path.get_ref()).map_err(at(config, path))?;
        }
        // Those that there are go on until the restart that [keys] takes.
        (None, None) if config.keys.is_some() => {}
        (None, None) => tickets.leave_file().map_err(Failure::run_time)?,
    }
    Ok(())
}

/// What has to be done from time to time.
pub(crate) struct Upkeep {
    file_read: Instant,
    looked: Option<Instant>,
}

impl Upkeep {
    pub(crate) fn new() -> Self {
        Self { file_read: Instant::now(), looked: None }
    }

    /// Rotates ticket keys, or reads their file again, and says which certificates end soon.
    pub(crate) fn turn(&mut self, config: &Config, fixed: &Fixed, tls: &Tls) {
        let now = Instant::now();
        self.follow_tickets(config, fixed, now);
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= EXPIRY) {
            self.looked = Some(now);
            warn_of_expiry(tls);
        }
    }

    fn follow_tickets(&mut self, config: &Config, fixed: &Fixed, now: Instant) {
        let tickets = &fixed.lasting.tickets;
        match &config.tls.ticket_keys {
            // The document rotates them, until a restart at least.
            _ if fixed.keys.is_some() => {}
            Some(path) if now.duration_since(self.file_read) >= TICKET_FILE => {
                self.file_read = now;
                match tickets.load(path.get_ref()) {
                    Ok(true) => tracing::info!(path = %path.get_ref().display(), "new ticket keys"),
                    Ok(false) => {}
                    Err(error) => tracing::warn!("keeping the ticket keys: {error}"),
                }
            }
            Some(_) => {}
            None => match tickets.rotate_if_due(now, config.tls.ticket_rotation.get_ref().0) {
                Ok(true) => tracing::debug!("ticket keys rotated"),
                Ok(false) => {}
                Err(error) => tracing::error!("ticket keys cannot be rotated: {error}"),
            },
        }
    }
}

fn warn_of_expiry(tls: &Tls) {
    let now = SystemTime::now();
    for identity in tls.identities() {
        match identity.not_after().duration_since(now) {
            Ok(left) if left < SOON => {
                let days = left.as_secs() / 86_400;
                tracing::warn!(certificate = identity.label(), days, "the certificate expires soon");
            }
            Ok(_) => {}
            Err(_) => {
                tracing::warn!(
                    certificate = identity.label(),
                    "the certificate is expired: clients will refuse it"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use expressway_keys::{Document, Signer, files};
    use expressway_tls::TicketKey;

    use super::*;

    fn config(tls: &str, keys: &str) -> Config {
        let text = format!(
            "[server]\nlisten = [\"192.0.2.1:443\"]\n[tls]\ncertificate = \"c\"\nprivate_key = \"k\"\n{tls}\n{keys}\n\
             [[site]]\nhosts = [\"a.example\"]\nroot = \"r\"\n"
        );
        Config::parse(Path::new("edge.toml"), text).unwrap()
    }

    #[test]
    fn a_reload_between_a_file_and_shared_keys_leaves_tickets_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (signer, document) = (Signer::random().unwrap(), Document::new(1000).unwrap());
        files::create(&at("shared.keys"), document.signed(&signer).unwrap().as_bytes(), 0o600).unwrap();
        files::create(&at("signer.pub"), &signer.public_pem().unwrap(), 0o644).unwrap();
        files::create(&at("tickets"), &[7; TicketKey::BYTES], 0o600).unwrap();
        let place = folder.path().display();
        let of_file = config(&format!("ticket_keys = \"{place}/tickets\""), "");
        let keys = format!("[keys]\nfile = \"{place}/shared.keys\"\nsigner = \"{place}/signer.pub\"");
        let shared = config("", &keys);
        let later = Instant::now() + 2 * TICKET_FILE;

        let fixed = Fixed::new(&shared, true).unwrap_or_else(|_| panic!("shared"));
        let mut upkeep = Upkeep::new();
        for config in [&shared, &of_file] {
            assert!(adopt(config, &fixed).is_ok());
            upkeep.follow_tickets(config, &fixed, later);
            let of = |keys: &expressway_keys::Keys| TicketKey::from_bytes(&keys.tickets);
            let tickets = &fixed.lasting.tickets;
            assert!(!tickets.set(of(&document.current), Some(of(&document.next)), None));
        }

        let fixed = Fixed::new(&of_file, true).unwrap_or_else(|_| panic!("file"));
        let mut upkeep = Upkeep::new();
        for config in [&of_file, &shared] {
            assert!(adopt(config, &fixed).is_ok());
            upkeep.follow_tickets(config, &fixed, later);
            assert!(!fixed.lasting.tickets.load(&at("tickets")).unwrap());
        }
    }
}
