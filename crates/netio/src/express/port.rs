//! A port: one AF_XDP socket on one queue of one interface, through good times and bad.
//!
//! ```text
//!               link down, ENETDOWN                    unregistered, ENXIO
//!        Up ─────────────────────────▶ Down ─────────────────────────────▶ Gone (for good)
//!        ▲ ◀───────────────────────── link up                                ▲
//!        │                                                                   │
//!        └──────── bound again ◀──── Reopening ◀── stuck, corrupt, refused ──┴── from Up
//! ```
//!
//! Only in `Up` does a port send; what it cannot send takes the kernel socket ([`super::ExpressIo`]). A link
//! that goes down keeps the socket: it stays bound, and opening another takes privileges that the process
//! may have given up. The packets of the burst that met the link going down stay in the TX ring and leave
//! when it is up again. A socket that takes packets and completes none for [`STALL_TIME`] is replaced, UMEM
//! and all: drivers exist whose queue dies silently. What happens when the new one fails too says
//! [`super::Failing`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use expressway_wire::{ChecksumMode, MAX_HEADER_LEN};

use super::assembly::ASSEMBLY_SIZE;
use super::config::{Failing, ObtainedMode, PortConfig, TransmitVia};
use super::description::DESCRIPTION_LEN;
use super::error::{OpenError, Step};
use super::hints::{ChecksumProof, Grant, TransmitGrants};
use super::interface::{Interfaces, LinkState};
use super::kick::{self, Outcome};
use super::lane::{Mapped, PART_OFFSET, TxFrame};
use super::mapping::Backing;
use super::metadata::{Request, TransmitTime, Unfinished};
use super::queue::Queue;
use super::socket::Socket;
use super::source::SocketSource;
use super::umem::Frames;
use super::xskmap;
use crate::io::{IoError, IoStats};
use crate::netdev::Netdev;
use crate::route::OwnNamespace;
use crate::wait::{self, Wait};

/// A transmit queue that completes nothing for this long although it is kicked is dead. Longer than any
/// driver's transmit watchdog is quiet (5 s is their usual `watchdog_timeo`, after which they reset).
const STALL_TIME: Duration = Duration::from_secs(6);
/// Kicks without a completion that it takes besides: time alone also passes while the worker sleeps.
const STALL_KICKS: u32 = 16;
/// First pause before a failed socket is opened anew; doubles up to [`REOPEN_LONGEST`] with each try that
/// fails and each socket that fails before it has lived that long.
const REOPEN_FIRST: Duration = Duration::from_millis(50);
/// Longest pause between two tries to open a socket anew.
const REOPEN_LONGEST: Duration = Duration::from_secs(5);
/// Failures farther apart than this are not held against each other.
const FAILURE_MEMORY: Duration = Duration::from_secs(600);
/// Failures to send, and to receive, after which [`Failing::Demote`] gives up: the first may be a driver's
/// reset; receiving is given up later because the whole queue goes with it.
const SEND_FAILURES: u32 = 2;
const RECEIVE_FAILURES: u32 = 3;
/// How long packets wait in the TX ring of a full device before they are kicked again.
const KICK_AGAIN: Duration = Duration::from_millis(1);
/// Ethernet header and two VLAN tags: what an MTU does not count.
pub(super) const LINK_HEADERS: u32 = 22;
/// Frames of one sent packet in copy mode: the parts behind the first become fragments of a socket buffer, of
/// which there are `MAX_SKB_FRAGS`, 17 unless the kernel is built with more (`xsk_build_skb` in
/// `net/xdp/xsk.c`).
const COPY_SEGMENTS: u32 = 17;

/// Bytes of the largest UDP payload over IPv4 (RFC 768, RFC 791).
const LARGEST_PAYLOAD: usize = 65_507;

/// How a port fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Bound, and the link is up.
    Up,
    /// Bound, and the link is down.
    Down,
    /// The socket failed; a new one is tried in intervals.
    Reopening,
    /// The interface is gone, or the privileges to open a socket are: the kernel socket serves from now on.
    Gone,
}

