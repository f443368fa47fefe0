//! The last packets of a room, in order of arrival: those that receivers have not been sent yet, and those that they
//! may request again.

/// A packet's place in the order of arrival, from 0.
pub type Position = u64;

/// A packet as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The datagram, as it came.
    pub bytes: &'a [u8],
    /// How its header is mapped.
    pub mapping: RtpMapping,
}

/// How a packet's header is mapped for receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtpMapping {
    /// Its stream in the room.
    pub stream: u8,
    /// Its sequence number for receivers whose SSRC is not the publisher's.
    pub sequence: u16,
    /// Its timestamp for them.
    pub timestamp: u32,
}

/// A ring of packets; a new one takes the place of the oldest.
#[derive(Debug)]
pub struct History {
    bytes: Box<[u8]>,
    slots: Box<[(u16, RtpMapping)]>,
    longest: usize,
    head: Position,
}

impl History {
    /// Room for so many packets, a power of two, of up to `longest` bytes. The memory is taken at once.
    pub fn new(packets: usize, longest: u16) -> Self {
        assert!(packets.is_power_of_two(), "a mask finds the slot");
        let longest = usize::from(longest);
        let slots = vec![(0, RtpMapping::default()); packets].into();
        Self { bytes: vec![0; packets * longest].into(), slots, longest, head: 0 }
    }

    /// The longest packet that can be kept, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Packets that can be kept.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Where the next packet will be.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Where the oldest one that is kept is.
    pub fn tail(&self) -> Position {
        self.head.saturating_sub(self.slots.len() as u64)
    }

    /// Keeps a packet of up to [`Self::longest`] bytes, and says where.
    pub fn push(&mut self, packet: &[u8], mapping: RtpMapping) -> Position {
        let position = self.head;
        let slot = self.slot(position);
        self.slots[slot] = (packet.len() as u16, mapping);
        self.bytes[slot * self.longest..][..packet.len()].copy_from_slice(packet);
        self.head += 1;
        position
    }

    /// The packet there, if it is still kept.
    pub fn at(&self, position: Position) -> Option<Kept<'_>> {
        if !(self.tail()..self.head).contains(&position) {
            return None;
        }
        let slot = self.slot(position);
        let (length, mapping) = self.slots[slot];
        Some(Kept { bytes: &self.bytes[slot * self.longest..][..usize::from(length)], mapping })
    }

    fn slot(&self, position: Position) -> usize {
        position as usize & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packets_are_kept_and_older_ones_are_not() {
        let mut history = History::new(4, 3);
        assert_eq!(history.at(0), None);
        for number in 0..10u8 {
            let mapping = RtpMapping { stream: number, ..RtpMapping::default() };
            assert_eq!(history.push(&[number; 3][..usize::from(number % 4)], mapping), u64::from(number));
        }
        assert_eq!((history.tail(), history.head()), (6, 10));
        for position in 0..6 {
            assert_eq!(history.at(position), None);
        }
        for position in 6..10u8 {
            let kept = history.at(u64::from(position)).unwrap();
            assert_eq!(kept.bytes, &[position; 3][..usize::from(position % 4)]);
            assert_eq!(kept.mapping.stream, position);
        }
        assert_eq!(history.at(10), None);
        assert_eq!(history.at(u64::MAX), None);
    }
}
