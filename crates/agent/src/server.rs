//! The agent: listens, checks clients' credentials, and gives each client its own thread, so that none waits
//! for another.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_netio::route::{RouteError, RouteMirror};
use expressway_netio::unix::{self, Occupied};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};

use crate::account::Account;
use crate::channel::{Channel, ChannelError};
use crate::message::{Code, Refusal, Reply};
use crate::policy::{Policy, Rule};
use crate::rate::LogLimit;
use crate::session::{Session, may_be_taken};
use crate::slots::{ClientSlot, ClientSlots};
use crate::table;

/// How long an answer may wait for room in the client's socket. There is one answer per request, so a client
/// that reads never makes it wait.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Backlog of the listening socket.
const BACKLOG: i32 = 64;
/// How long an attach waits for the holder of the interface to release it. What a client takes down when it goes is a program
/// and its links: tenths of a second.
const RELEASE: Duration = Duration::from_secs(2);
/// Connections being rejected at a time.
const TURNED_AWAY: usize = 64;

/// Why the agent could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket could not be created.
    #[error("{}: {source}{advice}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
        /// What to do, after a separator.
        advice: &'static str,
    },
    /// The addresses of the machine could not be read.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// A thread could not be started.
    #[error("starting a client thread: {0}")]
    Thread(io::Error),
}

/// Statistics of the agent. Every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients accepted.
    pub clients: u64,
    /// Connections rejected: no rule, or too many.
    pub rejected: u64,
    /// Requests refused.
    pub refused: u64,
    /// Connections closed for malformed messages or unread answers.
    pub dropped: u64,
}

/// State shared by the clients' threads.
pub(crate) struct Shared {
    mirror: RouteMirror,
    /// Interfaces by the client that holds them.
    claims: Mutex<HashMap<String, u64>>,
    /// One of them was released.
    released: Condvar,
    slots: Arc<ClientSlots>,
    numbers: AtomicU64,
    rejected: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    /// Log limits: for rejected connections, for refusals, and for clients connecting and disconnecting.
    strangers: LogLimit,
    refusals: LogLimit,
    comings: LogLimit,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new() -> Result<Self, ServerError> {
        Ok(Self {
            mirror: RouteMirror::start()?,
            claims: Mutex::default(),
            released: Condvar::new(),
            slots: Arc::default(),
            numbers: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            strangers: LogLimit::new(),
            refusals: LogLimit::new(),
            comings: LogLimit::new(),
        })
    }

