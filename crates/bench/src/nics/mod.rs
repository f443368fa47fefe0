//! The bed of given NICs: the service under test on this host, its load on another, and a network between them.
//!
//! ```text
//!  near end: `expressway bench --bed nics`          far end: `expressway bench end`
//!  servers, accounts, raw file                      a fixed set of load programs
//!        │                                                    │
//!        ├──────── control: TLS with a shared token ──────────┤
//!        └──────── the interfaces that are measured ──────────┘
//! ```
//!
//! On a host's interface, only what its user has allowed is changed. The far end's programs end with the control
//! connection.
//!
//! A control connection that starts programs must not be able to run commands. A task is therefore a word from
//! a fixed set with bounded numbers, from which the far end builds the arguments itself. Its traffic may only go
//! to the network of the far end's own interface. The connection is TLS 1.2 with ECDHE-PSK from a token file.
//! Both ends must have the same version, because the lines that programs print are the results. Programs are
//! children that the kernel kills when the far end exits, so no message is needed to stop them. Keep-alive
//! detects a host that has vanished.
//!
//! A real NIC's receive work runs in interrupts, on top of whatever process is there, and appears in no
//! scheduler account. CPU is therefore the non-idle time of all cores of the serving host. If XDP takes every
//! packet, including the near end's ARP answers, load is sent to its hardware address, and the control
//! connection and stacked interfaces must be elsewhere. Packet filters would be the host's own rules, so a full
//! socket stands in for them. The clocks of two hosts differ by more than what is measured, so times are those
//! between requests and their answers, at one end.

mod channel;
mod end;
mod message;
mod nic;
mod offloads;
mod token;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use expressway_lab::Lab;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use channel::{Channel, ChannelError, PATIENCE};
use message::{Answer, Hello, Host, Request, Welcome};

pub use end::{EndOptions, serve_end};
pub use nic::Nic;
pub(crate) use offloads::{Changed, restore_leftovers};
pub use token::Token;

use crate::BenchError;
use crate::environment::Environment;
use crate::kind::Kind;
use crate::scenario::{Case, Scenario, Value, text};
use crate::task::Task;

/// Segmentation of UDP by the device.
const SEGMENTATION: &str = "tx-udp-segmentation";

/// The two hosts, for the raw file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hosts {
    /// The interface of the device under test, which is this host's.
    pub near: Nic,
    /// The interface of the host that makes the load.
    pub far: Nic,
    /// That host.
    pub far_environment: Environment,
}

/// Permitted changes to this host's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// XDP programs, for the time of a run.
    pub xdp: bool,
    /// Segmentation offloads, for the time of a run.
    pub offloads: bool,
}

/// Both ends, connected.
pub struct Nics {
    end: SocketAddr,
    channel: Mutex<Channel>,
    hosts: Hosts,
    allowed: Allowed,
}

impl Nics {
    /// Connects to the far end, which must have the same token and version.
    ///
    /// # Errors
    /// With the far end's address, when there is none, it has another token or version, is busy with another near end, or
    /// its interface cannot reach ours.
    pub fn connect(
        end: SocketAddr,
        token: &Token,
        interface: &str,
        address: Option<Ipv4Addr>,
        allowed: Allowed,
    ) -> Result<Self, BenchError> {
        Nic::read(interface, address)?;
        restore_leftovers(interface)?;
        let near = Nic::read(interface, address)?;
        let failed = |problem: String| BenchError::Far { end, problem };
        let (channel, host) =
            greet(end, token, &Hello::own()).map_err(|error| failed(error.to_string()))?.map_err(failed)?;
        if !near.reaches(host.nic.address) || near.address == host.nic.address {
            return Err(failed(format!(
                "its interface {} has {}/{}, which is not another address in the network of {interface} here ({}/{})",
                host.nic.interface, host.nic.address, host.nic.prefix, near.address, near.prefix
            )));
        }
        let hosts = Hosts { near, far: host.nic, far_environment: host.environment };
        Ok(Self { end, channel: Mutex::new(channel), hosts, allowed })
    }

    /// Both hosts.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The two ends as a lab.
    pub(crate) fn lab(&self) -> Lab {
        let Hosts { near, far, .. } = &self.hosts;
        Lab::on_host(expressway_lab::Host {
            interface: near.interface.clone(),
            address: near.address,
            far_interface: far.interface.clone(),
            far_address: far.address,
        })
    }

    /// Replaces a lab's defaults in a scenario by the interface's actual settings.
    pub(crate) fn describe(&self, scenario: &mut Scenario) {
        scenario.found("mtu", Value::Count(self.hosts.near.mtu));
        let segments = if self.hosts.near.has(SEGMENTATION) { "on" } else { "off" };
        scenario.found("udp_segmentation", text(segments));
    }

