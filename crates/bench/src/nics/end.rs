//! The far end: waits for a near end with the token, starts what it asks for, and stops all of it when the connection ends.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::channel::{Channel, ChannelError, MESSAGE_MAX, PATIENCE, ready};
use super::message::{Answer, Hello, Host, Request, Welcome};
use super::nic::Nic;
use super::token::Token;
use crate::environment::Environment;
use crate::task::{Site, Task};
use crate::{BenchError, Tools, io_error};

/// Connections that may be in a handshake or waiting for a refusal; more are closed at once.
const CONNECTIONS: usize = 8;

/// Interval at which `stop` is polled.
const LOOK: Duration = Duration::from_millis(200);

/// The longest line of a program: its message must fit.
const LINE_MAX: usize = MESSAGE_MAX / 2;

/// Options of a far end.
pub struct EndOptions {
    /// Where it listens for near ends; an address of this host.
    pub listen: SocketAddr,
    /// The token that near ends must have.
    pub token: Token,
    /// The interface that load goes over.
    pub nic: Nic,
    /// The core of load programs.
    pub core: usize,
    /// Whether tasks may put XDP programs on the interface.
    pub xdp: bool,
    /// The programs.
    pub tools: Tools,
}

/// Serves near ends, one at a time, until `stop`. `listening` gets the address.
///
/// # Errors
/// When it cannot listen. Errors of a near end are logged.
pub fn serve_end(
    options: &EndOptions,
    stop: &AtomicBool,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), BenchError> {
    let what = || format!("--listen {}", options.listen);
    if options.listen.ip().is_unspecified() {
        let problem = "give a specific address: the far end starts programs and must not listen everywhere";
        return Err(BenchError::Missing(format!("{}: {problem}", what())));
    }
    let listener = TcpListener::bind(options.listen).map_err(io_error(what()))?;
    listener.set_nonblocking(true).map_err(io_error(what()))?;
    listening(listener.local_addr().map_err(io_error(what()))?);
    let (open, busy) = (AtomicUsize::new(0), Mutex::new(()));
    scope(|threads| {
        while !stop.load(Ordering::Relaxed) {
            let waited = ready(&mut [PollFd::new(&listener, PollFlags::IN)], LOOK);
            waited.map_err(io_error(what()))?;
            let (stream, near) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Such as no descriptors left: what is open goes on.
                    tracing::warn!(%error, "cannot accept a near end");
                    sleep(LOOK);
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!(%near, "closed: {CONNECTIONS} other connections are pending");
                continue;
            }
            let (open, busy) = (&open, &busy);
            threads.spawn(move || {
                match session(options, stream, busy, stop) {
                    Ok(()) | Err(ChannelError::Closed) => tracing::info!(%near, "near end disconnected"),
                    Err(error) => tracing::warn!(%near, %error, "closing the connection"),
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
        Ok(())
    })
}

/// One near end, until it disconnects.
fn session(
    options: &EndOptions,
    stream: TcpStream,
    busy: &Mutex<()>,
    stop: &AtomicBool,
) -> Result<(), ChannelError> {
    let mut channel = Channel::accept(stream, &options.token)?;
    let near: Hello = channel.receive(PATIENCE)?;
    let own = Hello::own();
    let alone = busy.try_lock();
    let refused = own.refuses(&near).or_else(|| {
        alone.is_err().then(|| "the far end is serving another near end: wait until it is done".into())
    });
    if let Some(reason) = refused {
        tracing::warn!(reason, "near end rejected");
        let welcome = Welcome { hello: own, refused: Some(reason), host: serde_json::Value::Null };
        return channel.send(&welcome);
    }
    let nic = &options.nic;
    let read = Nic::read(&nic.interface, Some(nic.address));
    let (refused, host) = match read {
        Ok(nic) => {
            (None, serde_json::json!(Host { nic, environment: Environment::read(&options.tools, &[]) }))
        }
        Err(error) => (Some(error.to_string()), serde_json::Value::Null),
    };
    let go_on = refused.is_none();
    channel.send(&Welcome { hello: own, refused, host })?;
    if !go_on {
        return Ok(());
    }
    tracing::info!("near end connected");
    let mut work = Work { options, running: None };
    work.serve(&mut channel, stop)
}

/// The work for one near end. Its program ends with it.
struct Work<'a> {
    options: &'a EndOptions,
    running: Option<Running>,
}

impl Work<'_> {
    fn serve(&mut self, channel: &mut Channel, stop: &AtomicBool) -> Result<(), ChannelError> {
        while !stop.load(Ordering::Relaxed) {
            while let Some(request) = channel.take()? {
                let answer = self.handle(request);
                channel.send(&answer)?;
            }
            self.pass_on(channel)?;
            self.wait(channel)?;
        }
        Ok(())
    }

    fn handle(&mut self, request: Request) -> Answer {
        match request {
            Request::Stop => {
                self.running = None;
                Answer::Stopped
            }
            Request::Start { .. } if self.running.is_some() => {
                Answer::Refused { reason: "a program is already running".into() }
            }
            Request::Start { task, authority } => match self.start(&task, authority.as_deref()) {
                Ok(running) => {
                    tracing::info!(program = running.name, "started");
                    self.running = Some(running);
                    Answer::Started
                }
                Err(reason) => Answer::Refused { reason },
            },
        }
    }

    fn start(&self, task: &Task, authority: Option<&str>) -> Result<Running, String> {
        task.check()?;
        let (options, nic) = (self.options, &self.options.nic);
        if let Some(to) = task.destination().filter(|to| !nic.reaches(*to)) {
            let network = format!("{}/{}", nic.address, nic.prefix);
            return Err(format!("{to} is not in the network of {} ({network})", nic.interface));
        }
        if task.needs_xdp() && !options.xdp {
            return Err(format!(
                "this needs XDP on {}, which the far end does not allow: start it with --xdp",
                nic.interface
            ));
        }
        if let Some(authority) = authority {
            let folder = options.tools.certificates();
            let file = folder.join("ca.pem");
            std::fs::create_dir_all(&folder)
                .and_then(|()| std::fs::write(&file, authority))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let site = Site { tools: &options.tools, interface: &nic.interface, address: nic.address };
        Running::start(task, &site, options.core)
    }

    /// Passes on what the program has printed, and its end.
    fn pass_on(&mut self, channel: &mut Channel) -> Result<(), ChannelError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let ended = running.read();
        while let Some(text) = running.lines.pop_front() {
            channel.send(&Answer::Line { text })?;
        }
        let Some(status) = ended else { return Ok(()) };
        let said = running.said();
        self.running = None;
        channel.send(&Answer::Ended { status, said })
    }

    /// Waits until there is something to do.
    fn wait(&self, channel: &Channel) -> Result<(), ChannelError> {
        let mut descriptors = vec![PollFd::new(channel.socket(), PollFlags::IN)];
        let output = self.running.as_ref().map(|running| running.output.as_fd());
        descriptors.extend(output.map(|output| PollFd::from_borrowed_fd(output, PollFlags::IN)));
        ready(&mut descriptors, LOOK)?;
        Ok(())
    }
}

/// A running program; dropping it ends it.
struct Running {
    child: Child,
    output: ChildStdout,
    partial: Vec<u8>,
    lines: VecDeque<String>,
    log: PathBuf,
    name: String,
    deadline: Instant,
}

impl Running {
    fn start(task: &Task, site: &Site<'_>, core: usize) -> Result<Self, String> {
        let (program, arguments) = task.command(site);
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let work = &site.tools.work;
        std::fs::create_dir_all(work).map_err(|error| failed(&work.display().to_string(), error))?;
        let log = work.join("end.log");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(&log);
        let file: File = file.map_err(|error| failed(&log.display().to_string(), error))?;
        if !program.exists() {
            return Err(format!("{}: missing at the far end; build it there", program.display()));
        }
        // Killed with this end, however that ends. Both replace themselves by the program.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "taskset", "-c", &core.to_string()])
            .arg(&program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(|error| failed("setpriv", error))?;
        let Some(output) = child.stdout.take() else { return Err(format!("{name}: no output")) };
        let running = Self {
            child,
            output,
            partial: Vec::new(),
            lines: VecDeque::new(),
            log,
            name,
            deadline: Instant::now() + Duration::from_secs_f64(task.limit()),
        };
        let flags = fcntl_getfl(&running.output)
            .and_then(|flags| fcntl_setfl(&running.output, flags | OFlags::NONBLOCK));
        flags.map_err(|error| failed("output", error.into()))?;
        Ok(running)
    }

    /// Reads what it has printed; returns how it ended, if it did.
    fn read(&mut self) -> Option<String> {
        let mut chunk = [0; 4096];
        loop {
            // As much as a message may hold is under way at most.
            if self.partial.len() > LINE_MAX {
                return Some("it printed an overlong line".into());
            }
            match self.output.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => self.partial.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let late = Instant::now() > self.deadline;
                    return late.then(|| "it did not exit in time".into());
                }
                Err(error) => return Some(format!("its output: {error}")),
            }
            while let Some(at) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=at).collect();
                self.lines.push_back(String::from_utf8_lossy(&line).trim().to_owned());
            }
        }
        Some(self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string()))
    }

    /// The end of its standard error.
    fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let end: Vec<&str> = log.lines().rev().take(3).collect();
        let said = end.into_iter().rev().collect::<Vec<_>>().join(" | ");
        said.chars().take(2000).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
