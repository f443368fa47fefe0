//! [`UdpIo`]: the kernel UDP implementation of [`PacketIo`].

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{ClockId, clock_gettime};

use super::config::{MAX_PAYLOAD, SendMode, SendOptions, UdpConfig};
use super::control::Received;
use super::errors::{Verdict, judge};
use super::path_mtu::PathMtus;
use super::pause::ReceivePause;
use super::socket::{UdpGroup, UdpSocket, UdpSockets};
use super::sys::{self, ReceiveBatch, SendBatch};
use super::transmit::Outbox;
use super::window::Window;
use crate::io::{Datagram, Ecn, Flow, Hints, IoError, IoStats, PacketIo, Sent, TimeSource, Timestamp, Via};
use crate::route::Resolver;
use crate::trace::Tracer;
use crate::wait::{self, Wait};

mod send;

use send::SEND_BATCH;

/// The largest message that GRO puts together, with room to spare: 64 KiB.
const GRO_BUFFER: usize = 65_536;

/// Segments in one GRO message at most: a GSO message can pass a local link unsegmented, and the kernel
/// takes up to 128 segments there (`UDP_MAX_SEGMENTS` since Linux 6.9).
const GRO_SEGMENTS: usize = 128;

/// Entries taken off an error queue at a time, so that a flood of ICMP messages cannot hold the worker.
const ERROR_BATCH: usize = 64;

/// An error queue wakes the worker, but its entries need not show on a call: after this many receives
/// without a datagram the queues are looked at.
const IDLE_RECEIVES: u32 = 16;

/// MTU of a path that nothing is known about.
const DEFAULT_MTU: usize = 1500;

/// What `SO_TIMESTAMPING` is asked for (`linux/net_tstamp.h`): the stack's stamp, and the device's as it is.
const STAMPS: i32 = (libc::SOF_TIMESTAMPING_RX_SOFTWARE
    | libc::SOF_TIMESTAMPING_SOFTWARE
    | libc::SOF_TIMESTAMPING_RX_HARDWARE
    | libc::SOF_TIMESTAMPING_RAW_HARDWARE) as i32;

/// Per-socket state beside the socket.
struct State {
    /// What it is asked for at once.
    window: Window,
    /// Since when its buffer is full.
    full_since: Option<Instant>,
    /// `SK_MEMINFO_DROPS` as the socket was taken over.
    drops_at_start: u32,
}

/// Kernel UDP packet I/O of one worker.
///
/// What was built is with the kernel after a flush, with one exception: while a socket's buffer is full, it
/// waits in the transmit memory, at most for [`UdpConfig::send_patience`] and at most until another socket
/// needs that memory. It goes with the next flush after a descriptor has said that there is room, or is
/// counted in `dropped_no_buffer`.
pub struct UdpIo {
    sockets: Vec<UdpSocket>,
    states: Vec<State>,
    /// Holds the sockets that wait for room, for `EPOLLOUT`; empty in normal operation.
    writable: OwnedFd,
    receive: ReceiveBatch,
    send: SendBatch,
    outbox: Outbox,
    mode: SendMode,
    patience: Duration,
    max_payload: usize,
    path_mtus: PathMtus,
    resolver: Option<Resolver>,
    last_socket: usize,
    first_to_receive: usize,
    idle_receives: u32,
    /// What is received is stamped: as configured, or while somebody traces.
    timestamps: bool,
    configured_timestamps: bool,
    tracer: Tracer,
    /// In the last receive a socket gave all that it was asked for.
    full: bool,
    pause: ReceivePause,
    /// Nothing is received, as was asked.
    is_paused: bool,
    /// Of the descriptors that are watched.
    generation: u64,
    now: Instant,
    stats: IoStats,
}