    /// What would be cut off if a program took all packets of the measured interface: the control connection, or interfaces
    /// stacked on it. `None` if nothing is known.
    fn cut_off(&self) -> Option<String> {
        let interface = &self.hosts.near.interface;
        let whom = match self.channel().socket().local_addr() {
            Ok(local) => match Nic::addresses(interface) {
                Ok(own) if own.contains(&local.ip().to_canonical()) => {
                    format!(
                        "the control connection's too, by {}: have the far end listen in another network",
                        local.ip()
                    )
                }
                Ok(_) => format!("those of {} above it too", Nic::above(interface)?),
                Err(error) => error.to_string(),
            },
            Err(error) => format!("the control connection's perhaps: {error}"),
        };
        Some(format!("a program that takes all packets of {interface} would take {whom}"))
    }

    /// A change that a case needs and that is not permitted.
    pub(crate) fn lacks(&self, kind: &dyn Kind, case: &Case) -> Option<String> {
        let near = &self.hosts.near;
        let value = |key: &str| case.0.get(key);
        if let Some(Value::Count(mtu)) = value("mtu").filter(|mtu| **mtu != Value::Count(near.mtu)) {
            return Some(format!(
                "MTU {mtu}: {} has {}, which the suite does not change",
                near.interface, near.mtu
            ));
        }
        if let Some(wanted) = self.segmentation(case).filter(|_| !self.allowed.offloads) {
            let word = if wanted { "on" } else { "off" };
            return Some(format!(
                "{SEGMENTATION} {word}: {} has it otherwise; --offloads lets it be switched for the time of a run",
                near.interface
            ));
        }
        if kind.needs_xdp(case) && !self.allowed.xdp {
            let interface = &near.interface;
            return Some(format!("an XDP program on {interface}: --xdp allows it for the time of a run"));
        }
        if kind.takes_all(case) { self.cut_off() } else { None }
    }

    /// Sets the interface up for a case, until the result is dropped.
    pub(crate) fn prepare(&self, case: &Case) -> Result<Option<Changed>, BenchError> {
        match self.segmentation(case).filter(|_| self.allowed.offloads) {
            Some(wanted) => Changed::set(&self.hosts.near, SEGMENTATION, wanted),
            None => Ok(None),
        }
    }

    /// Whether segmentation has to be switched, and to what.
    fn segmentation(&self, case: &Case) -> Option<bool> {
        let wanted = *case.0.get("udp_segmentation")? == text("on");
        (wanted != self.hosts.near.has(SEGMENTATION)).then_some(wanted)
    }

    /// Starts a program at the far end. One runs at a time.
    pub(crate) fn start(&self, task: &Task, authority: Option<String>) -> Result<FarProgram<'_>, BenchError> {
        let mut channel = self.channel();
        let request = Request::Start { task: task.clone(), authority };
        let answer = channel.send(&request).and_then(|()| channel.receive(PATIENCE));
        match answer.map_err(|error| self.failed(error))? {
            Answer::Started => {
                let limit = Duration::from_secs_f64(task.limit()) + PATIENCE;
                Ok(FarProgram { nics: self, limit, over: false })
            }
            Answer::Refused { reason } => Err(BenchError::Far { end: self.end, problem: reason }),
            other => Err(self.unexpected(&other)),
        }
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection can no longer be used: the measurement must end.
    fn failed(&self, error: ChannelError) -> BenchError {
        BenchError::FarLost { end: self.end, problem: error.to_string() }
    }

    fn unexpected(&self, answer: &Answer) -> BenchError {
        BenchError::FarLost { end: self.end, problem: format!("unexpected answer {answer:?}") }
    }
}

/// Connects and exchanges hellos; the inner error is the far end's refusal.
fn greet(
    end: SocketAddr,
    token: &Token,
    own: &Hello,
) -> Result<Result<(Channel, Host), String>, ChannelError> {
    let mut channel = Channel::connect(end, token)?;
    channel.send(own)?;
    let welcome: Welcome = channel.receive(PATIENCE)?;
    if let Some(reason) = welcome.refused.or_else(|| welcome.hello.refuses(own)) {
        return Ok(Err(reason));
    }
    let host =
        serde_json::from_value(welcome.host).map_err(|error| ChannelError::Garbage(error.to_string()))?;
    Ok(Ok((channel, host)))
}

/// A program at the far end; dropping it ends it.
pub(crate) struct FarProgram<'a> {
    nics: &'a Nics,
    limit: Duration,
    over: bool,
}