    fn count_rejection(&self, refusal: &Refusal) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        if let Some(unsaid) = self.strangers.next(Instant::now()) {
            tracing::warn!(code = %refusal.code, unsaid, "client rejected: {refusal}");
        }
    }

    /// A client said hello.
    pub(crate) fn greet(&self, client: u64, name: &str, rule: &str) {
        if let Some(unsaid) = self.comings.next(Instant::now()) {
            tracing::info!(client, name, rule, unsaid, "client");
        }
    }

    pub(crate) fn count_refusal(&self, client: u64, rule: &str, refusal: &Refusal) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(unsaid) = self.refusals.next(Instant::now()) {
            tracing::warn!(client, rule, code = %refusal.code, unsaid, "request refused: {refusal}");
        }
    }

    /// A client's connection has ended.
    pub(crate) fn count_end(&self, client: u64, result: Result<(), ChannelError>) {
        let dropped = match &result {
            Ok(()) => self.dropped.load(Ordering::Relaxed),
            Err(_) => self.dropped.fetch_add(1, Ordering::Relaxed) + 1,
        };
        let Some(unsaid) = self.comings.next(Instant::now()) else { return };
        match result {
            Ok(()) => tracing::info!(client, unsaid, "client disconnected: resources reclaimed"),
            Err(error) => {
                tracing::warn!(client, %error, dropped, unsaid, "client dropped: resources reclaimed");
            }
        }
    }

    /// Whether an interface has one of these addresses, or may have: wildcards match any of their family,
    /// and groups belong to no interface.
    pub(crate) fn carries(&self, interface: &str, listen: &[SocketAddr]) -> bool {
        let snapshot = self.mirror.snapshot();
        let family = |is_ipv4: bool| {
            let mut own = snapshot.links().iter().flat_map(|link| snapshot.addresses(link.index));
            own.any(|own| own.address.is_ipv4() == is_ipv4 && self.has_address(interface, own.address))
        };
        listen.iter().any(|address| match address.ip() {
            ip if ip.is_multicast() => true,
            ip if ip.is_unspecified() => family(ip.is_ipv4()),
            ip => self.has_address(interface, ip),
        })
    }

    /// Index of an interface.
    pub(crate) fn ifindex(&self, name: &str) -> Result<u32, Refusal> {
        self.mirror.snapshot().link_by_name(name).map(|link| link.index).ok_or_else(|| {
            Refusal::new(
                Code::Kernel,
                format!("interface {name}: no such interface in the agent's network namespace"),
            )
        })
    }

    /// Whether an address belongs to an interface, to a VLAN on it, or to the bond that it is a member of.
    pub(crate) fn has_address(&self, interface: &str, ip: IpAddr) -> bool {
        let snapshot = self.mirror.snapshot();
        let Some(device) = snapshot.link_by_name(interface) else { return false };
        let on_device =
            |ifindex: u32| snapshot.carriers_of(ifindex).iter().any(|carrier| carrier.index == device.index);
        let has = |ifindex: u32| snapshot.addresses(ifindex).any(|own| own.address == ip);
        may_be_taken(ip) && snapshot.links().iter().any(|link| on_device(link.index) && has(link.index))
    }

    /// Assigns an interface to a client: its program hands every queue to one owner. A client that starts again may come
    /// before its former connection has been cleaned up, so a holder has [`RELEASE`] to go.
    pub(crate) fn claim(&self, interface: &str, client: u64) -> Result<(), Refusal> {
        let is_taken =
            |claims: &mut HashMap<_, _>| claims.get(interface).is_some_and(|holder| *holder != client);
        let (mut claims, _) = self
            .released
            .wait_timeout_while(lock(&self.claims), RELEASE, is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        match claims.get(interface) {
            Some(holder) if *holder != client => Err(Refusal::new(
                Code::Taken,
                format!("interface {interface}: already in use by client {holder} of this agent"),
            )),
            _ => {
                claims.insert(interface.to_owned(), client);
                Ok(())
            }
        }
    }

    /// Releases it.
    pub(crate) fn release(&self, interface: &str, client: u64) {
        let mut claims = lock(&self.claims);
        if claims.get(interface) == Some(&client) {
            claims.remove(interface);
            self.released.notify_all();
        }
    }
}

/// The agent.
pub struct Server {
    policy: Policy,
    shared: Arc<Shared>,
    listener: OwnedFd,
    path: PathBuf,
}

