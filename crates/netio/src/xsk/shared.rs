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
//! protocol above Ethernet, and does not replace a socket that fails (a [`super::XskBinding`] does).
//!
//! One UMEM for several sockets, for programs that work on whole packets. The kernel has two kinds of XDP_SHARED_UMEM:
//! on the same queue, where all sockets share one fill and one completion ring, and on another queue or interface, with
//! its own rings. Only the second is useful here: a second socket on a queue serves a second thread, whose frames would
//! then come back through the first one's rings. So each socket is four rings of its own, and the frames of a UMEM are
//! common to the sockets of one thread: one free list, no lock. A frame received on one socket is sent by another
//! without a copy. Sockets have shares (a frame for each entry of their rings), and a bind whose share is not available
//! is refused, so that a stuck socket cannot starve another. The owner record says which lane has a frame: a completion
//! in another socket's ring is refused. User code sees frames only inside closures, as guards that borrow the UMEM; a
//! socket's handle carries the identity of its UMEM, checked at each use. The first socket decides the mode: the kernel
//! takes no flags on a shared bind. A socket that fails is not replaced: its frames may be written by DMA until the
//! kernel has released the queue, and nothing reports when that is. Bindings, which are replaced when they fail,
//! therefore keep a UMEM each, and the gateway's memory is rings × frames per queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::config::{ObtainedMode, UmemConfig, XskConfig};
use super::engine::{Bind, Engine, KICK_AGAIN, Outcome, Xsk, bring_up};
use super::error::{OpenError, SendError, Step};
use super::interface::Interfaces;
use super::received::{ForeignSocket, Received, SocketId};
use super::xskmap;
use crate::io::IoStats;
use crate::readers::ReaderServer;
use crate::ring::Mapped;
use crate::route::OwnNamespace;
use crate::sys::mapping::Backing;
use crate::umem::{Umem, XskId};
use crate::wait::Wait;

/// How long packets wait for a link that is down, or a socket that fails, before [`SharedUmem::wait`] returns.
const RETRY: Duration = Duration::from_millis(1);

/// Index of the interface called `name` in the network namespace of the calling thread, to attach an XDP program
/// to.
///
/// # Errors
/// [`OpenError::Interface`] if there is none of that name.
pub fn interface_index(name: &str) -> Result<u32, OpenError> {
    let named = |source| OpenError::Interface { interface: name.to_owned(), source };
    Interfaces::open(&OwnNamespace).and_then(|interfaces| interfaces.index(name)).map_err(named)
}

/// What a socket was bound to.
struct Binding {
    config: XskConfig,
    ifindex: u32,
    map: Option<OwnedFd>,
}