/// What a port is and how it fares, for logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Interface name as configured.
    pub interface: String,
    /// Interface index.
    pub ifindex: u32,
    /// Queue of the interface.
    pub queue: u32,
    /// State of the port.
    pub state: PortState,
    /// Mode that bind obtained; `None` while there is no socket.
    pub mode: Option<ObtainedMode>,
    /// Pages that hold the UMEM; `None` while there is no socket.
    pub backing: Option<Backing>,
    /// Which way datagrams leave.
    pub transmit: TransmitVia,
    /// Why the port is not, or no longer, what it was opened as; `None` while nothing has gone wrong for good.
    pub reason: Option<String>,
    /// Whether packets larger than a frame are received (`XDP_USE_SG`).
    pub multi_buffer: bool,
    /// Frames that one sent packet may take; 1 where packets larger than a frame leave by the kernel socket.
    pub max_segments: u32,
    /// Packets that one system call may send in copy mode; 0 while there is no socket.
    pub tx_budget: u32,
    /// What the port may do by transmit metadata.
    pub grants: TransmitGrants,
    /// Whether the device computes UDP checksums: granted, and proven since the socket was opened.
    pub device_checksum: bool,
    /// The NAPI context of the queue, by which it can be busy-polled; `None` where the device names none.
    pub napi: Option<u32>,
    /// Packets put together from several frames, by a copy.
    pub gathered: u64,
    /// Times that a failed socket was replaced.
    pub reopened: u64,
}

/// How a port fares, to be asked from any thread. The report is that of the last change of state: `gathered`
/// is as of then.
#[derive(Clone, Debug)]
pub struct PortStatus {
    report: Arc<ArcSwap<PortReport>>,
}

impl PortStatus {
    /// The report as last published.
    pub fn report(&self) -> Arc<PortReport> {
        self.report.load_full()
    }
}

/// What a socket failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Send,
    Receive,
}

/// A bound socket with its rings.
struct Active {
    socket: Socket,
    queue: Queue<Mapped>,
    mode: ObtainedMode,
    /// Frames that one sent packet may take.
    segments: u32,
    /// Packets that one system call may send in copy mode.
    tx_budget: u32,
    grants: TransmitGrants,
    /// The device was shown to finish checksums.
    checksum_proven: bool,
    /// Since when, how often kicked, and the count of completions then, while packets are in flight and none
    /// is completed.
    quiet: Option<(Instant, u32, u64)>,
    /// Packets wait in the TX ring for room in the device.
    deferred: bool,
}

/// Who makes the port's sockets.
enum Maker {
    /// This process, which enters them into this XSKMAP.
    Own(OwnedFd),
    /// Another process.
    Other(Box<dyn SocketSource>),
}

impl Maker {
    /// A bound socket; what it finds out about interface and packets comes with it.
    fn make(
        &mut self,
        config: &PortConfig,
        ifindex: u32,
        multi_buffer: bool,
        patience: Duration,
    ) -> Result<Active, OpenError> {
        match self {
            Self::Own(map) => Active::open(config, ifindex, multi_buffer, map.as_fd(), patience),
            Self::Other(source) => {
                let config = PortConfig { bind_patience: patience, ..config.clone() };
                Active::adopt(&config, &mut **source).map(|(active, ..)| active)
            }
        }
    }
}

/// One AF_XDP socket on one queue.
pub struct Port {
    config: PortConfig,
    ifindex: u32,
    multi_buffer: bool,
    maker: Maker,
    wait: Wait,
    active: Option<Active>,
    state: PortState,
    next_try: Instant,
    pause: Duration,
    opened: Instant,
    reopened: u64,
    gathered: u64,
    /// Failures to send and to receive lately, and when the last one was.
    failures: [u32; 2],
    failed: Option<Instant>,
    reason: Option<String>,
    published: Arc<ArcSwap<PortReport>>,
    /// Counters of this port, those of sockets that it once had included.
    counters: IoStats,
}

