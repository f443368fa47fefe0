//! The peer of the beds with real packets: plain sockets, and frames made by hand.
#![allow(unsafe_code)] // Control messages and packet sockets need libc.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use expressway_netio::Ecn;
use rustix::net::sockopt;

use super::bed::{Pause, Seen};

/// A UDP socket that tells the ECN bits of what it receives.
pub struct Peer {
    socket: UdpSocket,
    local: SocketAddr,
}

impl Peer {
    /// Bound to `local`, in the namespace of the calling thread.
    pub fn bind(local: SocketAddr) -> Self {
        let socket = UdpSocket::bind(local).expect("the peer's address is free");
        socket.set_nonblocking(true).expect("a socket can be non-blocking");
        // More than any check sends in one go, a page a packet where the driver takes that much.
        sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).expect("root may");
        if local.is_ipv4() {
            sockopt::set_ip_recvtos(&socket, true).expect("an option of IPv4 sockets");
        } else {
            sockopt::set_ipv6_recvtclass(&socket, true).expect("an option of IPv6 sockets");
        }
        Self { socket, local }
    }

    /// Sends one datagram marked `ecn`.
    pub fn send(&self, to: SocketAddr, ecn: Ecn, payload: &[u8]) {
        if to.is_ipv4() {
            sockopt::set_ip_tos(&self.socket, ecn as u8).expect("an option of IPv4 sockets");
        } else {
            sockopt::set_ipv6_tclass(&self.socket, u32::from(ecn as u8)).expect("an option of IPv6 sockets");
        }
        let mut pause = Pause::new("the peer can send");
        loop {
            match self.socket.send_to(payload, to) {
                Ok(sent) => return assert_eq!(sent, payload.len()),
                // A full buffer while the neighbour is unresolved, or the ICMP error of something before.
                Err(error) => pause.wait_noting(&error.to_string()),
            }
        }
    }

    /// Takes one datagram, if one has come.
    pub fn receive(&self) -> Option<Seen> {
        let mut payload = vec![0u8; 65_536];
        let mut control = [0u64; 16];
        // SAFETY: all zero is a valid value of these structs of integers and null pointers.
        let (mut address, mut message): (libc::sockaddr_storage, libc::msghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut vector = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: `message` points to live buffers of the lengths that it names.
        let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, 0) };
        if len < 0 {
            // Nothing there, or the ICMP error of a datagram sent before the other side was up.
            return None;
        }
        payload.truncate(len as usize);
        // SAFETY: the kernel has filled in `message`, and its control buffer lives.
        let ecn = unsafe { traffic_class(&message) } & 0b11;
        Some(Seen { payload, remote: decode(&address), local: self.local, ecn })
    }
}

/// The TOS or traffic-class byte among the control messages.
///
/// # Safety
///
/// `message` was filled in by a successful `recvmsg` and its control buffer is alive.
unsafe fn traffic_class(message: &libc::msghdr) -> u8 {
    // SAFETY: by the contract above the macros walk headers that the kernel wrote.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => return *libc::CMSG_DATA(header),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    return libc::CMSG_DATA(header).cast::<i32>().read_unaligned() as u8;
                }
                _ => header = libc::CMSG_NXTHDR(message, header),
            }
        }
    }
    panic!("a datagram without its traffic class");
}

fn decode(address: &libc::sockaddr_storage) -> SocketAddr {
    let start: *const libc::sockaddr_storage = address;
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is large and aligned enough for each family, and this is its family.
            let address = unsafe { &*start.cast::<libc::sockaddr_in>() };
            let ip = IpAddr::from(address.sin_addr.s_addr.to_ne_bytes());
            SocketAddr::new(ip, u16::from_be(address.sin_port))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*start.cast::<libc::sockaddr_in6>() };
            SocketAddr::new(IpAddr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port))
        }
        family => panic!("a datagram from address family {family}"),
    }
}

/// Puts raw frames on a device.
pub struct Injector {
    socket: OwnedFd,
    ifindex: i32,
}

impl Injector {
    /// On `device`, in the namespace of the calling thread.
    pub fn open(device: &str) -> Self {
        // SAFETY: plain system call; the descriptor is checked and owned below.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0, "root may open packet sockets: {}", std::io::Error::last_os_error());
        // SAFETY: just opened, and owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let ifindex = rustix::net::netdevice::name_to_index(&socket, device).expect("the device is there");
        Self { socket, ifindex: ifindex as i32 }
    }

    /// Sends `frame` as it is, at least an Ethernet header.
    pub fn send(&self, frame: &[u8]) {
        // SAFETY: all zero is a valid value of this struct of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = self.ifindex;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: frame and address live and have the lengths given.
        let sent = unsafe {
            let to = (&raw const address).cast();
            libc::sendto(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, to, len)
        };
        assert_eq!(sent, frame.len() as isize, "the frame leaves: {}", std::io::Error::last_os_error());
    }
}

/// An Ethernet frame with an IPv4 UDP datagram; its checksums are right.
pub fn frame(macs: ([u8; 6], [u8; 6]), from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(target)) = (from.ip(), to.ip()) else { panic!("IPv4 only") };
    let udp_len = (8 + payload.len()) as u16;
    let mut udp = Vec::new();
    udp.extend(from.port().to_be_bytes());
    udp.extend(to.port().to_be_bytes());
    udp.extend(udp_len.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let mut pseudo = [source.octets(), target.octets()].concat();
    pseudo.extend([0, 17]);
    pseudo.extend(udp_len.to_be_bytes());
    pseudo.extend(&udp);
    udp[6..8].copy_from_slice(&internet_checksum(&pseudo).to_be_bytes());

    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(source.octets());
    ip.extend(target.octets());
    let sum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&macs.0[..], &macs.1, &[8, 0], &ip, &udp].concat()
}

fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}