impl UdpIo {
    /// Packet I/O over `sockets`, which [`UdpGroup::bind`] made from the same configuration.
    ///
    /// # Errors
    /// When the process has no file descriptor left, or the kernel stamps nothing where
    /// [`UdpConfig::timestamps`] asks for it.
    pub fn new(config: &UdpConfig, sockets: UdpSockets) -> Result<Self, IoError> {
        let writable = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| IoError::Socket { what: "udp: epoll_create".into(), source: errno.into() })?;
        let sockets = sockets.sockets;
        if config.timestamps {
            for socket in &sockets {
                crate::sys::set_option(socket.fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, STAMPS)
                    .map_err(|error| fault(socket, "SO_TIMESTAMPING", error))?;
            }
        }
        let gro = sockets.iter().any(|socket| socket.gro);
        let size = if gro { GRO_BUFFER } else { config.receive_buffer };
        let states = sockets.iter().map(|socket| State {
            window: Window::new(config.receive_batch),
            full_since: None,
            drops_at_start: sys::drops(socket.fd()).unwrap_or(0),
        });
        Ok(Self {
            states: states.collect(),
            writable,
            receive: ReceiveBatch::new(config.receive_batch, size),
            send: SendBatch::new(SEND_BATCH),
            outbox: Outbox::new(sockets.len(), config.transmit_memory),
            mode: config.send,
            patience: config.send_patience,
            max_payload: config.max_payload,
            path_mtus: PathMtus::new(),
            resolver: None,
            last_socket: 0,
            first_to_receive: 0,
            idle_receives: 0,
            timestamps: config.timestamps,
            configured_timestamps: config.timestamps,
            tracer: Tracer::default(),
            full: false,
            pause: ReceivePause::default(),
            is_paused: false,
            generation: 0,
            now: Instant::now(),
            stats: IoStats::default(),
            sockets,
        })
    }

    /// Packet I/O for a single worker: [`UdpGroup::bind`] and [`UdpIo::new`] in one.
    ///
    /// # Errors
    /// Those of both.
    pub fn bind(config: &UdpConfig) -> Result<Self, IoError> {
        let mut workers = UdpGroup::bind(config, 1)?.into_workers();
        Self::new(config, workers.remove(0))
    }

    /// What has the sockets stop receiving.
    pub fn pause(&self) -> ReceivePause {
        self.pause.clone()
    }

    /// Does what was asked. Sockets that are not read are not watched: with what waits there they would wake the
    /// worker for ever.
    fn follow_gate(&mut self) {
        let is_asked = self.pause.is_asked();
        if is_asked != self.is_paused {
            self.is_paused = is_asked;
            self.generation += 1;
            self.pause.confirm(is_asked);
        }
    }

    /// Lets [`PacketIo::max_payload`] ask the routes for the MTU of the first hop.
    pub fn set_resolver(&mut self, resolver: Resolver) {
        self.resolver = Some(resolver);
    }

    /// The bound addresses with their actual ports, by socket index (see [`Via::Kernel`]).
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().map(|socket| socket.bound)
    }

    /// Whether every socket sends by GSO: asked for, and not turned off by a send error.
    pub fn is_gso(&self) -> bool {
        self.sockets.iter().all(|socket| socket.gso)
    }

    /// The socket at `index`, for options that this module does not know of.
    pub fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.sockets.get(index).map(UdpSocket::fd)
    }

    /// Changes how every socket sends.
    ///
    /// # Errors
    /// The option that the kernel refused.
    pub fn set_sending(&self, options: &SendOptions) -> Result<(), IoError> {
        self.sockets.iter().try_for_each(|socket| socket.set_sending(options))
    }

    /// Has what is received stamped while somebody traces. Where the kernel refuses that, traces have no stamps.
    #[cold]
    fn follow_tracer(&mut self, is_traced: bool) {
        self.timestamps = self.configured_timestamps || is_traced;
        let stamps = if self.timestamps { STAMPS } else { 0 };
        for socket in &self.sockets {
            if let Err(error) =
                crate::sys::set_option(socket.fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, stamps)
            {
                tracing::debug!(address = %socket.bound, %error, "SO_TIMESTAMPING refused");
            }
        }
    }

    fn socket_for(&mut self, local: &SocketAddr) -> Option<usize> {
        if !self.sockets[self.last_socket].serves(local) {
            // Who sends from many addresses mostly takes them in turn.
            let next = (self.last_socket + 1) % self.sockets.len();
            let found = self.sockets[next].serves(local).then_some(next);
            self.last_socket =
                found.or_else(|| self.sockets.iter().position(|socket| socket.serves(local)))?;
        }
        Some(self.last_socket)
    }

    /// One `recvmmsg` on one socket.
    fn receive_from(&mut self, index: usize, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        let mut tries = 0;
        let asked = self.states[index].window.asks(self.now);
        let messages = loop {
            self.stats.rx_syscalls += 1;
            tries += 1;
            match self.receive.receive(self.sockets[index].fd(), asked) {
                Ok(count) => break count,
                Err(error) => match judge(error.raw_os_error().unwrap_or(0)) {
                    Verdict::Full => return Ok(0),
                    Verdict::Fatal => return Err(fault(&self.sockets[index], "recvmmsg", error)),
                    // An ICMP error of something sent. A flood of them must not hold the worker here.
                    _ if tries > 2 => return Ok(0),
                    _ => self.drain_errors(index),
                },
            }
        };
        self.full |= self.states[index].window.note(self.now, asked, messages);
        let bound = self.sockets[index].bound;
        let mut handed = 0;
        for number in 0..messages {
            let message = self.receive.message(number);
            let Some(remote) = message.remote.filter(|_| !message.truncated) else {
                self.stats.dropped_truncated += 1;
                continue;
            };
            let received = Received::decode(message.control);
            let local = local_address(bound, &received);
            let ecn = Ecn::from_tos(received.tos);
            let via = Via::Kernel(index as u16);
            // The kernel begins to stamp some time after it was asked (`netstamp_work` in `net/core/dev.c`): what comes
            // before is stamped as SO_TIMESTAMPNS would have it, when it is read.
            let timestamp = received.time.or_else(|| self.configured_timestamps.then(read_now));
            let hints = Hints { timestamp, ..Hints::default() };
            self.stats.rx_kernel_bytes += message.payload.len() as u64;
            if received.segment == 0 || received.segment >= message.payload.len() {
                handed += 1;
                sink(Datagram { payload: message.payload, remote, local, ecn, via, hints });
                continue;
            }
            for payload in message.payload.chunks_mut(received.segment) {
                handed += 1;
                sink(Datagram { payload, remote, local, ecn, via, hints });
            }
        }
        self.stats.rx_kernel_packets += handed as u64;
        Ok(handed)
    }

    /// Empties a socket's error queue, and learns path MTUs from it.
    fn drain_errors(&mut self, index: usize) {
        for _ in 0..ERROR_BATCH {
            match sys::queued_error(self.sockets[index].fd()) {
                Ok(Some((destination, error))) if error.errno == libc::EMSGSIZE => {
                    self.path_mtus.insert(destination.ip(), error.info as usize, self.now);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

/// The stack's clock now.
fn read_now() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    let nanoseconds = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    Timestamp { nanoseconds, source: TimeSource::Kernel }
}

fn fault(socket: &UdpSocket, call: &str, source: std::io::Error) -> IoError {
    IoError::Socket { what: format!("udp {}: {call}", socket.bound), source }
}

/// The address that the peer asked: the bound one, or what the packet information says.
fn local_address(bound: SocketAddr, received: &Received) -> SocketAddr {
    let Some((ip, interface)) = received.destination else { return bound };
    let mut local = SocketAddr::new(ip, bound.port());
    if let SocketAddr::V6(v6) = &mut local
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(interface);
    }
    local
}

impl PacketIo for UdpIo {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        self.now = now;
        self.full = false;
        self.path_mtus.expire(now);
        if self.is_paused {
            return Ok(0);
        }
        let is_traced = self.tracer.is_on();
        if self.timestamps != (self.configured_timestamps || is_traced) {
            self.follow_tracer(is_traced);
        }
        let mut handed = 0;
        let count = self.sockets.len();
        for offset in 0..count {
            handed += self.receive_from((self.first_to_receive + offset) % count, sink)?;
        }
        // The next batch begins with another socket, so that none always waits behind a busy one.
        self.first_to_receive = (self.first_to_receive + 1) % count;
        self.idle_receives = if handed == 0 { self.idle_receives + 1 } else { 0 };
        if self.idle_receives >= IDLE_RECEIVES {
            self.idle_receives = 0;
            (0..count).for_each(|index| self.drain_errors(index));
        }
        Ok(handed)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        if segment == 0 || segment > MAX_PAYLOAD {
            let what = format!("udp: transmit with a segment of {segment} bytes (1 to {MAX_PAYLOAD})");
            return Err(IoError::Socket { what, source: std::io::ErrorKind::InvalidInput.into() });
        }
        let Some(index) = self.socket_for(&flow.local) else {
            self.refuse_burst(segment, fill);
            return Ok(Sent::default());
        };
        let name_source = self.sockets[index].bound.ip().is_unspecified();
        let mode = if self.sockets[index].gso { SendMode::Gso } else { SendMode::Sendmmsg };
        let mut sent = self.outbox.build(index, flow, name_source, segment, mode, fill);
        while sent.blocked {
            self.flush_all()?;
            if self.states[index].full_since.is_none() {
                self.give_up_on_full_sockets();
            }
            let more = self.outbox.build(index, flow, name_source, segment, mode, fill);
            sent.packets += more.packets;
            sent.bytes += more.bytes;
            sent.blocked = more.blocked;
            if more.packets == 0 {
                break;
            }
        }
        Ok(sent)
    }

    fn flush(&mut self, now: Instant) -> Result<(), IoError> {
        self.now = now;
        self.follow_gate();
        if self.outbox.is_empty() {
            return Ok(());
        }
        self.flush_all()
    }

    fn waiting(&self) -> usize {
        self.outbox.datagrams()
    }

    fn max_payload(&mut self, flow: &Flow) -> usize {
        let headers = if flow.remote.is_ipv4() { 28 } else { 48 };
        let mut mtu = self
            .resolver
            .as_mut()
            .and_then(|resolver| resolver.mtu(flow.local.ip(), flow.remote.ip()))
            .unwrap_or(DEFAULT_MTU);
        if let Some(reported) = self.path_mtus.lookup(&flow.remote.ip()) {
            mtu = mtu.min(reported);
        }
        mtu.saturating_sub(headers).min(self.max_payload)
    }

    fn descriptors(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        if !self.is_paused {
            self.sockets.iter().for_each(|socket| visit(socket.fd()));
        }
        visit(self.writable.as_fd());
    }

    fn descriptors_generation(&self) -> u64 {
        self.generation
    }

    fn kernel_socket(&self, address: IpAddr) -> Option<BorrowedFd<'_>> {
        self.sockets.iter().find(|socket| socket.bound.ip() == address).map(UdpSocket::fd)
    }

    fn set_wait(&mut self, wait: Wait) -> Result<(), IoError> {
        for socket in &self.sockets {
            wait::prepare_socket(socket.fd(), wait, true, &format!("udp {}", socket.bound))?;
        }
        Ok(())
    }

    fn set_tracer(&mut self, tracer: Tracer) {
        self.tracer = tracer;
    }

    fn batch(&self) -> usize {
        let segments = if self.sockets.iter().any(|socket| socket.gro) { GRO_SEGMENTS } else { 1 };
        self.receive.capacity() * segments
    }

    fn may_have_more(&self, _received: usize) -> bool {
        self.full
    }

    fn stats(&self) -> IoStats {
        let mut stats = self.stats;
        for (socket, state) in self.sockets.iter().zip(&self.states) {
            if let Ok(drops) = sys::drops(socket.fd()) {
                stats.rx_kernel_dropped += u64::from(drops.wrapping_sub(state.drops_at_start));
            }
        }
        stats
    }
}
