//! A binding: one AF_XDP socket on one queue of one interface, including its failures and replacement.
//!
//! ```text
//!               link down, ENETDOWN                    unregistered, ENXIO
//!        Up ─────────────────────────▶ Down ─────────────────────────────▶ Gone (for good)
//!        ▲ ◀───────────────────────── link up                                ▲
//!        │                                                                   │
//!        └──────── bound again ◀──── Reopening ◀── stuck, corrupt, refused ──┴── from Up
//! ```
//!
//! A binding only sends in `Up`; packets that it cannot send go through the kernel socket ([`super::XskIo`]). When a
//! link goes down, the socket is kept: it stays bound, and opening another needs privileges that the process may have
//! given up. Packets that were queued when the link went down stay in the TX ring and are sent when it is up again. A
//! socket that accepts packets but completes none for [`health::STALL_TIME`] is replaced together with its UMEM,
//! because there are drivers whose queue dies silently. [`super::FailurePolicy`] says what happens if the new one fails
//! too.

mod active;
mod health;
mod opener;
mod readers;
mod report;
mod traffic;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use expressway_wire::MAX_HEADER_LEN;

use super::config::{ObtainedMode, TransmitVia, XskConfig};
use super::error::{OpenError, Step};
use super::interface::{BindTarget, LinkState};
use super::remote::RemoteBinder;
use super::xskmap;
use crate::io::{IoError, IoStats};
use crate::route::OwnNamespace;
use crate::trace::StampSwitch;
use crate::wait::{self, Wait};

use active::{Active, XSK};
use health::REOPEN_FIRST;
use opener::{Opener, RemoteOpener};

pub use readers::{LendReport, NotLentStats};
pub use report::{BindingReport, BindingState, BindingStatus};

/// Bytes of the largest UDP payload over IPv4 (RFC 768, RFC 791).
const LARGEST_PAYLOAD: usize = 65_507;

/// One AF_XDP socket on one queue.
pub struct XskBinding {
    /// As it was fitted to the interface.
    config: XskConfig,
    /// Bytes of a frame that were asked for, where the MTU does not ask for more.
    frame_size: u32,
    ifindex: u32,
    /// MTU of the interface as far as it is known.
    mtu: u32,
    multi_buffer: bool,
    opener: Opener,
    wait: Wait,
    active: Option<Active>,
    state: BindingState,
    next_try: Instant,
    pause: Duration,
    opened: Instant,
    reopened: u64,
    gathered: u64,
    /// Failures to send and to receive lately, and when the last one was.
    failures: [u32; 2],
    failed: Option<Instant>,
    reason: Option<String>,
    published: Arc<ArcSwap<BindingReport>>,
    /// Counters of the sockets that it once had.
    counters: IoStats,
    /// What readers of sockets that it once had were lent.
    lent: LendReport,
}

impl XskBinding {
    /// Opens a socket on a queue and puts it into `map`, an XSKMAP that the redirect program of that
    /// interface uses, at [`XskConfig::map_key`]. The program should be attached before: some drivers need
    /// it for a zero-copy bind, and some restart the link when it comes.
    ///
    /// Takes CAP_NET_RAW and CAP_BPF. `map` is duplicated; dropping the binding takes the socket out again.
    ///
    /// # Errors
    /// [`OpenError`] names interface, queue and remedy. A mode that was asked for is obtained or an error.
    pub fn open(config: XskConfig, map: BorrowedFd<'_>) -> Result<Self, OpenError> {
        let target = BindTarget::find(&config, &OwnNamespace)?;
        let map = map
            .try_clone_to_owned()
            .map_err(|source| Step::Map.failed(&config.interface, config.queue, false, source))?;
        let active = Active::open(&target.fitted, target.ifindex, map.as_fd())?;
        let state = match target.interfaces.state(target.ifindex) {
            LinkState::Up => BindingState::Up,
            LinkState::Down | LinkState::Gone => BindingState::Down,
        };
        tracing::info!(
            interface = config.interface,
            queue = config.queue,
            mode = %active.xsk().mode(),
            backing = ?active.engine.umem.backing(),
            frame_size = target.fitted.frame_size,
            multi_buffer = target.fitted.multi_buffer(),
            ?state,
            "AF_XDP socket bound"
        );
        Ok(Self::new(config.frame_size, &target, Opener::Local(map), active, state))
    }

    /// As [`XskBinding::open`], with sockets that `source` has bound by a process that may do so; this one needs no
    /// capability. Whether the link is up shows once [`super::XskIo`] has the binding.
    ///
    /// # Errors
    /// As [`XskBinding::open`], and [`OpenError::Refused`].
    pub fn open_from(config: XskConfig, mut source: Box<dyn RemoteBinder>) -> Result<Self, OpenError> {
        if config.lend.is_some() {
            let must = "must not be set when another process binds the sockets";
            return Err(OpenError::Config { field: "lend", value: 1, must });
        }
        let target = BindTarget::find(&config, source.namespace())?;
        let active = Active::adopt(&target.fitted, &mut *source)?;
        tracing::info!(
            interface = config.interface,
            queue = config.queue,
            mode = %active.xsk().mode(),
            frame_size = target.fitted.frame_size,
            multi_buffer = target.fitted.multi_buffer(),
            "AF_XDP socket obtained"
        );
        Ok(Self::new(
            config.frame_size,
            &target,
            Opener::Remote(RemoteOpener::new(source)),
            active,
            BindingState::Up,
        ))
    }