impl Port {
    /// Opens a socket on a queue and puts it into `map`, an XSKMAP that the redirect program of that
    /// interface uses, at [`PortConfig::map_key`]. The program should be attached before: some drivers need
    /// it for a zero-copy bind, and some restart the link when it comes.
    ///
    /// Takes CAP_NET_RAW and CAP_BPF. `map` is duplicated; dropping the port takes the socket out again.
    ///
    /// # Errors
    /// [`OpenError`] names interface, queue and remedy. A mode that was asked for is obtained or an error.
    pub fn open(config: PortConfig, map: BorrowedFd<'_>) -> Result<Self, OpenError> {
        config.validate()?;
        let interface = config.interface.clone();
        let named = |source| OpenError::Interface { interface: interface.clone(), source };
        let interfaces = Interfaces::open(&OwnNamespace).map_err(named)?;
        let ifindex = interfaces.index(&config.interface).map_err(named)?;
        let mtu = interfaces.mtu(ifindex).map_err(named)?;
        let largest = mtu.saturating_add(LINK_HEADERS);
        let config = config.fitted(largest);
        let multi_buffer = largest > config.single_frame();
        let map = map
            .try_clone_to_owned()
            .map_err(|source| Step::Map.failed(&config.interface, config.queue, multi_buffer, source))?;
        let active = Active::open(&config, ifindex, multi_buffer, map.as_fd(), config.bind_patience)?;
        let state = match interfaces.state(ifindex) {
            LinkState::Up => PortState::Up,
            LinkState::Down | LinkState::Gone => PortState::Down,
        };
        tracing::info!(
            interface = config.interface,
            queue = config.queue,
            mode = %active.mode,
            backing = ?active.queue.umem().backing(),
            frame_size = config.frame_size,
            multi_buffer,
            ?state,
            "AF_XDP socket bound"
        );
        Ok(Self::new(config, ifindex, multi_buffer, Maker::Own(map), active, state))
    }

    fn new(
        config: PortConfig,
        ifindex: u32,
        multi_buffer: bool,
        maker: Maker,
        active: Active,
        state: PortState,
    ) -> Self {
        let now = Instant::now();
        let report = PortReport {
            interface: config.interface.clone(),
            ifindex,
            queue: config.queue,
            state,
            mode: Some(active.mode),
            backing: Some(active.queue.umem().backing()),
            transmit: config.transmit,
            reason: None,
            multi_buffer,
            max_segments: 1,
            tx_budget: active.tx_budget,
            grants: active.grants,
            device_checksum: false,
            napi: None,
            gathered: 0,
            reopened: 0,
        };
        let port = Self {
            config,
            ifindex,
            multi_buffer,
            maker,
            wait: Wait::Interrupt,
            active: Some(active),
            state,
            next_try: now,
            pause: REOPEN_FIRST,
            opened: now,
            reopened: 0,
            gathered: 0,
            failures: [0; 2],
            failed: None,
            reason: None,
            published: Arc::new(ArcSwap::from_pointee(report)),
            counters: IoStats::default(),
        };
        port.publish();
        port
    }

    /// Where to learn from another thread how this port fares.
    pub fn status(&self) -> PortStatus {
        PortStatus { report: Arc::clone(&self.published) }
    }

    /// Chooses which way datagrams leave from now on. What waits in the TX ring leaves as it was built.
    pub fn set_transmit(&mut self, transmit: TransmitVia) {
        self.config.transmit = transmit;
        self.publish();
    }

    fn publish(&self) {
        self.published.store(Arc::new(self.report()));
    }

    /// Queue of the interface.
    pub fn queue(&self) -> u32 {
        self.config.queue
    }

    /// As [`Port::open`], with sockets that `source` has bound by a process that may do so; this one needs no
    /// capability. Whether the link is up shows once [`super::ExpressIo`] has the port.
    ///
    /// # Errors
    /// As [`Port::open`], and [`OpenError::Refused`].
    pub fn open_from(config: PortConfig, mut source: Box<dyn SocketSource>) -> Result<Self, OpenError> {
        config.validate()?;
        let (active, ifindex, multi_buffer) = Active::adopt(&config, &mut *source)?;
        tracing::info!(
            interface = config.interface,
            queue = config.queue,
            mode = %active.mode,
            multi_buffer,
            "AF_XDP socket obtained"
        );
        Ok(Self::new(config, ifindex, multi_buffer, Maker::Other(source), active, PortState::Up))
    }

    /// Index of the interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The mode that bind obtained; `None` while there is no socket.
    pub fn mode(&self) -> Option<ObtainedMode> {
        self.active.as_ref().map(|active| active.mode)
    }

