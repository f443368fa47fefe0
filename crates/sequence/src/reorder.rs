//! Messages that arrived while an earlier one is missing: a bounded buffer by number.

use crate::line::Line;

/// Bytes that an empty slot may keep for its next message: a datagram of an Ethernet.
const KEPT: usize = 2048;

/// Slots for numbers that are less than `window` apart.
pub(crate) struct Reorder<S> {
    slots: Vec<Slot<S>>,
    bytes: usize,
    messages: usize,
}

struct Slot<S> {
    data: Vec<u8>,
    origin: Option<Origin<S>>,
}

/// Where a message came from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<S> {
    pub(crate) line: Line,
    pub(crate) stamp: S,
}

impl<S: Copy> Reorder<S> {
    pub(crate) fn new(window: u32) -> Self {
        let slots = (0..window).map(|_| Slot { data: Vec::new(), origin: None }).collect();
        Self { slots, bytes: 0, messages: 0 }
    }

    pub(crate) fn window(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Keeps a message. Its number is less than `window` from that of every other kept.
    pub(crate) fn store(&mut self, number: u64, data: &[u8], origin: Origin<S>) {
        let index = self.index(number);
        let slot = &mut self.slots[index];
        debug_assert!(slot.origin.is_none());
        slot.data.clear();
        slot.data.extend_from_slice(data);
        slot.origin = Some(origin);
        self.bytes += data.len();
        self.messages += 1;
    }

    /// Hands a message that is kept to `use_it`, and forgets it.
    pub(crate) fn take(&mut self, number: u64, use_it: impl FnOnce(&[u8], Origin<S>)) {
        let index = self.index(number);
        let slot = &mut self.slots[index];
        let Some(origin) = slot.origin.take() else {
            debug_assert!(false, "message {number} is neither missing nor kept");
            return;
        };
        self.bytes -= slot.data.len();
        self.messages -= 1;
        use_it(&slot.data, origin);
        if slot.data.capacity() > KEPT {
            slot.data = Vec::new();
        }
    }

    fn index(&self, number: u64) -> usize {
        // Below the length, which is a usize.
        (number % self.window()) as usize
    }
}
