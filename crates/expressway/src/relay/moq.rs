//! Media over QUIC: what the workers' QUIC endpoints have in common.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use expressway_gateway::quic::{Identity, Instance, Settings, Setup, Shared, Tls};
use expressway_metrics::Sample;
use expressway_netio::Mailbox;
use expressway_relay::service::{Message, Status};
use expressway_relay::{Config, moq};
use expressway_web::memory::Memory;

use crate::daemon::lock;
use crate::fail::Failure;
use crate::metrics;

/// The endpoints, and what their sessions are made with.
pub(super) struct Moq {
    pub(super) shared: Arc<Shared>,
    application: Arc<moq::Moq>,
    instance: Instance,
    /// Where what is on its way to peers is counted.
    memory: Arc<Memory>,
    workers: usize,
}

impl Moq {
    /// For so many workers, where there is Media over QUIC.
    pub(super) fn new(config: &Config, status: &Status, workers: usize) -> Result<Option<Self>, Failure> {
        let Some(section) = &config.moq else { return Ok(None) };
        let identity = load(section)?;
        let instance = Instance::of(&identity, None, &section.listen)
            .map_err(|error| Failure::run_time(format!("[moq]: {error}")))?;
        let rooms = lock(status).iter().filter_map(|room| room.moq.clone()).collect::<Vec<_>>();
        let application = moq::Moq::new(rooms, section.access(), section.of_session);
        let setup = setup(section.sessions, identity, &instance, &application)?;
        let memory = Memory::new(section.memory);
        let shared = Shared::with_memory(&setup, workers, Arc::clone(&memory))
            .map_err(|error| Failure::run_time(format!("[moq]: {error}")))?;
        Ok(Some(Self { shared, application, instance, memory, workers }))
    }

    /// Takes the certificate and the keys of tokens for sessions to come.
    pub(super) fn reload(&self, config: &Config, workers: &[Mailbox<Message>]) -> Result<(), Failure> {
        let Some(section) = &config.moq else { return Ok(()) };
        let application = self.application.with_access(section.access());
        let setup = setup(section.sessions, load(section)?, &self.instance, &application)?;
        self.shared.reload(setup).map_err(|error| Failure::run_time(format!("[moq]: {error}")))?;
        for worker in workers {
            // One that is awake sees it by itself.
            let _ = worker.try_send(expressway_gateway::quic::Message::Wake.into());
        }
        Ok(())
    }

    /// Counters of the endpoints.
    pub(super) fn samples(&self, out: &mut Vec<Sample>) {
        for worker in 0..self.workers {
            metrics::quic(&self.shared, worker, out);
        }
        let gauge = |name, help, value: usize| Sample::gauge(name, help, value as u64);
        let memory = &self.memory;
        out.extend([
            gauge(
                "relay_moq_memory_bytes",
                "Bytes in flight to peers, and of peers unread or incomplete, with overhead.",
                memory.total(),
            ),
            gauge("relay_moq_memory_budget_bytes", "Limit of relay_moq_memory_bytes.", memory.budget()),
            gauge("relay_moq_memory_share_bytes", "Bytes one session may hold at present.", memory.share()),
        ]);
        let help = "Sessions refused: unknown room or not authorised.";
        out.push(Sample::counter(
            "relay_moq_refused_session",
            help,
            self.application.refused_session().load(Relaxed),
        ));
    }
}

fn load(section: &expressway_relay::config::Moq) -> Result<Identity, Failure> {
    Identity::load(&section.certificate, &section.private_key)
        .map_err(|error| Failure::run_time(format!("[moq] certificate: {error}")))
}

fn setup(
    sessions: usize,
    identity: Identity,
    instance: &Instance,
    application: &Arc<moq::Moq>,
) -> Result<Arc<Setup>, Failure> {
    let tls = Tls::single(Arc::new(identity))
        .map_err(|error| Failure::run_time(format!("[moq] certificate: {error}")))?;
    let settings =
        Settings { instance: instance.clone(), max_connections: sessions, ..Settings::new(Arc::new(tls)) };
    Ok(Arc::new(Setup { settings, application: Arc::clone(application) as _ }))
}