    /// What the port is and how it fares.
    pub fn report(&self) -> PortReport {
        let active = self.active.as_ref();
        PortReport {
            interface: self.config.interface.clone(),
            ifindex: self.ifindex,
            queue: self.config.queue,
            state: self.state,
            mode: self.mode(),
            backing: active.map(|active| active.queue.umem().backing()),
            transmit: self.config.transmit,
            reason: self.reason.clone(),
            multi_buffer: self.multi_buffer,
            max_segments: self.max_segments(),
            tx_budget: active.map_or(0, |active| active.tx_budget),
            grants: self.grants(),
            device_checksum: active.is_some_and(|active| active.checksum_proven),
            napi: self.napi_id(),
            gathered: self.gathered + active.map_or(0, |active| active.queue.counters().gathered),
            reopened: self.reopened,
        }
    }

    /// Prepares the socket, and those that replace it, for the way that the worker waits.
    pub(super) fn set_wait(&mut self, wait: Wait) -> Result<(), IoError> {
        self.wait = wait;
        let Some(active) = &self.active else { return Ok(()) };
        let (interface, queue) = (&self.config.interface, self.config.queue);
        let what = format!("{interface} queue {queue}: AF_XDP");
        active.prepare(wait, &what)?;
        if matches!(wait, Wait::BusyPoll(_)) && self.napi_id().is_none() {
            tracing::warn!(
                interface,
                queue,
                "the device's queue has no NAPI id: there is nothing to busy-poll, interrupts wake the worker"
            );
        }
        Ok(())
    }

    /// The NAPI context that busy polling polls; see [`wait::napi_id`].
    fn napi_id(&self) -> Option<u32> {
        self.active.as_ref().and_then(|active| wait::napi_id(active.socket.as_fd()))
    }

    /// The cookie of what lies in front of received packets, where anything does.
    pub(super) fn description(&self) -> Option<u32> {
        self.config.description
    }

    /// What the port may do by transmit metadata.
    pub fn grants(&self) -> TransmitGrants {
        self.active.as_ref().map_or_else(TransmitGrants::default, |active| active.grants)
    }

    /// Who finishes the checksum of a datagram whose UDP header begins at `udp`, and what that asks for.
    #[inline]
    pub(super) fn checksum(&self, udp: usize) -> (ChecksumMode, Option<Unfinished>) {
        match self.active.as_ref().is_some_and(|active| active.checksum_proven) {
            true => (ChecksumMode::PseudoOnly, Some(Unfinished { start: udp as u16, offset: 6 })),
            false => (ChecksumMode::Full, None),
        }
    }

    /// Leaves checksums to the device from now on, if the proof is of this port and they were granted.
    pub(super) fn trust_checksum(&mut self, proof: &ChecksumProof) -> bool {
        let here = (proof.ifindex, proof.queue) == (self.ifindex, self.config.queue);
        match &mut self.active {
            Some(active) if here && active.grants.checksum.is_granted() => {
                active.checksum_proven = true;
                self.publish();
                true
            }
            _ => false,
        }
    }

    /// The oldest time stamp of a sent datagram that waits to be fetched.
    pub(super) fn next_stamp(&mut self) -> Option<TransmitTime> {
        self.active.as_mut()?.queue.stamps()?.pop()
    }

    /// The largest UDP payload that a frame carries.
    pub(super) fn max_in_frame(&self) -> usize {
        self.config.max_payload()
    }

    /// Frames that one sent packet may take.
    fn max_segments(&self) -> u32 {
        self.active.as_ref().map_or(1, |active| active.segments)
    }

    /// The largest UDP payload that can be sent, in one frame or several.
    pub(super) fn max_payload(&self) -> usize {
        match self.max_segments() {
            1 => self.max_in_frame(),
            several => {
                let room = several as usize * (self.config.frame_size as usize - PART_OFFSET);
                (room - MAX_HEADER_LEN).min(LARGEST_PAYLOAD)
            }
        }
    }

    /// True if datagrams are to leave by this port.
    pub(super) fn transmits(&self) -> bool {
        self.config.transmit == TransmitVia::Express
    }

    /// True if the socket is there and the link up.
    pub(super) fn is_up(&self) -> bool {
        self.state == PortState::Up
    }

