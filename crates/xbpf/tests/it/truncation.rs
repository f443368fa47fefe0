//! Frames cut short, lengths that lie, headers outside the linear part: by BPF_PROG_TEST_RUN. Needs root.

use expressway_xbpf::Counter;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use Counter::*;

use crate::support::frame::*;
use crate::support::{Service, pair4, pair6};

/// A frame of the service with the offset of its UDP header.
struct Sample {
    name: &'static str,
    frame: Vec<u8>,
    udp: usize,
}

fn samples() -> Vec<Sample> {
    let datagram4 = ipv4(UDP, "192.0.2.1".parse().unwrap(), &[], &udp(443, b"payload"));
    let behind_headers = extension(
        DESTINATION,
        &[1, 4, 0, 0, 0, 0],
        &extension(UDP, &[1, 4, 0, 0, 0, 0, 1, 6, 0, 0, 0, 0, 0, 0], &udp(443, b"payload")),
    );
    let packet6 = ipv6(HOP_BY_HOP, "2001:db8::1".parse().unwrap(), &behind_headers);
    vec![
        Sample { name: "IPv4", frame: datagram(pair4(), b"payload"), udp: ETHERNET + 20 },
        Sample { name: "IPv6", frame: datagram(pair6(), b"payload"), udp: ETHERNET + 40 },
        Sample {
            name: "IPv4 behind two tags",
            frame: ethernet(&[(S_TAG, 1), (C_TAG, 2)], IPV4, &datagram4),
            udp: ETHERNET + 8 + 20,
        },
        Sample {
            name: "IPv6 behind a tag, with hop-by-hop and destination options",
            frame: ethernet(&[(C_TAG, 2)], IPV6, &packet6),
            udp: ETHERNET + 4 + 40 + 8 + 16,
        },
    ]
}

/// The same sample for a port that is not the service's.
fn foreign(sample: &Sample) -> Vec<u8> {
    patched(&sample.frame, sample.udp + 2, &444u16.to_be_bytes())
}

#[test]
fn a_frame_cut_at_any_byte_is_ours_from_the_port_on() {
    let Some(service) = Service::new() else { return };
    for sample in samples() {
        let whole = sample.frame.len();
        // BPF_PROG_TEST_RUN takes no frame without an Ethernet header.
        for length in ETHERNET..=whole {
            let expected = match length {
                _ if length < sample.udp + 4 => PassTruncated,
                _ if length < sample.udp + 8 => DropUdpHeader,
                _ if length < whole => DropIpLength,
                _ => Taken,
            };
            let name = sample.name;
            assert_eq!(service.classify(&sample.frame[..length]), expected, "{name} cut to {length} bytes");
            let expected = if length < sample.udp + 4 { PassTruncated } else { PassOtherPair };
            let counter = service.classify(&foreign(&sample)[..length]);
            assert_eq!(counter, expected, "{name} for another port cut to {length} bytes");
        }
    }
}

/// Every value of the IP length field, with `padding` bytes behind the packet.
fn ip_lengths(service: &Service, frame: &[u8], field: usize, base: usize, udp: usize) {
    for padding in [0, 18] {
        let mut frame = frame.to_vec();
        let whole = frame.len();
        frame.resize(whole + padding, 0);
        for length in 0..=u16::MAX {
            // Enough around the borders; the far range in steps.
            if length > 120 && length % 997 != 0 && length != u16::MAX {
                continue;
            }
            let end = base + usize::from(length);
            let expected = match end {
                _ if end < udp + 4 => PassTruncated,
                _ if end < udp + 8 => DropUdpHeader,
                _ if end > frame.len() => DropIpLength,
                _ if end < whole => DropUdpLength,
                _ => Taken,
            };
            let frame = patched(&frame, field, &length.to_be_bytes());
            assert_eq!(service.classify(&frame), expected, "IP length {length}, padding {padding}");
        }
    }
}

#[test]
fn an_ip_length_that_lies_drops_once_the_port_is_within() {
    let Some(service) = Service::new() else { return };
    let (v4, v6) = (datagram(pair4(), b"payload"), datagram(pair6(), b"payload"));
    ip_lengths(&service, &v4, ETHERNET + 2, ETHERNET, ETHERNET + 20);
    ip_lengths(&service, &v6, ETHERNET + 4, ETHERNET + 40, ETHERNET + 40);
}

#[test]
fn an_ip_length_that_ends_within_extension_headers_passes() {
    let Some(service) = Service::new() else { return };
    let body = extension(UDP, &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &udp(443, b"payload"));
    let frame = ethernet(&[], IPV6, &ipv6(DESTINATION, "2001:db8::1".parse().unwrap(), &body));
    for length in 0..20u16 {
        let frame = patched(&frame, ETHERNET + 4, &length.to_be_bytes());
        assert_eq!(service.classify(&frame), PassTruncated, "payload length {length}");
    }
}

