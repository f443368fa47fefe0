//! Live frames over a veth, and the baseline programs that receive and return them. Needs root and iproute2.

use expressway_xbpf::{
    Action, AttachMode, Baseline, BaselineCounts, Error, Existing, LiveCounts, LiveFrames,
};

use crate::support::frame::datagram;
use crate::support::netns::{FAR, Link, NEAR, Shape, index_of, ip};
use crate::support::{eventually, pair4, permitted};

/// A loaded baseline, or `None` where the test has to be skipped for lack of privilege.
fn baseline(action: Action, from: u32, to: Option<u32>) -> Option<Baseline> {
    permitted(Baseline::load(action, from, to))
}

/// What all CPUs counted. The kernels at both ends may add packets of their own (neighbour discovery, MLD), so what
/// came is a lower bound.
fn total(baseline: &Baseline) -> BaselineCounts {
    baseline.by_cpu().unwrap().into_iter().fold(BaselineCounts::default(), std::ops::Add::add)
}

/// Sends `count` frames of `length` bytes out of the calling namespace's `device`.
fn send(device: &str, count: usize, length: usize) -> LiveCounts {
    let mut live = LiveFrames::open(index_of(device), 200).unwrap();
    for number in 0..count {
        let pushed = live.push(|slot| {
            slot[..length].fill(number as u8);
            slot[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            length
        });
        assert!(pushed);
        if live.room() == 0 {
            live.send().unwrap();
        }
    }
    live.send().unwrap();
    live.counts()
}

const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
const REDIRECT: u32 = 4;

#[test]
fn each_program_does_its_one_thing() {
    let frame = datagram(pair4(), b"payload");
    let swapped = [&frame[6..12], &frame[..6], &frame[12..]].concat();
    for (action, verdict, counted, after) in [
        (Action::Drop, DROP, 1, &frame),
        (Action::Pass, PASS, 0, &frame),
        (Action::Count, PASS, 1, &frame),
        (Action::Touch, DROP, 1, &frame),
        (Action::Tx, TX, 1, &swapped),
    ] {
        let Some(baseline) = baseline(action, 1, None) else { return };
        let run = baseline.prog_test_run(&frame, 1).unwrap();
        assert_eq!((run.verdict, &run.frame), (verdict, after), "{action}");
        assert_eq!(total(&baseline), BaselineCounts { packets: counted, ..Default::default() }, "{action}");
        assert_eq!(action.counts(), counted == 1, "{action}");
    }
    // The loopback device: no frame leaves in a test run without live frames.
    let Some(redirect) = baseline(Action::Redirect, 1, Some(1)) else { return };
    let run = redirect.prog_test_run(&frame, 1).unwrap();
    assert_eq!((run.verdict, run.frame), (REDIRECT, swapped));
    let nowhere = Baseline::load(Action::Redirect, 1, None).unwrap();
    assert_eq!(nowhere.prog_test_run(&frame, 1).unwrap().verdict, 0, "aborted without a device");
    let missing = Baseline::load(Action::Redirect, 1, Some(0x7fff_fff0)).err().expect("no such device");
    assert!(matches!(missing, Error::NoInterface { .. }), "{missing}");
}

#[test]
fn live_frames_arrive_and_are_counted() {
    if baseline(Action::Drop, 1, None).is_none() {
        return;
    }
    let link = Link::new(&Shape::default());
    let drop = link.in_near(|| baseline(Action::Drop, index_of(NEAR), None)).unwrap();
    let attachment =
        link.in_near(|| drop.attach(index_of(NEAR), AttachMode::Native, Existing::Refuse)).unwrap();
    let sent = link.in_far(|| send(FAR, 2500, 60));
    assert_eq!((sent.sent + sent.dropped, sent.refused), (2500, 0), "{sent:?}");
    assert_eq!(sent.calls, 3, "1024 a call");
    assert!(eventually(|| total(&drop).packets >= sent.sent), "{:?} {sent:?}", total(&drop));
    std::mem::drop(attachment);
}

#[test]
fn a_device_that_takes_no_frames_is_told_from_one_that_is_full() {
    if baseline(Action::Drop, 1, None).is_none() {
        return;
    }
    let link = Link::new(&Shape::default());
    // Neither XDP nor GRO at the peer.
    let sent = link.in_far(|| send(FAR, 10, 60));
    assert_eq!((sent.sent, sent.dropped, sent.refused), (0, 0, 10));
    // A device that is down takes frames as little, but is one that could.
    let drop = link.in_near(|| baseline(Action::Drop, index_of(NEAR), None)).unwrap();
    let _attachment =
        link.in_near(|| drop.attach(index_of(NEAR), AttachMode::Native, Existing::Refuse)).unwrap();
    link.ip_far(&format!("link set {FAR} down"));
    let sent = link.in_far(|| send(FAR, 10, 60));
    assert_eq!(sent.sent, 0);
    assert_eq!(sent.dropped + sent.refused, 10, "{sent:?}");
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    if baseline(Action::Drop, 1, None).is_none() {
        return;
    }
    for longest in [0, 13, LiveFrames::MAX_FRAME + 1] {
        let error = LiveFrames::open(1, longest).err().expect("refused");
        assert!(error.to_string().contains("14 to 2044"), "{error}");
    }
    let mut live = LiveFrames::open(1, 100).unwrap();
    for length in [0, 13, 101] {
        assert!(!live.push(|_| length), "{length}");
    }
    assert_eq!(live.room(), LiveFrames::SLOTS);
    for _ in 0..LiveFrames::SLOTS {
        assert!(live.push(|_| 14));
    }
    assert!(!live.push(|_| 14), "the ring is full");
}

#[test]
fn tx_returns_packets_and_redirect_forwards_them() {
    if baseline(Action::Drop, 1, None).is_none() {
        return;
    }
    let link = Link::new(&Shape::default());
    let far = link.in_far(|| baseline(Action::Drop, index_of(FAR), None)).unwrap();
    let _far = link.in_far(|| far.attach(index_of(FAR), AttachMode::Native, Existing::Refuse)).unwrap();
    let tx = link.in_near(|| baseline(Action::Tx, index_of(NEAR), None)).unwrap();
    let attachment =
        link.in_near(|| tx.attach(index_of(NEAR), AttachMode::Native, Existing::Refuse)).unwrap();
    let sent = link.in_far(|| send(FAR, 100, 60));
    assert_eq!(sent.sent, 100);
    assert!(eventually(|| total(&far).packets >= 100), "{:?}", total(&far));
    assert!(total(&tx).sent >= 100 && total(&tx).refused == 0, "{:?}", total(&tx));
    std::mem::drop(attachment);

    // A second pair out of the near namespace; its other end stays there.
    ip(&format!("-n {} link add out type veth peer name end", link.near()));
    for device in ["out", "end"] {
        link.ip_near(&format!("link set {device} up"));
    }
    let end = link.in_near(|| baseline(Action::Drop, index_of("end"), None)).unwrap();
    let taken = link.in_near(|| end.attach(index_of("end"), AttachMode::Native, Existing::Refuse)).unwrap();
    let (from, to) = link.in_near(|| (index_of(NEAR), index_of("out")));
    let redirect = link.in_near(|| baseline(Action::Redirect, from, Some(to))).unwrap();
    let _attachment = link.in_near(|| redirect.attach(from, AttachMode::Native, Existing::Refuse)).unwrap();
    link.in_far(|| send(FAR, 100, 60));
    assert!(eventually(|| total(&end).packets >= 100), "{:?}", total(&end));
    let counts = total(&redirect);
    assert!(counts.sent >= 100, "{counts:?}");
    assert_eq!((counts.sent, counts.refused), (counts.packets, 0));
    // The far end of `out` takes no frames any more.
    std::mem::drop(taken);
    link.ip_near("link set out down");
    link.in_far(|| send(FAR, 10, 60));
    assert!(eventually(|| total(&redirect).packets >= counts.packets + 10));
    assert_eq!(total(&redirect).sent, counts.sent);
}
