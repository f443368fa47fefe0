//! Frames in and out of a binding, and the kicks that the kernel asks for.

use std::io;
use std::time::Instant;

use super::active::{Active, XSK};
use super::health::{Task, is_stalled};
use super::{BindingState, XskBinding};
use crate::ring::Mapped;
use crate::xsk::engine::{KICK_AGAIN, Outcome, RxBatch, TxFrame};
use crate::xsk::interface::LinkState;

impl XskBinding {
    /// Takes back completed frames and what readers returned. Up to `limit` packets that were received, and the readers
    /// who may be lent them, a bit each; `None` while there is no socket. [`XskBinding::end_receive`] follows.
    #[inline]
    pub(crate) fn receive(&mut self, limit: usize) -> Option<(RxBatch<'_, Mapped>, u32)> {
        let Active { engine, readers, .. } = self.active.as_mut()?;
        let (xsk, umem) = engine.xsk(XSK);
        xsk.complete(umem);
        if let Some(readers) = readers {
            readers.collect(engine);
        }
        let present = if engine.readers.reserved() > 0 { engine.readers.present() } else { 0 };
        Some((engine.receive(XSK, limit), present))
    }

    /// So many packets were received.
    pub(crate) fn end_receive(&mut self, now: Instant, packets: usize) {
        let Some(Active { engine, refilled, .. }) = &mut self.active else { return };
        let is_corrupt = engine.xsk(XSK).0.is_corrupt();
        // The kernel is told of the filled fill ring behind what this turn sends: to learn whether it wants to be takes a
        // full fence. Where one batch follows another it is told between them, so that it never waits for a long turn.
        if packets > 0 && std::mem::replace(refilled, true) {
            self.wake(now);
        }
        if is_corrupt {
            self.fail(now, Task::Receive, "the kernel set an invalid ring index");
        }
    }

    /// Tells the kernel of a filled fill ring, if it asks for that.
    fn wake(&mut self, now: Instant) {
        let Some(active) = &mut self.active else { return };
        match active.engine.xsk(XSK).0.wake_reception() {
            Outcome::Sent | Outcome::Later => {}
            Outcome::Down => self.set_link(LinkState::Down),
            Outcome::Gone => self.set_link(LinkState::Gone),
            Outcome::Fault(_) => self.fail(now, Task::Receive, "waking up the receive path failed"),
        }
    }

    /// A frame to build a packet in; `None` if all are with the kernel.
    #[inline]
    pub(crate) fn alloc(&mut self) -> Option<TxFrame<'_, Mapped>> {
        self.active.as_mut()?.engine.alloc(XSK)
    }

    /// True if a packet of up to `length` bytes can be sent in several frames now.
    pub(crate) fn has_room(&mut self, length: usize) -> bool {
        self.active.as_mut().is_some_and(|active| {
            let (xsk, umem) = active.engine.xsk(XSK);
            let parts = xsk.parts(umem, length);
            xsk.has_room(umem, parts)
        })
    }

    /// Sends a whole packet in as many frames as it takes. False if it is empty or has no room.
    pub(crate) fn submit_parts(&mut self, packet: &[u8]) -> bool {
        self.active.as_mut().is_some_and(|active| {
            let (xsk, umem) = active.engine.xsk(XSK);
            xsk.submit_parts(umem, packet)
        })
    }

    /// Tells the kernel that packets were received since the last time, if it waits for room in the fill ring.
    pub(crate) fn tell_refilled(&mut self, now: Instant) {
        if self.state == BindingState::Up
            && self.active.as_mut().is_some_and(|active| std::mem::take(&mut active.refilled))
        {
            self.wake(now);
        }
    }

    /// Gives everything built so far to the kernel, and readers what they were lent.
    pub(crate) fn send(&mut self, now: Instant) {
        let Some(Active { engine, quiet, readers, .. }) = &mut self.active else { return };
        if let Some(readers) = readers {
            readers.publish(engine);
        }
        if self.state != BindingState::Up {
            return;
        }
        let (xsk, umem) = engine.xsk(XSK);
        let Some(outcome) = xsk.flush(umem) else { return };
        let stalled = is_stalled(quiet, now, xsk.in_flight(), xsk.counters().completed);
        match outcome {
            Outcome::Down => self.set_link(LinkState::Down),
            Outcome::Gone => self.set_link(LinkState::Gone),
            Outcome::Fault(error) => {
                let error = io::Error::from_raw_os_error(error);
                self.fail(now, Task::Send, &format!("sending failed: {error}"));
            }
            Outcome::Sent | Outcome::Later if stalled => {
                self.fail(now, Task::Send, "transmission stuck: no completion for 6 s");
            }
            Outcome::Sent | Outcome::Later => {}
        }
    }

    /// True if packets wait that a sleeping worker would miss. Wakes the kernel where that asks for it.
    pub(crate) fn prepare_sleep(&mut self, now: Instant) -> bool {
        if self.state != BindingState::Up {
            return false;
        }
        self.wake(now);
        self.active.as_mut().is_some_and(|active| active.engine.xsk(XSK).0.has_received())
    }

    /// When the binding needs a turn though no packet comes.
    pub(crate) fn next_turn(&self, now: Instant) -> Option<Instant> {
        match self.state {
            BindingState::Up
                if self.active.as_ref().is_some_and(|active| active.xsk().outcome() == Outcome::Later) =>
            {
                Some(now + KICK_AGAIN)
            }
            BindingState::Reopening => Some(self.next_try),
            _ => None,
        }
    }
}
