//! VLAN tags through AF_XDP: frames from a packet socket, and the very bytes of the answers.
//!
//! Needs no VLAN interfaces, which the kernel of a test machine may lack: the routes are given.

#![allow(unsafe_code)] // A packet socket and its control messages.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use expressway_netio::route::{Path, Resolution};
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{BindMode, Routes, XskBinding, XskConfig, XskIo, XskIoConfig};
use expressway_netio::{Flow, PacketIo};
use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders, VlanTag, VlanTags, parse_udp};
use expressway_xbpf::{AttachMode, Counter, Existing, Options, Redirect};

use crate::common::netns::{FAR, FAR_DEVICE, FAR_MAC, NEAR, NEAR_DEVICE, NEAR_MAC, Pair, is_privileged};

const PORT: u16 = 4433;
const PEER_PORT: u16 = 999;
const PATIENCE: Duration = Duration::from_secs(20);

/// Everything leaves by one interface with these tags.
struct Tagged {
    ifindex: u32,
    vlan: VlanTags,
}

impl Routes for Tagged {
    fn resolve(&mut self, local: IpAddr, _remote: IpAddr) -> Resolution {
        Resolution::Ready(Path {
            ifindex: self.ifindex,
            egress: self.ifindex,
            source_mac: MacAddr(NEAR_MAC),
            destination_mac: MacAddr(FAR_MAC),
            vlan: self.vlan,
            mtu: 1500,
            source: local,
            stale: false,
        })
    }
}

/// Sends and receives whole frames.
struct PacketSocket {
    fd: OwnedFd,
}

/// `struct tpacket_auxdata` (`include/uapi/linux/if_packet.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Auxdata {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const SOL_PACKET: i32 = 263;
const PACKET_AUXDATA: i32 = 8;

impl PacketSocket {
    fn open(device: &str) -> Self {
        let protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain integers; checked below.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
        assert!(fd >= 0, "packet socket: {}", std::io::Error::last_os_error());
        // SAFETY: just made, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a plain C structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex(device) as i32;
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: an address as long as said.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        assert_eq!(bound, 0, "bind: {}", std::io::Error::last_os_error());
        let on = 1i32;
        // SAFETY: an integer as long as said.
        let set = unsafe {
            libc::setsockopt(fd.as_raw_fd(), SOL_PACKET, PACKET_AUXDATA, std::ptr::from_ref(&on).cast(), 4)
        };
        assert_eq!(set, 0, "auxdata: {}", std::io::Error::last_os_error());
        Self { fd }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the frame is as long as said.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "send: {}", std::io::Error::last_os_error());
    }

    /// One frame as it was on the wire: the kernel takes the outer tag off and tells it beside.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0u8; 2048];
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: a plain C structure.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: all buffers outlive the call and are as long as said.
        let length = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        if length < 0 {
            return None;
        }
        frame.truncate(length as usize);
        // SAFETY: the kernel has filled the control buffer that the message names.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        assert!(!header.is_null(), "auxiliary data was asked for");
        // SAFETY: the one kind of control message that was asked for, whose data is this structure.
        let auxdata = unsafe { libc::CMSG_DATA(header).cast::<Auxdata>().read_unaligned() };
        if auxdata.status & TP_STATUS_VLAN_VALID != 0 {
            let mut tag = auxdata.vlan_tpid.to_be_bytes().to_vec();
            tag.extend(auxdata.vlan_tci.to_be_bytes());
            frame.splice(12..12, tag);
        }
        Some(frame)
    }
}

fn ifindex(device: &str) -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, device).unwrap()
}

/// A request as a VLAN peer sends it.
fn request(near: IpAddr, vlan: VlanTags, payload: &[u8]) -> Vec<u8> {
    let far = FAR[usize::from(near.is_ipv6())];
    let headers = UdpHeaders {
        vlan,
        ..UdpHeaders::new(
            MacAddr(FAR_MAC),
            MacAddr(NEAR_MAC),
            SocketAddr::new(far, PEER_PORT),
            SocketAddr::new(near, PORT),
        )
    };
    let mut frame = vec![0; headers.header_len()];
    frame.extend(payload);
    headers.write(&mut frame, payload.len(), ChecksumMode::Full, 0).unwrap();
    frame
}

