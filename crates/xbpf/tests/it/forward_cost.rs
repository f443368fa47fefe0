//! Nanoseconds a packet of the router, printed and not judged:
//! `cargo test -p expressway-xbpf --test xbpf -- --nocapture forward_cost`. Needs root.
//!
//! `EXPRESSWAY_ROUTES=752000` adds that many routes, of the lengths that the table of the XDP paper's experiment had
//! roughly (an internet table: more than half are /24), with a fixed seed.
//!
//! BPF_PROG_TEST_RUN runs the program again on what it has made of the frame. So the next hop has the router's own
//! hardware address here, and a run ends before the time to live does.

use std::fmt::Write;
use std::process::Command;

use expressway_xbpf::forward::{ForwardInterface, SourceCheck};

use crate::support::frame::*;
use crate::support::router::{MAC_A, Router};

/// Runs a call; below what a TTL of 255 bears.
const REPEAT: u32 = 250;
/// Each waits for a grace period of RCU, tens of milliseconds (`bpf_prog_change_xdp`).
const CALLS: usize = 100;
const REDIRECT: u32 = 4;

#[test]
fn print_nanoseconds_a_packet() {
    let Some(mut router) = Router::new() else { return };
    router.ip("neighbour replace 10.2.0.2 lladdr 02:00:00:00:00:0a dev b");
    router.ip("neighbour replace 2001:db8:2::2 lladdr 02:00:00:00:00:0a dev b");
    let routes = std::env::var("EXPRESSWAY_ROUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let destinations = add_routes(&router, routes);
    println!(
        "{:>6} {:>6}  ns a packet, best and median of {CALLS} calls of {REPEAT} runs; {routes} routes",
        "best", "median"
    );
    let v4 = |to: [u8; 4]| {
        let mut packet = ipv4(UDP, to.into(), &[], &udp(443, &[0; 64]));
        packet[8] = 255;
        packet[12..16].copy_from_slice(&[10, 1, 0, 2]);
        let mut frame = with_ipv4_checksum(&ethernet(&[], IPV4, &packet));
        frame[..6].copy_from_slice(&MAC_A);
        frame
    };
    let mut six = ethernet(&[], IPV6, &ipv6(UDP, "2001:db8:9::9".parse().unwrap(), &udp(443, &[0; 64])));
    six[..6].copy_from_slice(&MAC_A);
    six[ETHERNET + 7] = 255;
    let many: Vec<Vec<u8>> = destinations.iter().map(|to| v4(*to)).collect();
    print(&router, "IPv4", &[v4([198, 51, 100, 9])]);
    print(&router, "IPv6", &[six]);
    if !many.is_empty() {
        print(&router, "IPv4, a destination of the table a call", &many);
    }
    let ports = router.ports();
    let strict =
        |port: &ForwardInterface| ForwardInterface { source_check: SourceCheck::Strict, ..port.clone() };
    router.set_interfaces(&ports.iter().map(strict).collect::<Vec<_>>());
    print(&router, "IPv4, rp_filter", &[v4([198, 51, 100, 9])]);
    let replicating = |port: &ForwardInterface| ForwardInterface { replicates: true, ..port.clone() };
    router.set_interfaces(&ports.iter().map(replicating).collect::<Vec<_>>());
    print(&router, "IPv4 where feeds are configured", &[v4([198, 51, 100, 9])]);
}

fn print(router: &Router, name: &str, frames: &[Vec<u8>]) {
    let mut calls: Vec<u128> = router.inside(|| {
        let call = |frame: &Vec<u8>| {
            let run = router.forward.prog_test_run(frame, router.a, None, REPEAT).unwrap();
            assert_eq!(run.action, REDIRECT, "{name}");
            run.duration.as_nanos()
        };
        frames.iter().cycle().take(CALLS).map(call).collect()
    });
    calls.sort_unstable();
    println!("{:>6} {:>6}  {name}", calls[0], calls[CALLS / 2]);
}

/// Adds routes by the one next hop and returns an address in some of them.
fn add_routes(router: &Router, count: u32) -> Vec<[u8; 4]> {
    // Share of each prefix length, in thousandths.
    const LENGTHS: [(u32, u32); 7] =
        [(24, 560), (23, 100), (22, 120), (21, 60), (20, 60), (19, 40), (16, 60)];
    let (mut seed, mut lines, mut picked) = (0x2545_f491_4f6c_dd1du64, String::new(), Vec::new());
    for number in 0..count {
        // xorshift64*
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        let random = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let mut share = number % 1000;
        let length = LENGTHS.iter().find(|(_, part)| {
            let found = share < *part;
            share = share.saturating_sub(*part);
            found
        });
        let length = length.map_or(24, |(length, _)| *length);
        // From 16.0.0.0 to 111.255.255.255: nothing else lies there.
        let address = (0x1000_0000 + (random % 0x6000_0000) as u32) >> (32 - length) << (32 - length);
        let octets = address.to_be_bytes();
        let [a, b, c, d] = octets;
        writeln!(lines, "route replace {a}.{b}.{c}.{d}/{length} via 10.2.0.2").unwrap();
        if number % 1000 == 0 {
            picked.push([a, b, c, d + 1]);
        }
    }
    if count > 0 {
        let file = std::env::temp_dir().join(format!("forward-cost-{}", std::process::id()));
        std::fs::write(&file, lines).unwrap();
        let status = Command::new("ip").args(["-n", router.name(), "-batch"]).arg(&file).status();
        std::fs::remove_file(&file).unwrap();
        assert!(status.unwrap().success());
    }
    picked
}
