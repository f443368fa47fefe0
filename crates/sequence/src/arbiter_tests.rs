//! Named cases of the arbiter; `tests/model.rs` has the random ones.

use super::*;
use crate::mold::{Builder, end_of_session};

const A: Line = Line::Feed(0);
const B: Line = Line::Feed(1);

/// An arbiter with a clock, whose events are text.
struct Bed {
    arbiter: Arbiter,
    now: Instant,
    events: Vec<String>,
}

fn describe(event: Event<'_>) -> String {
    match event {
        Event::Message(message) => {
            let late = if message.late { " late" } else { "" };
            assert!(message.data.ends_with(&message.sequence.to_be_bytes()));
            format!("{}{}{late}", message.line.name(), message.sequence)
        }
        Event::Gap { first, count } => format!("gap {first}+{count}"),
        Event::Session(session) => format!("session {session}"),
        Event::End { next } => format!("end {next}"),
        Event::Reset { expected, found } => format!("reset {expected}>{found}"),
    }
}

impl Bed {
    fn new(framing: Framing, change: impl FnOnce(&mut ArbiterConfig)) -> Self {
        let mut config = ArbiterConfig { lines: 2, window: 16, ..ArbiterConfig::new(framing) };
        change(&mut config);
        Self { arbiter: Arbiter::new(config).unwrap(), now: Instant::now(), events: Vec::new() }
    }

    fn plain() -> Self {
        Self::new(Framing::Seq64, |_| {})
    }

    fn mold() -> Self {
        Self::new(Framing::MoldUdp64, |_| {})
    }

    fn datagram(&mut self, line: Line, datagram: &[u8]) -> &mut Self {
        let events = &mut self.events;
        self.arbiter.handle_datagram(self.now, line, 0, datagram, &mut |event| events.push(describe(event)));
        self
    }

    fn number(&mut self, line: Line, number: u64) -> &mut Self {
        self.datagram(line, &number.to_be_bytes())
    }

    fn numbers(&mut self, line: Line, numbers: impl IntoIterator<Item = u64>) -> &mut Self {
        for number in numbers {
            self.number(line, number);
        }
        self
    }

    fn packet(&mut self, line: Line, session: &str, first: u64, count: u64) -> &mut Self {
        let mut bytes = Vec::new();
        let mut builder = Builder::new(&mut bytes, Session::new(session).unwrap(), first);
        (first..first + count).for_each(|number| assert!(builder.push(&number.to_be_bytes())));
        self.datagram(line, &bytes)
    }

    fn later(&mut self, milliseconds: u64) -> &mut Self {
        self.now += Duration::from_millis(milliseconds);
        let events = &mut self.events;
        self.arbiter.handle_timeout(self.now, &mut |event| events.push(describe(event)));
        self
    }

    fn expect(&mut self, events: &str) -> &mut Self {
        assert_eq!(std::mem::take(&mut self.events).join(", "), events);
        self
    }
}

#[test]
fn the_first_copy_wins_whichever_line_it_comes_by() {
    let mut bed = Bed::plain();
    bed.numbers(A, [7, 8]).numbers(B, [7, 8, 9]).numbers(A, [9, 10]).expect("A7, A8, B9, A10");
    let (a, b) = (bed.arbiter.line_stats(A), bed.arbiter.line_stats(B));
    assert_eq!((a.datagrams, a.first, a.duplicates, a.skipped), (4, 3, 1, 0));
    assert_eq!((b.datagrams, b.first, b.duplicates, b.skipped), (3, 1, 2, 0));
    assert_eq!(bed.arbiter.poll_timeout(), None);
}

#[test]
fn what_one_line_lost_the_other_brings_in_order() {
    let mut bed = Bed::plain();
    bed.numbers(A, [1, 3, 4, 6]).expect("A1").numbers(B, [1, 2]).expect("B2, A3, A4");
    bed.numbers(B, [3, 4, 5, 6]).expect("B5, A6");
    assert_eq!(bed.arbiter.stats().recovered, 2);
    assert_eq!((bed.arbiter.line_stats(A).skipped, bed.arbiter.line_stats(B).skipped), (2, 0));
    bed.later(1000).expect("");
}

#[test]
fn a_gap_is_announced_after_the_hold_time_and_each_hole_has_its_own() {
    let mut bed = Bed::plain();
    bed.numbers(A, [1, 4]).later(9).numbers(A, [6]).expect("A1").later(1).expect("gap 2+2, A4");
    bed.later(8).expect("").later(1).expect("gap 5+1, A6");
    let stats = bed.arbiter.stats();
    assert_eq!((stats.gaps, stats.lost, stats.forced, stats.messages), (2, 3, 0, 3));
}