/// Sends a request with these tags; the answer must begin, behind the MACs, with `expected`.
fn echo(vlan: &[VlanTag], near: IpAddr, expected: &[u8]) {
    let vlan = VlanTags::new(vlan).unwrap();
    let pair = Pair::new(1500, 1);
    let redirect = Redirect::load(&Options::default()).unwrap();
    redirect.add_pair(SocketAddr::new(near, PORT)).unwrap();
    let (mut io, _attachment) = pair.near.enter(|| {
        let ifindex = ifindex(NEAR_DEVICE);
        let attachment = redirect.attach(ifindex, AttachMode::Native, Existing::Refuse).unwrap();
        let config = XskConfig { mode: BindMode::Copy, ..XskConfig::new(NEAR_DEVICE, 0) };
        let bindings = vec![XskBinding::open(config, redirect.xsk_map()).unwrap()];
        let kernel = UdpIo::bind(&UdpConfig::new(vec![SocketAddr::new(near, PORT)])).unwrap();
        let routes = Tagged { ifindex, vlan };
        (XskIo::new(bindings, kernel, routes, XskIoConfig::default()).unwrap(), attachment)
    });
    let wire = pair.far.enter(|| PacketSocket::open(FAR_DEVICE));
    let payload = b"through a tagged link";
    wire.send(&request(near, vlan, payload));
    let deadline = Instant::now() + PATIENCE;
    let answer = loop {
        let mut flow = None;
        io.receive(Instant::now(), &mut |datagram| {
            assert_eq!(datagram.payload, payload);
            flow = Some(Flow::new(datagram.local, datagram.remote));
        })
        .unwrap();
        if let Some(flow) = flow {
            let mut left = 1;
            let mut fill = |slice: &mut [u8]| {
                if left == 0 {
                    return 0;
                }
                left -= 1;
                slice.copy_from_slice(payload);
                payload.len()
            };
            assert_eq!(io.transmit(&flow, payload.len(), &mut fill).unwrap().packets, 1);
            io.flush(Instant::now()).unwrap();
        }
        // Neighbour discovery of the kernels passes here too.
        let ours = |frame: &Vec<u8>| frame[..6] == FAR_MAC && frame.ends_with(payload);
        if let Some(frame) = wire.receive().filter(ours) {
            break frame;
        }
        let passed = redirect.counters().unwrap()[Counter::Taken];
        assert!(Instant::now() < deadline, "{passed} taken, {:?}", io.stats());
        std::thread::yield_now();
    };
    assert_eq!(&answer[12..12 + expected.len()], expected);
    let layout = parse_udp(&answer).unwrap();
    layout.verify_checksum(&answer).unwrap();
    assert_eq!((layout.vlan, layout.source), (vlan, SocketAddr::new(near, PORT)));
    assert_eq!((io.stats().rx_xsk_packets, io.stats().tx_xsk_packets), (1, 1));
}

#[test]
fn one_tag_is_read_and_written() {
    if is_privileged() {
        echo(&[VlanTag::customer(10)], NEAR[0], &[0x81, 0, 0, 10, 0x08, 0, 0x45]);
    }
}

#[test]
fn two_tags_are_read_and_written_with_ipv6_behind() {
    if is_privileged() {
        let expected = [0x88, 0xa8, 0, 20, 0x81, 0, 0, 30, 0x86, 0xdd, 0x60];
        echo(&[VlanTag::service(20), VlanTag::customer(30)], NEAR[2], &expected);
    }
}

#[test]
fn a_frame_without_tags_is_answered_without() {
    if is_privileged() {
        echo(&[], NEAR[0], &[0x08, 0, 0x45]);
    }
}
