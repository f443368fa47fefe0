//! This process's side of an upgrade: it starts the next process, makes way step by step, and either retires or takes all of it back.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use expressway_agent::channel::Channel;
use expressway_gateway::admin::Listener;
use expressway_gateway::quic::Message;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Report;
use super::forward;
use super::handover::{Descriptors, Elder, Handover, MOST_OLDER, Step, Word};
use super::inheritance::{Living, tag};
use super::launcher::{Launcher, Told};
use crate::fail::Failure;
use crate::notify;
use crate::serve::events::Event;
use crate::serve::server::Server;

/// How long the next process may take to end once it is told to, or has said that it does.
const ENDING: Duration = Duration::from_secs(2);

/// How long the workers may take to see that they receive no more: a turn, where nothing is wrong.
const SHUTTING: Duration = Duration::from_secs(1);

/// How long a word may take to be sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a process has to do with those before and after it.
pub(crate) struct UpgradeState {
    pub(crate) generation: u64,
    /// The processes before, some of which may have ended.
    pub(crate) elders: Arc<Vec<Living>>,
    /// For the next process: listeners over TCP with their addresses, and the admin listener.
    pub(crate) tcp: Vec<(String, Vec<OwnedFd>)>,
    pub(crate) admin: Option<(String, OwnedFd)>,
    pub(crate) launcher: Option<Launcher>,
    events: Sender<Event>,
    is_heard: bool,
    attempts: u64,
    attempt: Option<Attempt>,
    /// The process that has succeeded this one.
    pub(crate) successor: Option<u32>,
}

/// An upgrade under way.
struct Attempt {
    number: u64,
    generation: u64,
    control: Arc<Channel>,
    /// The end of the socket that the next process takes datagrams here by; it has another.
    _forward: OwnedFd,
    report: Option<Report>,
    pid: Option<u32>,
    deadline: Instant,
    /// What it says next.
    expected: Step,
    has_let_go: bool,
    is_down: bool,
    is_lost: bool,
    /// How it ended.
    ended: Option<String>,
    /// Why nothing comes of it.
    problem: Option<String>,
    /// It is not waited for any longer.
    until: Option<Instant>,
}

impl UpgradeState {
    pub(crate) fn new(
        generation: u64,
        elders: Vec<Living>,
        launcher: Option<Launcher>,
        events: Sender<Event>,
    ) -> Self {
        Self {
            generation,
            elders: Arc::new(elders),
            tcp: Vec::new(),
            admin: None,
            launcher,
            events,
            is_heard: false,
            attempts: 0,
            attempt: None,
            successor: None,
        }
    }

    /// Keeps listeners for the next process.
    pub(crate) fn keep(
        &mut self,
        tcp: &[expressway_tcp::Listener],
        admin: Option<&Listener>,
    ) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::run_time(format!("keeping listeners for an upgrade: {error}"));
        for listener in tcp {
            self.tcp.push((listener.address().to_string(), listener.duplicate().map_err(failed)?));
        }
        if let Some(admin) = admin {
            self.admin = Some((admin.address().to_string(), admin.duplicate().map_err(failed)?));
        }
        Ok(())
    }

    /// An upgrade is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.attempt.is_some()
    }

    /// The launcher, whose words become events.
    fn launcher(&mut self) -> Result<Launcher, String> {
        let launcher = match &self.launcher {
            Some(launcher) => launcher.clone(),
            None => {
                let launcher = Launcher::start().map_err(|failure| failure.to_string())?;
                self.launcher.insert(launcher).clone()
            }
        };
        if !self.is_heard {
            let (ear, events) = (launcher.clone(), self.events.clone());
            listen("upgrade-launcher", move || {
                while let Ok(told) = ear.hear() {
                    if events.send(Event::Launcher(Some(told))).is_err() {
                        return;
                    }
                }
                let _ = events.send(Event::Launcher(None));
            })?;
            self.is_heard = true;
        }
        Ok(launcher)
    }

    /// The next number that connection IDs tell from those of the living.
    fn next(&self) -> u64 {
        let is_taken = |number: u64| {
            let living = self.elders.iter().filter(|living| !living.is_gone());
            living
                .map(|living| living.elder.generation)
                .chain([self.generation])
                .any(|one| tag(one) == tag(number))
        };
        (self.generation + 1..).find(|number| !is_taken(*number)).unwrap_or(self.generation + 1)
    }
}