#[test]
fn what_comes_after_its_gap_was_announced_is_late_once() {
    let mut bed = Bed::plain();
    bed.numbers(A, [1, 5]).later(10).expect("A1, gap 2+3, A5");
    bed.numbers(B, [1, 3, 3, 4, 5, 2]).expect("B3 late, B4 late, B2 late");
    assert_eq!((bed.arbiter.stats().late, bed.arbiter.line_stats(B).duplicates), (3, 3));
}

#[test]
fn a_full_window_gives_up_the_oldest_hole_only() {
    let mut bed = Bed::plain();
    bed.numbers(A, [1, 3]).numbers(A, 5..=17).expect("A1");
    // 18 is 16 beyond 2.
    bed.number(A, 18).expect("gap 2+1, A3").number(B, 4);
    bed.expect(
        &[String::from("B4")]
            .into_iter()
            .chain((5..=18).map(|n| format!("A{n}")))
            .collect::<Vec<_>>()
            .join(", "),
    );
    assert_eq!((bed.arbiter.stats().forced, bed.arbiter.stats().gaps), (1, 1));
}

#[test]
fn bytes_are_bounded_as_messages_are() {
    let mut bed = Bed::new(Framing::Seq64, |config| config.window_bytes = 65_535);
    let mut large = vec![0; 30_000];
    let mut send = |bed: &mut Bed, number: u64| {
        large[..8].copy_from_slice(&number.to_be_bytes());
        let end = large.len() - 8;
        large[end..].copy_from_slice(&number.to_be_bytes());
        bed.datagram(A, &large);
    };
    bed.number(A, 1);
    [3, 4].into_iter().for_each(|number| send(&mut bed, number));
    bed.expect("A1");
    send(&mut bed, 5);
    bed.expect("gap 2+1, A3, A4, A5");
    assert_eq!(bed.arbiter.reorder.bytes(), 0);
}

#[test]
fn a_jump_beyond_the_window_is_a_gap_at_once() {
    let mut bed = Bed::plain();
    bed.numbers(A, [1, 1_000_000_000_000]).expect("A1, gap 2+999999999998, A1000000000000");
    // Nothing of the other line is needed for the sender's way back, which is a new numbering.
    bed.numbers(A, [2, 3]).expect("reset 1000000000001>2, A2, A3").numbers(B, [2, 3, 4]).expect("B4");
}

#[test]
fn a_sender_that_begins_anew_is_followed_and_the_other_lines_old_numbers_are_stale() {
    let mut bed = Bed::plain();
    bed.numbers(A, [1000, 1001]).numbers(B, [1000]).expect("A1000, A1001");
    bed.numbers(A, [0, 1]).expect("reset 1002>0, A0, A1");
    bed.numbers(B, [1001, 1002]).expect("");
    assert_eq!(bed.arbiter.line_stats(B).stale, 2);
    bed.numbers(B, [0, 1, 2]).expect("B2");
    assert_eq!((bed.arbiter.stats().resets, bed.arbiter.stats().gaps), (1, 0));
}

#[test]
fn a_sender_that_begins_anew_nearby_is_told_by_its_silence() {
    let mut bed = Bed::plain();
    bed.numbers(A, 0..5).numbers(B, 0..5).later(2999).number(A, 1).expect("A0, A1, A2, A3, A4");
    bed.later(3000).numbers(B, [0, 1]).expect("reset 5>0, B0, B1");
    bed.numbers(A, [0, 1, 2]).expect("A2");
    assert_eq!(bed.arbiter.line_stats(A).stale, 0);
}

#[test]
fn numbers_may_wrap() {
    let mut bed = Bed::plain();
    bed.numbers(A, [u64::MAX - 2, u64::MAX - 1]).numbers(A, [u64::MAX, 0, 1]);
    let (last, behind) = (u64::MAX - 1, u64::MAX);
    // The highest number is not used: what follows it would have none.
    bed.expect(&format!("A{}, A{last}, reset {behind}>0, A0, A1", last - 1));
    assert_eq!(bed.arbiter.line_stats(A).malformed, 1);
}

