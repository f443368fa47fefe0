//! AF_XDP sockets of the caller's network namespace, by sock_diag(7).
//!
//! Layouts are those of `linux/netlink.h`, `linux/sock_diag.h` and `linux/xdp_diag.h`.

use std::io;
use std::time::Duration;

use netlink_packet_core::NlasIterator;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Ring, Socket, Statistics};

/// Bytes of `struct nlmsghdr` and `struct xdp_diag_msg`.
const HEADER: usize = 16;
const MESSAGE: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST | NLM_F_DUMP`, `NLMSG_ERROR`, `NLMSG_DONE`, `AF_XDP`.
const BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const AF_XDP: u8 = 44;
/// `XDP_SHOW_INFO | XDP_SHOW_RING_CFG | XDP_SHOW_UMEM | XDP_SHOW_STATS`.
const SHOW: u32 = 0b10111;
/// `XDP_DIAG_*`.
const INFO: u16 = 1;
const RX_RING: u16 = 3;
const TX_RING: u16 = 4;
const UMEM: u16 = 5;
const FILL_RING: u16 = 6;
const COMPLETION_RING: u16 = 7;
const STATS: u16 = 9;
/// `XDP_DU_F_ZEROCOPY`.
const ZERO_COPY: u32 = 1;
/// Sockets listed at most.
const LIMIT: usize = 16_384;
/// The kernel answers within the call; this bounds a defect.
const PATIENCE: Duration = Duration::from_millis(500);

/// All of them, without their holders.
pub(super) fn sockets() -> io::Result<Vec<Socket>> {
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
    sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
    rustix::net::send(&fd, &request(), SendFlags::empty())?;
    let mut sockets = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let received =
            rustix::io::retry_on_intr(|| rustix::net::recv(&fd, &mut buffer[..], RecvFlags::empty()));
        let length = received?.0.min(buffer.len());
        if read(&buffer[..length], &mut sockets)? {
            return Ok(sockets);
        }
    }
}

fn request() -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message.extend([AF_XDP, 0, 0, 0]);
    message.extend(0u32.to_ne_bytes());
    message.extend(SHOW.to_ne_bytes());
    message.extend([0; 8]);
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    message
}

/// Takes the messages of one read; true once the last one has come.
fn read(mut bytes: &[u8], sockets: &mut Vec<Socket>) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (word(bytes, 0), half(bytes, 4)) {
        let length = (length as usize).max(HEADER);
        let Some(body) = bytes.get(HEADER..length) else { break };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        match kind {
            ERROR | DONE => match word(body, 0).map_or(0, |number| number as i32) {
                0 => return Ok(true),
                number => return Err(io::Error::from_raw_os_error(number.wrapping_neg())),
            },
            BY_FAMILY if sockets.len() < LIMIT => sockets.extend(socket(body)),
            _ => {}
        }
    }
    Ok(false)
}

fn socket(body: &[u8]) -> Option<Socket> {
    let mut socket = Socket {
        inode: word(body, 4)?.into(),
        own_namespace: true,
        interface: None,
        queue: 0,
        zero_copy: false,
        umem: None,
        rx: None,
        tx: None,
        fill: None,
        completion: None,
        statistics: Statistics::default(),
        holders: Vec::new(),
    };
    for attribute in NlasIterator::new(body.get(MESSAGE..)?).map_while(Result::ok) {
        let value = attribute.value();
        let ring = || {
            word(value, 0).filter(|entries| *entries > 0).map(|entries| Ring {
                entries,
                used: None,
                produced: None,
                consumed: None,
            })
        };
        match attribute.kind() {
            INFO => {
                socket.interface = word(value, 0).filter(|index| *index != 0);
                socket.queue = word(value, 4).unwrap_or(0);
            }
            RX_RING => socket.rx = ring(),
            TX_RING => socket.tx = ring(),
            FILL_RING => socket.fill = ring(),
            COMPLETION_RING => socket.completion = ring(),
            UMEM => {
                socket.umem = word(value, 8);
                socket.zero_copy = word(value, 32).is_some_and(|flags| flags & ZERO_COPY != 0);
            }
            STATS => socket.statistics = statistics(value).unwrap_or_default(),
            _ => {}
        }
    }
    Some(socket)
}

fn statistics(value: &[u8]) -> Option<Statistics> {
    let long = |index: usize| Some(u64::from_ne_bytes(value.get(index * 8..index * 8 + 8)?.try_into().ok()?));
    Some(Statistics {
        rx_dropped: long(0)?,
        rx_invalid_descriptors: long(1)?,
        rx_ring_full: long(2)?,
        fill_ring_empty: long(3)?,
        tx_invalid_descriptors: long(4)?,
        tx_ring_empty: long(5)?,
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    fn attribute(kind: u16, words: &[u32]) -> Vec<u8> {
        let mut attribute = ((4 + words.len() * 4) as u16).to_ne_bytes().to_vec();
        attribute.extend(kind.to_ne_bytes());
        attribute.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        attribute
    }

    #[test]
    fn answers_are_taken_apart() {
        let mut body = vec![AF_XDP, 3, 0, 0];
        body.extend(4711u32.to_ne_bytes());
        body.extend([0; 8]);
        body.extend(attribute(INFO, &[5, 2]));
        body.extend(attribute(RX_RING, &[2048]));
        body.extend(attribute(UMEM, &[0, 1, 9, 256, 4096, 0, 5, 2, ZERO_COPY, 1]));
        body.extend(attribute(STATS, &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]));
        let bytes = [message(BY_FAMILY, &body), message(DONE, &[0; 4])].concat();
        let mut sockets = Vec::new();
        assert!(read(&bytes, &mut sockets).unwrap());
        let [socket] = &sockets[..] else { panic!("{sockets:?}") };
        assert_eq!((socket.inode, socket.interface, socket.queue), (4711, Some(5), 2));
        assert_eq!((socket.umem, socket.zero_copy), (Some(9), true));
        assert_eq!(
            (socket.rx, socket.tx),
            (Some(Ring { entries: 2048, used: None, produced: None, consumed: None }), None)
        );
        assert_eq!((socket.statistics.rx_ring_full, socket.statistics.tx_ring_empty), (3, 6));
    }

    #[test]
    fn errors_and_cut_answers_are_told_from_ends() {
        let mut sockets = Vec::new();
        let refused = message(ERROR, &(-2i32).to_ne_bytes());
        assert_eq!(read(&refused, &mut sockets).unwrap_err().raw_os_error(), Some(2));
        assert!(!read(&message(BY_FAMILY, &[AF_XDP]), &mut sockets).unwrap());
        assert!(!read(&refused[..HEADER + 2], &mut sockets).unwrap());
        assert!(sockets.is_empty());
    }
}