    /// The socket, to wait on.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.active.as_ref().map(|active| active.socket.as_fd())
    }

    /// Recycles completions and hands up to `limit` received frames to `handle`.
    pub(super) fn receive<F: FnMut(&mut [u8])>(&mut self, now: Instant, limit: usize, handle: F) -> usize {
        let Some(active) = &mut self.active else { return 0 };
        active.queue.complete();
        let packets = active.queue.receive(limit, handle);
        if packets > 0 {
            self.wake(now);
        }
        if self.active.as_ref().is_some_and(|active| active.queue.is_corrupt()) {
            self.fail(now, Task::Receive, "the kernel moved a ring index where it cannot be");
        }
        packets
    }

    /// Tells the kernel of a filled fill ring, if it asks for that.
    fn wake(&mut self, now: Instant) {
        let Some(active) = &mut self.active else { return };
        if !active.queue.receive_needs_wakeup() {
            return;
        }
        self.counters.rx_syscalls += 1;
        if let Err(error) = active.socket.wake() {
            match kick::permanent(error) {
                Outcome::Down => self.set_link(LinkState::Down),
                Outcome::Gone => self.set_link(LinkState::Gone),
                // EAGAIN and its like: the flag stays set and the next turn tries again.
                _ if matches!(error, libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOBUFS) => {}
                _ => self.fail(now, Task::Receive, "waking reception failed"),
            }
        }
    }

    /// A frame to build a packet in; `None` if all are with the kernel.
    #[inline]
    pub(super) fn acquire(&mut self) -> Option<TxFrame<'_, Mapped>> {
        self.active.as_mut()?.queue.acquire()
    }

    /// True if a packet of up to `length` bytes can be sent in several frames now.
    pub(super) fn has_room(&mut self, length: usize) -> bool {
        self.active.as_mut().is_some_and(|active| {
            let parts = active.queue.parts(length);
            active.queue.has_room(parts)
        })
    }

    /// Sends a whole packet in as many frames as it takes; see [`Queue::submit_parts`].
    pub(super) fn submit_parts(&mut self, packet: &[u8], request: Request) -> bool {
        self.active.as_mut().is_some_and(|active| active.queue.submit_parts(packet, request))
    }

    /// Gives everything built so far to the kernel.
    pub(super) fn flush(&mut self, now: Instant) {
        if self.state != PortState::Up {
            return;
        }
        let Some(Active { socket, queue, mode, quiet, deferred, .. }) = &mut self.active else { return };
        queue.publish();
        // With frames left, that completions are slow is no one's concern; some drivers reap them only when
        // they send again.
        if queue.untaken() == 0 && !queue.is_exhausted() {
            *deferred = false;
            return;
        }
        let needs_wakeup = queue.transmit_needs_wakeup();
        let kicked = kick::transmit(*mode, needs_wakeup, || queue.untaken(), || socket.kick());
        self.counters.tx_syscalls += u64::from(kicked.calls);
        self.counters.dropped_send_refused += u64::from(kicked.refused);
        queue.complete();
        *deferred = kicked.outcome == Outcome::Later;
        let stalled = is_stalled(quiet, now, queue.in_flight(), queue.counters().completed);
        match kicked.outcome {
            Outcome::Down => self.set_link(LinkState::Down),
            Outcome::Gone => self.set_link(LinkState::Gone),
            Outcome::Fault(error) => {
                let error = io::Error::from_raw_os_error(error);
                self.fail(now, Task::Send, &format!("sending failed: {error}"));
            }
            Outcome::Sent | Outcome::Later if stalled => {
                self.fail(now, Task::Send, "transmission is stuck: nothing sent was completed for 6 s");
            }
            Outcome::Sent | Outcome::Later => {}
        }
    }

    /// True if packets wait that a sleeping worker would miss. Wakes the kernel where that asks for it.
    pub(super) fn prepare_sleep(&mut self, now: Instant) -> bool {
        if self.state != PortState::Up {
            return false;
        }
        self.wake(now);
        self.active.as_mut().is_some_and(|active| active.queue.has_received())
    }

    /// When the port needs a turn though no packet comes.
    pub(super) fn next_turn(&self, now: Instant) -> Option<Instant> {
        match self.state {
            PortState::Up if self.active.as_ref().is_some_and(|active| active.deferred) => {
                Some(now + KICK_AGAIN)
            }
            PortState::Reopening => Some(self.next_try),
            _ => None,
        }
    }

    /// Follows a change of the link.
    pub(super) fn set_link(&mut self, link: LinkState) {
        let state = match (self.state, link) {
            (PortState::Up | PortState::Down, LinkState::Up) => PortState::Up,
            (PortState::Up | PortState::Down, LinkState::Down) => PortState::Down,
            (_, LinkState::Gone) => PortState::Gone,
            (state, _) => state,
        };
        if state == self.state {
            return;
        }
        self.state = state;
        let (interface, queue) = (&self.config.interface, self.config.queue);
        match state {
            PortState::Up => tracing::info!(interface, queue, "link is up: AF_XDP sends again"),
            PortState::Down => tracing::warn!(interface, queue, "link is down: the kernel socket sends"),
            PortState::Reopening | PortState::Gone => {
                tracing::warn!(interface, queue, "interface is gone: the kernel socket serves");
                self.reason = Some("the interface is gone".into());
                self.close();
            }
        }
        self.publish();
    }

    /// Follows a change of the MTU: a socket that takes one frame a packet is replaced once packets may be
    /// larger. Without the privilege to open another it stays, and the kernel drops what is larger than a frame.
    pub(super) fn set_mtu(&mut self, now: Instant, mtu: u32) {
        let multi_buffer = mtu.saturating_add(LINK_HEADERS) > self.config.single_frame();
        if !multi_buffer || self.multi_buffer || self.active.is_none() {
            return;
        }
        let (interface, queue) = (&self.config.interface, self.config.queue);
        if let Err(error) = Socket::new() {
            let reason = format!("packets larger than a frame are dropped: MTU raised to {mtu}, and {error}");
            if self.reason.as_ref() != Some(&reason) {
                tracing::error!(interface, queue, "{reason}; restart the process");
                self.reason = Some(reason);
                self.publish();
            }
            return;
        }
        tracing::info!(interface, queue, mtu, "MTU raised beyond a frame: AF_XDP socket opened anew");
        self.close();
        self.multi_buffer = true;
        self.state = PortState::Reopening;
        self.next_try = now;
        self.publish();
    }

    /// Gives a socket up that is of no use any more, to open another.
    fn fail(&mut self, now: Instant, task: Task, reason: &str) {
        self.close();
        if self.failed.is_some_and(|failed| now.saturating_duration_since(failed) > FAILURE_MEMORY) {
            self.failures = [0; 2];
        }
        self.failed = Some(now);
        let count = &mut self.failures[task as usize];
        *count += 1;
        let (interface, queue, demote) =
            (&self.config.interface, self.config.queue, self.config.failing == Failing::Demote);
        self.state = PortState::Reopening;
        match task {
            Task::Send if demote && *count >= SEND_FAILURES => {
                tracing::error!(
                    interface,
                    queue,
                    reason,
                    "AF_XDP fails to send again: the kernel socket sends"
                );
                self.config.transmit = TransmitVia::Kernel;
                self.reason = Some(reason.to_owned());
            }
            Task::Receive if demote && *count >= RECEIVE_FAILURES => {
                tracing::error!(
                    interface,
                    queue,
                    reason,
                    "AF_XDP fails again and again: the kernel socket serves"
                );
                self.state = PortState::Gone;
                self.reason = Some(reason.to_owned());
            }
            _ => tracing::warn!(interface, queue, reason, "AF_XDP socket failed: opening another"),
        }
        self.publish();
        let lived = now.saturating_duration_since(self.opened);
        // The first socket has no pause behind it that could grow.
        self.pause = match self.reopened > 0 && lived < REOPEN_LONGEST {
            true => (self.pause * 2).min(REOPEN_LONGEST),
            false => REOPEN_FIRST,
        };
        self.next_try = now + self.pause;
    }

    /// Tries to open a failed socket anew when it is time. True if that has succeeded.
    pub(super) fn reopen(&mut self, now: Instant) -> bool {
        if self.state != PortState::Reopening || now < self.next_try {
            return false;
        }
        let (interface, queue) = (&self.config.interface, self.config.queue);
        match self.maker.make(&self.config, self.ifindex, self.multi_buffer, Duration::ZERO) {
            Ok(active) => {
                tracing::info!(interface, queue, mode = %active.mode, "AF_XDP socket opened anew");
                // What the first socket was given, this one gets; without it, it serves all the same.
                if let Err(error) = active.prepare(self.wait, interface) {
                    tracing::warn!(interface, queue, %error, "the new socket is not busy-polled");
                }
                self.active = Some(active);
                self.state = PortState::Up;
                self.reopened += 1;
                self.opened = now;
                self.publish();
                true
            }
            Err(error) if is_denied(&error) => {
                tracing::error!(interface, queue, %error, "cannot open AF_XDP socket anew: the kernel socket serves");
                self.state = PortState::Gone;
                self.reason = Some(error.to_string());
                self.publish();
                false
            }
            Err(error) => {
                tracing::debug!(interface, queue, %error, "AF_XDP socket cannot be opened yet");
                self.pause = (self.pause * 2).min(REOPEN_LONGEST);
                self.next_try = now + self.pause;
                false
            }
        }
    }

    /// Closes the socket, keeping its counters. Packets that the kernel had not taken are lost with it.
    pub(super) fn close(&mut self) {
        let mut counters = self.counters;
        if let Some(mut active) = self.active.take() {
            active.count(&mut counters);
            counters.dropped_send_refused += u64::from(active.queue.untaken());
            self.gathered += active.queue.counters().gathered;
            // Closing does this too; without CAP_BPF or the map that is the only way.
            if let Maker::Own(map) = &self.maker {
                let _ = xskmap::remove(map.as_fd(), self.config.map_key);
            }
        }
        self.counters = counters;
    }

    /// Adds this port's counters to `stats`.
    pub(super) fn count(&self, stats: &mut IoStats) {
        *stats += self.counters;
        if let Some(active) = &self.active {
            active.count(stats);
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close();
    }
}

