//! Feeds: which datagrams are copied, and what stamps them.

use expressway_xbpf::forward::{Feed, Receiver};

use super::*;

/// A receiver behind a device.
fn receiver(device: u32, slot: u32) -> Receiver {
    Receiver {
        destination: ([10, 2, 0, 2], 6000).into(),
        source: [10, 2, 0, 1].into(),
        hop_limit: 64,
        device,
        source_mac: MAC_B,
        destination_mac: NEXT_HOP,
        tags: [None; 2],
        mtu: 1500,
        slot,
    }
}

/// `frame` to a group.
fn group(frame: Vec<u8>) -> Vec<u8> {
    patched(&frame, 0, &[1, 0, 0x5e, 1, 1, 1])
}

/// The router's interfaces, by all of which feeds may come.
fn replicating(router: &Router, source_check: SourceCheck) -> Vec<ForwardInterface> {
    let port = |port: ForwardInterface| ForwardInterface { replicates: true, source_check, ..port };
    router.ports().into_iter().map(port).collect()
}

/// What becomes of a copy afterwards takes real packets: tests/e2e/test_forward.py.
#[test]
fn datagrams_of_feeds_are_stamped_for_their_receivers() {
    let Some(mut router) = Router::new() else { return };
    let ports = replicating(&router, SourceCheck::Local);
    router.set_interfaces(&ports);
    let all: Vec<u32> = ports.iter().map(|port| port.slot).collect();
    let feed = |listen: &str, receivers| Feed {
        listen: listen.parse().unwrap(),
        slot: 3,
        ports: all.clone(),
        receivers,
    };
    let both = vec![receiver(router.b, 0), receiver(router.b, 1)];
    let feeds = [
        feed("239.1.1.1:443", both.clone()),
        feed("10.1.0.1:443", both),
        feed("[ff0e::1]:443", vec![receiver(router.b, 2)]),
        feed("239.1.1.2:443", vec![]),
    ];
    router.set_feeds(&feeds);
    let multicast = group(v4("239.1.1.1"));
    for (name, frame) in [
        ("multicast", multicast.clone()),
        ("multicast on its last hop", group(with(&v4("239.1.1.1"), 8, &[1]))),
        ("unicast", v4("10.1.0.1")),
        ("IPv6", group(v6("ff0e::1"))),
        ("tagged", {
            let packet = &multicast[ETHERNET..];
            group(frame(&[(C_TAG, 100)], IPV4, packet))
        }),
    ] {
        let (counter, out) = run(&router, &frame);
        assert_eq!(counter, Replicated, "{name}");
        assert_eq!(out[12..14], [0x88, 0xb6], "{name}: without tags, whoever gets it");
        assert_eq!(out[14..], frame[frame.len() - (out.len() - 14)..], "{name}");
    }
    let first = run(&router, &multicast).1;
    assert_ne!(first[..12], run(&router, &multicast).1[..12], "each datagram has a number of its own");
    assert_eq!(router.forward.feed(3).unwrap().packets, 7);
    check(
        &router,
        &[
            ("another port", group(patched(&v4("239.1.1.1"), ETHERNET + 23, &[1])), PassOtherMac),
            ("another group", group(v4("239.1.1.9")), PassOtherMac),
            ("TCP", group(frame(&[], IPV4, &v4_packet("239.1.1.1", 6, &udp(443, b"x")))), PassOtherMac),
            ("a fragment", group(with(&v4("239.1.1.1"), 6, &[0x20, 0])), PassOtherMac),
            ("to another station", patched(&v4("10.1.0.1"), 0, &[2, 9, 9, 9, 9, 9]), PassOtherMac),
            ("unicast in a multicast frame", group(with(&v4("10.1.0.1"), 8, &[0])), PassOtherMac),
            ("unicast on its last hop", with(&v4("10.1.0.1"), 8, &[1]), PassTtl),
            ("without receivers", group(v4("239.1.1.2")), PassNoReceiver),
            ("others are forwarded", v4("198.51.100.9"), Forwarded),
        ],
    );
    router.set_feeds(&feeds[1..2]);
    check(&router, &[("a feed that has gone", multicast, PassOtherMac)]);
    // More changes than there is room for the targets of old plans.
    for slot in 0..40 {
        let receivers = (0..256).map(|number| receiver(router.b, slot + number)).collect();
        router.set_feeds(&[feed("10.1.0.1:443", receivers)]);
    }
    // Everything there may be, changed whole.
    for slot in 0..3 {
        let full: Vec<Feed> = (0..16)
            .map(|port| {
                let receivers = (0..256).map(|number| receiver(router.b, slot + number)).collect();
                feed(&format!("10.1.0.1:{}", 1000 + port), receivers)
            })
            .collect();
        router.set_feeds(&full);
    }
    router.set_feeds(&feeds[1..2]);
    assert_eq!(run(&router, &v4("10.1.0.1")).0, Replicated);
}

