//! Targets of `expressway-sequence`: packets of anybody, and feeds that break every rule.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use expressway_sequence::mold::{Builder, Downstream, Kind, Request, Session, end_of_session};
use expressway_sequence::{Arbiter, ArbiterConfig, Event, Framing, Line, RerequestConfig, Rerequester};

use crate::cost::{Account, Bound};

/// For [`mold`], which writes what it has read.
pub const MOLD: Bound = Bound { steps: (40, 400), allocations: (0, 16), bytes: (12, 512), peak: (12, 512) };

/// What arbiter and re-requester do with the datagrams of a feed. One costs its headers too.
const ARBITER: Bound =
    Bound { steps: (160, 4000), allocations: (1, 64), bytes: (40, 4096), peak: (40, 4096) };

/// Bytes of IPv4 and UDP headers: nothing smaller arrives.
const HEADERS: usize = 28;

/// What is read of a packet is written back to the same bytes, but for padding.
pub fn mold(data: &[u8]) {
    if let Ok(request) = Request::parse(data) {
        assert_eq!(request.to_bytes(), data);
    }
    let Ok(packet) = Downstream::parse(data) else { return };
    assert_eq!(packet.messages().len(), packet.messages().count());
    assert!(packet.sequence.checked_add(packet.len().into()).is_some());
    let mut out = Vec::new();
    if packet.kind() == Kind::EndOfSession {
        out.extend_from_slice(&end_of_session(packet.session, packet.sequence));
    } else {
        let mut builder = Builder::new(&mut out, packet.session, packet.sequence);
        packet.messages().for_each(|message| assert!(builder.push(message)));
    }
    assert_eq!(out, data[..out.len()]);
}

/// An event, to be checked once what it cost is known.
enum Seen {
    Message { number: u64, late: bool },
    Gap { first: u64, count: u64 },
    Begin,
    End,
}

impl From<Event<'_>> for Seen {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Message(message) => Self::Message { number: message.sequence, late: message.late },
            Event::Gap { first, count } => Self::Gap { first, count },
            Event::Session(_) | Event::Reset { .. } => Self::Begin,
            Event::End { .. } => Self::End,
        }
    }
}

/// What must hold of a stream of events, whatever came.
#[derive(Default)]
struct Checker {
    next: Option<u64>,
    /// Gaps that were announced, what came late of them taken out: (first, end).
    gaps: Vec<(u64, u64)>,
    late: BTreeSet<u64>,
}

impl Checker {
    fn check(&mut self, events: &mut Vec<Seen>) {
        events.drain(..).for_each(|event| self.event(&event));
    }

    fn event(&mut self, event: &Seen) {
        match *event {
            Seen::Message { number, late: true } => {
                assert!(self.gaps.iter().any(|(first, end)| (*first..*end).contains(&number)));
                assert!(self.late.insert(number), "{number} came late twice");
            }
            Seen::Message { number, .. } => self.advance(number, 1),
            Seen::Gap { first, count } => {
                assert!(count > 0);
                self.advance(first, count);
                self.gaps.push((first, first + count));
            }
            Seen::Begin => *self = Self::default(),
            Seen::End => {}
        }
    }

    fn advance(&mut self, first: u64, count: u64) {
        assert!(self.next.is_none_or(|next| next == first), "{first} follows {:?}", self.next);
        self.next = Some(first.checked_add(count).expect("numbers do not overflow"));
    }
}

/// A feed of two lines and replies: a byte for framing and window, then steps of at least three bytes.
pub fn arbiter(data: &[u8]) {
    let Some((&setting, mut steps)) = data.split_first() else { return };
    let framing = if setting & 1 == 0 { Framing::MoldUdp64 } else { Framing::Seq64 };
    let config = ArbiterConfig {
        lines: 2,
        window: if setting & 0x40 == 0 { u32::from(setting >> 1) % 32 + 1 } else { 4096 },
        window_bytes: 1 << 16,
        ..ArbiterConfig::new(framing)
    };
    let mut arbiter = Arbiter::new(config).expect("in range");
    let mut rerequester = Rerequester::new(RerequestConfig { count: 4, ..RerequestConfig::default() });
    let (mut now, mut place, mut checker) = (Instant::now(), 100u64, Checker::default());
    let (mut account, mut events) = (Account::default(), Vec::new());
    while let Some((&[kind, distance, amount], rest)) = steps.split_first_chunk() {
        steps = rest;
        let line = [Line::Feed(0), Line::Feed(1), Line::Reply, Line::Feed(7)][usize::from(kind & 3)];
        let number = place.wrapping_add_signed(i64::from(distance.cast_signed()));
        let datagram = match (kind >> 2) & 7 {
            // Whatever bytes.
            0 => {
                let (bytes, rest) = steps.split_at(steps.len().min(amount.into()));
                steps = rest;
                bytes.to_vec()
            }
            1 => {
                now += Duration::from_millis(u64::from(amount) * 20);
                account.run(0, || arbiter.handle_timeout(now, &mut |event| events.push(event.into())));
                checker.check(&mut events);
                continue;
            }
            2 => {
                place = place.wrapping_add(1 << (amount % 64));
                continue;
            }
            3 => end_of_session(session(kind), number).to_vec(),
            _ if framing == Framing::Seq64 => number.to_be_bytes().to_vec(),
            _ => {
                let mut bytes = Vec::new();
                let mut builder = Builder::new(&mut bytes, session(kind), number);
                (0..amount % 8).for_each(|message| assert!(builder.push(&[message])));
                bytes
            }
        };
        account.run(HEADERS + datagram.len(), || {
            arbiter.handle_datagram(now, line, 0, &datagram, &mut |event| events.push(event.into()));
            if line == Line::Reply {
                rerequester.handle_reply(now, &datagram);
            }
        });
        checker.check(&mut events);
        place = place.max(number).wrapping_add(u64::from(amount % 8));
        for _ in 0..4 {
            let request = account.run(0, || rerequester.poll_request(now, &arbiter));
            let Some(request) = request else { break };
            assert!((1..=4).contains(&request.count));
            let end = request.sequence + u64::from(request.count);
            assert_eq!(
                arbiter.missing(request.sequence, end).map(|missing| missing.0),
                Some(request.sequence)
            );
        }
        assert!(rerequester.poll_request(now, &arbiter).is_none(), "more requests than may be under way");
        let missing: u64 = arbiter.holes().map(|hole| hole.end - hole.first).sum();
        assert_eq!(missing > 0, arbiter.poll_timeout().is_some());
    }
    account.run(0, || arbiter.flush(&mut |event| events.push(event.into())));
    checker.check(&mut events);
    account.settle(&ARBITER);
    assert!(arbiter.holes().next().is_none());
}

fn session(kind: u8) -> Session {
    Session([b'A' + (kind >> 5) % 6; 10])
}
