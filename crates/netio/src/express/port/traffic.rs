//! Frames in and out of a port, and the kicks that the kernel asks for.

use std::io;
use std::time::Instant;

use super::active::Active;
use super::health::{Task, is_stalled};
use super::{Port, PortState};
use crate::express::config::ObtainedMode;
use crate::express::interface::LinkState;
use crate::express::kick::{self, KICK_AGAIN, Outcome};
use crate::express::lane::{Mapped, TxFrame};
use crate::express::queue::Keep;

impl Port {
    /// Recycles completions and what readers returned, and hands up to `limit` received frames to `handle`, which says
    /// what of each may be lent.
    pub(in crate::express) fn receive<F: FnMut(&mut [u8]) -> Option<Keep>>(
        &mut self,
        now: Instant,
        limit: usize,
        handle: F,
    ) -> usize {
        let Some(active) = &mut self.active else { return 0 };
        active.queue.complete();
        if let Some(public) = &mut active.public {
            public.collect(&mut active.queue);
        }
        let packets = active.queue.receive(limit, handle);
        // The kernel is told of the filled fill ring behind what this turn sends: to learn whether it wants to be takes a full
        // fence. Where one batch follows another it is told between them, so that it never waits for a long turn.
        if packets > 0 && std::mem::replace(&mut active.refilled, true) {
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
                // EAGAIN and its like: the flag stays set, and the next turn that receives, or is to sleep, tries again.
                _ if matches!(error, libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOBUFS) => {}
                _ => self.fail(now, Task::Receive, "waking reception failed"),
            }
        }
    }

    /// A frame to build a packet in; `None` if all are with the kernel.
    #[inline]
    pub(in crate::express) fn acquire(&mut self) -> Option<TxFrame<'_, Mapped>> {
        self.active.as_mut()?.queue.acquire()
    }

    /// True if a packet of up to `length` bytes can be sent in several frames now.
    pub(in crate::express) fn has_room(&mut self, length: usize) -> bool {
        self.active.as_mut().is_some_and(|active| {
            let parts = active.queue.parts(length);
            active.queue.has_room(parts)
        })
    }

    /// Sends a whole packet in as many frames as it takes; see [`crate::express::queue::Queue::submit_parts`].
    pub(in crate::express) fn submit_parts(&mut self, packet: &[u8]) -> bool {
        self.active.as_mut().is_some_and(|active| active.queue.submit_parts(packet))
    }

    /// Tells the kernel that packets were received since the last time, if it waits for room in the fill ring.
    pub(in crate::express) fn tell_refilled(&mut self, now: Instant) {
        if self.state == PortState::Up
            && self.active.as_mut().is_some_and(|active| std::mem::take(&mut active.refilled))
        {
            self.wake(now);
        }
    }

    /// Gives everything built so far to the kernel, and readers what they were lent.
    pub(in crate::express) fn send(&mut self, now: Instant) {
        if let Some(Active { queue, public: Some(public), .. }) = &mut self.active {
            public.publish(queue);
        }
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
        // The flag takes a full fence to read.
        let needs_wakeup = *mode == ObtainedMode::ZeroCopy && queue.transmit_needs_wakeup();
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
    pub(in crate::express) fn prepare_sleep(&mut self, now: Instant) -> bool {
        if self.state != PortState::Up {
            return false;
        }
        self.wake(now);
        self.active.as_mut().is_some_and(|active| active.queue.has_received())
    }

    /// When the port needs a turn though no packet comes.
    pub(in crate::express) fn next_turn(&self, now: Instant) -> Option<Instant> {
        match self.state {
            PortState::Up if self.active.as_ref().is_some_and(|active| active.deferred) => {
                Some(now + KICK_AGAIN)
            }
            PortState::Reopening => Some(self.next_try),
            _ => None,
        }
    }
}
