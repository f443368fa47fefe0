//! Sockets that only receive: by them nothing can be sent, whoever holds them.

#![allow(unsafe_code)] // System calls on an AF_XDP socket as somebody else would make them.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use expressway_netio::xsk::{
    BindMode, ObtainedMode, TransmitVia, TrialProblem, XskBinding, XskConfig, XskIoConfig,
};
use expressway_netio::{Flow, PacketIo, Via};
use expressway_wire::MacAddr;
use expressway_xbpf::{Options, Redirect};

use crate::common::netns::{FAR, FAR_MAC, NEAR, NEAR_DEVICE, Pair, is_privileged};
use crate::common::xsk::open_bindings;

const PORT: u16 = 4433;
const PATIENCE: Duration = Duration::from_secs(20);
/// `SOL_XDP` and `XDP_TX_RING` (`linux/if_xdp.h`).
const SOL_XDP: i32 = 283;
const XDP_TX_RING: i32 = 3;

#[test]
fn nothing_can_be_sent_by_them() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let redirect = Redirect::load(&Options::default()).unwrap();
    let config = XskConfig {
        mode: BindMode::Copy,
        sends: false,
        tx_ring: 64,
        transmit: TransmitVia::Xsk,
        ..XskConfig::new(NEAR_DEVICE, 0)
    };
    let mut binding = pair.near.enter(|| XskBinding::open(config, redirect.xsk_map()).unwrap());
    let fd = binding.descriptor().unwrap().as_raw_fd();
    let entries = 64u32;
    // SAFETY: the value lives through the call and is as long as said.
    let made = unsafe {
        libc::setsockopt(fd, SOL_XDP, XDP_TX_RING, std::ptr::from_ref(&entries).cast(), size_of::<u32>() as _)
    };
    assert_eq!((made, errno()), (-1, libc::EBUSY), "a bound socket gets no TX ring");
    // SAFETY: no buffer and no address are passed.
    let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    assert_eq!((sent, errno()), (-1, libc::ENOBUFS), "nothing to send from (`__xsk_sendmsg`)");
    // What would send by it says so, and what chooses is not heard.
    assert_eq!(binding.report().transmit, TransmitVia::Kernel);
    binding.set_transmit(TransmitVia::Xsk);
    assert_eq!((binding.report().transmit, binding.report().tx_budget), (TransmitVia::Kernel, 0));
    let refused = binding.probe(MacAddr(FAR_MAC), None, Duration::ZERO).unwrap_err();
    assert_eq!(refused.problem, TrialProblem::Receives);
    assert_eq!(binding.calibrate(MacAddr(FAR_MAC), 1500), None);
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn datagrams_come_by_them_and_answers_leave_by_the_kernel() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let receiving = |config| XskConfig { sends: false, tx_ring: 64, ..config };
    let config = XskIoConfig::default();
    let (mut io, _around) = open_bindings(&pair, 1, PORT, config, ObtainedMode::Copy, receiving);
    let peer = pair.far.enter(|| UdpSocket::bind((FAR[0], 9000)).unwrap());
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let flow = Flow::new(SocketAddr::new(NEAR[0], PORT), peer.local_addr().unwrap());
    for round in 0..200u32 {
        peer.send_to(&round.to_ne_bytes(), (NEAR[0], PORT)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut came = None;
        while came.is_none() {
            assert!(Instant::now() < deadline, "round {round} never came: {:?}", io.stats());
            io.receive(Instant::now(), &mut |datagram| came = Some((datagram.via, datagram.payload.len())))
                .unwrap();
            io.flush(Instant::now()).unwrap();
        }
        assert_eq!(came, Some((Via::Xsk(0), 4)));
        let mut answers = [4].into_iter();
        io.transmit(&flow, 4, &mut |_| answers.next().unwrap_or(0)).unwrap();
        io.flush(Instant::now()).unwrap();
        peer.recv(&mut [0; 16]).unwrap();
    }
    let stats = io.stats();
    assert_eq!((stats.rx_xsk_packets, stats.tx_kernel_packets, stats.tx_xsk_packets), (200, 200, 0));
    assert!(io.reports().all(|report| report.transmit == TransmitVia::Kernel));
}
