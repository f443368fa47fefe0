//! Buckets whose times are forged, as they are after months. Needs root.

use super::*;

/// Bytes: 1 a second, 3,600 at once. A packet of 30 costs half a minute, so the test's own time does not matter.
fn load(earlier: Option<&Guard>) -> Option<Guard> {
    let rate = GuardRate { rate: 1, burst: 3600 };
    let limit = GuardLimit { bytes: Some(rate), ..GuardLimit::default() };
    let classifier = GuardClassifier { rules: vec![GuardRule::Limit(limit)], ..GuardClassifier::default() };
    match Guard::load(GuardOptions { classifier, ..GuardOptions::default() }, earlier) {
        Ok(guard) => Some(guard),
        Err(Error::NotPermitted { .. })
            if std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none_or(|value| value != "1") =>
        {
            eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn scaled_now() -> u64 {
    monotonic() << guard_limit::GUARD_TIME_SHIFT.0
}

fn set(guard: &Guard, when: u64) {
    let bucket = [when.to_ne_bytes(), when.to_ne_bytes()].concat();
    guard.maps.shared_map.update(&0u32.to_ne_bytes(), &bucket, MapFlags::ANY).unwrap();
}

fn get(guard: &Guard, index: u32) -> u64 {
    let bucket = guard.maps.shared_map.lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    u64::from_ne_bytes(bucket[8..].try_into().unwrap())
}

/// Whether a UDP packet of 30 bytes passes.
fn passes(guard: &Guard) -> bool {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17, 0, 0, 198, 51, 100, 1, 192, 0, 2, 1]);
    frame.extend([0, 1, 0, 2, 0, 10, 0, 0, 0, 0]);
    guard.prog_test_run(&frame, 1).unwrap().verdict == 2
}

#[test]
fn a_bucket_further_ahead_than_its_burst_has_wrapped() {
    let Some(guard) = load(None) else { return };
    let (second, slack) = (1_000_000_000u64 << 10, 1u64 << 40);
    let burst = 3600 * second;
    for (ahead, expected) in [
        (0u64, true),
        (second.wrapping_neg(), true),
        (burst / 2, true),
        (burst, false),
        (burst + slack / 2, false),
        // Not zeroed for years, or not touched for months.
        (burst + 1000 * slack, true),
        (1 << 62, true),
        (i64::MAX as u64, true),
        (1 << 63, true),
    ] {
        set(&guard, scaled_now().wrapping_add(ahead));
        assert_eq!(passes(&guard), expected, "{ahead:#x}");
    }
    // It counts again from now on.
    set(&guard, scaled_now().wrapping_add(1 << 62));
    let passed = (0..1000).filter(|_| passes(&guard)).count();
    assert!((120..140).contains(&passed), "{passed}");
}

#[test]
fn shared_buckets_begin_now_and_go_on_through_a_reload() {
    let before = scaled_now();
    let Some(guard) = load(None) else { return };
    let after = scaled_now();
    for index in [0, SHARED as u32 - 1] {
        assert!((before..=after).contains(&get(&guard, index)), "{index}");
    }
    set(&guard, 12345);
    let next = load(Some(&guard)).unwrap();
    assert_eq!((get(&next, 0), next.seed), (12345, guard.seed));
}
