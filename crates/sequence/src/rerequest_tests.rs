//! Tests of the re-request client against an arbiter with holes, on a simulated clock.

use super::*;
use crate::arbiter::ArbiterConfig;
use crate::framing::Framing;
use crate::line::Line;
use crate::mold::Builder;

struct Bed {
    arbiter: Arbiter,
    rerequester: Rerequester,
    now: Instant,
}

impl Bed {
    /// Messages 1 and so many numbers behind each other that `missing` are between them.
    fn new(missing: &[(u64, u64)], config: RerequestConfig) -> Self {
        let hold = Duration::from_secs(1);
        let arbiter = Arbiter::new(ArbiterConfig { hold, ..ArbiterConfig::new(Framing::MoldUdp64) }).unwrap();
        let mut bed = Self { arbiter, rerequester: Rerequester::new(config), now: Instant::now() };
        bed.packet(Line::Feed(0), 1, 1);
        missing.iter().for_each(|(_, end)| bed.packet(Line::Feed(0), *end, 1));
        let found: Vec<_> = bed.arbiter.holes().map(|hole| (hole.first, hole.end)).collect();
        assert_eq!(found, missing);
        bed
    }

    fn bytes(first: u64, count: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut builder = Builder::new(&mut bytes, Session::new("S").unwrap(), first);
        (0..count).for_each(|_| assert!(builder.push(b"x")));
        bytes
    }

    fn packet(&mut self, line: Line, first: u64, count: u64) {
        self.arbiter.handle_datagram(self.now, line, 0, &Self::bytes(first, count), &mut |_| {});
    }

    fn reply(&mut self, first: u64, count: u64) {
        self.packet(Line::Reply, first, count);
        self.rerequester.handle_reply(self.now, &Self::bytes(first, count));
    }

    fn later(&mut self, milliseconds: u64) -> &mut Self {
        self.now += Duration::from_millis(milliseconds);
        self
    }

    /// All requests that are due: first number and count.
    fn requests(&mut self) -> Vec<(u64, u16)> {
        let one = || self.rerequester.poll_request(self.now, &self.arbiter);
        std::iter::from_fn(one).map(|request| (request.sequence, request.count)).collect()
    }

    fn waits(&self) -> Option<u64> {
        let time = self.rerequester.poll_timeout(&self.arbiter)?;
        Some(time.saturating_duration_since(self.now).as_millis() as u64)
    }
}

#[test]
fn a_hole_is_asked_for_after_the_delay_in_bounded_requests() {
    let mut bed = Bed::new(&[(2, 5), (6, 20)], RerequestConfig { count: 8, ..RerequestConfig::default() });
    assert_eq!((bed.requests(), bed.waits()), (vec![], Some(1)));
    assert_eq!(bed.later(1).requests(), [(2, 3), (6, 8), (14, 6)]);
    assert_eq!((bed.requests(), bed.waits()), (vec![], Some(20)));
}

#[test]
fn no_more_requests_are_under_way_than_allowed() {
    let config = RerequestConfig { outstanding: 2, ..RerequestConfig::default() };
    let mut bed = Bed::new(&[(2, 3), (4, 5), (6, 7)], config);
    assert_eq!(bed.later(1).requests(), [(2, 1), (4, 1)]);
    bed.reply(2, 1);
    assert_eq!(bed.requests(), [(6, 1)]);
}

#[test]
fn what_a_reply_left_out_is_asked_for_at_once() {
    let mut bed = Bed::new(&[(2, 100)], RerequestConfig::default());
    assert_eq!(bed.later(1).requests(), [(2, 98)]);
    bed.reply(2, 30);
    assert_eq!(bed.requests(), [(32, 68)]);
    bed.reply(32, 68);
    assert_eq!((bed.requests(), bed.waits()), (vec![], None));
    let stats = bed.rerequester.stats();
    assert_eq!((stats.requests, stats.replies, stats.timeouts, stats.abandoned), (2, 2, 0, 0));
}

#[test]
fn an_unanswered_request_is_repeated_and_then_given_up() {
    let mut bed = Bed::new(&[(2, 4)], RerequestConfig::default());
    bed.later(1);
    for _ in 0..4 {
        assert_eq!(bed.requests(), [(2, 2)]);
        assert_eq!(bed.later(19).requests(), []);
        bed.later(1);
    }
    assert_eq!((bed.requests(), bed.waits()), (vec![], None), "not again");
    let stats = bed.rerequester.stats();
    assert_eq!((stats.requests, stats.timeouts, stats.abandoned), (4, 4, 1));
    // Another hole is another matter.
    bed.packet(Line::Feed(0), 9, 1);
    assert_eq!(bed.later(1).requests(), [(5, 4)]);
}

#[test]
fn what_a_line_brings_is_not_asked_for() {
    let mut bed = Bed::new(&[(2, 6)], RerequestConfig::default());
    bed.packet(Line::Feed(0), 2, 2);
    assert_eq!(bed.later(1).requests(), [(4, 2)]);
    bed.packet(Line::Feed(0), 4, 1);
    assert_eq!(bed.later(20).requests(), [(5, 1)]);
    bed.packet(Line::Feed(0), 5, 1);
    assert_eq!(bed.later(20).requests(), []);
}

#[test]
fn replies_of_others_and_heartbeats_are_no_answer() {
    let mut bed = Bed::new(&[(2, 4)], RerequestConfig::default());
    assert_eq!(bed.later(1).requests(), [(2, 2)]);
    bed.reply(2, 0);
    bed.reply(500, 1);
    bed.rerequester.handle_reply(bed.now, b"garbage");
    assert_eq!((bed.requests(), bed.rerequester.stats().replies), (vec![], 0));
}

#[test]
fn a_session_change_forgets_what_was_asked() {
    let mut bed = Bed::new(&[(2, 4)], RerequestConfig::default());
    assert_eq!(bed.later(1).requests(), [(2, 2)]);
    let mut bytes = Vec::new();
    assert!(Builder::new(&mut bytes, Session::new("T").unwrap(), 4).push(b"x"));
    bed.arbiter.handle_datagram(bed.now, Line::Feed(0), 0, &bytes, &mut |_| {});
    let request = bed.rerequester.poll_request(bed.now + Duration::from_millis(1), &bed.arbiter).unwrap();
    assert_eq!((request.session, request.sequence, request.count), (Session::new("T").unwrap(), 1, 3));
}
