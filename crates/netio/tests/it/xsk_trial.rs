//! Trials of a binding on a veth: the probe frame that is completed and arrives, and the measurement of sending.

use std::time::Duration;

use expressway_netio::packet::ProbeListener;
use expressway_netio::xsk::{BindMode, ProbeOutcome, TrialProblem, XskBinding, XskConfig, interface_index};
use expressway_wire::MacAddr;
use expressway_xbpf::{Options, Redirect};

use crate::common::netns::{FAR_DEVICE, NEAR_DEVICE, NEAR_MAC, Namespace, Pair, is_privileged};

/// Long beside what a veth needs, short beside a test.
const PATIENCE: Duration = Duration::from_millis(300);

fn bed() -> (Pair, Redirect, XskBinding) {
    let pair = Pair::new(1500, 1);
    let redirect = Redirect::load(&Options::default()).unwrap();
    let config = XskConfig { mode: BindMode::Copy, ..XskConfig::new(NEAR_DEVICE, 0) };
    let binding = pair.near.enter(|| XskBinding::open(config, redirect.xsk_map())).unwrap();
    (pair, redirect, binding)
}

fn listener(namespace: &Namespace, device: &str) -> ProbeListener {
    namespace.enter(|| ProbeListener::open(interface_index(device).unwrap()).unwrap())
}

#[test]
fn a_probe_frame_is_completed_and_arrives() {
    if !is_privileged() {
        return;
    }
    let (pair, _redirect, mut binding) = bed();
    let mac = MacAddr(NEAR_MAC);
    assert_eq!(binding.probe(mac, None, PATIENCE).unwrap(), ProbeOutcome::Passed);
    let peer = listener(&pair.far, FAR_DEVICE);
    for _ in 0..3 {
        assert_eq!(binding.probe(mac, Some(&peer), PATIENCE).unwrap(), ProbeOutcome::Passed);
    }
}

#[test]
fn a_probe_frame_that_does_not_arrive_is_lost() {
    if !is_privileged() {
        return;
    }
    let (pair, _redirect, mut binding) = bed();
    pair.far.ip("link add aside0 type veth peer name aside1");
    pair.far.ip("link set aside0 up");
    let elsewhere = listener(&pair.far, "aside0");
    let error = binding.probe(MacAddr(NEAR_MAC), Some(&elsewhere), PATIENCE).unwrap_err();
    assert_eq!(error.problem, TrialProblem::Lost(PATIENCE));
    assert_eq!(
        error.to_string(),
        format!("{NEAR_DEVICE} queue 0: AF_XDP: a probe frame was completed but did not arrive within 300ms")
    );
}

#[test]
fn nothing_is_said_of_a_link_that_is_down() {
    if !is_privileged() {
        return;
    }
    let (pair, _redirect, mut binding) = bed();
    pair.near.ip(&format!("link set {NEAR_DEVICE} down"));
    assert!(!pair.near.enter(|| binding.wait_for_link(Duration::ZERO)).unwrap());
    assert_eq!(binding.probe(MacAddr(NEAR_MAC), None, PATIENCE).unwrap(), ProbeOutcome::LinkDown);
    assert_eq!(pair.near.enter(|| binding.calibrate(MacAddr(NEAR_MAC), 1500)), None);
    pair.near.ip(&format!("link set {NEAR_DEVICE} up"));
    assert!(pair.near.enter(|| binding.wait_for_link(Duration::from_secs(20))).unwrap());
    assert_eq!(binding.probe(MacAddr(NEAR_MAC), None, PATIENCE).unwrap(), ProbeOutcome::Passed);
}

#[test]
fn every_way_of_sending_is_measured_and_no_more_is_sent_than_said() {
    if !is_privileged() {
        return;
    }
    let (pair, _redirect, mut binding) = bed();
    let sent = |pair: &Pair| -> u64 {
        let file = format!("/sys/class/net/{NEAR_DEVICE}/statistics/tx_packets");
        let command = format!("netns exec {} cat {file}", pair.near.name);
        let output = std::process::Command::new("ip").args(command.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    };
    // With segmentation in the device a GSO message counts as one packet.
    pair.near.exec(&format!("ethtool -K {NEAR_DEVICE} tx-udp-segmentation off"));
    let before = sent(&pair);
    let mut measured = None;
    // A busy machine may not get through a round in its time.
    for _ in 0..20 {
        measured = measured.or_else(|| pair.near.enter(|| binding.calibrate(MacAddr(NEAR_MAC), 1500)));
        if measured.is_some_and(|measured| measured.gso.is_some() && measured.single.is_some()) {
            break;
        }
    }
    let measured = measured.expect("a veth sends");
    assert_eq!(measured.payload, 1400);
    let costs = [Some(measured.xsk), measured.gso, measured.single];
    assert!(costs.iter().all(|cost| cost.is_some_and(|cost| (1..1_000_000).contains(&cost))), "{measured:?}");
    assert!(sent(&pair) > before, "frames went out");
    // A link with a small MTU takes smaller datagrams.
    let small = pair.near.enter(|| binding.calibrate(MacAddr(NEAR_MAC), 1000));
    assert!(small.is_none_or(|small| small.payload == 972));
}