impl Active {
    /// Prepares the socket for the way that the worker waits.
    fn prepare(&self, wait: Wait, what: &str) -> Result<(), IoError> {
        wait::prepare_socket(self.socket.as_fd(), wait, self.mode == ObtainedMode::Copy, what)
    }

    /// A bound socket that receives, in the order that drivers need: fill ring full, bind, map.
    fn open(
        config: &PortConfig,
        ifindex: u32,
        multi_buffer: bool,
        map: BorrowedFd<'_>,
        patience: Duration,
    ) -> Result<Self, OpenError> {
        let failed =
            |step: Step| move |source| step.failed(&config.interface, config.queue, multi_buffer, source);
        let frames = config.rx_ring + config.tx_ring;
        let socket = Socket::new().map_err(failed(Step::Create))?;
        let frames =
            Frames::new(config.frame_size, frames, config.huge_pages).map_err(failed(Step::Memory))?;
        let metadata = config.hints.any() && socket.register(&frames.umem, true).is_ok();
        if !metadata {
            socket.register(&frames.umem, false).map_err(failed(Step::Register))?;
        }
        let rings = socket.rings(config.rx_ring, config.tx_ring).map_err(failed(Step::Ring))?;
        let assembly = if multi_buffer { ASSEMBLY_SIZE } else { 0 };
        let queue = Queue::new(frames, rings, assembly);
        socket
            .bind(ifindex, config.queue, config.mode, multi_buffer, patience)
            .map_err(failed(Step::Bind(config.mode)))?;
        let mode = socket.mode().map_err(failed(Step::Options))?;
        check_mode(config, mode)?;
        // In copy mode each packet under way takes a socket buffer of up to 4 KiB.
        let tx_budget = socket
            .widen_transmit(config.tx_ring.saturating_mul(4096), config.tx_budget.unwrap_or(config.tx_ring));
        xskmap::insert(map, config.map_key, socket.as_fd()).map_err(failed(Step::Map))?;
        let features = match (mode, multi_buffer, config.hints.any()) {
            (ObtainedMode::Copy, _, _) | (_, false, false) => None,
            // What the kernel does not tell is absent.
            (ObtainedMode::ZeroCopy, ..) => {
                Netdev::open().and_then(|mut netdev| netdev.features(ifindex)).ok()
            }
        };
        let segments = segments(mode, multi_buffer, features.map(|features| features.zero_copy_segments));
        let grants = TransmitGrants::decide(config.hints, mode, features, metadata);
        for (offload, grant) in grants.named() {
            if let Grant::Refused(reason) = grant {
                tracing::warn!(
                    interface = config.interface,
                    queue = config.queue,
                    offload,
                    reason,
                    "transmit offload refused"
                );
            }
        }
        let mut queue = queue;
        if config.description.is_some() {
            queue.include_prefix(DESCRIPTION_LEN);
        }
        if grants.timestamps.is_granted() {
            queue.stamp_transmits(config.tx_ring as usize);
        }
        Ok(Self {
            socket,
            queue,
            mode,
            segments,
            tx_budget,
            grants,
            checksum_proven: false,
            quiet: None,
            deferred: false,
        })
    }

