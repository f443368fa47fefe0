//! Nanoseconds a packet by branch, printed and not judged:
//! `cargo test --release -p expressway-xbpf --test xbpf -- --nocapture cost::`. Needs root.
//!
//! BPF_PROG_TEST_RUN runs the program in a loop on one warm frame: the cost of the program alone, with
//! every cache line hot and without the driver's part of a redirect.

use expressway_xbpf::Verdict;

use crate::support::frame::*;
use crate::support::{Service, pair4, pair6};

const REPEAT: u32 = 1_000_000;
const RUNS: usize = 5;

#[test]
fn print_nanoseconds_a_packet() {
    let Some(service) = Service::new() else { return };
    // A hash of one pair would flatter the lookup.
    for port in 1000..1500 {
        service.redirect.add_pair((pair4().ip(), port).into()).unwrap();
    }
    let packet4 = ipv4(UDP, "192.0.2.1".parse().unwrap(), &[], &udp(443, &[0; 1200]));
    let tcp = ipv4(6, "192.0.2.1".parse().unwrap(), &[], &[0; 1200]);
    let walked = extension(UDP, &[1, 4, 0, 0, 0, 0], &udp(443, &[0; 1200]));
    let cases = [
        ("IPv4, taken", datagram(pair4(), &[0; 1200]), Verdict::Redirect),
        ("IPv6, taken", datagram(pair6(), &[0; 1200]), Verdict::Redirect),
        ("IPv4 behind one tag, taken", ethernet(&[(C_TAG, 1)], IPV4, &packet4), Verdict::Redirect),
        (
            "IPv4 behind two tags, taken",
            ethernet(&[(S_TAG, 1), (C_TAG, 2)], IPV4, &packet4),
            Verdict::Redirect,
        ),
        (
            "IPv6 with destination options, taken",
            ethernet(&[], IPV6, &ipv6(DESTINATION, "2001:db8::1".parse().unwrap(), &walked)),
            Verdict::Redirect,
        ),
        ("IPv4, other port", datagram("192.0.2.1:80".parse().unwrap(), &[0; 1200]), Verdict::Pass),
        ("TCP", ethernet(&[], IPV4, &tcp), Verdict::Pass),
        ("ARP", ethernet(&[], 0x0806, &[0; 46]), Verdict::Pass),
        (
            "IPv4, UDP length wrong",
            patched(&datagram(pair4(), &[0; 1200]), ETHERNET + 24, &[0, 7]),
            Verdict::Drop,
        ),
    ];
    println!("{:>6} {:>6}  ns a packet, best and median of {RUNS} runs of {REPEAT}", "best", "median");
    for (name, frame, verdict) in cases {
        let mut runs: Vec<_> = (0..RUNS)
            .map(|_| {
                let run = service.redirect.prog_test_run(&frame, REPEAT).unwrap();
                assert_eq!(run.verdict, verdict, "{name}");
                run.duration.as_nanos()
            })
            .collect();
        runs.sort_unstable();
        println!("{:>6} {:>6}  {name}", runs[0], runs[RUNS / 2]);
    }
}
