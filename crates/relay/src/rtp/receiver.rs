//! A receiver of a room: what it still needs, and what it reports about its reception.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::header::Header;
use super::history::{History, Kept, Position};
use super::room::STREAMS;
use crate::config::Output;
use crate::srtp::{Inbound, Outbound, pair};
use crate::status::ReceiverCounters;

/// Packets that are to be sent again to a receiver at a time.
const REPAIRS: usize = 256;
/// Of packets sent, the part that may be sent again: a request of a few bytes, perhaps in a stranger's name, asks for many packets.
const REPAIRS_A_PACKET: (u32, u32) = (1, 4);

/// What a receiver last said of a stream (RFC 3550, section 6.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Lost lately, in 1/256.
    pub fraction_lost: u8,
    /// Lost in all.
    pub lost: u32,
    /// Interarrival jitter, in units of the stream's clock.
    pub jitter: u32,
    /// Round trip from here and back.
    pub round_trip: Option<Duration>,
}

/// A receiver.
#[derive(Debug)]
pub struct Receiver {
    /// Who, and what is changed for it.
    pub output: Output,
    /// What it was sent.
    pub counters: ReceiverCounters,
    /// What it last said of its worst stream.
    pub quality: Quality,
    /// What its packets are opened with, and what is for it sealed.
    pub(super) srtp: Option<(Inbound, Outbound)>,
    /// The next packet for it.
    cursor: Position,
    repairs: VecDeque<Position>,
    /// What it may be sent again, in parts of a packet.
    credit: u32,
    /// The number of the last sender report that it got, of each stream.
    pub(super) reported: [u32; STREAMS],
}

impl Receiver {
    /// One that gets what comes from now on.
    pub fn new(output: Output, history: &History) -> Self {
        Self {
            srtp: output.srtp.as_ref().map(pair),
            output,
            counters: ReceiverCounters::default(),
            quality: Quality::default(),
            cursor: history.head(),
            repairs: VecDeque::new(),
            credit: REPAIRS as u32 * REPAIRS_A_PACKET.1,
            reported: [0; STREAMS],
        }
    }

    /// Where its RTCP comes from and goes to.
    pub fn rtcp(&self) -> Option<SocketAddr> {
        self.output.rtcp.address(self.output.address)
    }

    /// The SSRC under which it sees a stream.
    pub fn ssrc(&self, stream: u8, publishers: u32) -> u32 {
        self.output.ssrc.map_or(publishers, |first| first.wrapping_add(u32::from(stream)))
    }

    /// It asks for a packet once more.
    pub fn ask(&mut self, position: Option<Position>) {
        // What is on its way already needs no repair.
        let Some(position) = position.filter(|position| *position < self.cursor) else { return };
        let credit = (self.credit / REPAIRS_A_PACKET.1) as usize;
        if self.repairs.len() >= credit.min(REPAIRS) {
            self.counters.repairs_refused += 1;
        } else if !self.repairs.contains(&position) {
            self.repairs.push_back(position);
        }
    }

    /// Whether something is to be sent.
    pub fn is_behind(&self, history: &History) -> bool {
        self.cursor < history.head() || !self.repairs.is_empty()
    }

    /// Bytes that its packets are longer by than they are kept.
    pub fn overhead(&self) -> usize {
        self.srtp.as_ref().map_or(0, |(_, outbound)| outbound.overhead())
    }

    /// The longest of the next packets for it, up to so many, in bytes as they are kept; 0: none.
    pub fn longest(&mut self, history: &History, most: usize) -> usize {
        if self.cursor < history.tail() {
            self.counters.skipped += history.tail() - self.cursor;
            self.cursor = history.tail();
        }
        // Wherever they are: those behind take their turn, which has to be counted in.
        self.repairs.retain(|position| history.at(*position).is_some());
        let new = self.cursor..history.head();
        let next = self.repairs.iter().copied().chain(new).take(most);
        next.filter_map(|position| history.at(position)).map(|kept| kept.bytes.len()).max().unwrap_or(0)
    }

    /// Writes the next packet for it, and says how long it is; 0: there is none.
    pub fn write_next(&mut self, history: &History, slot: &mut [u8]) -> usize {
        while let Some(position) = self.repairs.pop_front() {
            if let Some(kept) = history.at(position) {
                self.credit -= REPAIRS_A_PACKET.1;
                self.counters.repairs += 1;
                return self.write(kept, slot);
            }
        }
        let Some(kept) = history.at(self.cursor) else { return 0 };
        self.cursor += 1;
        self.credit = (self.credit + REPAIRS_A_PACKET.0).min(REPAIRS as u32 * REPAIRS_A_PACKET.1);
        self.write(kept, slot)
    }

    /// Skips what waits for it: it cannot be sent.
    pub fn skip(&mut self, history: &History) -> u64 {
        let skipped = history.head() - self.cursor + self.repairs.len() as u64;
        self.cursor = history.head();
        self.repairs.clear();
        skipped
    }

    fn write(&mut self, kept: Kept<'_>, slot: &mut [u8]) -> usize {
        let Some(packet) = slot.get_mut(..kept.bytes.len()) else { return 0 };
        packet.copy_from_slice(kept.bytes);
        if self.output.is_rewritten()
            && let Some(header) = Header::parse(kept.bytes)
        {
            self.rewrite(header, kept, packet);
        }
        let length = match &mut self.srtp {
            Some((_, outbound)) => outbound.seal(slot, kept.bytes.len()),
            None => kept.bytes.len(),
        };
        self.counters.packets += 1;
        self.counters.bytes += length as u64;
        length
    }

    fn rewrite(&self, mut header: Header, kept: Kept<'_>, packet: &mut [u8]) {
        header.payload_type = self.output.payload_type(header.payload_type);
        if let Some(first) = self.output.ssrc {
            header.ssrc = first.wrapping_add(u32::from(kept.mapping.stream));
            header.sequence = kept.mapping.sequence;
            header.timestamp = kept.mapping.timestamp;
        }
        header.write(packet);
    }
}
