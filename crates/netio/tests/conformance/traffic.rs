//! What moves: each datagram once, whole, from and to the right address, with its marks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use expressway_netio::{Ecn, Flow};

use super::bed::{Bed, FAMILIES, Family, PORT, Pause, is_readable, offer, payload, payloads, sorted};

const MARKS: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

/// Sends, then checks that the peer receives exactly that and nothing twice.
fn expect_exactly(bed: &mut dyn Bed, family: Family, port: u16, sent: &[Vec<u8>]) {
    let flow = bed.flow(family, port);
    bed.send(&flow, sent);
    let mut seen = bed.peer_receive_exactly(family, port, sent.len());
    // A second copy of anything would come before what is sent after it.
    bed.send(&flow, &[b"the end".to_vec()]);
    seen.extend(bed.peer_receive_exactly(family, port, 1));
    let last = seen.pop().expect("at least the end has come");
    assert_eq!(last.payload, b"the end");
    assert!(seen.iter().all(|datagram| datagram.remote == flow.local), "the source is the flow's");
    assert_eq!(payloads(&seen), sorted(sent.to_vec()));
}

pub fn receives_each_datagram_once(bed: &mut dyn Bed) {
    for family in FAMILIES {
        bed.greet(family, 5000);
        let local = bed.local(family);
        let sent: Vec<_> = (0..500).map(|number| payload(number, 4 + number * 2)).collect();
        let mut seen = Vec::new();
        for group in sent.chunks(50) {
            for payload in group {
                bed.peer_send(5000, local, Ecn::NotEct, payload);
            }
            seen.extend(bed.receive_exactly(group.len()));
        }
        bed.peer_send(5000, local, Ecn::NotEct, b"the end");
        seen.extend(bed.receive_exactly(1));
        assert_eq!(seen.pop().expect("at least the end has come").payload, b"the end");
        assert_eq!(payloads(&seen), sorted(sent));
        let remote = SocketAddr::new(bed.peer_address(family), 5000);
        assert!(seen.iter().all(|datagram| (datagram.remote, datagram.local) == (remote, local)));
    }
}

pub fn sends_every_size(bed: &mut dyn Bed) {
    for family in FAMILIES {
        bed.greet(family, 5000);
        let flow = bed.flow(family, 5000);
        let most = bed.io().max_payload(&flow);
        let headers = if family == Family::V4 { 28 } else { 48 };
        assert!(most <= bed.mtu() - headers, "{most} bytes do not fit");
        assert!(most > 1000, "{most} bytes are hardly all");
        let mut sizes: Vec<usize> = (1..64).chain((64..most).step_by(61)).collect();
        sizes.extend([most - 1, most]);
        // Each alone, and thus first and last of its burst.
        for (number, &size) in sizes.iter().enumerate() {
            bed.send(&flow, &[payload(number, size)]);
        }
        let seen = bed.peer_receive_exactly(family, 5000, sizes.len());
        let sent = sizes.iter().enumerate().map(|(number, &size)| payload(number, size)).collect();
        assert_eq!(payloads(&seen), sorted(sent));
    }
}

pub fn sends_runs_of_equal_size_and_a_shorter_last(bed: &mut dyn Bed) {
    for family in FAMILIES {
        bed.greet(family, 5000);
        for (size, count, last) in
            [(1200, 10, 1), (1200, 64, 700), (1200, 130, 1199), (1, 100, 1), (100, 3, 99)]
        {
            let mut sent: Vec<_> = (0..count).map(|number| payload(number, size)).collect();
            sent.push(payload(count, last));
            expect_exactly(bed, family, 5000, &sent);
        }
    }
}

pub fn sends_mixed_sizes_in_one_burst(bed: &mut dyn Bed) {
    for family in FAMILIES {
        bed.greet(family, 5000);
        let sizes = [1200, 40, 1200, 1200, 1199, 1, 1, 2, 1200, 600, 600, 600, 30, 1200];
        let sent: Vec<_> = (0..140).map(|number| payload(number, sizes[number % sizes.len()])).collect();
        expect_exactly(bed, family, 5000, &sent);
    }
}

pub fn interleaves_flows_in_one_flush(bed: &mut dyn Bed) {
    const PORTS: [u16; 4] = [5001, 5002, 5003, 5004];
    let mut expected: BTreeMap<(bool, u16), Vec<Vec<u8>>> = BTreeMap::new();
    for family in FAMILIES {
        for port in PORTS {
            bed.greet(family, port);
        }
    }
    let mut number = 0;
    for round in 0..6 {
        for family in FAMILIES {
            for port in PORTS {
                let flow = Flow { ecn: MARKS[round % 4], ..bed.flow(family, port) };
                let burst: Vec<_> = (0..3).map(|nth| payload(number + nth, 900 - nth * 100)).collect();
                number += 3;
                let accepted = offer(bed.io(), &flow, 900, &burst);
                assert_eq!(accepted, (3, false), "so few find room");
                expected.entry((family == Family::V6, port)).or_default().extend(burst);
            }
        }
    }
    bed.io().flush(Instant::now()).expect("flushing does not fail");
    for family in FAMILIES {
        for port in PORTS {
            let sent = expected.remove(&(family == Family::V6, port)).expect("was sent");
            let seen = bed.peer_receive_exactly(family, port, sent.len());
            assert_eq!(payloads(&seen), sorted(sent), "port {port}");
            assert!(bed.peer_receive(family, port).is_none(), "nothing more on port {port}");
        }
    }
}

