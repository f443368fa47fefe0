use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_nanos(TICK_NANOS);

fn fired(wheel: &mut TimerWheel, now: Instant) -> Vec<usize> {
    let mut due = Vec::new();
    wheel.expire(now, &mut due, usize::MAX);
    due.sort_unstable();
    due.retain(|&token| wheel.take_fired(token));
    due
}

#[test]
fn fires_within_one_tick_and_never_early() {
    let origin = Instant::now();
    for nanos in [0, 1, TICK_NANOS - 1, TICK_NANOS, TICK_NANOS + 1, 1_000_000, 3_600_000_000_000] {
        let mut wheel = TimerWheel::new(origin);
        let at = origin + Duration::from_nanos(nanos);
        wheel.arm(3, at);
        if nanos > 0 {
            assert_eq!(fired(&mut wheel, at - Duration::from_nanos(1)), [0; 0], "{nanos} ns: early");
        }
        let deadline = wheel.next_deadline().expect("one is armed");
        assert!(deadline >= at && deadline < at + TICK, "{nanos} ns: deadline");
        assert_eq!(fired(&mut wheel, deadline), [3], "{nanos} ns: at its deadline");
        assert!(wheel.is_empty());
        assert_eq!(wheel.next_deadline(), None);
    }
}

#[test]
fn what_lies_in_the_past_fires_with_the_next_expire() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::new(origin);
    let now = origin + Duration::from_secs(5);
    assert_eq!(fired(&mut wheel, now), [0; 0]);
    wheel.arm(0, origin);
    wheel.arm(1, now);
    assert!(wheel.next_deadline().expect("two are armed") <= now + TICK);
    assert_eq!(fired(&mut wheel, now), [0]);
    assert_eq!(fired(&mut wheel, now + TICK), [1]);
}

#[test]
fn time_that_goes_back_fires_nothing_twice() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::new(origin);
    wheel.arm(0, origin + Duration::from_secs(1));
    assert_eq!(fired(&mut wheel, origin + Duration::from_secs(2)), [0]);
    wheel.arm(0, origin + Duration::from_secs(3));
    assert_eq!(fired(&mut wheel, origin), [0; 0]);
    assert_eq!(fired(&mut wheel, origin + Duration::from_secs(4)), [0]);
}

#[test]
fn moving_later_leaves_one_timer_at_the_last_instant() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::new(origin);
    for millis in 1..2000 {
        wheel.arm(7, origin + Duration::from_millis(millis));
    }
    assert_eq!(wheel.len(), 1);
    let last = origin + Duration::from_millis(1999);
    assert!(wheel.next_deadline().expect("one is armed") >= last, "stale places are settled");
    assert_eq!(fired(&mut wheel, last - TICK), [0; 0]);
    assert_eq!(fired(&mut wheel, last + TICK), [7]);
    assert_eq!(fired(&mut wheel, last + Duration::from_secs(9)), [0; 0]);
}

#[test]
fn an_expired_timer_can_still_be_taken_back() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::new(origin);
    for token in 0..3 {
        wheel.arm(token, origin);
    }
    let mut due = Vec::new();
    assert!(!wheel.expire(origin, &mut due, usize::MAX));
    assert_eq!(due.len(), 3);
    wheel.cancel(0);
    wheel.arm(1, origin + Duration::from_secs(1));
    assert!(!wheel.take_fired(0));
    assert!(!wheel.take_fired(1));
    assert!(wheel.take_fired(2));
    assert!(!wheel.take_fired(2), "only once");
    assert_eq!(wheel.len(), 1);
}

#[test]
fn a_deadline_beyond_the_horizon_is_kept() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::new(origin);
    wheel.arm(0, origin + Duration::from_secs(100 * 365 * 86_400));
    assert_eq!(fired(&mut wheel, origin + Duration::from_secs(30 * 365 * 86_400)), [0; 0]);
    assert!(wheel.is_armed(0));
}

#[test]
#[should_panic(expected = "is not below")]
fn an_absurd_token_is_refused() {
    TimerWheel::new(Instant::now()).arm(MAX_TOKENS, Instant::now());
}

#[test]
fn nothing_is_allocated_for_tokens_within_the_capacity() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::with_capacity(origin, 100);
    let table = wheel.entries.as_ptr();
    for round in 0..10u64 {
        for token in 0..100 {
            wheel.arm(token, origin + Duration::from_millis(round * 100 + token as u64));
        }
        fired(&mut wheel, origin + Duration::from_millis(round * 100 + 50));
    }
    assert_eq!(wheel.entries.as_ptr(), table);
}

