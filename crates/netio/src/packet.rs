//! Packet sockets (`packet(7)`) for packets that are not the service's traffic: probe frames, and the measurement of
//! the cost of sending through the kernel.

#![allow(unsafe_code)] // AF_PACKET addresses and their options have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};

/// Ethernet type of the probe frame: local experiments (IEEE 802, `ETH_P_802_EX1`).
pub const PROBE_TYPE: u16 = 0x88b5;
/// Shortest frame on a wire, without its check sequence.
const SHORTEST: usize = 60;
/// What a probe frame begins with behind its header.
const MARK: &[u8] = b"expressway probe ";

/// `PACKET_VNET_HDR` (`linux/if_packet.h`).
const PACKET_VNET_HDR: libc::c_int = 15;
/// `PACKET_ADD_MEMBERSHIP`, `PACKET_MR_PROMISC` (`linux/if_packet.h`).
const PACKET_ADD_MEMBERSHIP: libc::c_int = 1;
const PACKET_MR_PROMISC: libc::c_ushort = 1;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`, `VIRTIO_NET_HDR_GSO_UDP_L4` (`linux/virtio_net.h`).
const NEEDS_CHECKSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;
/// Bytes of `struct virtio_net_hdr`.
const VNET_HEADER: usize = 10;
/// Bytes of Ethernet, IPv4 and UDP header.
pub(crate) const HEADERS: usize = 42;
/// How long one send may wait for room.
const SEND_PATIENCE: Duration = Duration::from_millis(50);

/// A probe frame: from an interface's own address to itself, so that no switch passes it on. `nonce` tells it from
/// others.
pub(crate) fn probe_frame(mac: MacAddr, nonce: u64) -> [u8; SHORTEST] {
    let mut frame = [0; SHORTEST];
    frame[..6].copy_from_slice(&mac.0);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..14].copy_from_slice(&PROBE_TYPE.to_be_bytes());
    frame[14..14 + MARK.len()].copy_from_slice(MARK);
    frame[14 + MARK.len()..][..8].copy_from_slice(&nonce.to_be_bytes());
    frame
}

/// Headers of the frames that a calibration sends: UDP from an interface's own hardware address to itself, between
/// documentation addresses (RFC 5737), to the discard port.
pub(crate) fn calibration_headers(mac: MacAddr) -> UdpHeaders {
    let source = ([192, 0, 2, 1], 9).into();
    UdpHeaders::new(mac, mac, source, ([192, 0, 2, 2], 9).into())
}

/// Sees the probe frames that arrive at an interface: the other end of a link, where that is this machine's too.
#[derive(Debug)]
pub struct ProbeListener {
    fd: OwnedFd,
}

impl ProbeListener {
    /// Listens on an interface of the calling thread's network namespace, to frames for any station. Takes
    /// CAP_NET_RAW.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let fd = socket(PROBE_TYPE)?;
        bind(&fd, ifindex, PROBE_TYPE)?;
        // SAFETY: `packet_mreq` is a plain C structure: all zeroes are valid.
        let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
        request.mr_ifindex = index(ifindex)?;
        request.mr_type = PACKET_MR_PROMISC;
        set_option(&fd, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request)?;
        Ok(Self { fd })
    }

    /// Waits until the probe frame of that nonce has arrived; false when it has not by then.
    pub(crate) fn wait(&self, nonce: u64, deadline: Instant) -> bool {
        let wanted = &probe_frame(MacAddr([0; 6]), nonce)[12..];
        let mut buffer = [0; SHORTEST];
        loop {
            // SAFETY: the buffer is as long as said.
            let length = unsafe {
                libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
            };
            if length == SHORTEST as isize && buffer[12..] == *wanted {
                return true;
            }
            if length < 0 {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Sends calibration datagrams as the kernel's UDP path does below IP: through the queueing discipline, in GSO
/// messages or one by one.
#[derive(Debug)]
pub(crate) struct KernelSender {
    fd: OwnedFd,
    message: Vec<u8>,
    /// Datagrams in one message.
    pub(crate) datagrams: usize,
}

impl KernelSender {
    /// Messages of `datagrams` datagrams of `payload` bytes each; more than one takes Linux 6.2.
    pub(crate) fn open(ifindex: u32, mac: MacAddr, payload: usize, datagrams: usize) -> io::Result<Self> {
        let fd = socket(0)?;
        set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)?;
        let patience = libc::timeval { tv_sec: 0, tv_usec: SEND_PATIENCE.as_micros() as libc::suseconds_t };
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience)?;
        bind(&fd, ifindex, 0)?;
        let mut message = vec![0; VNET_HEADER + HEADERS + payload * datagrams];
        let mode = if datagrams > 1 { ChecksumMode::PseudoOnly } else { ChecksumMode::Full };
        calibration_headers(mac)
            .write(&mut message[VNET_HEADER..], payload * datagrams, mode, 0)
            .map_err(io::Error::other)?;
        if datagrams > 1 {
            // `struct virtio_net_hdr`: flags, type, header length, size of a segment, where the checksum begins
            // and lies. In host byte order, as virtio's legacy form has it.
            message[0] = NEEDS_CHECKSUM;
            message[1] = GSO_UDP_L4;
            for (at, value) in [(2, HEADERS), (4, payload), (6, 34), (8, 6)] {
                message[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
            }
        }
        Ok(Self { fd, message, datagrams })
    }

    /// Sends one message.
    pub(crate) fn send(&self) -> io::Result<()> {
        let (data, length) = (self.message.as_ptr().cast(), self.message.len());
        // SAFETY: the message is as long as said.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), data, length, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn socket(protocol: u16) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain integers; the result is checked below.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, libc::c_int::from(protocol.to_be())) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(fd: &OwnedFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is a plain C structure: all zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index(ifindex)?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: an address of AF_PACKET, as long as said.
    let result =
        unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast::<libc::sockaddr>(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_option<T: Copy>(fd: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is as long as said, and the kernel copies it during the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn index(ifindex: u32) -> io::Result<libc::c_int> {
    libc::c_int::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_probe_frame_goes_to_its_own_sender() {
        let frame = probe_frame(MacAddr([2, 0, 0, 0, 0, 9]), 7);
        assert_eq!(frame[..6], frame[6..12]);
        assert_eq!(frame[12..14], [0x88, 0xb5]);
        assert!(frame[14..].starts_with(b"expressway probe \0\0\0\0\0\0\0\x07"));
    }
}
