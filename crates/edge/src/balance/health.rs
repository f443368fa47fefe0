//! Checks whether nodes serve: one task per node, on a separate thread.
//!
//! A check proves that a service answers the balancer at the node's own address; it does not take the path of clients.
//! `tcp` wants an accepted connection, `http` a response, and `quic` a Version Negotiation packet: a server must send
//! one for an unknown version (RFC 9000, section 6.1), so no handshake is needed. `quic-handshake` completes a
//! handshake, and `http3` makes a request after it. Until the first answer, a node is assumed to be up.
//!
//! The checks of all nodes are spread randomly, and at most 64 run at a time. The timeout of a check that waits for its
//! turn starts when it begins.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::config::{Check, CheckKind};

mod answer;
mod http;
mod quic;

/// Questions under way: they share a thread, and a handshake takes a millisecond of it.
const AT_ONCE: usize = 64;

/// Ports that a check tries: one that bind(2) chooses may be that of an earlier check of the same node, which is in TIME_WAIT.
const PORTS: u32 = 4;

/// What checks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What the kernel chooses.
    Kernel,
    /// This address.
    Address(IpAddr),
    /// Nothing: this host has no address that is not a service's, and nodes keep what they answer to those.
    Missing,
}

/// What is wrong where [`Source::Missing`] is the source.
pub(super) const NO_SOURCE: &str =
    "no address of this host to send from: all are services'; give the interface one of its own";

/// What is asked of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where.
    pub address: SocketAddr,
    /// From where.
    pub source: Source,
    /// What, and how often.
    pub check: Check,
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether it serves.
    pub up: bool,
    /// Answers of the kind that would change `up`, in a row.
    against: u32,
    /// Why the last question failed.
    pub problem: Option<String>,
    /// Questions asked.
    pub asked: u64,
    /// Of these, how many failed.
    pub failed: u64,
}

impl Default for Health {
    fn default() -> Self {
        Self { up: true, against: 0, problem: None, asked: 0, failed: 0 }
    }
}

impl Health {
    /// Takes an answer in. True if that changes whether the node is up.
    fn learn(&mut self, answer: Result<(), String>, check: &Check) -> bool {
        self.asked += 1;
        let good = answer.is_ok();
        self.failed += u64::from(!good);
        self.problem = answer.err();
        self.against = if good == self.up { 0 } else { self.against + 1 };
        let enough = if self.up { check.fall } else { check.rise };
        if self.against < enough {
            return false;
        }
        self.against = 0;
        self.up = good;
        true
    }
}

type Known = Arc<Mutex<HashMap<u32, Health>>>;