fn listen(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map(drop)
        .map_err(|error| format!("thread: {error}"))
}

impl Server {
    /// Begins an upgrade, or says why not.
    pub(crate) fn upgrade(&mut self, report: Option<Report>, is_stopping: bool) {
        let refusal = if let Some(pid) = self.succession.successor {
            Some(format!("process {pid} has taken over from this one: ask it instead"))
        } else if is_stopping {
            Some("the process is stopping".to_owned())
        } else if self.succession.is_busy() {
            Some("another upgrade is in progress".to_owned())
        } else {
            let living = self.succession.elders.iter().filter(|living| !living.is_gone()).count();
            (living >= MOST_OLDER).then(|| {
                format!("{living} older processes still have connections: wait, stop one, or lower [server] upgrade_drain")
            })
        };
        let begun = match refusal {
            Some(refusal) => Err(refusal),
            None => self.begin_upgrade(),
        };
        match begun {
            Ok(mut attempt) => {
                if let Some(report) = &report {
                    report.step("started");
                }
                attempt.report = report;
                self.succession.attempt = Some(attempt);
            }
            Err(problem) => {
                tracing::error!("upgrade: {problem}");
                if let Some(report) = report {
                    report.failed(&problem);
                }
            }
        }
    }

    fn begin_upgrade(&mut self) -> Result<Attempt, String> {
        let io = |error: std::io::Error| error.to_string();
        let launcher = self.succession.launcher()?;
        self.succession.attempts += 1;
        let (number, generation) = (self.succession.attempts, self.succession.next());
        let (sender, receiver) = forward::pair().map_err(io)?;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| errno.to_string())?;
        let control = Arc::new(Channel::new(ours, PATIENCE).map_err(io)?);
        let (handover, descriptors) = self.handover(generation, &sender)?;
        let sent = handover.send(&control, &descriptors.in_order());
        sent.map_err(|error| format!("handing over: {error}"))?;
        let (ear, events) = (Arc::clone(&control), self.succession.events.clone());
        listen("upgrade", move || {
            while let Ok(received) = ear.receive::<Step>(0) {
                if events.send(Event::Next { attempt: number, step: Some(received.content) }).is_err() {
                    return;
                }
            }
            let _ = events.send(Event::Next { attempt: number, step: None });
        })?;
        self.take_in(number, receiver)?;
        launcher.launch(number, &theirs).map_err(|error| format!("launcher: {error}"))?;
        Ok(Attempt {
            number,
            generation,
            control,
            _forward: sender,
            report: None,
            pid: None,
            deadline: Instant::now() + self.config.server.upgrade_timeout.0,
            expected: Step::Prepared,
            has_let_go: false,
            is_down: false,
            is_lost: false,
            ended: None,
            problem: None,
            until: None,
        })
    }

    /// What the next process gets.
    fn handover(&self, generation: u64, sender: &OwnedFd) -> Result<(Handover, Descriptors), String> {
        let again = |fd: &OwnedFd| fd.try_clone().map_err(|error| format!("handing over: {error}"));
        let path = self.lock_path();
        let mut descriptors = Descriptors::default();
        for sockets in path.sockets() {
            let sockets: std::io::Result<_> = sockets.iter().map(|fd| fd.try_clone_to_owned()).collect();
            descriptors.udp.push(sockets.map_err(|error| format!("handing over: {error}"))?);
        }
        drop(path);
        let mut handover = Handover::new(generation, self.config.listen(), descriptors.udp.len());
        for (address, sockets) in &self.succession.tcp {
            handover.tcp.push(address.clone());
            handover.tcp_workers = sockets.len();
            descriptors.tcp.push(sockets.iter().map(again).collect::<Result<_, _>>()?);
        }
        if let Some((address, socket)) = &self.succession.admin {
            handover.admin = Some(address.clone());
            descriptors.admin = Some(again(socket)?);
        }
        let place = self.setup.settings.instance.place().map_err(|error| format!("handing over: {error}"))?;
        handover.has_place = place.is_some();
        descriptors.place = place;
        for living in self.succession.elders.iter().filter(|living| !living.is_gone()) {
            handover.older.push(living.elder.clone());
            descriptors.older.push(again(&living.socket)?);
        }
        let (own, keys) = (self.succession.generation, self.shared.check_keys());
        handover.older.push(Elder::new(own, std::process::id(), &keys));
        descriptors.older.push(again(sender)?);
        Ok((handover, descriptors))
    }

    /// Gives the workers what the next process, or one after that, forwards.
    fn take_in(&self, attempt: u64, receiver: OwnedFd) -> Result<(), String> {
        // Whoever waits here for another process must not keep what ends with the workers, such as the access log.
        let (shared, mailboxes) = (Arc::downgrade(&self.shared), Arc::clone(&self.mailboxes));
        let events = self.succession.events.clone();
        listen("upgrade-forward", move || {
            let (mut given, mut dropped) = (0_u64, 0_u64);
            forward::receive(&receiver, |path, payload| {
                match shared.upgrade().map(|shared| shared.take_over(&mailboxes, path, payload)) {
                    Some(expressway_gateway::quic::TakenOver::Given) => given += 1,
                    _ => dropped += 1,
                }
            });
            tracing::debug!(given, dropped, "no process forwards datagrams any more");
            let _ = events.send(Event::Orphaned { attempt });
        })
    }

    /// The next process has come so far, or is gone.
    pub(crate) fn follow_next(&mut self, number: u64, step: Option<Step>, stopping: &mut bool) {
        let Some(attempt) = self.succession.attempt.as_mut().filter(|attempt| attempt.number == number)
        else {
            return;
        };
        if let Some(Step::Failed(reason)) = step {
            return self.fail_upgrade(reason);
        }
        let Some(step) = step else {
            attempt.is_lost = true;
            attempt.until.get_or_insert(Instant::now() + ENDING);
            return self.settle_upgrade();
        };
        if attempt.problem.is_some() {
            return;
        }
        if step != attempt.expected {
            return self.fail_upgrade(format!("the next process sent {step:?} unexpectedly"));
        }
        let name = step.name();
        tracing::info!("upgrade: the next process is {name}");
        if let Some(report) = &attempt.report {
            report.step(name);
        }
        let made_way = match step {
            Step::Prepared => {
                (attempt.expected, attempt.has_let_go) = (Step::Built, true);
                match self.cache.as_ref().map_or(Ok(()), expressway_cache::Cache::let_go) {
                    Ok(()) => Ok(()),
                    Err(error) => Err(format!("cannot release the cache's disk store: {error}")),
                }
            }
            Step::Built => {
                (attempt.expected, attempt.is_down) = (Step::Opened, true);
                self.lock_path().step_down();
                Ok(())
            }
            Step::Opened => {
                attempt.expected = Step::Ready;
                self.receive_no_more()
            }
            Step::Ready => return self.retire(stopping),
            Step::Failed(_) => Ok(()),
        };
        let went = made_way.and_then(|()| {
            let control = self.succession.attempt.as_ref().map(|attempt| Arc::clone(&attempt.control));
            control
                .map_or(Ok(()), |control| control.send(0, &Word::Go, &[]).map_err(|error| error.to_string()))
        });
        if let Err(problem) = went {
            self.fail_upgrade(problem);
        }
    }

    /// What the launcher tells.
    pub(crate) fn follow_launcher(&mut self, told: Option<Told>) {
        let Some(told) = told else {
            self.succession.launcher = None;
            self.succession.is_heard = false;
            return self.fail_upgrade("the launcher is gone: restart instead".into());
        };
        let (Told::Started { attempt: number, .. }
        | Told::Refused { attempt: number, .. }
        | Told::Ended { attempt: number, .. }) = &told;
        let Some(attempt) = self.succession.attempt.as_mut().filter(|attempt| attempt.number == *number)
        else {
            return;
        };
        match told {
            Told::Started { pid, .. } => {
                tracing::info!(pid, "upgrade: the next process is running");
                attempt.pid = Some(pid);
            }
            Told::Refused { problem, .. } => {
                attempt.ended = Some("not started".into());
                self.fail_upgrade(problem);
            }
            Told::Ended { how, .. } => {
                attempt.ended = Some(how);
                attempt.until.get_or_insert(Instant::now() + ENDING);
            }
        }
        self.settle_upgrade();
    }

    /// Has the workers receive nothing more by kernel sockets, which the next process has too.
    fn receive_no_more(&self) -> Result<(), String> {
        self.lock_path().set_receiving(false);
        self.wake();
        let until = Instant::now() + SHUTTING;
        while !self.lock_path().is_paused() {
            if Instant::now() > until {
                return Err("a worker did not stop receiving in time".into());
            }
            self.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn wake(&self) {
        for mailbox in self.mailboxes.iter() {
            // A worker whose mailbox is full is awake.
            let _ = mailbox.try_send(Message::Wake);
        }
    }

    /// Nothing comes of it: this process goes on.
    pub(crate) fn fail_upgrade(&mut self, problem: String) {
        let Some(attempt) = &mut self.succession.attempt else { return };
        attempt.problem.get_or_insert(problem);
        attempt.until = Some(Instant::now() + ENDING);
        if attempt.ended.is_none()
            && let Some(launcher) = &self.succession.launcher
            && let Err(error) = launcher.kill(attempt.number)
        {
            tracing::warn!("upgrade: cannot terminate the next process: {error}");
        }
        self.settle_upgrade();
    }

    /// Ends what has failed or takes too long.
    pub(crate) fn settle_upgrade(&mut self) {
        let now = Instant::now();
        let timeout = self.config.server.upgrade_timeout.0;
        let Some(attempt) = &mut self.succession.attempt else { return };
        let is_over = attempt.until.is_some_and(|until| until <= now);
        if attempt.problem.is_none() {
            if attempt.is_lost && (attempt.ended.is_some() || is_over) {
                let how = attempt.ended.as_deref().unwrap_or("exit status unknown");
                let problem = format!("the next process ended ({how}) before it was ready: see its log");
                return self.fail_upgrade(problem);
            }
            if attempt.deadline <= now {
                return self.fail_upgrade(format!("the next process was not ready within {timeout:?}"));
            }
            return;
        }
        // What it has of the interfaces goes with it.
        if attempt.ended.is_none() && !is_over {
            return;
        }
        if let Some(attempt) = self.succession.attempt.take() {
            self.take_back(attempt);
        }
    }

    fn take_back(&mut self, attempt: Attempt) {
        let problem = attempt.problem.unwrap_or_default();
        // Not before the other is dead: it would take its share of what comes, and that with it.
        self.lock_path().set_receiving(true);
        self.wake();
        if attempt.is_down {
            self.lock_path().step_up();
        }
        if attempt.has_let_go
            && let Some(cache) = &self.cache
            && let Err(error) = cache.take_back()
        {
            tracing::warn!("upgrade: the cache's disk store is no longer written: {error}");
        }
        tracing::error!("upgrade failed, this process keeps serving: {problem}");
        if let Some(report) = attempt.report {
            report.failed(&problem);
        }
    }

    /// The next process serves: this one finishes what it has.
    fn retire(&mut self, stopping: &mut bool) {
        let Some(attempt) = self.succession.attempt.take() else { return };
        let pid = attempt.pid.unwrap_or_default();
        let limit = self.config.server.upgrade_drain.0;
        tracing::info!(
            generation = attempt.generation,
            pid,
            ?limit,
            "upgrade: the next process is serving; finishing open connections"
        );
        self.succession.successor = Some(pid);
        *self.status.state.lock().unwrap_or_else(PoisonError::into_inner) =
            Err(format!("process {pid} has taken over"));
        self.lock_path().hand_on();
        (self.succession.tcp, self.succession.admin) = (Vec::new(), None);
        self.acme = None;
        if let Some(admin) = &mut self.admin {
            admin.retire();
        }
        notify::say(&format!("MAINPID={pid}\nREADY=1"));
        if let Some(report) = &attempt.report {
            report.done(attempt.generation, pid);
        }
        *stopping = true;
        let deadline = Instant::now() + limit;
        self.retire_until(deadline);
    }

    /// No newer process is there to forward anything: this one takes datagrams itself, and ends soon.
    pub(crate) fn follow_orphaned(&mut self, attempt: u64) {
        // Of one that came to nothing, it means nothing.
        if attempt != self.succession.attempts {
            return;
        }
        let Some(pid) = self.succession.successor.take() else { return };
        self.lock_path().set_receiving(true);
        self.wake();
        if !self.is_retiring {
            // All of them were told to stop.
            return;
        }
        let problem = format!("process {pid}, which had taken over, has ended");
        tracing::error!("{problem}: finishing open connections without it");
        self.fail(&problem);
    }
}
