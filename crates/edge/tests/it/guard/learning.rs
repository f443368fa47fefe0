//! Sources that are known from before an attack, by BPF_PROG_TEST_RUN, and the kernel's TCP handshakes that they are known
//! by. Needs root.

use std::net::{IpAddr, TcpListener, TcpStream};

use expressway_edge::guard::list::prefix;
use expressway_edge::guard::{Rule, classifier};
use expressway_xbpf::{
    Guard, GuardLearned, GuardLearning, GuardLearningCount, GuardLimit, GuardOptions, GuardPer, GuardRate,
    GuardReason, GuardRule,
};

use crate::support::{Packet, load, packets};

const SECOND: i64 = 1_000_000_000;

/// One packet a source passes, and no second for half a minute; ten more of one that is preferred.
fn options(prefix4: u8, entries: u32) -> GuardOptions {
    let rule: Rule = toml::from_str("name = \"a\"\nprotocol = \"udp\"\naction = \"drop\"").unwrap();
    let effect = GuardRule::Limit(GuardLimit {
        bytes: Some(GuardRate { rate: 1, burst: 49 }),
        per: GuardPer::Source { prefix4: 32, prefix6: 64 },
        ban: 3600 * SECOND.unsigned_abs(),
        ..GuardLimit::default()
    });
    GuardOptions {
        classifier: classifier::compile(&[(rule, effect)]),
        learning: Some(GuardLearning {
            entries,
            prefix4,
            prefix6: 64,
            after: 600 * SECOND.unsigned_abs(),
            expiry: 3600 * SECOND.unsigned_abs(),
            rate: Some(GuardRate { rate: 1, burst: 10 }),
        }),
        ..GuardOptions::default()
    }
}

/// How many of so many packets were passed as of a known source, and how many were dropped or their source banned.
fn send(guard: &Guard, source: &str, count: u32) -> (u64, u64) {
    let of = |reason| packets(guard, reason);
    let both = || (of(GuardReason::PassLearned), of(GuardReason::DropLimit) + of(GuardReason::DropBanned));
    let before = both();
    guard.prog_test_run(&Packet::udp(source, 2, b"x").frame(), count).unwrap();
    let after = both();
    (after.0 - before.0, after.1 - before.1)
}

/// A source whose proofs were that many seconds ago.
fn known(guard: &Guard, source: &str, first: i64, last: i64) -> GuardLearned {
    let at = |ago: i64| guard.now() - ago * SECOND;
    GuardLearned { source: prefix(source).unwrap(), first: at(first), last: at(last) }
}

#[test]
fn known_sources_pass_limits_in_an_attack_alone() {
    let Some(guard) = load(options(32, 64)) else { return };
    let sources = [
        // Known; known from before this boot; too short; too long ago; an IPv6 network.
        ("198.51.100.1", 700, 0),
        ("198.51.100.2", 100_000_000, 3000),
        ("198.51.100.3", 500, 0),
        ("198.51.100.4", 9000, 4000),
        ("2001:db8:1:2::", 700, 0),
    ];
    let learned: Vec<_> =
        sources.iter().map(|(source, first, last)| known(&guard, source, *first, *last)).collect();
    assert_eq!(guard.remember(&learned).unwrap(), 5);
    // Another filter knows them too.
    let guard = Guard::load(options(32, 64), Some(&guard)).unwrap();
    for (source, ..) in sources {
        assert_eq!(send(&guard, source, 3), (0, 2), "{source}, no attack");
        assert!(guard.unban(source.parse().unwrap()), "{source}");
    }
    guard.set_attack(true).unwrap();
    assert_eq!(send(&guard, "198.51.100.1", 5), (5, 0));
    assert_eq!(guard.banned(10), [] as [IpAddr; 0], "who is preferred is not banned");
    assert_eq!(send(&guard, "198.51.100.2", 5), (5, 0));
    assert_eq!(send(&guard, "198.51.100.3", 5), (0, 5));
    assert_eq!(send(&guard, "198.51.100.4", 5), (0, 5));
    assert_eq!(send(&guard, "2001:db8:1:2:3::9", 5), (5, 0), "of the same /64");
    assert_eq!(send(&guard, "2001:db8:1:3::9", 5), (0, 4), "of another");
    // Up to a limit of its own, because its address may be forged.
    let (passed, dropped) = send(&guard, "198.51.100.1", 100);
    assert!((5..50).contains(&passed) && passed + dropped == 100, "{passed}");
    guard.set_attack(false).unwrap();
    assert_eq!(send(&guard, "198.51.100.2", 2), (0, 2));
}

#[test]
fn networks_are_learned_by_the_first_bits() {
    let Some(guard) = load(options(24, 64)) else { return };
    guard.remember(&[known(&guard, "198.51.100.1", 700, 0)]).unwrap();
    guard.set_attack(true).unwrap();
    assert_eq!(send(&guard, "198.51.100.77", 4), (3, 0));
    assert_eq!(send(&guard, "198.51.101.1", 4), (0, 3));
    let listed = guard.learned().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].source, prefix("198.51.100.0/24").unwrap());
    // A table of other networks begins with what it is given.
    let next = Guard::load(options(32, 64), Some(&guard)).unwrap();
    assert!(next.learned().unwrap().is_empty());
    next.remember(&listed).unwrap();
    next.forget(&listed);
    assert!(next.learned().unwrap().is_empty());
}

#[test]
fn a_full_table_pushes_nobody_out() {
    let Some(guard) = load(options(32, 4)) else { return };
    let many: Vec<_> = (1..10).map(|host| known(&guard, &format!("198.51.100.{host}"), 700, 0)).collect();
    assert_eq!(guard.remember(&many).unwrap(), 4);
    assert_eq!(guard.remember(&many).unwrap(), 0);
    guard.learn("198.51.100.1".parse().unwrap()).unwrap();
    assert!(guard.learn("203.0.113.1".parse().unwrap()).is_err());
    assert_eq!(guard.learned().unwrap().len(), 4);
}

#[test]
fn a_handshake_is_a_proof() {
    let Some(guard) = load(options(32, 64)) else { return };
    // An address of this namespace's that is no loopback one, if there is any: connections to oneself have it as source.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let own = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect(("192.0.2.1", 9))?;
        socket.local_addr()
    });
    let Ok(own) = own.map(|own| own.ip()).map_err(|_| ()) else {
        eprintln!("skipped: this namespace has no route, and so no address of its own");
        return;
    };
    let learner = guard.learner().unwrap();
    let connect = || {
        let stream = TcpStream::connect((own, port)).unwrap();
        let other = listener.accept().unwrap();
        drop((stream, other));
    };
    connect();
    let learned = guard.learned().unwrap();
    let one = learned.iter().find(|one| one.source.address == own).unwrap();
    assert!(one.last <= guard.now() && one.first <= one.last);
    let first = one.first;
    connect();
    let again = guard.learned().unwrap();
    let one = again.iter().find(|one| one.source.address == own).unwrap();
    assert!(one.first == first && one.last > first, "{one:?}");
    // Loopback addresses are nobody's.
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert!(guard.learned().unwrap().iter().all(|one| !one.source.address.is_loopback()));
    // In an attack nobody is new.
    guard.set_attack(true).unwrap();
    guard.forget(&guard.learned().unwrap());
    connect();
    assert!(guard.learned().unwrap().is_empty());
    assert!(guard.learning_count().unwrap().late >= 1);
    drop(learner);
    let before: GuardLearningCount = guard.learning_count().unwrap();
    connect();
    assert_eq!(guard.learning_count().unwrap(), before, "the program is gone");
}
