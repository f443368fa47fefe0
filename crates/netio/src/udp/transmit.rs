//! Messages that wait to be sent: back to back in one arena, queued by socket.
//!
//! A message is one datagram, or a run of equal segments (the last may be shorter) for GSO. The arena only
//! grows until everything in it has been sent, then starts again from its beginning, so what is built
//! stays in cache and a lone acknowledgement takes no more room than its bytes.

use std::collections::VecDeque;
use std::ops::Range;

use super::config::{MAX_PAYLOAD, SendMode};
use super::sys::Outgoing;
use crate::io::{Flow, Sent};

/// Segments that every kernel with GSO takes in a message (`UDP_MAX_SEGMENTS`; 128 since Linux 6.9).
const MAX_SEGMENTS: usize = 64;

/// Messages that may wait for one socket.
const MAX_MESSAGES: usize = 1024;

/// One message of a socket's queue.
pub(super) struct Message {
    flow: Flow,
    /// Whether the control message must name the source.
    name_source: bool,
    start: usize,
    length: usize,
    segment: usize,
    /// The error for which its datagrams go one by one instead of as a GSO message.
    pub(super) refused: Option<i32>,
}

impl Message {
    /// Bytes of the next unit to send: all of it, or one datagram.
    fn unit(&self, gso: bool) -> usize {
        if gso && self.refused.is_none() { self.length } else { self.length.min(self.segment) }
    }

    fn units(&self, gso: bool) -> impl Iterator<Item = Range<usize>> {
        let unit = self.unit(gso).max(1);
        let end = self.start + self.length;
        (self.start..end).step_by(unit).map(move |start| start..end.min(start + unit))
    }

    /// Datagrams left in it.
    pub(super) fn datagrams(&self) -> usize {
        self.length.div_ceil(self.segment)
    }

    pub(super) fn flow(&self) -> &Flow {
        &self.flow
    }
}

/// Datagrams back to back that can go as one GSO message: as long as the first, the last may be shorter. The
/// first decides, whatever its length: equal small responses join as full packets do.
struct Run {
    start: usize,
    length: usize,
    segment: usize,
    closed: bool,
}

impl Run {
    /// Takes a datagram of `length` bytes in, if it fits.
    fn take(&mut self, length: usize) -> bool {
        let most = MAX_SEGMENTS.min(MAX_PAYLOAD / self.segment) * self.segment;
        if self.closed || length > self.segment || self.length + self.segment > most {
            return false;
        }
        self.closed = length < self.segment;
        self.length += length;
        true
    }

    fn into_message(self, flow: Flow, name_source: bool) -> Message {
        let Self { start, length, segment, .. } = self;
        Message { flow, name_source, start, length, segment, refused: None }
    }
}

/// What one unit took with it when it left the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) datagrams: usize,
    pub(super) bytes: usize,
    /// The GSO error that this datagram was sent in spite of.
    pub(super) refused: Option<i32>,
}

/// The arena and the queues.
pub(super) struct Outbox {
    arena: Vec<u8>,
    used: usize,
    queues: Vec<VecDeque<Message>>,
}

