//! Asks nodes whether they serve: one task for each, on a thread of its own.
//!
//! A check proves that a service answers at the node's own address, from the balancer; it does not go the way of clients.
//! `tcp` is a connection that is accepted, `http` an answer of 2xx or 3xx, and `quic` a Version Negotiation packet: a
//! server has to send one for a version that it does not know (RFC 9000, section 6.1), so no handshake and no certificate
//! is needed. Until the first answers a node is taken for good.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::config::{Check, CheckKind};

/// A version that no server has: of the form that is reserved to provoke negotiation (RFC 9000, section 15).
const UNKNOWN_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];

/// What is asked of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where.
    pub address: SocketAddr,
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
        Ok(Self { runtime: handle, tasks: HashMap::new(), known, stop: Some(stop), thread: Some(thread) })
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
            let (known_by_task, asked) = (self.known.clone(), target.clone());
            known.entry(slot).or_default();
            self.tasks.entry(slot).or_insert_with(|| {
                (target, generation, self.runtime.spawn(ask_for_ever(slot, asked, known_by_task)))
            });
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

async fn ask_for_ever(slot: u32, target: Target, known: Known) {
    loop {
        let next = Instant::now() + target.check.interval;
        let answer = match timeout(target.check.timeout, ask(&target)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        if let Some(health) = known.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&slot)
            && health.learn(answer, &target.check)
        {
            match &health.problem {
                Some(problem) => tracing::warn!(node = %target.address, problem, "node is down"),
                None => tracing::info!(node = %target.address, "node is up"),
            }
        }
        sleep_until(next).await;
    }
}

async fn ask(target: &Target) -> io::Result<()> {
    match target.check.kind {
        CheckKind::Tcp => TcpStream::connect(target.address).await.map(drop),
        CheckKind::Http => ask_http(target).await,
        CheckKind::Quic => ask_quic(target.address).await,
    }
}

async fn ask_http(target: &Target) -> io::Result<()> {
    let mut stream = TcpStream::connect(target.address).await?;
    let host = target.check.host.clone().unwrap_or_else(|| target.address.to_string());
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: expressway\r\nConnection: close\r\n\r\n",
        target.check.path
    );
    stream.write_all(request.as_bytes()).await?;
    // "HTTP/1.1 200"
    let mut start = [0; 12];
    stream.read_exact(&mut start).await?;
    match &start {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2' | b'3', _, _] => Ok(()),
        other => Err(io::Error::other(format!("answered {}", String::from_utf8_lossy(other).escape_debug()))),
    }
}

async fn ask_quic(address: SocketAddr) -> io::Result<()> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    let ids = std::process::id().to_be_bytes();
    // A server need not answer less (RFC 9000, section 14.1).
    let mut packet = vec![0; 1200];
    packet[0] = 0xc0;
    packet[1..5].copy_from_slice(&UNKNOWN_VERSION);
    packet[5] = 8;
    packet[6..10].copy_from_slice(&ids);
    packet[14] = 8;
    packet[15..19].copy_from_slice(&ids);
    let mut answer = [0; 256];
    // One may be lost; the caller's timeout ends it.
    loop {
        socket.send(&packet).await?;
        if let Ok(length) = timeout(Duration::from_millis(300), socket.recv(&mut answer)).await {
            if is_negotiation(&answer[..length?], &packet) {
                return Ok(());
            }
            return Err(io::Error::other("answered something else than Version Negotiation"));
        }
    }
}

/// Whether `answer` is a Version Negotiation packet to `packet`: version 0, and its connection IDs the other way round.
fn is_negotiation(answer: &[u8], packet: &[u8]) -> bool {
    answer.len() >= 27
        && answer[0] & 0x80 != 0
        && answer[1..5] == [0; 4]
        && answer[5..14] == packet[14..23]
        && answer[14..23] == packet[5..14]
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn check(kind: CheckKind) -> Check {
        Check {
            kind,
            port: None,
            path: "/healthz".to_owned(),
            host: None,
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

    fn asked(target: Target) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { ask(&target).await.map_err(|error| error.to_string()) })
    }

    /// A server that says `answer` to the first request.
    fn http(answer: &'static str) -> Result<(), String> {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let result = asked(Target { address, check: check(CheckKind::Http) });
        server.join().unwrap();
        result
    }

    #[test]
    fn http_answers_are_judged_by_their_status() {
        assert_eq!(http("HTTP/1.1 204 No Content\r\n\r\n"), Ok(()));
        assert_eq!(http("HTTP/1.0 301 Moved\r\n\r\n"), Ok(()));
        assert!(http("HTTP/1.1 503 Service Unavailable\r\n\r\n").unwrap_err().contains("503"));
        assert!(http("SSH-2.0-OpenSSH_9.2\r\n").unwrap_err().contains("SSH-2.0"));
        assert!(http("HTTP/1.1").is_err());
    }

    #[test]
    fn quic_servers_negotiate_versions() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            for good in [true, false] {
                let mut packet = [0; 2048];
                let (length, from) = server.recv_from(&mut packet).unwrap();
                assert_eq!(length, 1200);
                let mut answer = vec![0x80, 0, 0, 0, u8::from(!good)];
                answer.extend(&packet[14..23]);
                answer.extend(&packet[5..14]);
                answer.extend([0, 0, 0, 1]);
                server.send_to(&answer, from).unwrap();
            }
        });
        let target = Target { address, check: check(CheckKind::Quic) };
        assert_eq!(asked(target.clone()), Ok(()));
        assert!(asked(target).is_err());
        thread.join().unwrap();
    }
}