    /// A bound socket from elsewhere, with the index of its interface and whether packets may span frames.
    fn adopt(config: &PortConfig, source: &mut dyn SocketSource) -> Result<(Self, u32, bool), OpenError> {
        let failed = |step: Step| move |source| step.failed(&config.interface, config.queue, false, source);
        let (frames, memory) =
            Frames::registrable(config.frame_size, config.rx_ring + config.tx_ring, config.huge_pages)
                .map_err(failed(Step::Memory))?;
        let bound = source.bind(config, memory.as_fd())?;
        let socket = Socket::bound(bound.socket);
        let rings = socket.map_rings(config.rx_ring, config.tx_ring).map_err(failed(Step::Ring))?;
        let assembly = if bound.multi_buffer { ASSEMBLY_SIZE } else { 0 };
        let mut queue = Queue::adopt(frames, rings, assembly);
        if config.description.is_some() {
            queue.include_prefix(DESCRIPTION_LEN);
        }
        let active = Self {
            socket,
            queue,
            mode: bound.mode,
            segments: bound.segments,
            // Whoever bound it asked for the whole ring; what it got is not told.
            tx_budget: config.tx_ring,
            // The other side registers UMEMs without room for metadata.
            grants: TransmitGrants::decide(config.hints, bound.mode, None, false),
            checksum_proven: false,
            quiet: None,
            deferred: false,
        };
        Ok((active, bound.ifindex, bound.multi_buffer))
    }