impl Outbox {
    pub(super) fn new(sockets: usize, arena: usize) -> Self {
        Self {
            arena: vec![0; arena],
            used: 0,
            queues: (0..sockets).map(|_| VecDeque::with_capacity(MAX_MESSAGES)).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// Datagrams that wait.
    pub(super) fn datagrams(&self) -> usize {
        if self.used == 0 {
            return 0;
        }
        self.queues.iter().flatten().map(Message::datagrams).sum()
    }

    /// Starts the arena from its beginning if nothing in it waits any more.
    pub(super) fn reclaim(&mut self) {
        if self.is_empty() {
            self.used = 0;
        }
    }

    /// Lets `fill` build datagrams of `flow` for `socket` until it is done or room ends, which `blocked`
    /// of the result says.
    pub(super) fn build(
        &mut self,
        socket: usize,
        flow: &Flow,
        name_source: bool,
        segment: usize,
        mode: SendMode,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Sent {
        let mut sent = Sent::default();
        let mut run: Option<Run> = None;
        loop {
            let waiting = self.queues[socket].len() + usize::from(run.is_some());
            let room = self.arena.get_mut(self.used..self.used + segment).filter(|_| waiting < MAX_MESSAGES);
            let Some(slice) = room else {
                sent.blocked = true;
                break;
            };
            let written = fill(slice).min(segment);
            if written == 0 {
                break;
            }
            sent.packets += 1;
            sent.bytes += written;
            if run.as_mut().is_none_or(|run| mode != SendMode::Gso || !run.take(written)) {
                let begun = Run { start: self.used, length: written, segment: written, closed: false };
                if let Some(ended) = run.replace(begun) {
                    self.queues[socket].push_back(ended.into_message(*flow, name_source));
                }
            }
            self.used += written;
        }
        self.queues[socket].extend(run.map(|run| run.into_message(*flow, name_source)));
        sent
    }

    /// What `socket` is to send next, in order.
    pub(super) fn outgoing(&self, socket: usize, gso: bool) -> impl Iterator<Item = Outgoing<'_>> {
        self.queues[socket].iter().flat_map(move |message| {
            message.units(gso).map(move |range| Outgoing {
                remote: &message.flow.remote,
                source: message.name_source.then_some(&message.flow.local),
                tos: message.flow.dscp << 2 | message.flow.ecn as u8,
                segment: if range.len() > message.segment { message.segment as u16 } else { 0 },
                payload: &self.arena[range],
            })
        })
    }

    /// The message that is first to be sent by `socket`.
    pub(super) fn front(&mut self, socket: usize) -> Option<&mut Message> {
        self.queues[socket].front_mut()
    }

    /// Takes the first unit off the queue, sent or given up.
    pub(super) fn advance(&mut self, socket: usize, gso: bool) -> Unit {
        let queue = &mut self.queues[socket];
        let Some(message) = queue.front_mut() else { return Unit::default() };
        let bytes = message.unit(gso);
        let unit = Unit { datagrams: bytes.div_ceil(message.segment), bytes, refused: message.refused };
        message.start += bytes;
        message.length -= bytes;
        if message.length == 0 {
            queue.pop_front();
        }
        unit
    }

    /// Gives up the message at the front, for an error that meets all its datagrams alike; returns how many.
    /// With `too_large`, which does not meet a shorter last one, that one stays.
    pub(super) fn give_up(&mut self, socket: usize, too_large: bool) -> usize {
        let queue = &mut self.queues[socket];
        let Some(message) = queue.front_mut() else { return 0 };
        let all = message.datagrams();
        let last = message.length % message.segment;
        if too_large && all > 1 && last > 0 {
            message.start += message.length - last;
            message.length = last;
            // Whatever refused them together, it was their size.
            message.refused = message.refused.and(Some(libc::EMSGSIZE));
            return all - 1;
        }
        queue.pop_front();
        all
    }

    /// Gives up everything that waits for `socket`; returns the number of datagrams.
    pub(super) fn clear(&mut self, socket: usize) -> usize {
        self.queues[socket].drain(..).map(|message| message.datagrams()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow::new("192.0.2.1:443".parse().unwrap(), "192.0.2.2:9".parse().unwrap())
    }

    fn build(outbox: &mut Outbox, segment: usize, mode: SendMode, lengths: &[usize]) -> Sent {
        let mut lengths = lengths.iter();
        outbox.build(0, &flow(), true, segment, mode, &mut |slice| {
            assert_eq!(slice.len(), segment);
            let length = lengths.next().copied().unwrap_or(0);
            slice[..length].fill(length as u8);
            length
        })
    }

    fn shapes(outbox: &Outbox, gso: bool) -> Vec<(usize, u16)> {
        outbox.outgoing(0, gso).map(|out| (out.payload.len(), out.segment)).collect()
    }

    #[test]
    fn a_short_datagram_closes_the_message_and_not_the_burst() {
        let mut outbox = Outbox::new(1, 65_536);
        let sent = build(&mut outbox, 100, SendMode::Gso, &[100, 100, 40, 100, 7, 9]);
        assert_eq!(sent, Sent { packets: 6, bytes: 356, blocked: false });
        assert_eq!(shapes(&outbox, true), [(240, 100), (107, 100), (9, 0)]);
        assert_eq!(shapes(&outbox, false), [(100, 0), (100, 0), (40, 0), (100, 0), (7, 0), (9, 0)]);
    }

    #[test]
    fn equal_short_datagrams_join_and_a_longer_one_begins_anew() {
        let mut outbox = Outbox::new(1, 65_536);
        build(&mut outbox, 100, SendMode::Gso, &[70, 70, 70, 100, 100, 70, 70, 20]);
        assert_eq!(shapes(&outbox, true), [(210, 70), (270, 100), (90, 70)]);
        assert_eq!(outbox.arena[210], 100, "laid back to back");
    }

    #[test]
    fn a_message_ends_at_64_segments_and_at_the_largest_payload() {
        let mut outbox = Outbox::new(1, 1 << 20);
        build(&mut outbox, 10, SendMode::Gso, &[10; 65]);
        assert_eq!(shapes(&outbox, true), [(640, 10), (10, 0)]);
        let mut outbox = Outbox::new(1, 1 << 20);
        build(&mut outbox, 1452, SendMode::Gso, &[1452; 46]);
        assert_eq!(shapes(&outbox, true), [(45 * 1452, 1452), (1452, 0)]);
        let mut outbox = Outbox::new(1, 1 << 20);
        build(&mut outbox, MAX_PAYLOAD, SendMode::Gso, &[MAX_PAYLOAD; 2]);
        assert_eq!(shapes(&outbox, true), [(MAX_PAYLOAD, 0), (MAX_PAYLOAD, 0)]);
    }

    #[test]
    fn without_gso_each_datagram_is_a_message() {
        let mut outbox = Outbox::new(1, 65_536);
        build(&mut outbox, 100, SendMode::Sendmmsg, &[100, 100, 50]);
        assert_eq!(shapes(&outbox, true), [(100, 0), (100, 0), (50, 0)]);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut outbox = Outbox::new(1, 65_536);
        let sent = build(&mut outbox, 1000, SendMode::Gso, &[1000; 100]);
        assert_eq!(sent, Sent { packets: 65, bytes: 65_000, blocked: true });
        outbox.reclaim();
        assert_eq!(build(&mut outbox, 1000, SendMode::Gso, &[1000]).packets, 0, "still waiting");
        assert_eq!(outbox.advance(0, true), Unit { datagrams: 64, bytes: 64_000, refused: None });
        assert_eq!(outbox.clear(0), 1);
        outbox.reclaim();
        assert_eq!(build(&mut outbox, 1000, SendMode::Gso, &[1000]).packets, 1);
        let mut outbox = Outbox::new(1, 65_536);
        let sent = build(&mut outbox, 1, SendMode::Sendmsg, &[1; 2000]);
        assert_eq!(sent, Sent { packets: MAX_MESSAGES, bytes: MAX_MESSAGES, blocked: true });
    }

    #[test]
    fn a_refused_message_goes_on_datagram_by_datagram() {
        let mut outbox = Outbox::new(1, 65_536);
        build(&mut outbox, 100, SendMode::Gso, &[100, 100, 30]);
        outbox.front(0).unwrap().refused = Some(libc::EIO);
        assert_eq!(shapes(&outbox, true), [(100, 0), (100, 0), (30, 0)]);
        let unit = outbox.advance(0, true);
        assert_eq!(unit, Unit { datagrams: 1, bytes: 100, refused: Some(libc::EIO) });
        assert_eq!(shapes(&outbox, true), [(100, 0), (30, 0)]);
        assert_eq!(outbox.clear(0), 2);
    }

    #[test]
    fn giving_up_spares_what_is_not_too_large() {
        let mut outbox = Outbox::new(1, 65_536);
        build(&mut outbox, 100, SendMode::Gso, &[100, 100, 30, 100, 100]);
        outbox.front(0).unwrap().refused = Some(libc::EINVAL);
        assert_eq!(outbox.give_up(0, true), 2);
        assert_eq!(outbox.front(0).unwrap().refused, Some(libc::EMSGSIZE), "GSO is not to blame");
        assert_eq!(shapes(&outbox, true), [(30, 0), (200, 100)]);
        assert_eq!(outbox.give_up(0, true), 1, "a lone datagram is not spared");
        assert_eq!(outbox.give_up(0, true), 2, "nor is one of full size");
        assert_eq!(outbox.give_up(0, true), 0);
        build(&mut outbox, 100, SendMode::Gso, &[100, 30]);
        assert_eq!(outbox.give_up(0, false), 2);
        assert!(outbox.is_empty());
    }
}