    fn new(
        frame_size: u32,
        target: &BindTarget,
        opener: Opener,
        active: Active,
        state: BindingState,
    ) -> Self {
        let now = Instant::now();
        let (ifindex, multi_buffer) = (target.ifindex, target.fitted.multi_buffer());
        let mut config = XskConfig::clone(&target.fitted);
        if !config.sends {
            config.transmit = TransmitVia::Kernel;
        }
        let report = BindingReport {
            interface: config.interface.clone(),
            ifindex,
            queue: config.queue,
            state,
            mode: Some(active.xsk().mode()),
            backing: Some(active.engine.umem.backing()),
            transmit: config.transmit,
            reason: None,
            multi_buffer,
            max_segments: 1,
            tx_budget: active.tx_budget,
            napi: None,
            gathered: 0,
            reopened: 0,
        };
        let binding = Self {
            config,
            frame_size,
            ifindex,
            mtu: target.mtu,
            multi_buffer,
            opener,
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
            lent: LendReport::default(),
        };
        binding.publish();
        binding
    }

    /// Chooses which way datagrams leave from now on. What waits in the TX ring leaves as it was built. By the kernel
    /// whatever is chosen, where the socket does not send ([`XskConfig::sends`]).
    pub fn set_transmit(&mut self, transmit: TransmitVia) {
        self.config.transmit = if self.config.sends { transmit } else { TransmitVia::Kernel };
        self.publish();
    }

    /// Name of the interface.
    pub(super) fn interface(&self) -> &str {
        &self.config.interface
    }

    /// Queue of the interface.
    pub fn queue(&self) -> u32 {
        self.config.queue
    }

    /// Index of the interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The mode that bind obtained; `None` while there is no socket.
    pub fn mode(&self) -> Option<ObtainedMode> {
        self.active.as_ref().map(|active| active.xsk().mode())
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
                "this queue has no NAPI ID: busy polling is not possible, interrupts wake the worker"
            );
        }
        Ok(())
    }

    /// The NAPI context that busy polling polls; see [`wait::napi_id`].
    fn napi_id(&self) -> Option<u32> {
        self.active.as_ref().and_then(|active| wait::napi_id(active.fd()))
    }

    /// The cookie of what lies in front of received packets, where anything does.
    pub(super) fn description(&self) -> Option<u32> {
        self.config.description
    }

    /// Of a program that describes packets only while somebody traces.
    pub(super) fn switch(&self) -> Option<&StampSwitch> {
        self.config.switch.as_ref().filter(|_| self.config.description.is_none())
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
                let room = several as usize * self.config.frame_size as usize;
                (room - MAX_HEADER_LEN).min(LARGEST_PAYLOAD)
            }
        }
    }

    /// Frames completed by the socket that is open now.
    pub(super) fn completed(&self) -> u64 {
        self.active.as_ref().map_or(0, |active| active.xsk().counters().completed)
    }

    /// Frames that are with the kernel to send from.
    pub(super) fn in_flight(&self) -> usize {
        self.active.as_ref().map_or(0, |active| active.xsk().in_flight())
    }

    /// Takes completed frames back.
    pub(super) fn recycle(&mut self) {
        if let Some(active) = &mut self.active {
            let (xsk, umem) = active.engine.xsk(XSK);
            xsk.complete(umem);
        }
    }

    /// True if the socket can send.
    pub(super) fn sends(&self) -> bool {
        self.config.sends
    }

    /// True if datagrams are to leave by this binding.
    pub(super) fn transmits(&self) -> bool {
        self.config.transmit == TransmitVia::Xsk
    }

    /// True if the socket is there and the link up.
    pub(super) fn is_up(&self) -> bool {
        self.state == BindingState::Up
    }

    /// The socket, to wait on or to have prepared by somebody with more privilege; `None` while there is none.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.active.as_ref().map(|active| active.fd())
    }

    /// Closes the socket, keeping its counters. Packets that the kernel had not taken are lost with it.
    pub(super) fn close(&mut self) {
        let mut counters = self.counters;
        self.lent = self.lend_report();
        if let Some(mut active) = self.active.take() {
            active.count(&mut counters);
            counters.dropped_send_refused += u64::from(active.engine.xsk(XSK).0.untaken());
            self.gathered += active.xsk().counters().gathered;
            // Closing does this too; without CAP_BPF or the map that is the only way.
            if let Opener::Local(map) = &self.opener {
                let _ = xskmap::remove(map.as_fd(), self.config.map_key);
            }
        }
        self.counters = counters;
    }

    /// Adds this binding's counters to `stats`.
    pub(super) fn count(&self, stats: &mut IoStats) {
        *stats += self.counters;
        if let Some(active) = &self.active {
            active.count(stats);
        }
    }
}

impl Drop for XskBinding {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