impl FarProgram<'_> {
    /// The next line that it prints; `None` when it has ended well.
    pub(crate) fn line(&mut self) -> Result<Option<String>, BenchError> {
        let answer = self.nics.channel().receive(self.limit);
        match answer.map_err(|error| self.nics.failed(error))? {
            Answer::Line { text } => Ok(Some(text)),
            Answer::Ended { status, said } => {
                self.over = true;
                if status == "exit status: 0" {
                    return Ok(None);
                }
                Err(BenchError::Far { end: self.nics.end, problem: format!("exited with {status}: {said}") })
            }
            other => Err(self.nics.unexpected(&other)),
        }
    }

    /// Waits for its end and reads all that it prints as JSON.
    pub(crate) fn report<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut text = String::new();
        while let Some(line) = self.line()? {
            text.push_str(&line);
            text.push('\n');
        }
        serde_json::from_str(&text)
            .map_err(|error| BenchError::Far { end: self.nics.end, problem: format!("its report: {error}") })
    }
}

impl Drop for FarProgram<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut channel = self.nics.channel();
        let stopped = channel.send(&Request::Stop).and_then(|()| {
            // Its lines that were under way come first; it may have ended by itself meanwhile.
            loop {
                if channel.receive::<Answer>(PATIENCE)? == Answer::Stopped {
                    return Ok(());
                }
            }
        });
        if let Err(error) = stopped {
            tracing::debug!(%error, "the far end's program ends with the connection");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel as pipe;

    use super::*;
    use crate::Tools;
    use crate::task::tests::load;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    /// Serves a far end, whose programs are shell scripts, on the loopback address while `work` runs.
    fn with_end<T>(script: &str, work: impl FnOnce(SocketAddr) -> T) -> T {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("expressway-load");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let tools = Tools {
            expressway: folder.path().join("expressway"),
            load: program,
            io: folder.path().join("expressway-io"),
            peers: folder.path().into(),
            nginx: None,
            work: folder.path().join("work"),
            bed: crate::Bed::Nics,
            devices: None,
        };
        let nic = Nic::read("lo", Some(Ipv4Addr::LOCALHOST)).unwrap();
        let options = EndOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: token::of(TOKEN),
            nic,
            core: 0,
            xdp: false,
            tools,
        };
        let (stop, (told, hear)) = (AtomicBool::new(false), pipe());
        std::thread::scope(|threads| {
            let serving = threads.spawn(|| serve_end(&options, &stop, |address| told.send(address).unwrap()));
            let result =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(hear.recv().unwrap())));
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap().unwrap();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A near end as [`Nics::connect`] makes it, but for the networks, which loopback has one of.
    fn near(end: SocketAddr) -> Nics {
        let limit = std::time::Instant::now() + Duration::from_secs(20);
        let (channel, host) = loop {
            match greet(end, &token::of(TOKEN), &Hello::own()).unwrap() {
                Ok(greeted) => break greeted,
                // It has not noticed yet that the one before has gone.
                Err(refused)
                    if refused.contains("is serving another") && std::time::Instant::now() < limit =>
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(refused) => panic!("{refused}"),
            }
        };
        let hosts = Hosts { near: Nic::default(), far: host.nic, far_environment: host.environment };
        Nics { end, channel: Mutex::new(channel), hosts, allowed: Allowed::default() }
    }

    /// A task whose destination the loopback network has.
    fn task() -> Task {
        let Task::Load { load, .. } = load() else { unreachable!() };
        Task::Load { to: "127.0.0.1:443".parse().unwrap(), load }
    }

    #[test]
    fn lines_of_a_program_come_and_its_end() {
        with_end("echo measuring; cat $6; exec >&2; echo said; [ $# -gt 3 ]", |end| {
            let nics = near(end);
            assert_eq!(nics.hosts().far.interface, "lo");
            let mut program = nics.start(&task(), Some("the authority".into())).unwrap();
            assert_eq!(program.line().unwrap().as_deref(), Some("measuring"));
            // Its last line has no end; what has one is what counts.
            assert_eq!(program.line().unwrap(), None);
            drop(program);
            assert!(nics.start(&task(), None).is_ok(), "one after the other");
        });
    }

    #[test]
    fn a_program_that_fails_says_why_and_one_that_is_dropped_ends() {
        with_end("echo boom >&2; exit 3", |end| {
            let error = near(end).start(&task(), None).unwrap().line().unwrap_err().to_string();
            assert!(error.contains("exited with exit status: 3: boom"), "{error}");
        });
        with_end("echo $$; exec sleep 1000", |end| {
            let nics = near(end);
            let mut program = nics.start(&task(), None).unwrap();
            let process = format!("/proc/{}", program.line().unwrap().unwrap());
            let second = nics.start(&task(), None).err().unwrap().to_string();
            assert!(second.ends_with("a program is already running"), "{second}");
            assert!(std::path::Path::new(&process).exists());
            drop(program);
            assert!(!std::path::Path::new(&process).exists());
        });
    }

    #[test]
    fn what_the_far_end_does_not_allow_is_refused_and_the_connection_goes_on() {
        with_end("exit 0", |end| {
            let nics = near(end);
            let refused = |task: &Task| nics.start(task, None).err().unwrap().to_string();
            assert!(refused(&load()).contains("192.0.2.1 is not in the network of lo"));
            let sink = Task::Sink { port: 4433, seconds: 1.0, xsk: true };
            assert!(refused(&sink).contains("start it with --xdp"));
            let long = Task::Sink { port: 4433, seconds: 1e9, xsk: false };
            assert!(refused(&long).contains("at most 3600"));
            let io = Task::Sink { port: 4433, seconds: 1.0, xsk: false };
            assert!(refused(&io).contains("expressway-io: missing at the far end"));
            assert_eq!(nics.start(&task(), None).unwrap().line().unwrap(), None);
        });
    }

    #[test]
    fn another_token_or_version_is_refused_by_name() {
        with_end("exit 0", |end| {
            let other = token::of("another token of thirty-two bytes");
            let error = greet(end, &other, &Hello::own()).err().unwrap().to_string();
            assert!(error.contains("both ends need the same token"), "{error}");
            let old = Hello { protocol: 0, version: "0.0.1".into() };
            let refused = greet(end, &token::of(TOKEN), &old).unwrap().err().unwrap();
            assert!(refused.contains("near end is expressway 0.0.1 (protocol 0)"), "{refused}");
            near(end);
        });
    }

    #[test]
    fn one_near_end_is_served_at_a_time() {
        with_end("exit 0", |end| {
            let first = near(end);
            let refused = greet(end, &token::of(TOKEN), &Hello::own()).unwrap().err().unwrap();
            assert!(refused.contains("serving another near end"), "{refused}");
            drop(first);
            // Its session ends when the far end has seen that.
            while greet(end, &token::of(TOKEN), &Hello::own()).unwrap().is_err() {}
        });
    }

    #[test]
    fn garbage_ends_a_connection_and_nothing_else() {
        with_end("exit 0", |end| {
            // Without TLS.
            let mut stream = TcpStream::connect(end).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            // With the token, and no message.
            let mut channel = Channel::connect(end, &token::of(TOKEN)).unwrap();
            channel.send(&"what").unwrap();
            assert!(matches!(channel.receive::<serde_json::Value>(PATIENCE), Err(ChannelError::Closed)));
            let too_long = "x".repeat(channel::MESSAGE_MAX);
            let mut channel = Channel::connect(end, &token::of(TOKEN)).unwrap();
            assert!(matches!(channel.send(&too_long), Err(ChannelError::TooLong(_))));
            // A shell is none of the set of programs.
            let (mut channel, _) = greet(end, &token::of(TOKEN), &Hello::own()).unwrap().unwrap();
            channel.send(&serde_json::json!({ "start": { "task": { "shell": "id" } } })).unwrap();
            assert!(matches!(channel.receive::<Answer>(PATIENCE), Err(ChannelError::Closed)));
            while greet(end, &token::of(TOKEN), &Hello::own()).unwrap().is_err() {}
        });
    }

    #[test]
    fn programs_end_with_the_connection() {
        with_end("echo $$; exec sleep 1000", |end| {
            let nics = near(end);
            let mut program = nics.start(&task(), None).unwrap();
            let process = format!("/proc/{}", program.line().unwrap().unwrap());
            // As a near end that was killed: no message, only the end of the connection.
            nics.channel().socket().shutdown(std::net::Shutdown::Both).unwrap();
            while std::path::Path::new(&process).exists() {
                std::thread::yield_now();
            }
            assert!(matches!(program.line(), Err(BenchError::FarLost { .. })));
        });
    }

    #[test]
    fn a_far_end_that_is_none_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let end = listener.local_addr().unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| listener.accept().unwrap().0.write_all(b"220 mail.example\r\n").unwrap());
            let error = greet(end, &token::of(TOKEN), &Hello::own()).err().unwrap().to_string();
            assert!(error.contains("TLS"), "{error}");
        });
    }

    #[test]
    fn a_far_end_listens_where_it_is_told_to_only() {
        let options = EndOptions {
            listen: "0.0.0.0:0".parse().unwrap(),
            token: token::of(TOKEN),
            nic: Nic::default(),
            core: 0,
            xdp: false,
            tools: Tools {
                expressway: "".into(),
                load: "".into(),
                io: "".into(),
                peers: "".into(),
                nginx: None,
                work: "".into(),
                bed: crate::Bed::Nics,
                devices: None,
            },
        };
        let error = serve_end(&options, &AtomicBool::new(true), |_| ()).unwrap_err().to_string();
        assert!(error.contains("--listen 0.0.0.0:0: give a specific address"), "{error}");
    }
}
