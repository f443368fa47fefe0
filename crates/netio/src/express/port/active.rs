//! A bound socket with its rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use super::public::Public;
use crate::express::assembly::ASSEMBLY_SIZE;
use crate::express::config::{Fitted, ObtainedMode, PortConfig};
use crate::express::error::{OpenError, Step};
use crate::express::lane::Mapped;
use crate::express::metadata::METADATA_LEN;
use crate::express::queue::Queue;
use crate::express::socket::Socket;
use crate::express::source::SocketSource;
use crate::express::umem::Frames;
use crate::express::xskmap;
use crate::io::{IoError, IoStats};
use crate::netdev::Netdev;
use crate::wait::{self, Wait};

/// Frames of one sent packet in copy mode: the parts behind the first become fragments of a socket buffer, of
/// which there are `MAX_SKB_FRAGS`, 17 unless the kernel is built with more (`xsk_build_skb` in
/// `net/xdp/xsk.c`).
const COPY_SEGMENTS: u32 = 17;

/// A bound socket with its rings.
pub(super) struct Active {
    pub(super) socket: Socket,
    pub(super) queue: Queue<Mapped>,
    pub(super) mode: ObtainedMode,
    /// Frames that one sent packet may take.
    pub(super) segments: u32,
    /// Packets that one system call may send in copy mode.
    pub(super) tx_budget: u32,
    /// Since when, how often kicked, and the count of completions then, while packets are in flight and none
    /// is completed.
    pub(super) quiet: Option<(Instant, u32, u64)>,
    /// Packets wait in the TX ring for room in the device.
    pub(super) deferred: bool,
    /// Packets were received, and their frames given back, since the kernel was last told.
    pub(super) refilled: bool,
    /// Readers in other processes, where there may be any.
    pub(super) public: Option<Public>,
}

impl Active {
    /// Prepares the socket for the way that the worker waits.
    pub(super) fn prepare(&self, wait: Wait, what: &str) -> Result<(), IoError> {
        wait::prepare_socket(self.socket.as_fd(), wait, self.mode == ObtainedMode::Copy, what)
    }

    /// A bound socket that receives, in the order that drivers need: fill ring full, bind, map.
    pub(super) fn open(config: &Fitted, ifindex: u32, map: BorrowedFd<'_>) -> Result<Self, OpenError> {
        let multi_buffer = config.multi_buffer();
        let failed =
            |step: Step| move |source| step.failed(&config.interface, config.queue, multi_buffer, source);
        let socket = Socket::new().map_err(failed(Step::Create))?;
        let (frames, file) = memory(config).map_err(failed(Step::Memory))?;
        socket.register(&frames.umem).map_err(failed(Step::Register))?;
        let rings = socket.rings(config.rx_ring, config.tx_ring, config.sends).map_err(failed(Step::Ring))?;
        let assembly = if multi_buffer { ASSEMBLY_SIZE } else { 0 };
        let queue = Queue::new(frames, rings, assembly);
        socket
            .bind(ifindex, config.queue, config.mode, multi_buffer, config.bind_patience)
            .map_err(failed(Step::Bind(config.mode)))?;
        let mode = socket.mode().map_err(failed(Step::Options))?;
        check_mode(config, mode)?;
        let tx_budget = match config.sends {
            // In copy mode each packet under way takes a socket buffer of up to 4 KiB.
            true => socket.widen_transmit(
                config.tx_ring.saturating_mul(4096),
                config.tx_budget.unwrap_or(config.tx_ring),
            ),
            false => 0,
        };
        let public = match (&config.lend, file) {
            (Some(lend), Some(file)) => Some(Public::open(config, lend, file)?),
            _ => None,
        };
        xskmap::insert(map, config.map_key, socket.as_fd()).map_err(failed(Step::Map))?;
        let features = match (mode, multi_buffer) {
            (ObtainedMode::Copy, _) | (_, false) => None,
            // What the kernel does not tell is absent.
            (ObtainedMode::ZeroCopy, true) => {
                Netdev::open().and_then(|mut netdev| netdev.features(ifindex)).ok()
            }
        };
        let segments = segments(mode, multi_buffer, features.map(|features| features.zero_copy_segments));
        let mut queue = queue;
        if config.description.is_some() {
            queue.include_prefix(METADATA_LEN);
        }
        Ok(Self {
            socket,
            queue,
            mode,
            segments,
            tx_budget,
            quiet: None,
            deferred: false,
            refilled: false,
            public,
        })
    }

    /// A bound socket from elsewhere.
    pub(super) fn adopt(config: &Fitted, source: &mut dyn SocketSource) -> Result<Self, OpenError> {
        let failed = |step: Step| move |source| step.failed(&config.interface, config.queue, false, source);
        let (frames, memory) =
            Frames::registrable(config.frame_size, config.rx_ring + config.tx_ring, config.huge_pages)
                .map_err(failed(Step::Memory))?;
        let bound = source.bind(config, memory.as_fd())?;
        let socket = Socket::bound(bound.socket);
        let rings =
            socket.map_rings(config.rx_ring, config.tx_ring, config.sends).map_err(failed(Step::Ring))?;
        let assembly = if config.multi_buffer() { ASSEMBLY_SIZE } else { 0 };
        let mut queue = Queue::adopt(frames, rings, assembly);
        if config.description.is_some() {
            queue.include_prefix(METADATA_LEN);
        }
        Ok(Self {
            socket,
            queue,
            mode: bound.mode,
            segments: bound.segments,
            // Whoever bound it asked for the whole ring; what it got is not told.
            tx_budget: if config.sends { config.tx_ring } else { 0 },
            quiet: None,
            deferred: false,
            refilled: false,
            public: None,
        })
    }

    pub(super) fn count(&self, stats: &mut IoStats) {
        let counters = self.queue.counters();
        stats.dropped_bad_descriptor += counters.bad_descriptor;
        stats.dropped_truncated += counters.truncated;
        self.socket.count(stats);
    }
}

/// The frames of the rings, and of readers where there may be any; those have them as a file.
fn memory(config: &PortConfig) -> io::Result<(Frames, Option<OwnedFd>)> {
    let rings = config.rx_ring + config.tx_ring;
    match &config.lend {
        None => Ok((Frames::new(config.frame_size, rings, config.huge_pages)?, None)),
        Some(lend) => {
            let frames = rings + lend.readers * lend.quota;
            let (frames, file) = Frames::shareable(config.frame_size, frames, config.huge_pages)?;
            Ok((frames, Some(file)))
        }
    }
}

/// Frames that one sent packet may take. `zero_copy` is what the device takes, where that is known.
pub(in crate::express) fn segments(mode: ObtainedMode, multi_buffer: bool, zero_copy: Option<u32>) -> u32 {
    match mode {
        _ if !multi_buffer => 1,
        ObtainedMode::Copy => COPY_SEGMENTS,
        ObtainedMode::ZeroCopy => zero_copy.unwrap_or(1),
    }
}

/// Refuses a mode other than the one asked for: some drivers bind in copy mode whatever they are told.
pub(in crate::express) fn check_mode(config: &PortConfig, obtained: ObtainedMode) -> Result<(), OpenError> {
    use crate::express::config::BindMode;
    match (config.mode, obtained) {
        (BindMode::Auto, _)
        | (BindMode::Copy, ObtainedMode::Copy)
        | (BindMode::ZeroCopy, ObtainedMode::ZeroCopy) => Ok(()),
        (asked, obtained) => {
            Err(OpenError::Mode { interface: config.interface.clone(), queue: config.queue, asked, obtained })
        }
    }
}
