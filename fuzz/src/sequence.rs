//! Targets of `expressway-sequence`: packets of anybody, and feeds that break every rule.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use expressway_sequence::mold::{Builder, Downstream, Kind, Request, Session, end_of_session};
use expressway_sequence::{Arbiter, ArbiterConfig, Event, Framing, Line, RerequestConfig, Rerequester};

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

/// What must hold of a stream of events, whatever came.
#[derive(Default)]
struct Checker {
    next: Option<u64>,
    /// Gaps that were announced, what came late of them taken out: (first, end).
    gaps: Vec<(u64, u64)>,
    late: BTreeSet<u64>,
}

impl Checker {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Message(message) if message.late => {
                let number = message.sequence;
                assert!(self.gaps.iter().any(|(first, end)| (*first..*end).contains(&number)));
                assert!(self.late.insert(number), "{number} came late twice");
            }
            Event::Message(message) => self.advance(message.sequence, 1),
            Event::Gap { first, count } => {
                assert!(count > 0);
                self.advance(first, count);
                self.gaps.push((first, first + count));
            }
            Event::Session(_) | Event::Reset { .. } => *self = Self::default(),
            Event::End { .. } => {}
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
        window: u32::from(setting >> 1) % 32 + 1,
        window_bytes: 1 << 16,
        ..ArbiterConfig::new(framing)
    };
    let mut arbiter = Arbiter::new(config).expect("in range");
    let mut rerequester = Rerequester::new(RerequestConfig { count: 4, ..RerequestConfig::default() });
    let (mut now, mut place, mut checker) = (Instant::now(), 100u64, Checker::default());
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
                arbiter.handle_timeout(now, &mut |event| checker.event(event));
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
        arbiter.handle_datagram(now, line, 0, &datagram, &mut |event| checker.event(event));
        if line == Line::Reply {
            rerequester.handle_reply(now, &datagram);
        }
        place = place.max(number).wrapping_add(u64::from(amount % 8));
        for _ in 0..4 {
            let Some(request) = rerequester.poll_request(now, &arbiter) else { break };
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
    arbiter.flush(&mut |event| checker.event(event));
    assert!(arbiter.holes().next().is_none());
}

fn session(kind: u8) -> Session {
    Session([b'A' + (kind >> 5) % 6; 10])
}
