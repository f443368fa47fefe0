//! [`SharedUmem`]: one UMEM with several sockets, and with readers in other processes.
//!
//! ```text
//!   queue 0 of eth1 ─┐                             ┌─▶ this program, in place
//!   queue 1 of eth1 ─┼─▶ sockets ─▶ one UMEM ──────┼─▶ any of the sockets: forwarded without a copy
//!   queue 0 of eth2 ─┘   of one thread             └─▶ readers: other processes, read-only
//! ```
//!
//! Frames come and go within closures and never as values that could be kept, so that none can be given to a
//! socket of another UMEM, lost, or used twice. What this module does not do: it loads no XDP program, knows no
//! protocol above Ethernet, and does not replace a socket that fails (a [`super::Port`] does).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::config::{ObtainedMode, PortConfig, ShareConfig, UmemConfig};
use super::error::{OpenError, SendError, ShareError, Step};
use super::exchange::{Exchange, MAX_READERS, Taken};
use super::frame::LaneId;
use super::gate::{self, Gate};
use super::interface::Interfaces;
use super::kick::{self, Outcome};
use super::lane::Mapped;
use super::lender::{Lender, ReaderStats};
use super::loan;
use super::mapping::Backing;
use super::metadata::Request;
use super::port::{LINK_HEADERS, check_mode};
use super::socket::Socket;
use super::umem::Frames;
use super::xskmap;
use crate::io::IoStats;
use crate::route::OwnNamespace;
use crate::stats::counters;

/// Marks the listening socket among the events; readers are beyond it, sockets below.
const LISTENER: u64 = 1 << 32;
/// Marks the connection of the reader at place 0.
const READER: u64 = 1 << 33;

/// Index of the interface called `name` in the network namespace of the calling thread, to attach an XDP program
/// to.
///
/// # Errors
/// [`OpenError::Interface`] if there is none of that name.
pub fn interface_index(name: &str) -> Result<u32, OpenError> {
    let named = |source| OpenError::Interface { interface: name.to_owned(), source };
    Interfaces::open(&OwnNamespace).and_then(|interfaces| interfaces.index(name)).map_err(named)
}

/// One of the sockets on a [`SharedUmem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId {
    umem: u32,
    lane: LaneId,
}

/// The socket is not one of this UMEM's, so its frames cannot go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("AF_XDP socket {} is bound to another UMEM: a frame can only go to a socket of its own", .0.lane.0)]
pub struct ForeignSocket(pub SocketId);

/// Why a received packet was not sent on. It is dropped, its frame receives again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// As many packets as the TX ring has entries are on their way: flush, and let them go.
    #[error("the TX ring is full")]
    Full,
    /// The socket is of another UMEM.
    #[error(transparent)]
    Foreign(#[from] ForeignSocket),
}

/// Several readers of a [`SharedUmem`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readers(u32);

impl Readers {
    /// How many there are.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// True if there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them by itself.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        (0..MAX_READERS).map(|place| Self(1 << place)).filter(move |one| self.0 & one.0 != 0)
    }
}

/// How a reader fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderReport {
    /// Which one.
    pub reader: Readers,
    /// Frames that it may hold.
    pub quota: u32,
    /// Frames that it holds.
    pub held: u32,
    /// What it was given and gave back.
    pub stats: ReaderStats,
}

counters! {
    /// Readers that came and went.
    pub struct ShareStats {
        /// Readers admitted.
        pub readers_accepted: u64,
        /// Readers refused: too many, no frames for their quota, or no memory for their rings.
        pub readers_refused: u64,
        /// Readers that left or died.
        pub readers_gone: u64,
        /// Readers dismissed because they moved an index where it cannot be, or sent a message.
        pub readers_dismissed: u64,
        /// Frames taken back from readers that left, died or were dismissed.
        pub frames_reclaimed: u64,
    }
}

/// A bound socket.
struct Bound {
    socket: Socket,
    config: PortConfig,
    ifindex: u32,
    mode: ObtainedMode,
    map: Option<OwnedFd>,
    stats: IoStats,
    /// Packets were put into the TX ring since the last flush, or are left from it.
    unsent: bool,
}