#[test]
fn ten_thousand_that_are_due_at_once_fire_in_portions() {
    let origin = Instant::now();
    let mut wheel = TimerWheel::new(origin);
    let at = origin + Duration::from_secs(30);
    for token in 0..10_000 {
        wheel.arm(token, at);
    }
    // Just before, they only come closer, level by level.
    let (before, mut due, mut portions) = (at - TICK * 2, Vec::new(), 0);
    while wheel.expire(before, &mut due, 100) {
        portions += 1;
        assert!(due.iter().all(|token| *token == 10_000));
        assert!(wheel.next_deadline().expect("all are left") <= before);
        if portions == 50 {
            wheel.cancel(9_999);
            wheel.arm(9_998, at + Duration::from_secs(1));
            wheel.arm(10_000, before - TICK);
        }
    }
    assert!(portions >= 100, "{portions} portions");
    assert_eq!(due, [10_000], "what has come meanwhile");
    assert!(wheel.take_fired(10_000));
    let mut all = Vec::new();
    loop {
        due.clear();
        let more = wheel.expire(at + TICK, &mut due, 100);
        assert!(due.len() <= 100);
        all.extend(due.iter().copied().filter(|&token| wheel.take_fired(token)));
        if !more {
            break;
        }
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..9_998));
    assert_eq!(wheel.len(), 1);
}

#[derive(Clone, Debug)]
enum Action {
    Arm(usize, u64),
    Cancel(usize),
    Advance(u64),
    /// Advance to what the wheel says is next.
    Follow,
}

fn action() -> impl Strategy<Value = Action> {
    // Exponents spread the spans over all levels that a test of years reaches.
    let span = (0u32..58, any::<u64>()).prop_map(|(bits, noise)| noise & ((1 << bits) - 1));
    prop_oneof![
        5 => (0usize..EXACT_SCAN - 1, span.clone()).prop_map(|(token, after)| Action::Arm(token, after)),
        2 => (0usize..EXACT_SCAN - 1).prop_map(Action::Cancel),
        2 => span.prop_map(Action::Advance),
        3 => Just(Action::Follow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Against a map of token to deadline: the wheel fires what the map says, to the tick.
    #[test]
    fn agrees_with_a_map(actions in proptest::collection::vec(action(), 1..120), limit in 1usize..20) {
        let origin = Instant::now();
        let mut wheel = TimerWheel::new(origin);
        let mut model: BTreeMap<usize, u64> = BTreeMap::new();
        let mut now = 0u64;
        let fired = |wheel: &mut TimerWheel, now| {
            let (mut due, mut all) = (Vec::new(), Vec::new());
            loop {
                let more = wheel.expire(now, &mut due, limit);
                assert!(due.len() <= limit);
                all.extend(due.drain(..).filter(|&token| wheel.take_fired(token)));
                if !more {
                    all.sort_unstable();
                    return all;
                }
            }
        };
        for action in actions {
            match action {
                Action::Arm(token, after) => {
                    wheel.arm(token, origin + Duration::from_nanos(now + after));
                    model.insert(token, (now + after).div_ceil(TICK_NANOS));
                }
                Action::Cancel(token) => {
                    wheel.cancel(token);
                    model.remove(&token);
                }
                Action::Advance(by) => now += by,
                Action::Follow => {
                    if let Some(next) = wheel.next_deadline() {
                        now = now.max((next - origin).as_nanos() as u64);
                    }
                }
            }
            let tick = now / TICK_NANOS;
            let expected: Vec<usize> =
                model.iter().filter(|&(_, &due)| due <= tick).map(|(&token, _)| token).collect();
            model.retain(|_, &mut due| due > tick);
            prop_assert_eq!(fired(&mut wheel, origin + Duration::from_nanos(now)), expected);
            prop_assert_eq!(wheel.len(), model.len());
            let next = wheel.next_deadline().map(|at| (at - origin).as_nanos() as u64 / TICK_NANOS);
            let first = model.values().min().copied();
            prop_assert_eq!(next.is_some(), first.is_some());
            if let (Some(next), Some(first)) = (next, first) {
                prop_assert!(next > tick && next <= first, "next {} now {} first {}", next, tick, first);
                prop_assert_eq!(next, first, "so few timers are looked at one by one");
            }
        }
    }
}