    fn count(&self, stats: &mut IoStats) {
        let counters = self.queue.counters();
        stats.dropped_bad_descriptor += counters.bad_descriptor;
        stats.dropped_truncated += counters.truncated;
        if let Some(stamps) = self.queue.stamps_seen() {
            stats.tx_stamps_unfetched += stamps.unfetched;
            stats.tx_stamps_implausible += stamps.implausible;
        }
        self.socket.count(stats);
    }
}

/// Frames that one sent packet may take. `zero_copy` is what the device takes, where that is known.
pub(super) fn segments(mode: ObtainedMode, multi_buffer: bool, zero_copy: Option<u32>) -> u32 {
    match mode {
        _ if !multi_buffer => 1,
        ObtainedMode::Copy => COPY_SEGMENTS,
        ObtainedMode::ZeroCopy => zero_copy.unwrap_or(1),
    }
}

/// Refuses a mode other than the one asked for: some drivers bind in copy mode whatever they are told.
pub(super) fn check_mode(config: &PortConfig, obtained: ObtainedMode) -> Result<(), OpenError> {
    use super::config::BindMode;
    match (config.mode, obtained) {
        (BindMode::Auto, _)
        | (BindMode::Copy, ObtainedMode::Copy)
        | (BindMode::ZeroCopy, ObtainedMode::ZeroCopy) => Ok(()),
        (asked, obtained) => {
            Err(OpenError::Mode { interface: config.interface.clone(), queue: config.queue, asked, obtained })
        }
    }
}

/// True if opening failed for want of privileges, which do not come back.
fn is_denied(error: &OpenError) -> bool {
    match error {
        OpenError::Socket { source, .. } => {
            matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        }
        OpenError::Refused { transient, .. } => !transient,
        _ => false,
    }
}

/// Follows the completions at each kick; true when there have been none for too long.
fn is_stalled(
    quiet: &mut Option<(Instant, u32, u64)>,
    now: Instant,
    in_flight: usize,
    completed: u64,
) -> bool {
    match quiet {
        Some((since, kicks, before)) if in_flight > 0 && *before == completed => {
            *kicks += 1;
            *kicks >= STALL_KICKS && now.saturating_duration_since(*since) >= STALL_TIME
        }
        _ => {
            *quiet = Some((now, 1, completed));
            false
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "port_tests.rs"]
mod tests;