impl Server {
    /// Listens at the policy's socket, in the network namespace of the calling thread, whose interfaces it
    /// manages. A stale socket that nobody listens on is replaced.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn bind(policy: Policy) -> Result<Self, ServerError> {
        let path = policy.socket.clone().unwrap_or_default();
        let failed = |advice| {
            let path = path.clone();
            move |errno: Errno| ServerError::Socket { path, source: errno.into(), advice }
        };
        let address = SocketAddrUnix::new(path.as_path())
            .map_err(failed("; the path is too long for a unix socket"))?;
        clear(&path)?;
        let listener = seqpacket().map_err(failed(""))?;
        bind(&listener, &address).map_err(failed("; check that its directory exists and is writable"))?;
        let mode = std::fs::Permissions::from_mode(policy.socket_mode);
        std::fs::set_permissions(&path, mode).map_err(|source| ServerError::Socket {
            path: path.clone(),
            source,
            advice: "",
        })?;
        listen(&listener, BACKLOG).map_err(failed(""))?;
        Ok(Self { policy, shared: Arc::new(Shared::new()?), listener, path })
    }

    /// Statistics so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            clients: read(&self.shared.numbers),
            rejected: read(&self.shared.rejected),
            refused: read(&self.shared.refused),
            dropped: read(&self.shared.dropped),
        }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts clients, for ever.
    ///
    /// # Errors
    /// When the listening socket fails.
    pub fn run(&self) -> Result<(), ServerError> {
        let mut turned_away = VecDeque::new();
        loop {
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket, &mut turned_away),
                // Out of descriptors or memory: clients that disconnect will free some; a client that gave
                // up is not an error.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    tracing::error!("out of file descriptors for another client");
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    let path = self.path.clone();
                    return Err(ServerError::Socket { path, source: errno.into(), advice: "" });
                }
            }
        }
    }

    /// Accepts a client, or rejects it with the reason.
    fn admit(&self, socket: OwnedFd, turned_away: &mut VecDeque<JoinHandle<()>>) {
        let shared = Arc::clone(&self.shared);
        let result = match self.check(&socket) {
            Ok((slot, rule)) => {
                let id = shared.numbers.fetch_add(1, Ordering::Relaxed) + 1;
                table::spawn("agent-client", socket, move |socket| serve(id, socket, rule, shared, slot))
                    .map(drop)
            }
            Err(refusal) => {
                shared.count_rejection(&refusal);
                turned_away.retain(|thread| !thread.is_finished());
                // Each takes no time; more than that many are not started.
                if turned_away.len() == TURNED_AWAY
                    && let Some(oldest) = turned_away.pop_front()
                {
                    let _ = oldest.join();
                }
                table::spawn("agent-refusal", socket, move |socket| turn_away(socket, refusal))
                    .map(|thread| turned_away.push_back(thread))
            }
        };
        if let Err(error) = result
            && let Some(unsaid) = self.shared.comings.next(Instant::now())
        {
            tracing::error!(%error, unsaid, "cannot start a thread for another client");
        }
    }

    /// The rule for the peer, with a slot under it.
    fn check(&self, socket: &OwnedFd) -> Result<(ClientSlot, Rule), Refusal> {
        let peer = sockopt::socket_peercred(socket)
            .map_err(|errno| Refusal::new(Code::Kernel, format!("SO_PEERCRED: {errno}")))?;
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let (index, rule) = self.policy.rule(uid, gid).ok_or_else(|| {
            Refusal::new(Code::Unknown, format!("no [[allow]] rule matches uid {uid}, gid {gid}"))
        })?;
        let slot = self.shared.slots.take(&self.policy, index, rule)?;
        Ok((slot, rule.clone()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Another agent may have replaced the socket meanwhile and can remove its own; the window is that of
        // a restart.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The connection of a thread that ends with it. It is not closed earlier: descriptors waiting in it would
/// be closed too, by whoever closed it.
fn connection(socket: OwnedFd) -> io::Result<ManuallyDrop<Channel>> {
    Channel::of_stranger(socket, SEND_PATIENCE).map(ManuallyDrop::new)
}

/// Sends the reason for the rejection.
fn turn_away(socket: OwnedFd, refusal: Refusal) {
    if let Ok(channel) = connection(socket) {
        // The socket's buffer is empty: this does not wait.
        let _ = channel.send(0, &Reply::Refused(refusal), &[]);
    }
}

/// Serves one accepted client until nothing of it remains.
fn serve(id: u64, socket: OwnedFd, rule: Rule, shared: Arc<Shared>, slot: ClientSlot) {
    match connection(socket) {
        Ok(channel) => {
            let mut account = Account::new(slot);
            serve_over(&channel, id, rule, &shared, &mut account);
            channel.shut();
            account.settle();
        }
        Err(error) => tracing::warn!(%error, "cannot set up a client connection"),
    }
}

/// Serves it until its connection ends, and takes back what it had.
fn serve_over(channel: &Channel, id: u64, rule: Rule, shared: &Arc<Shared>, account: &mut Account) {
    let mut session = Session::new(id, rule, Arc::clone(shared), account);
    let result = session.serve(channel);
    drop(session);
    shared.count_end(id, result);
}

/// Serves the one client at the other end of `socket` by the policy's first rule, until it disconnects.
///
/// # Errors
/// [`ServerError`].
pub fn serve_one(policy: &Policy, socket: OwnedFd) -> Result<(), ServerError> {
    let shared = Arc::new(Shared::new()?);
    if let Some(rule) = policy.rules.first() {
        let channel = Channel::new(socket, SEND_PATIENCE).map_err(ServerError::Thread)?;
        serve_over(&channel, 1, rule.clone(), &shared, &mut Account::new(ClientSlot::alone()));
    }
    Ok(())
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Makes room for the socket: a stale one is removed, anything else is left alone.
fn clear(path: &Path) -> Result<(), ServerError> {
    let in_use = || io::Error::from(io::ErrorKind::AddrInUse);
    let (source, advice) = match unix::remove_stale(path, SocketType::SEQPACKET) {
        Ok(()) => return Ok(()),
        Err(Occupied::NotASocket) => {
            (in_use(), "; it exists and is not a socket: remove it or choose another path")
        }
        Err(Occupied::InUse) => (in_use(), "; another agent is listening there"),
        Err(Occupied::Stale(error) | Occupied::Unknown(error)) => (error, ""),
    };
    Err(ServerError::Socket { path: path.to_owned(), source, advice })
}