/// Checks nodes by their slots. Dropping it ends its thread.
pub struct Checker {
    runtime: tokio::runtime::Handle,
    tasks: HashMap<u32, (Target, u32, JoinHandle<()>)>,
    turns: Arc<Semaphore>,
    known: Known,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Checker {
    /// Starts the thread, with nothing to ask.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("expressway-check".into()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        let known = Known::default();
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        Ok(Self {
            runtime: handle,
            tasks: HashMap::new(),
            turns,
            known,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Asks these from now on, by slot and its generation, and no others. What stays is not asked anew.
    pub fn set(&mut self, targets: HashMap<u32, (Target, u32)>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.tasks.retain(|slot, (target, generation, task)| {
            let wanted = targets.get(slot);
            let same_node = wanted.is_some_and(|(_, wanted)| wanted == generation);
            let stays = same_node && wanted.is_some_and(|(wanted, _)| wanted == target);
            if !stays {
                task.abort();
            }
            if !same_node {
                known.remove(slot);
            }
            stays
        });
        for (slot, (target, generation)) in targets {
            let asker =
                Asker { slot, target: target.clone(), known: self.known.clone(), turns: self.turns.clone() };
            known.entry(slot).or_default();
            self.tasks
                .entry(slot)
                .or_insert_with(|| (target, generation, self.runtime.spawn(asker.ask_for_ever())));
        }
    }

    /// What is known of a node; `None` if it is not asked.
    pub fn health(&self, slot: u32) -> Option<Health> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&slot).cloned()
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Who asks a node.
struct Asker {
    slot: u32,
    target: Target,
    known: Known,
    turns: Arc<Semaphore>,
}

impl Asker {
    async fn ask_for_ever(self) {
        let interval = self.target.check.interval;
        // Nodes that come together are not asked together.
        sleep(part(interval, random(), 0..=50)).await;
        loop {
            let next = Instant::now() + part(interval, random(), 90..=110);
            let Ok(turn) = self.turns.acquire().await else { return };
            let answer = answer(&self.target).await;
            drop(turn);
            self.learn(answer);
            sleep_until(next).await;
        }
    }

    fn learn(&self, answer: Result<(), String>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(health) = known.get_mut(&self.slot) else { return };
        if health.learn(answer, &self.target.check) {
            match &health.problem {
                Some(problem) => tracing::warn!(node = %self.target.address, problem, "node is down"),
                None => tracing::info!(node = %self.target.address, "node is up"),
            }
        }
    }
}

/// As many hundredths of a time as chance says.
fn part(time: Duration, chance: u64, hundredths: std::ops::RangeInclusive<u32>) -> Duration {
    let width = u64::from(hundredths.end() - hundredths.start()) * 1000;
    let thousandths = hundredths.start() * 1000 + (chance % (width + 1)) as u32;
    time / 100_000 * thousandths
}

/// Asks once.
async fn answer(target: &Target) -> Result<(), String> {
    if target.source == Source::Missing {
        return Err(NO_SOURCE.to_owned());
    }
    match timeout(target.check.timeout, ask(target)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

async fn ask(target: &Target) -> io::Result<()> {
    match target.check.kind {
        CheckKind::Tcp => connect(target).await.map(drop),
        CheckKind::Http => http::ask(target).await,
        CheckKind::Quic => quic::negotiate(target).await,
        CheckKind::QuicHandshake | CheckKind::Http3 => quic::connect(target).await,
    }
}

async fn connect(target: &Target) -> io::Result<TcpStream> {
    let mut tries = PORTS;
    loop {
        tries -= 1;
        match connect_once(target).await {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable && tries > 0 => {}
            result => return result,
        }
    }
}

async fn connect_once(target: &Target) -> io::Result<TcpStream> {
    let socket = if target.address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Source::Address(source) = target.source {
        // Else ports that wait for the end of earlier checks (TIME_WAIT) run out where there are many nodes.
        socket.set_reuseaddr(true)?;
        socket.bind((source, 0).into())?;
    }
    socket.connect(target.address).await
}

/// A number that nobody foresees; no secret depends on it.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    pub(super) fn check(kind: CheckKind) -> Check {
        Check {
            kind,
            port: None,
            path: "/healthz".to_owned(),
            host: None,
            alpn: vec!["h3".to_owned()],
            status: Vec::new(),
            body: String::new(),
            interval: Duration::from_millis(10),
            timeout: Duration::from_secs(5),
            rise: 2,
            fall: 3,
        }
    }

    #[test]
    fn a_node_changes_after_answers_in_a_row() {
        let check = check(CheckKind::Tcp);
        let mut health = Health::default();
        let bad = || Err("refused".to_owned());
        let answers = [bad(), bad(), Ok(()), bad(), bad(), bad(), Ok(()), bad(), Ok(()), Ok(())];
        let up: Vec<bool> = answers
            .into_iter()
            .map(|answer| {
                health.learn(answer, &check);
                health.up
            })
            .collect();
        assert_eq!(up, [true, true, true, true, true, false, false, false, false, true]);
        assert_eq!((health.asked, health.failed), (10, 6));
    }

    pub(super) fn asked(target: Target) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(answer(&target))
    }

    #[test]
    fn chance_spreads_questions_within_bounds() {
        let second = Duration::from_secs(1);
        let parts: Vec<Duration> =
            [0, 10_000, 20_000, 20_001].map(|chance| part(second, chance, 90..=110)).into();
        assert_eq!(parts, [900, 1000, 1100, 900].map(Duration::from_millis));
        assert_eq!(part(second, 7, 0..=0), Duration::ZERO);
    }

    /// A server that says `answer` to the first request.
    fn http(check: Check, answer: &'static str) -> Result<(), String> {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let version = if check.body.is_empty() { "1.1" } else { "1.0" };
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            let start = format!("GET /healthz HTTP/{version}\r\nHost: 127.0.0.1:");
            assert!(request[..length].starts_with(start.as_bytes()));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let result = asked(Target { address, source: Source::Kernel, check });
        server.join().unwrap();
        result
    }

    #[test]
    fn questions_come_from_the_source_that_was_chosen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let source = "127.0.0.7".parse().unwrap();
        let check = check(CheckKind::Tcp);
        assert_eq!(asked(Target { address, source: Source::Address(source), check: check.clone() }), Ok(()));
        assert_eq!(listener.accept().unwrap().1.ip(), source);
        let problem = asked(Target { address, source: Source::Missing, check }).unwrap_err();
        assert_eq!(problem, NO_SOURCE);
    }

    #[test]
    fn http_answers_are_judged_by_their_status() {
        let http = |answer| http(check(CheckKind::Http), answer);
        assert_eq!(http("HTTP/1.1 204 No Content\r\n\r\n"), Ok(()));
        assert_eq!(http("HTTP/1.0 301 Moved\r\n\r\n"), Ok(()));
        assert!(http("HTTP/1.1 503 Service Unavailable\r\n\r\n").unwrap_err().contains("503"));
        assert!(http("SSH-2.0-OpenSSH_9.2\r\n").unwrap_err().contains("SSH-2.0"));
        assert!(http("HTTP/1.1").is_err());
    }

    #[test]
    fn http_answers_are_judged_by_their_body() {
        let expecting = || Check { body: "ready".to_owned(), ..check(CheckKind::Http) };
        assert_eq!(http(expecting(), "HTTP/1.0 200 OK\r\nX: y\r\n\r\nready, go"), Ok(()));
        for (answer, problem) in [
            ("HTTP/1.0 200 OK\r\n\r\nstarting", "begins with `start`"),
            ("HTTP/1.0 200 OK\r\n\r\nread", "begins with `read`"),
            ("HTTP/1.0 200 OK\r\nX: y", "incomplete response head"),
            ("HTTP/1.0 500 No\r\n\r\nready", "status 500"),
        ] {
            let error = http(expecting(), answer).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
