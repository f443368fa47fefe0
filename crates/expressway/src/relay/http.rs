//! WHIP and WHEP over TCP, on workers of their own.

use std::sync::Arc;
use std::time::Duration;

use expressway_netio::Mailbox;
use expressway_netio::trace::Tracer;
use expressway_relay::Config;
use expressway_relay::service::Message;
use expressway_relay::webrtc::answer::Identity;
use expressway_relay::webrtc::http::{HttpCounters, Whip};
use expressway_relay::webrtc::table::SessionTable;
use expressway_tcp::{Address, Limits, Listen, Listener, Role, Server, Setup, Stats};
use expressway_tls::Tls;
use expressway_web::memory::Memory;

use crate::fail::Failure;

/// Offers are rare and short: one thread reads them all.
const WORKERS: usize = 1;
/// Octets that requests and answers may take together.
const MEMORY: usize = 64 << 20;

/// The listener of WHIP and WHEP, where there is WebRTC.
pub(super) fn bind(config: &Config) -> Result<Option<Listener>, Failure> {
    let Some(webrtc) = &config.webrtc else { return Ok(None) };
    let role = if webrtc.tls.is_some() { Role::Tls(None) } else { Role::Plain };
    let listen = Listen { address: Address::Tcp(webrtc.http), role, proxy: None };
    let listener = Listener::bind(listen, WORKERS, false);
    listener.map(Some).map_err(|error| Failure::run_time(format!("[webrtc] http {}: {error}", webrtc.http)))
}

/// What answers, until it is dropped.
pub(super) struct Http {
    server: Server,
    identity: Arc<Identity>,
    table: Arc<SessionTable>,
    counters: Arc<HttpCounters>,
}

impl Http {
    /// Answers on `listener` for the rooms of these workers.
    pub(super) fn start(
        config: &Config,
        listener: Option<Listener>,
        identity: Arc<Identity>,
        workers: Arc<[Mailbox<Message>]>,
    ) -> Result<Option<Self>, Failure> {
        let (Some(webrtc), Some(listener)) = (&config.webrtc, listener) else { return Ok(None) };
        let (table, counters) = (SessionTable::new(webrtc.limits), Arc::default());
        let Some(setup) = setup(config, &identity, &table, workers, &counters)? else { return Ok(None) };
        let memory = Memory::new(MEMORY);
        let server = Server::start(WORKERS, vec![listener], setup, &memory, |_| Tracer::default())
            .map_err(|error| Failure::run_time(format!("[webrtc] http: {error}")))?;
        Ok(Some(Self { server, identity, table, counters }))
    }

    /// Takes the certificate and the keys of tokens from now on.
    pub(super) fn reload(&self, config: &Config, workers: Arc<[Mailbox<Message>]>) -> Result<(), Failure> {
        if let Some(setup) = setup(config, &self.identity, &self.table, workers, &self.counters)? {
            self.server.reload(setup);
        }
        Ok(())
    }

    /// Counters of TCP workers.
    pub(super) fn stats(&self) -> Vec<Arc<Stats>> {
        self.server.stats()
    }

    /// What came of requests.
    pub(super) fn counters(&self) -> &HttpCounters {
        &self.counters
    }

    /// Sessions that are there.
    pub(super) fn sessions(&self) -> usize {
        self.table.len()
    }
}

fn setup(
    config: &Config,
    identity: &Arc<Identity>,
    table: &Arc<SessionTable>,
    workers: Arc<[Mailbox<Message>]>,
    counters: &Arc<HttpCounters>,
) -> Result<Option<Arc<Setup>>, Failure> {
    let (identity, table, counters) = (Arc::clone(identity), Arc::clone(table), Arc::clone(counters));
    let Some(handler) = Whip::new(config, identity, table, workers, counters) else { return Ok(None) };
    let limits = Limits {
        max_connections: 4096,
        max_requests: 8,
        max_header: 16 << 10,
        request_timeout: Duration::from_secs(10),
        ..Limits::default()
    };
    let failed = |error: &dyn std::fmt::Display| Failure::run_time(format!("[webrtc] certificate: {error}"));
    let mut setup = Setup::plain(Arc::new(handler), limits).map_err(|error| failed(&error))?;
    if let Some((certificate, key)) = config.webrtc.as_ref().and_then(|webrtc| webrtc.tls.as_ref()) {
        let identity = expressway_tls::Identity::load(certificate, key).map_err(|error| failed(&error))?;
        let tls = Tls::single(Arc::new(identity)).map_err(|error| failed(&error))?;
        setup.tls = tls.tcp(expressway_tcp::PROTOCOLS).map_err(|error| failed(&error))?.build();
    }
    Ok(Some(Arc::new(setup)))
}
