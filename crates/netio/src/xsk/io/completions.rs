//! Which traced bursts have come back through the completion ring.
//!
//! The ring says which frames are complete, but frames do not record their burst. A socket completes frames in order,
//! or nearly so. A burst is therefore complete when as many frames have been completed as the kernel had when the burst
//! was built. This is only noticed when the worker takes completions.

use std::collections::VecDeque;

use super::XskIo;
use crate::io::PacketIo;
use crate::trace::{Hop, StampSwitch, Tracer};
use crate::xsk::binding::XskBinding;
use crate::xsk::path_cache::Routes;

/// Bursts that are waited for: more than a TX ring holds packets of, by default. Those beyond are not told as completed.
const WAITING: usize = 4096;

/// A burst with the kernel.
struct Burst {
    mark: u64,
    binding: usize,
    /// Frames that the socket had completed when the burst was built, and has when that is done.
    before: u64,
    after: u64,
}

/// The tracer, and bursts that it waits for.
#[derive(Default)]
pub(super) struct Completions {
    pub(super) tracer: Tracer,
    waiting: VecDeque<Burst>,
}

impl<K: PacketIo, R: Routes> XskIo<K, R> {
    /// A burst was built on a binding.
    #[inline]
    pub(super) fn trace_burst(&mut self, binding: usize) {
        if self.completions.tracer.is_on() {
            self.completions.note(binding, &self.bindings[binding]);
        }
    }

    /// Tells which bursts have come back.
    #[inline]
    pub(super) fn trace_completions(&mut self) {
        if !self.completions.waiting.is_empty() {
            self.completions.tell(&self.bindings);
        }
    }

    /// Tells the tracer where the bindings are. What is waited for is forgotten: its indices may be others' now.
    pub(super) fn tell_places(&mut self) {
        let queues = self.bindings.iter().map(|binding| (binding.interface().to_owned(), binding.queue()));
        self.completions.tracer.set_queues(queues.collect());
        let mut switches: Vec<StampSwitch> = Vec::new();
        for switch in self.bindings.iter().filter_map(XskBinding::switch) {
            if !switches.contains(switch) {
                switches.push(switch.clone());
            }
        }
        self.completions.tracer.set_switches(switches);
        self.completions.waiting.clear();
    }
}

impl Completions {
    #[cold]
    fn note(&mut self, binding: usize, at: &XskBinding) {
        let Some(mark) = self.tracer.open_burst() else { return };
        self.tracer.leaves_by_xsk(binding);
        let (before, in_flight) = (at.completed(), at.in_flight() as u64);
        let burst = Burst { mark, binding, before, after: before + in_flight };
        // A burst may be built in several calls.
        if self.waiting.back().is_some_and(|last| (last.mark, last.binding) == (mark, binding)) {
            self.waiting.pop_back();
        }
        if in_flight > 0 && self.waiting.len() < WAITING {
            self.waiting.push_back(burst);
        }
    }

    #[cold]
    fn tell(&mut self, bindings: &[XskBinding]) {
        let Self { tracer, waiting } = self;
        waiting.retain(|burst| {
            let completed = bindings.get(burst.binding).map_or(0, XskBinding::completed);
            if completed >= burst.after {
                tracer.record(0, Hop::Completed { mark: burst.mark });
            }
            // A socket that was opened anew counts from 0.
            completed < burst.after && completed >= burst.before
        });
        if !tracer.is_on() {
            waiting.clear();
        }
    }
}