pub fn keeps_the_order_of_a_flow(bed: &mut dyn Bed) {
    bed.greet(Family::V4, 5000);
    let flow = bed.flow(Family::V4, 5000);
    let sent: Vec<_> = (0..200).map(|number| payload(number, 1000 - number % 3)).collect();
    bed.send(&flow, &sent);
    let seen = bed.peer_receive_exactly(Family::V4, 5000, sent.len());
    let order: Vec<_> = seen.into_iter().map(|datagram| datagram.payload).collect();
    assert_eq!(order, sent);
}

pub fn replies_from_the_address_that_was_asked(bed: &mut dyn Bed) {
    for family in FAMILIES {
        bed.greet(family, 5000);
        for number in [1, 0, 1] {
            let asked = SocketAddr::new(bed.address(family, number), PORT);
            bed.peer_send(5000, asked, Ecn::NotEct, b"who is there?");
            let question = bed.receive_exactly(1).pop().expect("one has come");
            assert_eq!(question.local, asked);
            bed.send(&Flow::new(question.local, question.remote), &[b"me".to_vec()]);
            let answer = bed.peer_receive_exactly(family, 5000, 1).pop().expect("one has come");
            assert_eq!((answer.payload.as_slice(), answer.remote), (&b"me"[..], asked));
        }
    }
}

pub fn carries_ecn_both_ways(bed: &mut dyn Bed) {
    for family in FAMILIES {
        bed.greet(family, 5000);
        let (local, flow) = (bed.local(family), bed.flow(family, 5000));
        for ecn in MARKS {
            bed.peer_send(5000, local, ecn, b"marked");
            assert_eq!(bed.receive_exactly(1)[0].ecn, ecn as u8, "{family:?} received {ecn:?}");
            bed.send(&Flow { ecn, ..flow }, &[b"marked".to_vec(), b"marked".to_vec()]);
            for seen in bed.peer_receive_exactly(family, 5000, 2) {
                assert_eq!(seen.ecn, ecn as u8, "{family:?} sent {ecn:?}");
            }
        }
    }
}

/// More than there are transmit buffers; the backend says `blocked` or makes room by itself.
pub fn sends_more_than_it_has_buffers_for(bed: &mut dyn Bed) {
    bed.greet(Family::V4, 5000);
    let flow = bed.flow(Family::V4, 5000);
    let numbered = |number: usize| [&(number as u32).to_be_bytes()[..], &payload(number, 1196)].concat();
    let load: Vec<_> = (0..6000).map(numbered).collect();
    let mut pause = Pause::new("everything is sent and received");
    let (mut next, mut seen) = (0, Vec::new());
    // A kernel socket that stays full keeps datagrams for a while only; what it drops then is counted.
    let dropped = |bed: &mut dyn Bed| bed.io().stats().dropped_no_buffer as usize;
    let complete = bed.loses_nothing();
    while next < load.len() || complete && seen.len() + dropped(bed) < load.len() {
        let (accepted, blocked) = offer(bed.io(), &flow, 1200, &load[next..]);
        next += accepted;
        assert!(blocked || next == load.len(), "not blocked, thus everything was asked for");
        bed.io().flush(Instant::now()).expect("flushing does not fail");
        let before = seen.len();
        seen.extend(std::iter::from_fn(|| bed.peer_receive(Family::V4, 5000)));
        if accepted == 0 && seen.len() == before {
            pause.wait_noting(&format!("{} of {next}, {:?}", seen.len(), bed.io().stats()));
        }
    }
    assert_eq!(next, load.len(), "everything was accepted in the end");
    if !complete {
        // The rest leaves, and what the peer has room for comes.
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(1) {
            bed.io().flush(Instant::now()).expect("flushing does not fail");
            seen.extend(std::iter::from_fn(|| bed.peer_receive(Family::V4, 5000)));
        }
        assert!(!seen.is_empty(), "something arrived");
    }
    let (seen, load) = (payloads(&seen), sorted(load));
    if complete && dropped(bed) == 0 {
        assert_eq!(seen, load);
    } else {
        assert!(seen.iter().all(|payload| load.binary_search(payload).is_ok()), "nothing else came");
        assert!(seen.windows(2).all(|two| two[0] != two[1]), "and nothing twice");
        assert!(!complete || seen.len() + dropped(bed) == load.len());
    }
}

pub fn receives_empty_datagrams(bed: &mut dyn Bed) {
    if !bed.peer_sends_empty() {
        return;
    }
    for family in FAMILIES {
        bed.greet(family, 5000);
        let local = bed.local(family);
        for content in [&b""[..], b"full", b"", b""] {
            bed.peer_send(5000, local, Ecn::NotEct, content);
        }
        let seen: Vec<_> = bed.receive_exactly(4).into_iter().map(|datagram| datagram.payload).collect();
        assert_eq!(seen, [&b""[..], b"full", b"", b""]);
    }
}

