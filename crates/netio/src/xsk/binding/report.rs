//! The properties and state of a binding, for logs and metrics.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::XskBinding;
use crate::sys::mapping::Backing;
use crate::xsk::config::{ObtainedMode, TransmitVia};

/// How a binding fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingState {
    /// Bound, and the link is up.
    Up,
    /// Bound, and the link is down.
    Down,
    /// The socket failed; a new one is tried in intervals.
    Reopening,
    /// The interface is gone, or the privileges to open a socket are: the kernel socket serves from now on.
    Gone,
}

/// What a binding is and how it fares, for logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingReport {
    /// Interface name as configured.
    pub interface: String,
    /// Interface index.
    pub ifindex: u32,
    /// Queue of the interface.
    pub queue: u32,
    /// State of the binding.
    pub state: BindingState,
    /// Mode that bind obtained; `None` while there is no socket.
    pub mode: Option<ObtainedMode>,
    /// Pages that hold the UMEM; `None` while there is no socket.
    pub backing: Option<Backing>,
    /// Which way datagrams leave.
    pub transmit: TransmitVia,
    /// Why the binding is not, or no longer, what it was opened as; `None` while nothing has gone wrong for good.
    pub reason: Option<String>,
    /// Whether packets larger than a frame are received (`XDP_USE_SG`).
    pub multi_buffer: bool,
    /// Frames that one sent packet may take; 1 where packets larger than a frame leave by the kernel socket.
    pub max_segments: u32,
    /// Packets that one system call may send in copy mode; 0 while there is no socket, or one that only receives.
    pub tx_budget: u32,
    /// The NAPI context of the queue, by which it can be busy-polled; `None` where the device names none.
    pub napi: Option<u32>,
    /// Packets put together from several frames, by a copy.
    pub gathered: u64,
    /// Times that a failed socket was replaced.
    pub reopened: u64,
}

/// How a binding fares, to be asked from any thread. The report is that of the last change of state: `gathered`
/// is as of then.
#[derive(Clone, Debug)]
pub struct BindingStatus {
    pub(super) report: Arc<ArcSwap<BindingReport>>,
}

impl BindingStatus {
    /// The report as last published.
    pub fn report(&self) -> Arc<BindingReport> {
        self.report.load_full()
    }
}

impl XskBinding {
    /// Where to learn from another thread how this binding fares.
    pub fn status(&self) -> BindingStatus {
        BindingStatus { report: Arc::clone(&self.published) }
    }

    pub(super) fn publish(&self) {
        self.published.store(Arc::new(self.report()));
    }

    /// What the binding is and how it fares.
    pub fn report(&self) -> BindingReport {
        let active = self.active.as_ref();
        BindingReport {
            interface: self.config.interface.clone(),
            ifindex: self.ifindex,
            queue: self.config.queue,
            state: self.state,
            mode: self.mode(),
            backing: active.map(|active| active.engine.umem.backing()),
            transmit: self.config.transmit,
            reason: self.reason.clone(),
            multi_buffer: self.multi_buffer,
            max_segments: self.max_segments(),
            tx_budget: active.map_or(0, |active| active.tx_budget),
            napi: self.napi_id(),
            gathered: self.gathered + active.map_or(0, |active| active.xsk().counters().gathered),
            reopened: self.reopened,
        }
    }
}
