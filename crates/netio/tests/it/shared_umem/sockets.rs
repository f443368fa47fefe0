//! Several sockets on one UMEM.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use expressway_netio::xsk::{
    ForeignSocket, NotSent, OpenError, SharedUmem, SocketId, UmemConfig, XskConfig, interface_index,
};
use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};
use expressway_xbpf::{AttachMode, Existing, Options, Redirect};

use super::bed::{Bed, PORT, RING, config, port};
use crate::common::netns::{FAR, FAR_DEVICE, FAR_MAC, NEAR, NEAR_DEVICE, NEAR_MAC, Pair, is_privileged};

#[test]
fn sockets_that_cannot_share_are_refused_by_name() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let map = bed.redirect.xsk_map();
    let mut bind = |config: XskConfig| {
        let umem = &mut bed.umem;
        bed.pair.near.enter(|| umem.bind(&config, Some(map))).map_err(|error| match error {
            OpenError::Config { field, .. } => field.to_owned(),
            other => other.to_string(),
        })
    };
    assert_eq!(bind(port(0)).unwrap_err(), "queue", "two sockets of one queue");
    assert_eq!(bind(port(1)).unwrap_err(), "frames");
    let message = bind(XskConfig { rx_ring: 64, tx_ring: 64, ..port(1) });
    assert_eq!(message.unwrap_err(), "frames");
    drop(bed);

    let pair = Pair::new(1500, 2);
    let redirect = Redirect::load(&Options { queues: 1, ..Options::default() }).unwrap();
    let mut umem = SharedUmem::new(&config(1024)).unwrap();
    let mut other = SharedUmem::new(&config(1024)).unwrap();
    pair.near.enter(|| {
        let named = |result: Result<SocketId, OpenError>| result.expect_err("refused").to_string();
        let first = umem.bind(&port(0), None).unwrap();
        // A queue that the interface has not, and a map that is too small: the UMEM is as it was.
        let message = named(umem.bind(&port(7), None));
        assert!(message.contains("near0 queue 7: AF_XDP bind on a shared UMEM: EINVAL"), "{message}");
        let message = named(umem.bind(&port(1), Some(redirect.xsk_map())));
        assert!(
            message.contains("queue 1: AF_XDP inserting into the XSKMAP: E2BIG")
                || message.contains("exceeds the map's entries"),
            "{message}"
        );
        assert_eq!(umem.mode(first).unwrap(), expressway_netio::xsk::ObtainedMode::Copy);
        let second = umem.bind(&port(1), None).unwrap();
        assert_ne!(first, second);
        // A socket of another UMEM is told from one's own.
        assert!(matches!(other.receive(first, 1, |_| ()), Err(ForeignSocket(_))));
        assert!(other.transmit(second, |_| 60).is_err() && umem.transmit(second, |_| 60).unwrap());
        umem.flush().unwrap();
    });
    pair.near.ip("link set near0 mtu 3900");
    let error = pair.near.enter(|| other.bind(&port(0), None)).expect_err("no room in a frame");
    assert!(error.to_string().starts_with("AF_XDP frame_size = 4096: must hold a packet"), "{error}");
}

