//! The running server: workers on their cores, reload, drain, and the end.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use expressway_acme::Acme;
use expressway_cache::Cache;
use expressway_dataplane::{DataPath, Provider, WorkerIo};
use expressway_gateway::Http3;
use expressway_gateway::admin::{self, Admin};
use expressway_gateway::otlp::Exporter;
use expressway_gateway::quic::{Endpoint, Message, Setup, Shared};
use expressway_metrics::Registry;
use expressway_netio::trace::Tracers;
use expressway_netio::worker::{Worker, WorkerOptions};
use expressway_netio::{Inbox, Mailbox, PacketIo, mailbox};
use expressway_origin::Origins;
use expressway_tcp::Listener;
use expressway_tls::Tls;
use expressway_web::access_log::AccessLog;
use expressway_web::files::FileStore;

use super::config::Config;
use super::confine::Confinement;
use super::events::{Event, follow_signals};
use super::keys;
use super::logs::{Logs, Previous};
use super::setup::Reloadable;
use super::status::Status;
use super::tls::{self, Fixed, Upkeep};
use super::upgrade::attempt::UpgradeState;
use super::upgrade::generation::Generation;
use super::upgrade::handover::Step;
use super::upgrade::inheritance::Inheritance;
use super::upgrade::launcher::Launcher;
use super::{load, metrics, setup, tcp, upgrade};
use crate::args::Serve;
use crate::cores;
use crate::daemon;
use crate::fail::Failure;
use crate::notify;

/// Messages that may wait for a worker: datagrams of other queues and wake-ups.
const MAILBOX: usize = 4096;

/// How often the main thread looks after the data path.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// The same while it stops.
const ENDING: Duration = Duration::from_millis(50);

/// What workers have beyond the drain deadline to send their last packets.
const DRAIN_GRACE: Duration = Duration::from_secs(3);

/// All of a running server.
pub(crate) struct Server {
    arguments: Serve,
    pub(super) config: Config,
    files: Arc<FileStore>,
    origins: Arc<Origins>,
    pub(super) cache: Option<Cache>,
    pub(super) shared: Arc<Shared>,
    pub(super) setup: Arc<Setup>,
    http: Arc<Http3>,
    pub(super) mailboxes: Arc<[Mailbox<Message>]>,
    path: Arc<Mutex<DataPath>>,
    pub(super) status: Arc<Status>,
    pub(super) succession: UpgradeState,
    /// The access log in use, for the metrics page.
    log: Arc<ArcSwapOption<AccessLog>>,
    /// The TLS in use.
    tls: Arc<ArcSwap<Tls>>,
    upkeep: Upkeep,
    fixed: Fixed,
    pub(super) acme: Option<Acme>,
    logs: Logs,
    tcp: Option<expressway_tcp::Server>,
    events: Receiver<Event>,
    threads: Vec<JoinHandle<()>>,
    alive: usize,
    failure: Option<Failure>,
    /// It ends because another process has taken over.
    pub(super) is_retiring: bool,
    /// While stopping: workers that have not ended by then never will, as on an interface that takes no
    /// packets.
    give_up: Instant,
    pub(super) admin: Option<Admin>,
    /// Pushes metrics, until another process has taken over.
    exporter: Option<Exporter>,
}

/// What was bound, or taken from the process before, while the process was still privileged.
pub(crate) struct Sockets {
    pub(crate) tcp: Vec<Listener>,
    pub(crate) admin: Option<admin::Listener>,
    pub(crate) udp: Option<Vec<Vec<OwnedFd>>>,
    pub(crate) launcher: Option<Launcher>,
}