/// One UMEM, the AF_XDP sockets of one thread on it, and readers in other processes.
///
/// ```no_run
/// use expressway_netio::express::{PortConfig, SharedUmem, UmemConfig};
/// use std::os::fd::BorrowedFd;
///
/// # fn run(left_map: BorrowedFd<'_>, right_map: BorrowedFd<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut umem = SharedUmem::new(&UmemConfig::default())?;
/// let left = umem.bind(&PortConfig::new("eth1", 0), Some(left_map))?;
/// let right = umem.bind(&PortConfig::new("eth2", 0), Some(right_map))?;
/// loop {
///     for (from, to) in [(left, right), (right, left)] {
///         umem.receive(from, 64, |packet| {
///             // Full is a drop, as in any switch.
///             let _ = packet.send(to);
///         })?;
///     }
///     umem.flush()?;
///     umem.wait(None)?;
/// }
/// # }
/// ```
pub struct SharedUmem {
    exchange: Exchange<Mapped>,
    bound: Vec<Bound>,
    gate: Option<Gate>,
    connections: [Option<OwnedFd>; MAX_READERS],
    /// The memory as a file, until readers are let in.
    file: Option<OwnedFd>,
    shareable: bool,
    events: OwnedFd,
    readers_past: ReaderStats,
    share_stats: ShareStats,
}

