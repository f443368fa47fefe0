//! Tokens that came back as proofs of their clients' addresses.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use expressway_edge::guard::list::prefix;
use expressway_xbpf::{
    Guard, GuardLearning, GuardLearningCount, GuardOptions, GuardPrefix, GuardRate, GuardReason, GuardSyn,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::issued;
use super::packets::{CLIENTS, frame, initial, short};
use super::retry::{always, token};
use crate::support::{list, load, reason, with_rules};

/// The connection IDs of an attempt: the client's first, and that of the Retry packet.
const IDS: ([u8; 8], [u8; 8]) = ([5; 8], [8; 8]);

fn options(entries: u32) -> GuardOptions {
    let learning = GuardLearning { entries, prefix4: 24, prefix6: 64, after: 0, expiry: 1 << 60, rate: None };
    GuardOptions { learning: Some(learning), ..always(&[1, 2]) }
}

/// An Initial with a token by a key: 3 is nobody's.
fn comes_back(guard: &Guard, client: &str, key: u8) -> GuardReason {
    let token = token(key, client, &IDS.0, &IDS.1, 0);
    reason(guard, &frame(client, &initial(&IDS.1, &[6; 8], &token)))
}

fn known(guard: &Guard) -> BTreeSet<GuardPrefix> {
    guard.learned().unwrap().into_iter().map(|one| one.source).collect()
}

#[test]
fn who_comes_back_with_a_token_is_learned() {
    let Some(guard) = load(options(64)) else { return };
    let count = |proofs, added, late, full| GuardLearningCount { proofs, added, late, full };
    // By the key in use, and by the one before as servers may have made it.
    assert_eq!(comes_back(&guard, CLIENTS[0], 1), GuardReason::PassDefault);
    assert_eq!(comes_back(&guard, CLIENTS[1], 2), GuardReason::PassDefault);
    let both = ["198.51.100.0/24", "2001:db8::/64"].map(|network| prefix(network).unwrap());
    assert_eq!(known(&guard), BTreeSet::from(both), "with the bits that are learned");
    assert_eq!(guard.learning_count().unwrap(), count(2, 2, 0, 0));
    let first = guard.learned().unwrap().into_iter().find(|one| one.source == both[0]).unwrap();
    comes_back(&guard, CLIENTS[0], 1);
    let again = guard.learned().unwrap().into_iter().find(|one| one.source == both[0]).unwrap();
    assert!(again.first == first.first && again.last > first.last, "{again:?}");
    assert_eq!(guard.learning_count().unwrap(), count(3, 2, 0, 0));
    // In an attack nobody is new, and who is known still is.
    guard.set_attack(true).unwrap();
    assert_eq!(comes_back(&guard, "203.0.113.1:50000", 1), GuardReason::PassDefault);
    comes_back(&guard, CLIENTS[0], 1);
    assert_eq!(guard.learning_count().unwrap(), count(5, 2, 1, 0));
    assert!(guard.learned().unwrap().iter().any(|one| one.source == both[0] && one.last > again.last));
    assert_eq!(known(&guard).len(), 2);
}

/// What is not used is not in the program, so its stack is the deepest, and the verifier's work the most, with everything.
#[test]
fn all_parts_of_the_program_are_accepted_together() {
    let rules = with_rules(
        "[[rule]]\nname = \"a\"\nprotocol = \"udp\"\npayload = \"offset 2: 17 00\"\nsource = [\"192.0.2.0/24\", \"2001:db8:9::/48\"]\n\
         destination_port = \"1-9\"\nlength = 100\naction = \"drop\"\n\
         [[rule]]\nname = \"b\"\nlimit = [\"1M/s\", \"1GiB/s\"]\nper = \"source\"\nban = \"1s\"\n",
    );
    let learning = options(64)
        .learning
        .map(|learning| GuardLearning { rate: Some(GuardRate { rate: 1, burst: 9 }), ..learning });
    for drop_fragments in [false, true] {
        let options = GuardOptions {
            classifier: rules.classifier.clone(),
            learning,
            syn: GuardSyn { ports: vec![443], check_acks: true },
            allow: list(&["203.0.113.0/24", "2001:db8:1::/48"]),
            block: list(&["10.1.2.0/25", "10.1.3.1/32", "2001:db8:2::/48"]),
            drop_fragments,
            ..always(&[1, 2])
        };
        let Some(guard) = load(options) else { return };
        assert_eq!(comes_back(&guard, CLIENTS[0], 1), GuardReason::PassLimit);
        assert_eq!(guard.learning_count().unwrap().added, 1);
    }
}

#[test]
fn what_is_no_valid_token_proves_nothing() {
    let Some(guard) = load(options(64)) else { return };
    let client = CLIENTS[0];
    let good = token(1, client, &IDS.0, &IDS.1, 0);
    for (name, client, payload, expected) in [
        ("no token", client, initial(&IDS.1, &[6; 8], &[]), GuardReason::AnswerRetry),
        (
            "a key of nobody",
            client,
            initial(&IDS.1, &[6; 8], &token(3, client, &IDS.0, &IDS.1, 0)),
            GuardReason::DropQuicToken,
        ),
        (
            "another address",
            "198.51.100.2:50000",
            initial(&IDS.1, &[6; 8], &good),
            GuardReason::DropQuicToken,
        ),
        (
            "too old",
            client,
            initial(&IDS.1, &[6; 8], &token(1, client, &IDS.0, &IDS.1, 60)),
            GuardReason::DropQuicToken,
        ),
        ("an ID of a server", client, initial(&issued(1, 9), &[6; 8], &good), GuardReason::PassDefault),
        ("a packet of a connection", client, short(&issued(1, 9), 40), GuardReason::PassDefault),
    ] {
        assert_eq!(reason(&guard, &frame(client, &payload)), expected, "{name}");
    }
    assert_eq!(guard.learning_count().unwrap(), GuardLearningCount::default());
    assert!(known(&guard).is_empty());
    // A filter that learns nothing takes tokens all the same.
    let Some(guard) = load(always(&[1])) else { return };
    assert_eq!(comes_back(&guard, client, 1), GuardReason::PassDefault);
    assert_eq!(guard.learning_count().unwrap(), GuardLearningCount::default());
}

/// Clients in any order, with tokens of theirs and of nobody, in attacks and between them, and a table that is soon full: what is
/// known and counted is what a model says.
#[test]
fn tables_of_learned_sources_are_as_a_model_has_them() {
    const ENTRIES: usize = 4;
    if load(options(4)).is_none() {
        return;
    }
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let step = (0u8..9, any::<bool>(), 0u8..5, proptest::option::weighted(0.2, any::<bool>()));
    runner
        .run(&proptest::collection::vec(step, 1..40), |steps| {
            let guard = load(options(ENTRIES as u32)).expect("it could be loaded before");
            let (mut sources, mut count, mut attack) =
                (BTreeSet::new(), GuardLearningCount::default(), false);
            for (host, ipv6, key, changes) in steps {
                if let Some(to) = changes {
                    attack = to;
                    guard.set_attack(attack).unwrap();
                }
                // Two hosts of each network.
                let (client, network) = match ipv6 {
                    true => (
                        format!("[2001:db8:7:{}::{host}]:50000", host / 2),
                        format!("2001:db8:7:{}::/64", host / 2),
                    ),
                    false => {
                        (format!("198.51.{}.{host}:50000", host / 2), format!("198.51.{}.0/24", host / 2))
                    }
                };
                prop_assert!(client.parse::<SocketAddr>().is_ok());
                let valid = (1..=2).contains(&key);
                let expected = if valid { GuardReason::PassDefault } else { GuardReason::DropQuicToken };
                prop_assert_eq!(comes_back(&guard, &client, key), expected);
                if !valid {
                    continue;
                }
                let source = prefix(&network).unwrap();
                count.proofs += 1;
                if sources.contains(&source) {
                } else if attack {
                    count.late += 1;
                } else if sources.len() == ENTRIES {
                    count.full += 1;
                } else {
                    count.added += 1;
                    sources.insert(source);
                }
            }
            prop_assert_eq!(known(&guard), sources);
            prop_assert_eq!(guard.learning_count().unwrap(), count);
            Ok(())
        })
        .unwrap();
}