#[test]
fn heartbeats_show_what_is_missing_at_the_end() {
    let mut bed = Bed::mold();
    bed.packet(A, "S", 5, 2).expect("session S, A5, A6").packet(A, "S", 9, 0).expect("");
    bed.packet(B, "S", 7, 1).expect("B7").later(10).expect("gap 8+1");
    bed.packet(B, "S", 8, 2).expect("B8 late, B9");
    assert_eq!(bed.arbiter.line_stats(A).heartbeats, 1);
}

#[test]
fn a_new_session_begins_at_one_and_the_old_one_is_over() {
    let mut bed = Bed::mold();
    bed.packet(A, "ONE", 10, 1).packet(A, "ONE", 12, 1).expect("session ONE, A10");
    bed.packet(A, "TWO", 1, 1).expect("gap 11+1, A12, session TWO, A1");
    bed.packet(B, "ONE", 11, 1).expect("").packet(B, "TWO", 1, 2).expect("B2");
    assert_eq!(bed.arbiter.line_stats(B).stale, 1);
    bed.packet(A, "THREE", 3, 1).expect("session THREE").later(10).expect("gap 1+2, A3");
    assert_eq!(bed.arbiter.stats().sessions, 3);
    // The session that was over goes on after all.
    bed.later(3000).packet(A, "TWO", 3, 1).expect("session TWO").later(10).expect("gap 1+2, A3");
}

#[test]
fn a_session_ends_once() {
    let mut bed = Bed::mold();
    let end = end_of_session(Session::new("S").unwrap(), 4);
    bed.packet(A, "S", 1, 2).datagram(A, &end).datagram(B, &end).expect("session S, A1, A2, end 4");
    bed.later(10).expect("gap 3+1");
    assert_eq!((bed.arbiter.stats().ended, bed.arbiter.line_stats(B).heartbeats), (1, 1));
}

#[test]
fn replies_fill_holes_and_nothing_else() {
    let mut bed = Bed::mold();
    bed.packet(Line::Reply, "S", 1, 1).expect("");
    bed.packet(A, "S", 1, 1).packet(A, "S", 5, 1).expect("session S, A1");
    bed.packet(Line::Reply, "OTHER", 2, 1).packet(Line::Reply, "S", 3, 9).expect("");
    bed.packet(Line::Reply, "S", 2, 1).expect("reply2, reply3, reply4, A5");
    let replies = bed.arbiter.line_stats(Line::Reply);
    assert_eq!((replies.datagrams, replies.stale, replies.first, replies.duplicates), (4, 2, 3, 7));
}

#[test]
fn malformed_datagrams_and_foreign_lines_change_nothing() {
    let mut bed = Bed::mold();
    bed.packet(A, "S", 1, 1).datagram(A, b"short").datagram(B, &[1; 21]).packet(Line::Feed(2), "S", 2, 1);
    bed.expect("session S, A1");
    assert_eq!((bed.arbiter.line_stats(A).malformed, bed.arbiter.line_stats(B).malformed), (1, 1));
    assert_eq!(bed.arbiter.line_stats(Line::Feed(2)), LineStats::default());
}

#[test]
fn a_start_is_waited_for() {
    let mut bed = Bed::new(Framing::MoldUdp64, |config| config.start = Some(1));
    bed.packet(A, "S", 3, 1).expect("session S").packet(B, "S", 1, 2).expect("B1, B2, A3");
}

#[test]
fn heartbeats_alone_cannot_fill_memory() {
    let mut bed = Bed::mold();
    bed.packet(A, "S", 1, 1);
    (2..10_000).for_each(|next| {
        bed.packet(A, "S", next, 0);
    });
    assert!(bed.arbiter.holes.len() <= 16);
    bed.later(10).expect(&format!(
        "session S, A1, {}",
        (2..17)
            .map(|n| format!("gap {n}+1"))
            .chain(["gap 17+9982".into()])
            .collect::<Vec<String>>()
            .join(", ")
    ));
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let good = ArbiterConfig::new(Framing::Seq64);
    for (config, message) in [
        (ArbiterConfig { lines: 0, ..good }, "lines = 0: must be 1 to 8"),
        (ArbiterConfig { lines: 9, ..good }, "lines = 9: must be 1 to 8"),
        (ArbiterConfig { window: 0, ..good }, "window = 0: must be 1 to 1048576"),
        (ArbiterConfig { window_bytes: 9, ..good }, "window_bytes = 9: must be at least 65535, one message"),
    ] {
        assert_eq!(
            Arbiter::<u64>::new(config).err().map(|error| error.to_string()).as_deref(),
            Some(message)
        );
    }
}