/// Only what comes from where a feed is expected, and from whom the kernel would take it, is copied.
#[test]
fn feeds_are_taken_from_their_interfaces_and_from_true_sources() {
    let Some(mut router) = Router::new() else { return };
    let ports = replicating(&router, SourceCheck::Local);
    router.set_interfaces(&ports);
    let device = router.b;
    let slot_of = |mac| ports.iter().find(|port| port.mac == mac).unwrap().slot;
    let feed = |listen: &str, ports: &[u32]| Feed {
        listen: listen.parse().unwrap(),
        slot: 0,
        ports: ports.to_vec(),
        receivers: vec![receiver(device, 0), Receiver { mtu: 600, ..receiver(device, 1) }],
    };
    let (a, v) = (slot_of(MAC_A), slot_of(MAC_V));
    router.set_feeds(&[
        feed("239.1.1.1:443", &[a]),
        feed("239.1.1.2:443", &[v]),
        feed("10.1.0.1:443", &[a]),
        feed("[ff0e::1]:443", &[a]),
        feed("[2001:db8:1::1]:443", &[v]),
    ]);
    let tagged = |frame_: &[u8]| group(frame(&[(C_TAG, 100)], IPV4, &frame_[ETHERNET..]));
    let sized =
        |size: usize| group(frame(&[], IPV4, &v4_packet("239.1.1.1", UDP, &udp(443, &vec![1; size - 28]))));
    let from = |text: &str| group(with(&v4("239.1.1.1"), 12, &text.parse::<Ipv4Addr>().unwrap().octets()));
    let from6 =
        |to: &str, text: &str| patched(&v6(to), ETHERNET + 8, &text.parse::<Ipv6Addr>().unwrap().octets());
    check(
        &router,
        &[
            ("by its interface", group(v4("239.1.1.1")), Replicated),
            ("by its VLAN", tagged(&v4("239.1.1.2")), Replicated),
            ("by another interface", group(v4("239.1.1.2")), PassOtherMac),
            ("by another VLAN", tagged(&v4("239.1.1.1")), PassOtherMac),
            ("a group in a frame to us", v4("239.1.1.1"), PassDestination),
            ("an IPv6 group in a frame to us", v6("ff0e::1"), PassDestination),
            ("unicast by another interface", v6("2001:db8:1::1"), PassNotForwarded),
            ("from loopback", from("127.0.0.1"), PassSource),
            ("from a group", from("224.0.0.1"), PassSource),
            ("from this network", from("0.0.0.0"), PassSource),
            ("from an address of ours", from("10.2.0.1"), PassSource),
            ("unicast from link-local", with(&v4("10.1.0.1"), 12, &[169, 254, 1, 1]), PassSource),
            ("to an IPv6 group from the link", group(from6("ff0e::1", "fe80::2")), Replicated),
            ("IPv6 from loopback", group(from6("ff0e::1", "::1")), PassSource),
            ("IPv6 from a group", group(from6("ff0e::1", "ff02::1")), PassSource),
            ("as large as the narrowest way", sized(600), Replicated),
            ("a byte more", sized(601), PassTooLarge),
            ("from nowhere", from("192.88.99.7"), Replicated),
        ],
    );
    for (source_check, elsewhere) in
        [(SourceCheck::Strict, PassReversePath), (SourceCheck::Loose, Replicated)]
    {
        let ports = replicating(&router, source_check);
        router.set_interfaces(&ports);
        check(
            &router,
            &[
                ("its own network", group(v4("239.1.1.1")), Replicated),
                ("another interface's", from("10.2.0.9"), elsewhere),
                ("nobody's", from("192.88.99.7"), PassReversePath),
                ("unicast, its own network", v4("10.1.0.1"), Replicated),
                ("unicast, another interface's", with(&v4("10.1.0.1"), 12, &[10, 2, 0, 9]), elsewhere),
            ],
        );
    }
}

/// The kernel takes a device that goes out of all maps at once, and user space hears of it later.
#[test]
fn a_feed_whose_devices_are_gone_is_left_to_the_kernel() {
    let Some(mut router) = Router::new() else { return };
    let ports = replicating(&router, SourceCheck::Local);
    router.set_interfaces(&ports);
    let (b, j) = (router.b, ports.iter().find(|port| port.mac == MAC_J).unwrap().device);
    // The device that stays longest has the last receiver.
    let receivers = vec![receiver(b, 0), receiver(b, 1), receiver(b, 2), receiver(j, 3)];
    let slots: Vec<u32> = ports.iter().map(|port| port.slot).collect();
    let feed = |listen: &str| Feed {
        listen: listen.parse().unwrap(),
        slot: 0,
        ports: slots.clone(),
        receivers: receivers.clone(),
    };
    router.set_feeds(&[feed("239.1.1.1:443"), feed("[ff0e::1]:443")]);
    let (four, six) = (group(v4("239.1.1.1")), group(v6("ff0e::1")));
    let both = |expected| [("IPv4", four.clone(), expected), ("IPv6", six.clone(), expected)];
    check(&router, &both(Replicated));
    router.ip("link delete dev b");
    check(&router, &both(Replicated));
    router.ip("link delete dev j");
    check(&router, &both(PassNoReceiver));
    assert_eq!(router.forward.feed(0).unwrap().packets, 4, "what was copied");
}