impl Server {
    /// Opens the data path, starts that many workers and says `ready`.
    pub(crate) fn start(
        arguments: Serve,
        config: Config,
        (provider, confinement): (Provider, Option<Confinement>),
        workers: usize,
        (files, origins, cache, logs): (Arc<FileStore>, Arc<Origins>, Option<Cache>, Logs),
        (fixed, mut parts, sockets): (Fixed, Reloadable, Sockets),
        mut inheritance: Inheritance,
    ) -> Result<Self, Failure> {
        let (sender, events) = channel();
        follow_signals(sender.clone())?;
        let Sockets { tcp: listeners, admin, udp, launcher } = sockets;
        inheritance.step(Step::Built)?;
        let sockets = expressway_dataplane::Handover { sockets: udp, hands_on: true };
        let (path, ios) =
            DataPath::open_with_handover(setup::data_path(&config), provider, workers, &sockets)?;
        drop(sockets);
        let elders = inheritance.elders()?;
        let generations = upgrade::inheritance::generations(inheritance.generation, &elders)?;
        let mut succession = UpgradeState::new(inheritance.generation, elders, launcher, sender.clone());
        let cores = cores::cores(path.localities());
        let tcp_setup = Arc::clone(&parts.tcp);
        origins.adopt(std::mem::take(&mut parts.origins));
        let (setup, http) = assemble(parts, path.mode().to_string().into());
        let shared = Shared::of_generation(&setup, workers, files.memory().clone(), generations)
            .map_err(Failure::run_time)?;
        let path = Arc::new(Mutex::new(path));
        // Workers of TCP are behind those of packets.
        let tcp_workers = if listeners.is_empty() { 0 } else { tcp::workers(&config, workers) };
        let tracers = Tracers::new(workers + tcp_workers);
        let status = Arc::new(Status {
            state: Mutex::new(Ok(())),
            configuration: Mutex::new(config.text().to_owned()),
            path: path.clone(),
            cache: cache.clone(),
            tracers: tracers.clone(),
            shared: shared.clone(),
            kept: Mutex::new(setup::kept(&config)),
            generation: Generation::new(&succession),
            events: sender.clone(),
        });
        let registry = Registry::with_summary(crate::metrics::drops);
        let log = Arc::new(ArcSwapOption::new(http.access_log.clone()));
        metrics::register(&registry, &shared, &files, &path, &log, workers);
        let tls = Arc::new(ArcSwap::new(setup.settings.tls.clone()));
        metrics::register_tls(&registry, tls.clone());
        if let Some(keys) = &fixed.keys {
            keys.register(&registry);
        }
        metrics::register_origins(&registry, &origins);
        metrics::register_cache(&registry, cache.as_ref());
        status.generation.register(&registry);
        metrics::register_confinement(&registry, confinement.unwrap_or_default());
        let (mailboxes, inboxes) = mailboxes(workers)?;
        succession.keep(&listeners, admin.as_ref())?;
        inheritance.step(Step::Opened)?;
        let acme = fixed.start_acme(&config, &tls.load())?;
        let mut server = Self {
            arguments,
            files,
            origins,
            cache,
            shared,
            setup,
            http,
            mailboxes,
            path,
            status,
            succession,
            log,
            tls,
            upkeep: Upkeep::new(),
            acme,
            fixed,
            logs,
            tcp: None,
            events,
            threads: Vec::new(),
            alive: 0,
            failure: None,
            is_retiring: false,
            give_up: Instant::now(),
            admin: None,
            exporter: None,
            config,
        };
        for ((index, io), inbox) in ios.into_iter().enumerate().zip(inboxes) {
            let core = server.config.server.pin.then(|| cores[index % cores.len()]);
            let wait = server.config.io.config().wait;
            let options = WorkerOptions { index, core, wait, ..WorkerOptions::default() };
            match io {
                WorkerIo::Kernel(io) => server.spawn(options, *io, inbox, &sender, &registry)?,
                WorkerIo::Xsk(io) => server.spawn(options, *io, inbox, &sender, &registry)?,
            }
        }
        let addresses: Vec<String> =
            listeners.iter().map(|listener| listener.address().to_string()).collect();
        if !listeners.is_empty() {
            let tracer = |number| tracers.tracer(workers + number);
            let memory = server.files.memory();
            let tcp = expressway_tcp::Server::start(tcp_workers, listeners, tcp_setup, memory, tracer)
                .map_err(|error| Failure::run_time(format!("TCP workers: {error}")))?;
            crate::metrics::register_tcp(&registry, tcp.stats());
            server.tcp = Some(tcp);
        }
        if let Some(options) = setup::otlp(&server.config)? {
            let exporter = Exporter::start(options, registry.clone());
            let failed = |error| Failure::run_time(format!("[otlp]: {error}"));
            server.exporter = Some(exporter.map_err(failed)?);
        }
        if let (Some(section), Some(listener)) = (&server.config.admin, admin) {
            let status = server.status.clone();
            server.admin = Some(daemon::serve(listener, section, registry, status, daemon::OF_FILE)?);
        }
        let modes = server.lock_path().modes();
        let lines: String = modes
            .iter()
            .map(|(address, mode)| format!("ready listen={address} io={mode} workers={workers}\n"))
            .chain(addresses.iter().map(|address| format!("ready tcp={address} workers={tcp_workers}\n")))
            .collect();
        crate::print(&lines)?;
        match inheritance.is_first() {
            true => notify::say("READY=1"),
            // The process before says it, which the manager knows.
            false => {
                inheritance.ready();
                if let Some(admin) = &mut server.admin {
                    admin.take_name();
                }
            }
        }
        Ok(server)
    }

