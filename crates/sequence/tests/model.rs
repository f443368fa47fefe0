//! The arbiter and a model that keeps every number by itself must say the same, whatever lines lose, repeat and
//! reorder.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use expressway_sequence::{Arbiter, ArbiterConfig, Event, Framing, Line};
use proptest::prelude::*;

const HOLD: u64 = 10;

/// What comes of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Handed on, with its line and the step of the test in which that line brought it.
    Message { number: u64, line: u8, step: u64, late: bool },
    /// Announced as missing.
    Lost(u64),
}

/// The arbiter's rules without its economy: a map entry for each number.
#[derive(Default)]
struct Model {
    next: Option<u64>,
    highest: u64,
    kept: BTreeMap<u64, (u8, u64)>,
    missing: BTreeMap<u64, u64>,
    lost: BTreeSet<u64>,
    outcomes: Vec<Outcome>,
}

impl Model {
    fn datagram(&mut self, now: u64, (line, number, step): (u8, u64, u64), window: u64) {
        let next = *self.next.get_or_insert_with(|| {
            self.highest = number;
            number
        });
        if number < next {
            if self.lost.remove(&number) {
                self.outcomes.push(Outcome::Message { number, line, step, late: true });
            }
            return;
        }
        if self.kept.contains_key(&number) {
            return;
        }
        (self.highest..number).for_each(|missing| {
            self.missing.insert(missing, now);
        });
        self.highest = self.highest.max(number);
        while let Some(next) = self.next.filter(|next| number - next >= window && *next < number) {
            self.give_up(next, number);
        }
        self.missing.remove(&number);
        self.highest = self.highest.max(number + 1);
        self.kept.insert(number, (line, step));
        self.hand_on();
    }

    /// Gives up what was found missing together with `first`.
    fn give_up(&mut self, first: u64, limit: u64) {
        let since = self.missing[&first];
        let mut number = first;
        while number < limit && self.missing.get(&number) == Some(&since) {
            self.missing.remove(&number);
            self.lost.insert(number);
            self.outcomes.push(Outcome::Lost(number));
            number += 1;
        }
        self.next = Some(number);
        self.hand_on();
    }

    fn hand_on(&mut self) {
        while let Some(number) = self.next
            && let Some((line, step)) = self.kept.remove(&number)
        {
            self.outcomes.push(Outcome::Message { number, line, step, late: false });
            self.next = Some(number + 1);
        }
    }

    fn timeout(&mut self, now: u64) {
        while let Some((first, since)) = self.missing.first_key_value().map(|(first, since)| (*first, *since))
            && since + HOLD <= now
        {
            self.give_up(first, u64::MAX);
        }
    }
}

fn outcomes_of(event: Event<'_>, outcomes: &mut Vec<Outcome>) {
    match event {
        Event::Message(message) => {
            assert_eq!(message.data[..8], message.sequence.to_be_bytes());
            assert_eq!(message.data[8..], message.stamp.to_be_bytes(), "its own bytes");
            let Line::Feed(line) = message.line else { panic!("no replies here") };
            let (number, step) = (message.sequence, message.stamp);
            outcomes.push(Outcome::Message { number, line, step, late: message.late });
        }
        Event::Gap { first, count } => outcomes.extend((first..first + count).map(Outcome::Lost)),
        other => panic!("{other:?}"),
    }
}

/// A step: how far the sender goes on, by which line and how far off its place a datagram comes, and the time that
/// passes.
type Step = (u64, u8, i64, u64);

fn steps(window: u64) -> impl Strategy<Value = Vec<Step>> {
    // Less than half a window off, either way: more would be a new numbering.
    let off = (window as i64 - 1) / 2;
    let forward = prop_oneof![20 => 0..3u64, 1 => 0..3 * window];
    proptest::collection::vec((forward, 0..2u8, -off..=off, 0..4u64), 1..300)
}

proptest! {
    #[test]
    fn arbiter_and_model_agree((window, steps) in (1..40u64).prop_flat_map(|window| (Just(window), steps(window)))) {
        let config = ArbiterConfig {
            lines: 2,
            window: window as u32,
            hold: Duration::from_millis(HOLD),
            restart: Duration::from_secs(86_400),
            ..ArbiterConfig::new(Framing::Seq64)
        };
        let mut arbiter = Arbiter::new(config).unwrap();
        let mut model = Model::default();
        let start = Instant::now();
        let (mut place, mut now, mut seen) = (1000u64, 0, Vec::new());
        for (step, (forward, line, off, pause)) in steps.into_iter().enumerate() {
            (place, now) = (place + forward, now + pause);
            let at = start + Duration::from_millis(now);
            arbiter.handle_timeout(at, &mut |event| outcomes_of(event, &mut seen));
            model.timeout(now);
            let (number, step) = (place.saturating_add_signed(off), step as u64);
            let datagram = [number.to_be_bytes(), step.to_be_bytes()].concat();
            arbiter.handle_datagram(at, Line::Feed(line), step, &datagram, &mut |event| outcomes_of(event, &mut seen));
            model.datagram(now, (line, number, step), window);
            prop_assert_eq!(&seen, &model.outcomes);
            prop_assert_eq!(arbiter.poll_timeout().is_some(), !model.missing.is_empty());
            let missing: u64 = arbiter.holes().map(|hole| hole.end - hole.first).sum();
            prop_assert_eq!(missing, model.missing.len() as u64);
        }
        arbiter.flush(&mut |event| outcomes_of(event, &mut seen));
        model.timeout(u64::MAX);
        prop_assert_eq!(&seen, &model.outcomes);

        // And the model is right: every number once, in order but for late ones.
        let mut next = None;
        let mut lost = BTreeSet::new();
        for outcome in &seen {
            let number = match *outcome {
                Outcome::Message { number, late: true, .. } => {
                    prop_assert!(lost.remove(&number));
                    continue;
                }
                Outcome::Message { number, .. } => number,
                Outcome::Lost(number) => {
                    lost.insert(number);
                    number
                }
            };
            prop_assert!(next.is_none_or(|next| next == number));
            next = Some(number + 1);
        }
        let stats = arbiter.stats();
        prop_assert_eq!(stats.lost - stats.late, lost.len() as u64);
        prop_assert_eq!(stats.resets, 0);
        let lines = [0, 1].map(|line| arbiter.line_stats(Line::Feed(line)));
        prop_assert_eq!(lines[0].first + lines[1].first, stats.messages + stats.late);
        prop_assert!(lines.iter().all(|line| line.first + line.duplicates == line.datagrams));
    }
}