pub fn counts_what_it_moves(bed: &mut dyn Bed) {
    bed.greet(Family::V4, 5000);
    let before = bed.io().stats();
    let (local, flow) = (bed.local(Family::V4), bed.flow(Family::V4, 5000));
    for number in 0..30 {
        bed.peer_send(5000, local, Ecn::NotEct, &payload(number, 100));
    }
    bed.receive_exactly(30);
    let sent: Vec<_> = (0..70).map(|number| payload(number, 1000)).collect();
    bed.send(&flow, &sent);
    bed.peer_receive_exactly(Family::V4, 5000, 70);
    let after = bed.io().stats();
    let grown = |read: fn(&expressway_netio::IoStats) -> u64| read(&after) - read(&before);
    assert_eq!(grown(|stats| stats.rx_kernel_packets + stats.rx_xsk_packets), 30);
    assert_eq!(grown(|stats| stats.rx_kernel_bytes + stats.rx_xsk_bytes), 3000);
    assert_eq!(grown(|stats| stats.tx_kernel_packets + stats.tx_xsk_packets), 70);
    assert_eq!(grown(|stats| stats.tx_kernel_bytes + stats.tx_xsk_bytes), 70_000);
    let dropped = after.fields().into_iter().filter(|field| field.name.starts_with("dropped"));
    assert_eq!(dropped.map(|field| field.value).sum::<u64>(), 0, "{after:?}");
}

/// A backend that quietly served everything by the kernel would pass every other check.
pub fn takes_the_way_that_it_is_for(bed: &mut dyn Bed) {
    let (receives, sends) = bed.uses_xsk();
    for family in FAMILIES {
        bed.greet(family, 5000);
        let (local, flow) = (bed.local(family), bed.flow(family, 5000));
        let before = bed.io().stats();
        let mut pause = Pause::new("AF_XDP sends");
        let (mut moved, mut after) = (0, before);
        // The kernel's socket may take a burst now and then, to keep the neighbour known.
        while moved < 20 || (sends && after.tx_xsk_packets == before.tx_xsk_packets) {
            bed.peer_send(5000, local, Ecn::NotEct, b"in");
            bed.receive_exactly(1);
            bed.send(&flow, &[b"out".to_vec()]);
            bed.peer_receive_exactly(family, 5000, 1);
            moved += 1;
            after = bed.io().stats();
            pause.wait_noting(&format!("{after:?}"));
        }
        let xsk = after.rx_xsk_packets - before.rx_xsk_packets;
        assert_eq!(xsk, if receives { moved } else { 0 }, "{family:?} received by AF_XDP");
        assert!(sends || after.tx_xsk_packets == 0, "{family:?} sent by the kernel alone");
    }
}

/// Datagrams that no frame holds, between others: whole, once, and by the way that the backend is for.
pub fn sends_datagrams_larger_than_a_frame(bed: &mut dyn Bed) {
    let (knows_the_mtu, by_xsk) = bed.uses_xsk();
    for family in FAMILIES {
        bed.greet(family, 5000);
        let flow = bed.flow(family, 5000);
        let most = bed.io().max_payload(&flow);
        let headers = if family == Family::V4 { 28 } else { 48 };
        assert!(!knows_the_mtu || most == bed.mtu() - headers, "the MTU is the bound: {most}");
        let before = bed.io().stats();
        let sizes = [most, 1200, most - 1, 1, most / 2, most];
        let sent: Vec<_> = (0..120).map(|number| payload(number, sizes[number % sizes.len()])).collect();
        let mut seen = Vec::new();
        for burst in sent.chunks(40) {
            bed.send(&flow, burst);
            seen.extend(bed.peer_receive_exactly(family, 5000, burst.len()));
        }
        assert!(bed.peer_receive(family, 5000).is_none(), "nothing comes twice");
        assert_eq!(payloads(&seen), sorted(sent));
        let after = bed.io().stats();
        assert_eq!(after.tx_fallback_socket, before.tx_fallback_socket, "{family:?}: {after:?}");
        let reminded = after.tx_fallback_neighbour - before.tx_fallback_neighbour;
        let xsk = after.tx_xsk_packets - before.tx_xsk_packets;
        assert_eq!(xsk + reminded, if by_xsk { 120 } else { 0 }, "{family:?}: {after:?}");
    }
}

pub fn becomes_readable_and_never_blocks(bed: &mut dyn Bed) {
    bed.greet(Family::V4, 5000);
    bed.quiesce();
    assert!(bed.received().is_empty(), "returns, with nothing");
    let local = bed.local(Family::V4);
    for round in 0..20 {
        bed.peer_send(5000, local, Ecn::NotEct, &payload(round, 50));
        let mut seen = 0;
        let mut pause = Pause::new("a readable descriptor leads to the datagram");
        while seen == 0 {
            assert!(is_readable(&bed.descriptors(), super::bed::patience()), "a descriptor becomes readable");
            seen = bed.received().len();
            pause.wait();
        }
        assert_eq!(seen, 1);
        bed.quiesce();
    }
}