impl SharedUmem {
    /// Maps a UMEM without sockets.
    ///
    /// # Errors
    /// [`OpenError::Config`] when a value is out of range, [`OpenError::Memory`] when there is not enough memory.
    pub fn new(config: &UmemConfig) -> Result<Self, OpenError> {
        config.validate()?;
        let failed =
            |source| OpenError::Memory { frames: config.frames, frame_size: config.frame_size, source };
        let (frames, file) = if config.shareable {
            let (frames, file) =
                Frames::shareable(config.frame_size, config.frames, config.huge_pages).map_err(failed)?;
            (frames, Some(file))
        } else {
            (Frames::new(config.frame_size, config.frames, config.huge_pages).map_err(failed)?, None)
        };
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            exchange: Exchange::new(frames),
            bound: Vec::new(),
            gate: None,
            connections: [const { None }; MAX_READERS],
            shareable: file.is_some(),
            file,
            events,
            readers_past: ReaderStats::default(),
            share_stats: ShareStats::default(),
        })
    }

    /// Opens a socket on a queue that no other socket on this UMEM has, and puts it into `map`, an XSKMAP that
    /// the XDP program of that interface uses, at [`PortConfig::map_key`]; without a map it sends only.
    /// `frame_size` and `huge_pages` are the UMEM's, whatever `config` says. The first socket decides between
    /// copy and zero-copy mode for all.
    ///
    /// Takes CAP_NET_RAW and CAP_BPF. Called in the network namespace of the interface.
    ///
    /// # Errors
    /// [`OpenError`] names interface, queue and remedy. The frames must suffice for the rings, a packet of the
    /// interface's MTU must fit one frame, and a mode that was asked for is obtained or an error.
    pub fn bind(&mut self, config: &PortConfig, map: Option<BorrowedFd<'_>>) -> Result<SocketId, OpenError> {
        let config = PortConfig { frame_size: self.exchange.frames().umem.frame_size(), ..config.clone() };
        config.validate()?;
        let named = |source| OpenError::Interface { interface: config.interface.clone(), source };
        let interfaces = Interfaces::open(&OwnNamespace).map_err(named)?;
        let ifindex = interfaces.index(&config.interface).map_err(named)?;
        let mtu = interfaces.mtu(ifindex).map_err(named)?;
        self.check_bind(&config, ifindex, mtu)?;
        let failed = |step: Step| {
            let (interface, queue) = (&config.interface, config.queue);
            move |source| step.failed(interface, queue, false, source)
        };
        let map = map.map(|map| map.try_clone_to_owned().map_err(failed(Step::Map))).transpose()?;
        let socket = Socket::new().map_err(failed(Step::Create))?;
        if self.bound.is_empty() {
            socket.register(&self.exchange.frames().umem, false).map_err(failed(Step::Register))?;
        }
        let rings = socket.rings(config.rx_ring, config.tx_ring).map_err(failed(Step::Ring))?;
        let lane = self.exchange.add_lane(rings, (config.rx_ring + config.tx_ring) as usize);
        let bound = match self.bound.first() {
            None => socket
                .bind(ifindex, config.queue, config.mode, false, config.bind_patience)
                .map_err(failed(Step::Bind(config.mode))),
            Some(first) => socket
                .bind_shared(ifindex, config.queue, &first.socket, config.bind_patience)
                .map_err(failed(Step::BindShared)),
        };
        let was_bound = bound.is_ok();
        let mode = bound
            .and_then(|()| socket.mode().map_err(failed(Step::Options)))
            .and_then(|mode| check_mode(&config, mode).map(|()| mode))
            .and_then(|mode| {
                // In copy mode each packet under way takes a socket buffer of up to 4 KiB.
                socket.widen_transmit(config.tx_ring.saturating_mul(4096), config.tx_ring);
                let data = epoll::EventData::new_u64(lane.0.into());
                epoll::add(&self.events, &socket, data, epoll::EventFlags::IN)
                    .map_err(|errno| failed(Step::Options)(errno.into()))?;
                if let Some(map) = &map {
                    xskmap::insert(map.as_fd(), config.map_key, socket.as_fd()).map_err(failed(Step::Map))?;
                }
                Ok(mode)
            });
        match mode {
            Ok(mode) => {
                tracing::info!(interface = config.interface, queue = config.queue, %mode, "AF_XDP socket bound");
                let stats = IoStats::default();
                self.bound.push(Bound { socket, config, ifindex, mode, map, stats, unsent: false });
                Ok(SocketId { umem: self.exchange.frames().umem.id(), lane })
            }
            Err(error) => {
                drop(socket);
                self.exchange.remove_last_lane(was_bound);
                Err(error)
            }
        }
    }

    fn check_bind(&self, config: &PortConfig, ifindex: u32, mtu: u32) -> Result<(), OpenError> {
        let complain = |field, value: u32, must| Err(OpenError::Config { field, value: value.into(), must });
        if self.bound.iter().any(|one| one.ifindex == ifindex && one.config.queue == config.queue) {
            return complain("queue", config.queue, "must be of no other socket on this UMEM");
        }
        if mtu.saturating_add(LINK_HEADERS) > config.single_frame() {
            let must = "must hold a packet of the interface's MTU, its link header and 256 bytes: lower the MTU \
                        or enlarge the frames";
            return complain("frame_size", config.frame_size, must);
        }
        if (config.rx_ring + config.tx_ring) as usize > self.exchange.unreserved() {
            let frames = self.exchange.frames().umem.count() as u32;
            let must = "must be the sum of rx_ring and tx_ring of all sockets and of the quotas of readers";
            return complain("frames", frames, must);
        }
        Ok(())
    }

    /// Lets readers in at a unix socket. They come and go within [`SharedUmem::wait`].
    ///
    /// # Errors
    /// [`ShareError`] says what is wrong: the UMEM was not made shareable, a number is out of range, or the
    /// path cannot be bound.
    pub fn share(&mut self, config: ShareConfig) -> Result<(), ShareError> {
        let complain = |field, value: u32, must| Err(ShareError::Config { field, value: value.into(), must });
        if !(1..=MAX_READERS as u32).contains(&config.readers) {
            return complain("readers", config.readers, "must be 1 to 32");
        }
        if !(1..=32_768).contains(&config.quota) {
            return complain("quota", config.quota, "must be 1 to 32768");
        }
        if config.quota as usize > self.exchange.unreserved() {
            return complain(
                "quota",
                config.quota,
                "must be left of the UMEM's frames beside its sockets' rings",
            );
        }
        let Some(file) = &self.file else {
            return Err(if self.shareable { ShareError::Twice } else { ShareError::Private });
        };
        let path = config.path.clone();
        let failed = move |step, source| ShareError::Socket { path: path.clone(), step, source, advice: "" };
        let file = file.try_clone().map_err(|source| failed("dup", source))?;
        let gate = Gate::open(config, file)?;
        epoll::add(&self.events, &gate, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
            .map_err(|errno| failed("epoll_ctl", errno.into()))?;
        self.gate = Some(gate);
        self.file = None;
        Ok(())
    }

    /// Hands up to `limit` packets that a socket has received to `handle`, where they lie. A packet that it
    /// neither sends nor lends is done with when it returns.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn receive<F>(&mut self, from: SocketId, limit: usize, mut handle: F) -> Result<usize, ForeignSocket>
    where
        F: FnMut(Received<'_>),
    {
        let lane = self.lane(from)?;
        self.collect();
        let umem = from.umem;
        let bound = &mut self.bound;
        let mut bytes = 0;
        let packets = self.exchange.receive(lane, limit, |mut taken| {
            bytes += taken.bytes().len() as u64;
            handle(Received { taken, bound, umem });
        });
        let one = &mut self.bound[lane.0 as usize];
        one.stats.rx_express_packets += packets as u64;
        one.stats.rx_express_bytes += bytes;
        if packets > 0 {
            self.wake_reception(lane);
        }
        Ok(packets)
    }

    /// Builds a packet, from its Ethernet header on, in a frame: `fill` gets the whole frame and returns the
    /// packet's length, 0 for none. False if it returned 0 or more than the frame has, or was not called
    /// because as many packets as the TX ring has entries are on their way.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn transmit<F>(&mut self, by: SocketId, fill: F) -> Result<bool, ForeignSocket>
    where
        F: FnOnce(&mut [u8]) -> usize,
    {
        let lane = self.lane(by)?;
        let Some(mut frame) = self.exchange.acquire(lane) else { return Ok(false) };
        let length = fill(frame.bytes());
        if length == 0 || !frame.submit(0..length, Request::default()) {
            return Ok(false);
        }
        self.bound[lane.0 as usize].count_sent(length);
        Ok(true)
    }

    /// Gives the kernel what was sent, and readers what they were lent, since the last time. Once a turn.
    ///
    /// # Errors
    /// [`SendError`] of the first socket that could not send; the others have been served. After ENETDOWN the
    /// packets wait in the TX ring until the link is up.
    pub fn flush(&mut self) -> Result<(), SendError> {
        let mut result = Ok(());
        for (index, one) in self.bound.iter_mut().enumerate() {
            let id = LaneId(index as u16);
            let lane = self.exchange.lane(id);
            if one.unsent || lane.is_exhausted() {
                lane.publish();
                let needs_wakeup = lane.transmit_needs_wakeup();
                let kicked = kick::transmit(one.mode, needs_wakeup, || lane.untaken(), || one.socket.kick());
                one.stats.tx_syscalls += u64::from(kicked.calls);
                one.stats.dropped_send_refused += u64::from(kicked.refused);
                one.unsent = lane.untaken() > 0;
                self.exchange.complete(id);
                let failed = match kicked.outcome {
                    Outcome::Sent | Outcome::Later => None,
                    Outcome::Down => Some((libc::ENETDOWN, "; set the interface up (`ip link set ... up`)")),
                    Outcome::Gone => Some((libc::ENXIO, "; the interface went away: make the sockets anew")),
                    Outcome::Fault(errno) => Some((errno, "; make the sockets anew")),
                };
                if let Some((errno, advice)) = failed {
                    result = result.and(Err(SendError {
                        interface: one.config.interface.clone(),
                        queue: one.config.queue,
                        source: io::Error::from_raw_os_error(errno),
                        advice,
                    }));
                }
            }
        }
        let asleep = Readers(self.exchange.publish_loans());
        asleep.iter().for_each(|reader| {
            if let Some(connection) = &self.connections[reader.0.trailing_zeros() as usize] {
                gate::wake(connection);
            }
        });
        result
    }

    /// Sleeps until packets wait, a reader comes or goes, or `timeout` is over (`None`: for ever). Admits
    /// readers that come and takes back the frames of those that went: a program that never sleeps calls this
    /// with a timeout of zero now and then.
    ///
    /// # Errors
    /// When the kernel refuses to wait, which it does not.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let mut idle = true;
        for index in 0..self.bound.len() {
            let lane = LaneId(index as u16);
            self.wake_reception(lane);
            // What the device had no room for is tried again soon.
            idle &= !self.exchange.lane(lane).has_received();
        }
        let unsent = self.bound.iter().any(|one| one.unsent);
        let timeout = match timeout {
            _ if !idle => Some(Duration::ZERO),
            timeout if unsent => Some(timeout.map_or(RETRY, |time| time.min(RETRY))),
            timeout => timeout,
        };
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        let count = match epoll::wait(&self.events, &mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        for event in &events[..count] {
            match event.data.u64() {
                LISTENER => self.admit(),
                data if data >= READER => self.check_reader((data - READER) as usize),
                _ => {}
            }
        }
        self.collect();
        Ok(())
    }

    /// The readers that are connected.
    pub fn readers(&self) -> Readers {
        Readers(self.exchange.present())
    }

    /// How each of them fares.
    pub fn reader_reports(&self) -> impl Iterator<Item = ReaderReport> {
        self.readers().iter().filter_map(|reader| {
            let one = self.exchange.reader(reader.0.trailing_zeros() as usize)?;
            Some(ReaderReport { reader, quota: one.quota(), held: one.held(), stats: one.stats() })
        })
    }

    /// What all readers, those that are gone included, were given and gave back.
    pub fn reader_stats(&self) -> ReaderStats {
        let mut stats = self.readers_past;
        self.reader_reports().for_each(|report| stats += report.stats);
        stats
    }

    /// Readers that came and went.
    pub fn share_stats(&self) -> ShareStats {
        self.share_stats
    }

    /// Counters of a socket. Of packets, not of datagrams: checksums and headers are the user's to check.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn stats(&self, socket: SocketId) -> Result<IoStats, ForeignSocket> {
        let lane = self.lane(socket)?;
        let one = &self.bound[lane.0 as usize];
        let mut stats = one.stats;
        stats.dropped_bad_descriptor += self.exchange.lane_ref(lane).counters().bad_descriptor;
        one.socket.count(&mut stats);
        Ok(stats)
    }

    /// The mode that a socket obtained.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn mode(&self, socket: SocketId) -> Result<ObtainedMode, ForeignSocket> {
        Ok(self.bound[self.lane(socket)?.0 as usize].mode)
    }

    /// The pages that hold the UMEM.
    pub fn backing(&self) -> Backing {
        self.exchange.frames().umem.backing()
    }

    /// Packets of a socket that are on their way: sent, and not completed by the kernel yet.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn in_flight(&mut self, socket: SocketId) -> Result<usize, ForeignSocket> {
        let lane = self.lane(socket)?;
        self.exchange.complete(lane);
        Ok(self.exchange.lane_ref(lane).in_flight())
    }

    fn lane(&self, id: SocketId) -> Result<LaneId, ForeignSocket> {
        if id.umem == self.exchange.frames().umem.id() { Ok(id.lane) } else { Err(ForeignSocket(id)) }
    }

    /// Tells the kernel of a filled fill ring, if it asks for that. Failing, the flag stays set and the next
    /// turn tries again.
    fn wake_reception(&mut self, lane: LaneId) {
        if self.exchange.lane(lane).receive_needs_wakeup() {
            let one = &mut self.bound[lane.0 as usize];
            one.stats.rx_syscalls += 1;
            let _ = one.socket.wake();
        }
    }

    /// Takes back what readers have returned, and dismisses those who cheat.
    fn collect(&mut self) {
        if self.gate.is_none() {
            return;
        }
        for reader in Readers(self.exchange.collect()).iter() {
            let place = reader.0.trailing_zeros() as usize;
            tracing::warn!(reader = place, "a reader of the UMEM wrote an impossible ring index: dismissed");
            self.share_stats.readers_dismissed += 1;
            self.dismiss(place);
        }
    }

    fn admit(&mut self) {
        let Some(gate) = &self.gate else { return };
        let config = gate.config();
        // One an event: the socket stays readable while others wait.
        let Some(connection) = gate.accept() else { return };
        let full = self.exchange.present().count_ones() >= config.readers;
        let status = match self.exchange.vacancy() {
            Some(place) if !full && config.quota as usize <= self.exchange.unreserved() => {
                let umem = &self.exchange.frames().umem;
                let data = epoll::EventData::new_u64(READER + place as u64);
                let admitted = gate.admit(&connection, (umem.frame_size(), umem.mapped_length()));
                let watched = admitted.and_then(|rings| {
                    epoll::add(&self.events, &connection, data, epoll::EventFlags::IN)?;
                    Ok(rings)
                });
                match watched {
                    Ok((loans, returns)) => {
                        tracing::info!(
                            reader = place,
                            quota = config.quota,
                            "a reader of the UMEM connected"
                        );
                        self.exchange.admit(place, Lender::new(loans, returns, config.quota));
                        self.connections[place] = Some(connection);
                        self.share_stats.readers_accepted += 1;
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a reader of the UMEM could not be admitted");
                        loan::FAILED
                    }
                }
            }
            Some(_) if !full => loan::NO_FRAMES,
            _ => loan::TOO_MANY_READERS,
        };
        self.share_stats.readers_refused += 1;
        Gate::refuse(&connection, status);
    }

    fn check_reader(&mut self, place: usize) {
        let Some(connection) = self.connections.get(place).and_then(Option::as_ref) else { return };
        match gate::liveness(connection) {
            gate::Liveness::Alive => return,
            gate::Liveness::Gone => self.share_stats.readers_gone += 1,
            gate::Liveness::Breach => {
                tracing::warn!(reader = place, "a reader of the UMEM sent a message: dismissed");
                self.share_stats.readers_dismissed += 1;
            }
        }
        // What it returned before it went is returned.
        self.exchange.collect();
        self.dismiss(place);
    }

    fn dismiss(&mut self, place: usize) {
        // Closing takes it out of the events.
        self.connections[place] = None;
        if let Some(reader) = self.exchange.dismiss(place) {
            tracing::info!(reader = place, reclaimed = reader.held(), "a reader of the UMEM is gone");
            self.share_stats.frames_reclaimed += u64::from(reader.held());
            self.readers_past += reader.stats();
        }
    }
}