#[test]
fn a_packet_cannot_be_sent_by_a_socket_of_another_umem() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let (foreign_pair, mut foreign) = (Pair::new(1500, 1), SharedUmem::new(&config(1024)).unwrap());
    let elsewhere = foreign_pair.near.enter(|| foreign.bind(&port(0), None).unwrap());
    bed.send(0, 1);
    let mut refused = 0;
    while refused == 0 {
        bed.umem.wait(None).unwrap();
        bed.umem
            .receive(bed.socket, 1, |packet| {
                let error = packet.send(elsewhere).unwrap_err();
                assert!(matches!(error, NotSent::Foreign(_)));
                assert!(error.to_string().contains("another UMEM"), "{error}");
                refused += 1;
            })
            .unwrap();
    }
    assert!(bed.umem.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_link_that_goes_is_an_error_that_names_it_and_packets_wait_for_it() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let build = |bed: &mut Bed| {
        let built = bed.umem.transmit(bed.socket, |frame| {
            frame[..60].fill(0xff);
            60
        });
        assert!(built.unwrap());
        bed.umem.flush()
    };
    build(&mut bed).unwrap();
    bed.pair.near.ip(&format!("link set {NEAR_DEVICE} down"));
    let message = build(&mut bed).expect_err("the link is down").to_string();
    assert!(message.starts_with("near0 queue 0: AF_XDP sending: ENETDOWN"), "{message}");
    assert!(message.ends_with("; set the interface up (`ip link set ... up`)"), "{message}");
    assert_eq!(bed.umem.in_flight(bed.socket).unwrap(), 1, "it waits");
    assert_eq!(bed.umem.unsent(bed.socket).unwrap(), 1);
    bed.pair.near.ip(&format!("link set {NEAR_DEVICE} up"));
    bed.umem.flush().unwrap();
    assert_eq!(bed.umem.unsent(bed.socket).unwrap(), 0);
    while bed.umem.in_flight(bed.socket).unwrap() > 0 {
        bed.umem.wait(Some(Duration::from_millis(1))).unwrap();
    }
    bed.pair.near.ip(&format!("link del {NEAR_DEVICE}"));
    let message = build(&mut bed).expect_err("the interface is gone").to_string();
    assert!(message.starts_with("near0 queue 0: AF_XDP sending: ENXIO"), "{message}");
    assert!(message.ends_with("the interface was removed: create new sockets"), "{message}");
}

#[test]
fn every_queue_receives_into_one_umem_and_forwards_to_any_other() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 2);
    let redirects: Vec<Redirect> =
        (0..2).map(|_| Redirect::load(&Options { queues: 2, ..Options::default() }).unwrap()).collect();
    // What is sent by queue n arrives on queue n of a veth's peer.
    let ends = [(&pair.near, NEAR_DEVICE, &redirects[0]), (&pair.far, FAR_DEVICE, &redirects[1])];
    let [mut near, mut far] = ends.map(|(namespace, device, redirect)| {
        redirect.add_pair(SocketAddr::new(NEAR[0], PORT)).unwrap();
        let mut umem = SharedUmem::new(&UmemConfig { frames: 4 * RING, ..UmemConfig::default() }).unwrap();
        namespace.enter(|| {
            let index = interface_index(device).unwrap();
            let attachment = redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap();
            let sockets = [0, 1].map(|queue| {
                let config = XskConfig { interface: device.to_owned(), ..port(queue) };
                umem.bind(&config, Some(redirect.xsk_map())).unwrap()
            });
            (umem, sockets, attachment)
        })
    });
    let headers = UdpHeaders::new(
        MacAddr(FAR_MAC),
        MacAddr(NEAR_MAC),
        SocketAddr::new(FAR[0], 9),
        SocketAddr::new(NEAR[0], PORT),
    )
    .template()
    .unwrap();
    let start = Instant::now();
    for queue in [0usize, 1] {
        let (here, there) = (near.1[queue], near.1[1 - queue]);
        let mut back = Vec::new();
        // A veth may lose what is sent before its link is up.
        while back.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "queue {queue}: nothing comes back");
            far.0
                .transmit(far.1[queue], |frame| {
                    frame[headers.header_len()] = b'0' + queue as u8;
                    headers.write(frame, 1, ChecksumMode::Full, 0).unwrap()
                })
                .unwrap();
            far.0.flush().unwrap();
            near.0.wait(Some(Duration::from_millis(20))).unwrap();
            assert_eq!(near.0.receive(there, 64, |_| ()).unwrap(), 0, "it came on its own queue");
            near.0.receive(here, 64, |packet| packet.send(there).unwrap()).unwrap();
            near.0.flush().unwrap();
            far.0.wait(Some(Duration::from_millis(20))).unwrap();
            far.0.receive(far.1[1 - queue], 64, |mut packet| back.push(packet.bytes().to_vec())).unwrap();
        }
        assert!(back.iter().all(|packet| packet[headers.header_len()] == b'0' + queue as u8));
    }
}