/// One UMEM, the AF_XDP sockets of one thread on it, and readers in other processes.
///
/// ```no_run
/// use expressway_netio::xsk::{XskConfig, SharedUmem, UmemConfig};
/// use std::os::fd::BorrowedFd;
///
/// # fn run(left_map: BorrowedFd<'_>, right_map: BorrowedFd<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut umem = SharedUmem::new(&UmemConfig::default())?;
/// let left = umem.bind(&XskConfig::new("eth1", 0), Some(left_map))?;
/// let right = umem.bind(&XskConfig::new("eth2", 0), Some(right_map))?;
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
    pub(super) engine: Engine<Mapped>,
    /// By [`XskId`], as the engine's sockets are.
    bindings: Vec<Binding>,
    pub(super) server: Option<ReaderServer>,
    /// The memory as a file, until readers are let in.
    pub(super) file: Option<OwnedFd>,
    pub(super) shareable: bool,
    pub(super) events: OwnedFd,
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
        let (umem, file) = if config.shareable {
            let (umem, file) =
                Umem::shareable(config.frame_size, config.frames, config.huge_pages).map_err(failed)?;
            (umem, Some(file))
        } else {
            (Umem::new(config.frame_size, config.frames, config.huge_pages).map_err(failed)?, None)
        };
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            engine: Engine::new(umem, Vec::new()),
            bindings: Vec::new(),
            server: None,
            shareable: file.is_some(),
            file,
            events,
        })
    }

    /// Opens a socket on a queue that no other socket on this UMEM has, and puts it into `map`, an XSKMAP that
    /// the XDP program of that interface uses, at [`XskConfig::map_key`]; without a map it sends only.
    /// `frame_size` and `huge_pages` are the UMEM's, and every socket can send, whatever `config` says. The first
    /// socket decides between copy and zero-copy mode for all.
    ///
    /// Takes CAP_NET_RAW and CAP_BPF. Called in the network namespace of the interface.
    ///
    /// # Errors
    /// [`OpenError`] names interface, queue and remedy. The frames must suffice for the rings, a packet of the
    /// interface's MTU must fit one frame, and a mode that was asked for is obtained or an error.
    pub fn bind(&mut self, config: &XskConfig, map: Option<BorrowedFd<'_>>) -> Result<SocketId, OpenError> {
        let config = XskConfig {
            frame_size: self.engine.umem.frame_size(),
            sends: true,
            description: None,
            switch: None,
            ..config.clone()
        };
        config.validate()?;
        let named = |source| OpenError::Interface { interface: config.interface.clone(), source };
        let interfaces = Interfaces::open(&OwnNamespace).map_err(named)?;
        let ifindex = interfaces.index(&config.interface).map_err(named)?;
        let mtu = interfaces.mtu(ifindex).map_err(named)?;
        self.check_bind(&config, ifindex, mtu)?;
        let failed = |step: Step, source| step.failed(&config.interface, config.queue, false, source);
        let map =
            map.map(|map| map.try_clone_to_owned().map_err(|error| failed(Step::Map, error))).transpose()?;
        // Bounded: each takes 128 frames at least.
        let id = XskId(self.bindings.len() as u16);
        let Engine { umem, xsks, .. } = &mut self.engine;
        let bind = Bind {
            id,
            config: &config,
            ifindex,
            multi_buffer: false,
            map: map.as_ref().map(AsFd::as_fd),
            shared: xsks.first().map(Xsk::socket),
            wait: Wait::Interrupt,
        };
        let xsk = bring_up(umem, &bind)?.xsk;
        let data = epoll::EventData::new_u64(id.0.into());
        epoll::add(&self.events, xsk.socket(), data, epoll::EventFlags::IN)
            .map_err(|errno| failed(Step::Options, errno.into()))?;
        tracing::info!(
            interface = config.interface,
            queue = config.queue,
            mode = %xsk.mode(),
            "AF_XDP socket bound"
        );
        xsks.push(xsk);
        self.bindings.push(Binding { config, ifindex, map });
        Ok(SocketId { umem: self.engine.umem.id(), xsk: id })
    }

    fn check_bind(&self, config: &XskConfig, ifindex: u32, mtu: u32) -> Result<(), OpenError> {
        let complain = |field, value: u32, must| Err(OpenError::Config { field, value: value.into(), must });
        if self.bindings.iter().any(|one| one.ifindex == ifindex && one.config.queue == config.queue) {
            return complain("queue", config.queue, "is already used by another socket on this UMEM");
        }
        let fitted = config.fit(mtu);
        if fitted.multi_buffer() || fitted.frame_size != config.frame_size {
            let must = "must hold a packet of the interface's MTU, its link header and 256 bytes: lower the MTU \
                        or enlarge the frames";
            return complain("frame_size", config.frame_size, must);
        }
        if (config.rx_ring + config.tx_ring) as usize > self.engine.umem.unreserved() {
            let frames = self.engine.umem.count() as u32;
            let must = "must be at least the sum of rx_ring and tx_ring of all sockets and the quotas of all readers";
            return complain("frames", frames, must);
        }
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
        let id = self.xsk(from)?;
        self.collect();
        let mut bytes = 0;
        let mut batch = self.engine.receive(id, limit);
        while let Some(mut frame) = batch.next() {
            bytes += frame.bytes().len() as u64;
            handle(Received { frame, umem: from.umem });
        }
        let packets = batch.packets();
        drop(batch);
        let (xsk, _) = self.engine.xsk(id);
        xsk.stats.rx_xsk_packets += packets as u64;
        xsk.stats.rx_xsk_bytes += bytes;
        if packets > 0 {
            // Failing, the flag stays set and the next turn tries again.
            xsk.wake_reception();
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
        let id = self.xsk(by)?;
        let Some(mut frame) = self.engine.alloc(id) else { return Ok(false) };
        let length = fill(frame.bytes());
        if length == 0 || !frame.submit(0..length) {
            return Ok(false);
        }
        self.engine.xsk(id).0.count_sent(length);
        Ok(true)
    }

    /// Gives the kernel what was sent, and readers what they were lent, since the last time. Once a turn.
    ///
    /// # Errors
    /// [`SendError`] of the first socket that could not send; the others have been served. After ENETDOWN the
    /// packets wait in the TX ring until the link is up.
    pub fn flush(&mut self) -> Result<(), SendError> {
        let mut result = Ok(());
        let Engine { umem, xsks, readers } = &mut self.engine;
        for (xsk, binding) in xsks.iter_mut().zip(&self.bindings) {
            let failed = match xsk.flush(umem) {
                None | Some(Outcome::Sent | Outcome::Later) => None,
                Some(Outcome::Down) => {
                    Some((libc::ENETDOWN, "; set the interface up (`ip link set ... up`)"))
                }
                Some(Outcome::Gone) => Some((libc::ENXIO, "; the interface was removed: create new sockets")),
                Some(Outcome::Fault(errno)) => Some((errno, "; create new sockets")),
            };
            if let Some((errno, advice)) = failed {
                result = result.and(Err(SendError {
                    interface: binding.config.interface.clone(),
                    queue: binding.config.queue,
                    source: io::Error::from_raw_os_error(errno),
                    advice,
                }));
            }
        }
        if let Some(server) = &self.server {
            server.publish(readers);
        }
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
        let mut again: Option<Duration> = None;
        for xsk in &mut self.engine.xsks {
            xsk.wake_reception();
            idle &= !xsk.has_received();
            // What the device had no room for is tried again soon.
            if xsk.untaken() > 0 {
                let pause = match xsk.outcome() {
                    Outcome::Sent | Outcome::Later => KICK_AGAIN,
                    Outcome::Down | Outcome::Gone | Outcome::Fault(_) => RETRY,
                };
                again = Some(again.map_or(pause, |earlier| earlier.min(pause)));
            }
        }
        let timeout = match timeout {
            _ if !idle => Some(Duration::ZERO),
            timeout => again.into_iter().chain(timeout).min(),
        };
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        let count = match epoll::wait(&self.events, &mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        for event in &events[..count] {
            self.handle_reader_event(event.data.u64());
        }
        self.collect();
        Ok(())
    }

    /// Counters of a socket. Of packets, not of datagrams: checksums and headers are the user's to check.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn stats(&self, socket: SocketId) -> Result<IoStats, ForeignSocket> {
        Ok(self.engine.xsks[self.xsk(socket)?.0 as usize].stats())
    }

    /// The mode that a socket obtained.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn mode(&self, socket: SocketId) -> Result<ObtainedMode, ForeignSocket> {
        Ok(self.engine.xsks[self.xsk(socket)?.0 as usize].mode())
    }

    /// The pages that hold the UMEM.
    pub fn backing(&self) -> Backing {
        self.engine.umem.backing()
    }

    /// Packets of a socket that are on their way: sent, and not completed by the kernel yet.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn in_flight(&mut self, socket: SocketId) -> Result<usize, ForeignSocket> {
        let id = self.xsk(socket)?;
        let (xsk, umem) = self.engine.xsk(id);
        xsk.complete(umem);
        Ok(xsk.in_flight())
    }

    /// Packets of a socket that wait in the TX ring because the device had no room for them at the last
    /// [`SharedUmem::flush`], or no link: time to wait rather than to build more. In zero-copy mode the driver takes packets
    /// by and by, which is none of that.
    ///
    /// # Errors
    /// When the socket is of another UMEM.
    pub fn unsent(&mut self, socket: SocketId) -> Result<usize, ForeignSocket> {
        let id = self.xsk(socket)?;
        let (xsk, _) = self.engine.xsk(id);
        Ok(if xsk.outcome() == Outcome::Sent { 0 } else { xsk.untaken() as usize })
    }

    fn xsk(&self, id: SocketId) -> Result<XskId, ForeignSocket> {
        if id.umem == self.engine.umem.id() { Ok(id.xsk) } else { Err(ForeignSocket(id)) }
    }
}

impl Drop for SharedUmem {
    fn drop(&mut self) {
        for one in &self.bindings {
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
