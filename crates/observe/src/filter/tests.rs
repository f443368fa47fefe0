//! The translation against libpcap's own `bpf_filter`, in the running kernel.

use expressway_xbpf::{CaptureFilter, CapturePrograms, CaptureSettings, Error, FilterTrial};
use proptest::prelude::*;

use super::library::{Instruction, Pcap};
use super::translation::translate;
use super::{Filter, FilterError};

/// The kernel's side of a filter, or `None` where the test has to be skipped for lack of privilege.
fn trial(filter: &CaptureFilter) -> Option<FilterTrial> {
    let settings = CaptureSettings {
        snaplen: 100,
        filter: Some(filter.clone()),
        at_entry: true,
        at_exit: false,
        verdicts: true,
    };
    match CapturePrograms::open(settings) {
        Ok(programs) => Some(programs.filter_trial().unwrap()),
        Err(Error::NotPermitted { .. })
            if std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none_or(|value| value != "1") =>
        {
            eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Both sides' judgement of a packet.
fn compare(trial: &FilterTrial, packet: &[u8], expected: bool, about: &str) {
    match trial.run(packet).unwrap() {
        2 => {
            assert!(packet.len() > CaptureFilter::HEAD, "undecided with all octets held: {about} {packet:?}")
        }
        said => assert_eq!(said, u32::from(expected), "{about} {packet:?}"),
    }
}

/// A frame whose fields are those that filters look at, cut anywhere.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop_oneof![
        3 => Just(vec![]),
        1 => Just(vec![0x81, 0x00, 0x00, 0x05]),
        1 => Just(vec![0x88, 0xa8, 0x00, 0x02, 0x81, 0x00, 0x00, 0x05]),
    ];
    let port = prop_oneof![Just(53u16), Just(443), any::<u16>()];
    let transport = (prop_oneof![Just(6u8), Just(17), Just(1), Just(44), any::<u8>()], port.clone(), port);
    let network = prop_oneof![Just(4u8), Just(6), Just(0)];
    let body = prop::collection::vec(any::<u8>(), 0..700);
    (tag, network, transport, 5u8..16, any::<u16>(), body, 14usize..800).prop_map(
        |(tag, version, (protocol, from, to), words, fragment, body, cut)| {
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            frame.extend(tag);
            match version {
                4 => {
                    frame.extend([0x08, 0, 0x40 | words, 0, 0, 100, 0, 1]);
                    // Most are no fragments.
                    frame.extend(if fragment % 4 == 0 { fragment.to_be_bytes() } else { [0x40, 0] });
                    frame.extend([64, protocol, 0, 0, 192, 0, 2, 1, 10, 0, 0, 1]);
                    frame.extend(vec![1; usize::from(words - 5) * 4]);
                }
                6 => {
                    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 100, protocol, 64]);
                    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
                    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
                }
                _ => frame.extend([0x08, 0x06]),
            }
            frame.extend(from.to_be_bytes());
            frame.extend(to.to_be_bytes());
            frame.extend(body);
            frame.truncate(cut.max(14));
            frame
        },
    )
}

/// The text of a filter.
fn texts() -> impl Strategy<Value = String> {
    let word = |texts: &'static [&'static str]| prop::sample::select(texts).prop_map(str::to_owned);
    let single = prop_oneof![
        word(&[
            "ip",
            "ip6",
            "arp",
            "udp",
            "tcp",
            "icmp",
            "icmp6",
            "vlan",
            "vlan 5",
            "multicast",
            "ip proto 44"
        ]),
        word(&[
            "host 192.0.2.1",
            "dst net 10.0.0.0/8",
            "src host 2001:db8::1",
            "ether host 02:00:00:00:00:01"
        ]),
        word(&[
            "port 53",
            "udp port 443",
            "tcp dst port 53",
            "portrange 400-500",
            "udp src portrange 1-60000"
        ]),
        word(&["tcp[tcpflags] & tcp-syn != 0", "ether[14] & 0xf0 = 0x40", "ip[6:2] & 0x1fff = 0"]),
        (0u32..600, prop::sample::select(&[1u32, 2, 4][..]), any::<u8>())
            .prop_map(|(at, size, value)| format!("ether[{at}:{size}] > {value}")),
        (0u32..600, any::<u8>()).prop_map(|(at, value)| format!("udp[{at}] < {value}")),
        (1u32..40, 1u32..9).prop_map(|(mask, shift)| format!("(ip[0] & {mask}) << {shift} = len - {shift}")),
        (14u32..900).prop_map(|length| format!("greater {length}")),
        (14u32..900).prop_map(|length| format!("len % 7 = {} or less {length}", length % 7)),
    ];
    single.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("({left}) and ({right})")),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("({left}) or ({right})")),
            inner.prop_map(|inner| format!("not ({inner})")),
        ]
    })
}