/// How long packets wait in the TX ring of a full device before [`SharedUmem::wait`] returns.
const RETRY: Duration = Duration::from_millis(1);

impl Drop for SharedUmem {
    fn drop(&mut self) {
        for one in &self.bound {
            if let Some(map) = &one.map {
                // Closing does this too; without CAP_BPF that is the only way.
                let _ = xskmap::remove(map.as_fd(), one.config.map_key);
            }
        }
    }
}

impl AsFd for SharedUmem {
    /// Readable when [`SharedUmem::wait`] would return at once, for an event loop of the program's own.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Bound {
    fn count_sent(&mut self, length: usize) {
        self.unsent = true;
        self.stats.tx_express_packets += 1;
        self.stats.tx_express_bytes += length as u64;
    }
}

/// A received packet in its frame. Dropped, it is done with and its frame receives again.
pub struct Received<'a> {
    taken: Taken<'a, Mapped>,
    bound: &'a mut [Bound],
    umem: u32,
}

impl Received<'_> {
    /// The packet, from its Ethernet header on. It may be changed in place.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.taken.bytes()
    }

    /// Sends the packet as it is now by a socket on the same UMEM, its own included, without a copy. It leaves
    /// with [`SharedUmem::flush`].
    ///
    /// # Errors
    /// [`NotSent`]: the packet is dropped, and counted with the socket that it was to leave by.
    pub fn send(mut self, by: SocketId) -> Result<(), NotSent> {
        if by.umem != self.umem {
            return Err(NotSent::Foreign(ForeignSocket(by)));
        }
        let bound = &mut self.bound[by.lane.0 as usize];
        let length = self.taken.bytes().len();
        if self.taken.send(by.lane) {
            bound.count_sent(length);
            Ok(())
        } else {
            bound.stats.dropped_no_buffer += 1;
            Err(NotSent::Full)
        }
    }

    /// Lends the packet to `readers`. Those who are gone or hold their quota are left out; the others are
    /// returned and see it after [`SharedUmem::flush`]. `timestamp` and `flags` are for them to read.
    pub fn lend(self, readers: Readers, timestamp: u64, flags: u16) -> Readers {
        Readers(self.taken.lend(readers.0, timestamp, flags))
    }
}