#[test]
fn an_extension_header_that_leads_out_of_the_packet_passes() {
    let Some(service) = Service::new() else { return };
    for kind in [HOP_BY_HOP, DESTINATION, ROUTING] {
        let body = extension(UDP, &[0; 6], &udp(443, b"payload"));
        let frame = ethernet(&[], IPV6, &ipv6(kind, "2001:db8::1".parse().unwrap(), &body));
        for length in [3, 4, 255] {
            let frame = patched(&frame, ETHERNET + 41, &[length]);
            assert_eq!(service.classify(&frame), PassTruncated, "header {kind} of length {length}");
        }
    }
}

#[test]
fn a_udp_length_that_lies_drops() {
    let Some(service) = Service::new() else { return };
    for sample in samples() {
        let true_length = sample.frame.len() - sample.udp;
        for length in 0..=u16::MAX {
            if length > 300 && length % 499 != 0 && length != u16::MAX {
                continue;
            }
            let frame = patched(&sample.frame, sample.udp + 4, &length.to_be_bytes());
            // A shorter one is lawful: what follows is no part of the datagram (RFC 9868's surplus area).
            let right = (8..=true_length).contains(&usize::from(length));
            let expected = if right { Taken } else { DropUdpLength };
            assert_eq!(service.classify(&frame), expected, "{}: UDP length {length}", sample.name);
            let other = patched(&foreign(&sample), sample.udp + 4, &length.to_be_bytes());
            assert_eq!(service.classify(&other), PassOtherPair, "{}: UDP length {length}", sample.name);
        }
    }
}

/// Whether the kernel can lay out a test frame with a chosen linear part (Linux 6.18).
fn split_runs(service: &Service) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let recent = (numbers.next(), numbers.next()) >= (Some(6), Some(18));
    let works = service.redirect.prog_test_run_split(&datagram(pair4(), b"payload"), 20).is_ok();
    assert!(works || !recent, "Linux {release} should run split frames");
    if !works {
        eprintln!("skipped: split test frames need Linux 6.18");
    }
    works
}

#[test]
fn headers_outside_the_linear_part_are_read_as_well() {
    let Some(service) = Service::new() else { return };
    if !split_runs(&service) {
        return;
    }
    for sample in samples() {
        let whole = sample.frame.len();
        for linear in ETHERNET..whole {
            assert_eq!(service.classify_split(&sample.frame, linear), Taken, "{} at {linear}", sample.name);
            let other = service.classify_split(&foreign(&sample), linear);
            assert_eq!(other, PassOtherPair, "{} at {linear}", sample.name);
        }
        for length in ETHERNET + 1..whole {
            let cut = &sample.frame[..length];
            let split = service.classify_split(cut, ETHERNET);
            assert_eq!(split, service.classify(cut), "{} cut to {length}", sample.name);
        }
    }
}

/// What an independent parser says about a frame that the program took.
fn is_our_datagram(frame: &[u8]) -> Result<(), String> {
    use etherparse::{InternetSlice, SlicedPacket, TransportSlice};
    let packet = SlicedPacket::from_ethernet(frame).map_err(|error| error.to_string())?;
    let to = match packet.net {
        Some(InternetSlice::Ipv4(ip)) if !ip.is_payload_fragmented() => ip.header().destination_addr().into(),
        Some(InternetSlice::Ipv6(ip)) if !ip.is_payload_fragmented() => ip.header().destination_addr().into(),
        other => return Err(format!("no IP packet in one piece: {other:?}")),
    };
    let Some(TransportSlice::Udp(udp)) = packet.transport else { return Err("no UDP".to_owned()) };
    let to = std::net::SocketAddr::new(to, udp.destination_port());
    if [pair4(), pair6()].contains(&to) { Ok(()) } else { Err(format!("to {to}")) }
}

#[test]
fn what_is_taken_is_ours_to_an_independent_parser() {
    let Some(service) = Service::new() else { return };
    let frames: Vec<Vec<u8>> = samples().into_iter().map(|sample| sample.frame).collect();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let strategy = (prop::sample::select(frames), damage, any::<prop::sample::Index>(), any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 4000, failure_persistence: None, ..Config::default() });
    runner
        .run(&strategy, |(mut frame, damage, cut, whole)| {
            for (place, byte) in damage {
                let place = place.index(frame.len());
                frame[place] = byte;
            }
            if !whole {
                frame.truncate(ETHERNET.max(cut.index(frame.len() + 1)));
            }
            let counter = service.classify(&frame);
            if counter == Taken {
                is_our_datagram(&frame).map_err(TestCaseError::fail)?;
            }
            Ok(())
        })
        .unwrap();
}