/// Instructions of every kind, each of which can be followed by any; jumps are mended by `program`.
fn instructions() -> impl Strategy<Value = Instruction> {
    let offset = prop_oneof![4 => 0u32..60, 1 => 0u32..700, 1 => any::<u32>()];
    let value = prop_oneof![0u32..64, any::<u32>()];
    let plain = |code, jt, jf, k| Instruction { code, jt, jf, k };
    prop_oneof![
        // Loads at a place, at X and a place, of the length.
        (prop::sample::select(&[0x20u16, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1][..]), offset)
            .prop_map(move |(code, k)| plain(code, 0, 0, k)),
        prop::sample::select(&[0x80u16, 0x81, 0x07, 0x87]).prop_map(move |code| plain(code, 0, 0, 0)),
        (prop::sample::select(&[0x00u16, 0x01][..]), value.clone())
            .prop_map(move |(code, k)| plain(code, 0, 0, k)),
        (prop::sample::select(&[0x60u16, 0x61, 0x02, 0x03][..]), 0u32..4)
            .prop_map(move |(code, k)| plain(code, 0, 0, k)),
        (prop::sample::select(&[0x04u16, 0x14, 0x24, 0x44, 0x54, 0x84, 0xa4][..]), value.clone())
            .prop_map(move |(code, k)| plain(code, 0, 0, k)),
        // Shifts by constants below 32, divisions by constants that are not zero: libpcap allows no others.
        (prop::sample::select(&[0x64u16, 0x74, 0x34, 0x94][..]), 1u32..32)
            .prop_map(move |(code, k)| plain(code, 0, 0, k)),
        prop::sample::select(&[0x0cu16, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c, 0x6c, 0x7c, 0x9c, 0xac][..])
            .prop_map(move |code| plain(code, 0, 0, 0)),
        (
            prop::sample::select(&[0x15u16, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d][..]),
            0u8..5,
            0u8..5,
            value
        )
            .prop_map(move |(code, jt, jf, k)| plain(code, jt, jf, k)),
        (0u32..3).prop_map(move |k| plain(0x05, 0, 0, k)),
        Just(plain(0x16, 0, 0, 0)),
        (0u32..2).prop_map(move |k| plain(0x06, 0, 0, k)),
    ]
}

/// A whole program: the memory is written before it is read, and jumps stay within.
fn programs() -> impl Strategy<Value = Vec<Instruction>> {
    prop::collection::vec(instructions(), 1..40).prop_map(|body| {
        let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
        let mut program: Vec<Instruction> =
            (0..4).flat_map(|slot| [plain(0, slot * 7), plain(2, slot)]).collect();
        program.push(plain(0x01, 3));
        program.extend(body);
        // Three returns, so that every jump of up to five lands.
        program.extend([
            plain(0x06, 1),
            plain(0x16, 0),
            plain(0x06, 0),
            plain(0x06, 1),
            plain(0x06, 0),
            plain(0x06, 1),
        ]);
        program
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn root_texts_mean_in_the_kernel_what_they_mean_to_libpcap(
        text in texts(),
        packets in prop::collection::vec(frames(), 12),
    ) {
        let filter = match Filter::compile(&text, 65535) {
            Ok(filter) => filter,
            // Such as `arp and udp`.
            Err(FilterError::Text { .. }) => return Err(TestCaseError::reject("libpcap refuses it")),
            Err(error) => panic!("{text}: {error}"),
        };
        let Some(trial) = trial(filter.kernel()) else { return Ok(()) };
        for packet in packets {
            compare(&trial, &packet, filter.matches(&packet, packet.len() as u32), &text);
        }
    }

    #[test]
    fn root_every_instruction_does_in_the_kernel_what_it_does_in_libpcap(
        program in programs(),
        packets in prop::collection::vec(frames(), 12),
    ) {
        let pcap = Pcap::load().unwrap();
        let Some(trial) = trial(&translate(&program).unwrap()) else { return Ok(()) };
        for packet in packets {
            let expected = pcap.matches(&program, &packet, packet.len() as u32);
            compare(&trial, &packet, expected, &format!("{program:x?}"));
        }
    }
}

#[test]
fn a_text_that_libpcap_refuses_is_named_with_its_reason() {
    let error = Filter::compile("udp porrt 5", 100).unwrap_err();
    assert!(error.to_string().starts_with("filter `udp porrt 5`: "), "{error}");
    assert!(Filter::compile("udp\0", 100).unwrap_err().to_string().contains("zero octet"));
}

#[test]
fn what_is_longer_than_the_room_in_the_kernel_is_refused() {
    let ports: Vec<String> = (1..3000).map(|port| format!("udp[{}] = {}", port % 400, port % 250)).collect();
    let error = Filter::compile(&ports.join(" or "), 100).unwrap_err();
    assert!(matches!(error, FilterError::Kernel { .. }), "{}", &error.to_string()[..100]);
}

#[test]
fn what_loops_is_refused() {
    let error = Filter::compile("ip6 protochain 17", 100).unwrap_err();
    assert!(error.to_string().ends_with("it loops, as `protochain` does"), "{error}");
}

#[test]
fn only_what_a_filter_looks_at_is_needed() {
    assert_eq!(Filter::compile("ip", 100).unwrap().kernel().needed, 14);
    assert_eq!(Filter::compile("", 100).unwrap().kernel().needed, 0);
    assert_eq!(Filter::compile("host 192.0.2.1", 100).unwrap().kernel().needed, 42, "ARP");
    // Behind the longest header of IPv4: the destination port.
    assert_eq!(Filter::compile("udp port 53", 100).unwrap().kernel().needed, 14 + 60 + 4);
    // Where that is read from the packet, it may be anywhere.
    let far = Filter::compile("udp[udp[4] : 2] = 7", 100).unwrap();
    assert_eq!(far.kernel().needed as usize, CaptureFilter::HEAD);
}

#[test]
fn jumps_out_of_a_program_and_unknown_instructions_are_errors() {
    let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
    assert!(translate(&[plain(0x05, 7), plain(0x06, 1)]).unwrap_err().contains("jumps out"));
    assert!(translate(&[plain(0xf4, 0), plain(0x06, 1)]).unwrap_err().contains("unknown"));
    assert!(translate(&[plain(0x60, 16), plain(0x06, 1)]).unwrap_err().contains("unknown"));
}