    fn spawn<P: PacketIo + Send + 'static>(
        &mut self,
        options: WorkerOptions,
        io: P,
        inbox: Inbox<Message>,
        events: &Sender<Event>,
        registry: &Registry,
    ) -> Result<(), Failure> {
        let index = options.index;
        let mut endpoint = Endpoint::new(index, self.shared.clone(), self.mailboxes[index].clone())
            .map_err(Failure::run_time)?;
        let tracer = self.status.tracers.tracer(index);
        endpoint.set_tracer(tracer.clone());
        let mut worker = Worker::new(options, Instant::now(), endpoint, io, inbox, self.mailboxes.clone());
        worker.set_tracer(tracer);
        crate::metrics::register_worker(registry, index, worker.stats_cell());
        let end = WorkerEnd { index, events: events.clone(), result: None };
        let run = move || {
            let mut end = end;
            end.result = Some(worker.run());
        };
        let thread = std::thread::Builder::new()
            .name(format!("expressway-{index}"))
            .spawn(run)
            .map_err(|error| Failure::run_time(format!("worker {index}: {error}")))?;
        self.threads.push(thread);
        self.alive += 1;
        Ok(())
    }

    /// Follows events until the last worker has ended.
    pub(crate) fn run(mut self) -> Result<ExitCode, Failure> {
        let mut stopping = false;
        while self.alive > 0 || self.tcp.is_some() {
            if stopping && Instant::now() > self.give_up {
                if self.alive == 0 {
                    break;
                }
                return Err(Failure::run_time(format!(
                    "{} workers did not finish before the drain deadline; their connections were closed",
                    self.alive
                )));
            }
            let pause = if stopping || self.succession.is_busy() { ENDING } else { MAINTENANCE };
            match self.events.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {
                    self.settle_upgrade();
                    self.follow_tcp(&mut stopping);
                    self.lock_path().maintain();
                    self.shared.collect();
                    self.upkeep.turn(&self.config, &self.fixed, &self.tls.load());
                    self.follow_keys(false);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Reload) if stopping => tracing::warn!("reload: ignored while stopping"),
                Ok(Event::Reload) => self.reload(),
                Ok(Event::Upgrade(report)) => self.upgrade(report, stopping),
                Ok(Event::Next { attempt, step }) => self.follow_next(attempt, step, &mut stopping),
                Ok(Event::Launcher(told)) => self.follow_launcher(told),
                Ok(Event::Orphaned { attempt }) => self.follow_orphaned(attempt),
                Ok(Event::Stop) if self.is_retiring => self.drain("stopping"),
                Ok(Event::Stop) if stopping => {
                    return Err(Failure::run_time("stopped by a second signal; connections were closed"));
                }
                Ok(Event::Stop) => {
                    stopping = true;
                    notify::say("STOPPING=1");
                    self.drain("stopping");
                }
                Ok(Event::WorkerEnded { worker, result }) => self.worker_ended(worker, result, &mut stopping),
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.lock_path().finish();
        let Self { logs, failure, shared, setup, http, log, admin, exporter, status, .. } = self;
        // The last who have a log, now that the workers have gone; the metrics of the admin listener and the exporter are others.
        drop((shared, setup, http, log.swap(None), admin, exporter, status));
        logs.finish();
        match failure {
            Some(failure) => Err(failure),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    /// A worker that fails takes the server down in order: its connections are gone, and the kernel would go
    /// on steering packets to its socket.
    fn worker_ended(
        &mut self,
        worker: usize,
        result: Option<Result<(), expressway_netio::IoError>>,
        stopping: &mut bool,
    ) {
        self.alive -= 1;
        let problem = match result {
            Some(Ok(())) if *stopping => return,
            Some(Ok(())) => "ended".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => "panicked".to_owned(),
        };
        let problem = format!("worker {worker}: {problem}");
        tracing::error!("{problem}; the server stops");
        self.failure.get_or_insert_with(|| Failure::run_time(&problem));
        if !*stopping {
            *stopping = true;
            self.drain(&problem);
        }
    }

    /// Notices when the workers of TCP have ended. One that fails takes the server down in order, as above.
    fn follow_tcp(&mut self, stopping: &mut bool) {
        let Some(tcp) = self.tcp.take_if(|tcp| tcp.has_ended(*stopping)) else { return };
        let result = if *stopping { tcp.join() } else { tcp.abort() };
        let problem = match result {
            Ok(()) if *stopping => return,
            Ok(()) => "ended".to_owned(),
            Err(error) => error.to_string(),
        };
        let problem = format!("TCP worker: {problem}");
        tracing::error!("{problem}; the server stops");
        self.failure.get_or_insert_with(|| Failure::run_time(&problem));
        if !*stopping {
            *stopping = true;
            self.drain(&problem);
        }
    }

    /// Has the workers finish what is open, at their clients' leisure: another process has what is new.
    pub(super) fn retire_until(&mut self, deadline: Instant) {
        self.is_retiring = true;
        // The next process pushes under the same name.
        drop(self.exporter.take());
        self.give_up = deadline + DRAIN_GRACE;
        if let Some(tcp) = &self.tcp {
            tcp.retire(deadline);
        }
        self.tell(deadline, || Message::Retire { deadline });
    }

    /// Ends in order because of this, and fails.
    pub(super) fn fail(&mut self, problem: &str) {
        self.failure.get_or_insert_with(|| Failure::run_time(problem));
        self.drain(problem);
    }

    fn tell(&self, until: Instant, message: impl Fn() -> Message) {
        for mailbox in self.mailboxes.iter() {
            // A full mailbox empties within a turn of its worker.
            if mailbox.send_until(message(), until).is_err() {
                tracing::debug!("a worker has already exited");
            }
        }
    }

    /// Tells the workers to finish what is open.
    fn drain(&mut self, why: &str) {
        self.is_retiring = false;
        // Nobody comes after this process, and as long as it holds listeners the kernel accepts for them.
        self.fail_upgrade(why.to_owned());
        (self.succession.tcp, self.succession.admin) = (Vec::new(), None);
        tracing::info!(limit = ?self.config.server.drain.0, "{why}: draining open connections");
        *self.status.state.lock().unwrap_or_else(PoisonError::into_inner) = Err(why.to_owned());
        let deadline = Instant::now() + self.config.server.drain.0;
        self.give_up = deadline + DRAIN_GRACE;
        if let Some(tcp) = &self.tcp {
            tcp.drain(deadline);
        }
        self.tell(deadline, || Message::Drain { deadline });
    }

    /// Reads the configuration again. Anything wrong leaves everything as it was.
    fn reload(&mut self) {
        if let Some(admin) = &self.admin {
            admin.reload();
        }
        self.follow_keys(true);
        match self.try_reload() {
            Ok(()) => tracing::info!("reload: done"),
            Err(failure) => tracing::error!("reload failed, keeping the old configuration: {failure}"),
        }
    }

    /// Takes another document of shared keys, if there is one: all of its keys at once. Sockets, connections and the rest of the
    /// configuration stay as they are.
    fn follow_keys(&self, is_asked: bool) {
        let Some(document) = self.fixed.keys.as_ref().and_then(|keys| keys.follow(is_asked)) else { return };
        keys::set_tickets(&document, &self.fixed.lasting.tickets);
        match keys::retry(&document) {
            Ok(keys) => self.shared.set_retry_keys(keys),
            Err(failure) => tracing::error!("keeping the keys of Retry tokens: {failure}"),
        }
        if self.config.shares_routable() {
            match self.config.routable(Some(&document)) {
                Ok(routable) => self.shared.set_routable(routable),
                Err((_, problem)) => tracing::error!("keeping the key of connection IDs: {problem}"),
            }
            for mailbox in self.mailboxes.iter() {
                // A worker whose mailbox is full is awake.
                let _ = mailbox.try_send(Message::Wake);
            }
        }
    }

    fn try_reload(&mut self) -> Result<(), Failure> {
        let config = load(&self.arguments)?;
        let previous = Previous { log: self.config.log.clone(), access_log: self.http.access_log.clone() };
        let mut parts = setup::build(
            &config,
            &self.fixed,
            &self.files,
            (&self.origins, self.cache.as_ref()),
            &mut self.logs,
            Some(&previous),
        )?;
        let tcp = Arc::clone(&parts.tcp);
        let origins = std::mem::take(&mut parts.origins);
        let (setup, http) = assemble(parts, Arc::clone(&self.http.io_mode));
        self.shared.reload(setup.clone()).map_err(Failure::run_time)?;
        self.origins.adopt(origins);
        self.tls.store(setup.settings.tls.clone());
        if let Err(failure) = tls::adopt(&config, &self.fixed) {
            tracing::warn!("reload: keeping the ticket keys: {failure}");
        }
        for mailbox in self.mailboxes.iter() {
            // A worker whose mailbox is full is awake.
            let _ = mailbox.try_send(Message::Wake);
        }
        if let Some(running) = &self.tcp {
            running.reload(tcp);
        }
        let waiting = config.needs_restart(&self.config);
        if let (Some(acme), false) = (&self.acme, waiting.contains(&"acme"))
            && let Some(plan) = tls::plan(&config, &setup.settings.tls)
        {
            acme.follow(plan);
        }
        for section in &waiting {
            tracing::warn!("reload: [{section}] changed; takes effect after a restart");
        }
        if let Some(log) = &http.access_log {
            log.reopen();
        }
        *self.status.configuration.lock().unwrap_or_else(PoisonError::into_inner) =
            in_force(config.text(), &waiting);
        *self.status.kept.lock().unwrap_or_else(PoisonError::into_inner) = setup::kept(&config);
        self.log.store(http.access_log.clone());
        (self.setup, self.http) = (setup, http);
        self.config.adopt(config);
        Ok(())
    }

    pub(super) fn lock_path(&self) -> std::sync::MutexGuard<'_, DataPath> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports the end of a worker's thread, also when it unwinds.
struct WorkerEnd {
    index: usize,
    events: Sender<Event>,
    result: Option<Result<(), expressway_netio::IoError>>,
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        let _ = self.events.send(Event::WorkerEnded { worker: self.index, result: self.result.take() });
    }
}

/// What `/config` shows of a configuration some of whose sections take effect at the next start only.
fn in_force(text: &str, waiting: &[&str]) -> String {
    let notes: String = waiting
        .iter()
        .map(|section| format!("# [{section}] was changed by a reload: takes effect after a restart\n"))
        .collect();
    notes + text
}

fn assemble(parts: Reloadable, io_mode: Arc<str>) -> (Arc<Setup>, Arc<Http3>) {
    let Reloadable { settings, handler, access_log, .. } = parts;
    let http = Arc::new(Http3 { handler, access_log, io_mode });
    (Arc::new(Setup { settings, application: Arc::clone(&http) as _ }), http)
}

type Mailboxes = (Arc<[Mailbox<Message>]>, Vec<Inbox<Message>>);

fn mailboxes(workers: usize) -> Result<Mailboxes, Failure> {
    let mut pairs = Vec::with_capacity(workers);
    for _ in 0..workers {
        pairs.push(mailbox(MAILBOX).map_err(|error| Failure::run_time(format!("mailbox: {error}")))?);
    }
    let (senders, inboxes): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    Ok((senders.into(), inboxes))
}
