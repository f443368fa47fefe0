//! Datagrams on their way from the newest process to an older one that has their connections: a SOCK_SEQPACKET socketpair, one message a
//! datagram, bounded by the socket's buffer. What does not fit is dropped and counted, and QUIC sends it again.
//!
//! ```text
//!   0        1          ip   +2       +4 (IPv6)
//!   ├ 4 or 6 ┼ local IP ─┼ port ┼ scope ┼ remote IP ┼ port ┼ scope ┼ payload ─┤    network byte order
//! ```
//!
//! ECN is not carried, because the QUIC engine does not ask for it. The older process sends by the kernel sockets that both have.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use expressway_gateway::quic::{Forward, Forwarded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, socketpair, sockopt,
};

/// Octets that may wait: some milliseconds of a busy server's acknowledgements. Without privilege the kernel allows less
/// (`net.core.wmem_max`).
const BUFFER: usize = 4 << 20;

/// The longest header and the longest UDP payload.
const MAX_HEADER: usize = 1 + 2 * 22;
const MAX_MESSAGE: usize = MAX_HEADER + 65_535;

/// What a forwarder has done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) dropped: AtomicU64,
    is_gone: AtomicBool,
}

/// The newer process's end. Clones of the descriptor are the same socket.
pub(crate) struct Sender {
    socket: OwnedFd,
    counts: Arc<Counts>,
}

/// Both ends.
pub(crate) fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (sender, receiver) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    if sockopt::set_socket_send_buffer_size_force(&sender, BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(&sender, BUFFER)?;
    }
    Ok((sender, receiver))
}

/// Whether nobody reads at the other end any more.
pub(crate) fn is_closed(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&at_once)), Ok(1..))
        && fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

impl Counts {
    /// The process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Looks whether it has, where nothing was sent lately.
    pub(crate) fn follow(&self, socket: &OwnedFd) {
        if !self.is_gone() && is_closed(socket) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
    }
}

impl Sender {
    pub(crate) fn new(socket: OwnedFd, counts: Arc<Counts>) -> Self {
        Self { socket, counts }
    }
}

impl Forward for Sender {
    fn forward(&self, local: SocketAddr, remote: SocketAddr, payload: &[u8]) -> Forwarded {
        if self.counts.is_gone() {
            return Forwarded::Gone;
        }
        let mut header = [0; MAX_HEADER];
        let length = write_header(&mut header, local, remote);
        let parts = [IoSlice::new(&header[..length]), IoSlice::new(payload)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(&self.socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(_) => {
                self.counts.sent.fetch_add(1, Ordering::Relaxed);
                Forwarded::Sent
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::CONNREFUSED) => {
                self.counts.is_gone.store(true, Ordering::Relaxed);
                Forwarded::Gone
            }
            // A full buffer, no memory, an interruption.
            Err(_) => {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                Forwarded::Full
            }
        }
    }
}

fn write_header(out: &mut [u8; MAX_HEADER], local: SocketAddr, remote: SocketAddr) -> usize {
    out[0] = if local.is_ipv4() { 4 } else { 6 };
    let mut end = 1;
    let mut put = |octets: &[u8]| {
        out[end..end + octets.len()].copy_from_slice(octets);
        end += octets.len();
    };
    for address in [local, remote] {
        match address {
            SocketAddr::V4(address) => {
                put(&address.ip().octets());
                put(&address.port().to_be_bytes());
            }
            SocketAddr::V6(address) => {
                put(&address.ip().octets());
                put(&address.port().to_be_bytes());
                put(&address.scope_id().to_be_bytes());
            }
        }
    }
    end
}

/// Local and remote address, and what is behind; none of what is no such message.
fn parse(message: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let (family, rest) = message.split_first()?;
    let (local, rest) = address(*family, rest)?;
    let (remote, payload) = address(*family, rest)?;
    Some((local, remote, payload))
}

fn address(family: u8, octets: &[u8]) -> Option<(SocketAddr, &[u8])> {
    match family {
        4 => {
            let (ip, rest) = octets.split_first_chunk::<4>()?;
            let (port, rest) = rest.split_first_chunk()?;
            Some((SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*ip)), u16::from_be_bytes(*port)), rest))
        }
        6 => {
            let (ip, rest) = octets.split_first_chunk::<16>()?;
            let (port, rest) = rest.split_first_chunk()?;
            let (scope, rest) = rest.split_first_chunk()?;
            let scope = u32::from_be_bytes(*scope);
            let address = SocketAddrV6::new(Ipv6Addr::from(*ip), u16::from_be_bytes(*port), 0, scope);
            Some((address.into(), rest))
        }
        _ => None,
    }
}

/// Reads at the older process's end, and gives `take` each datagram with its addresses, ours first, until no newer process has the other end.
pub(crate) fn receive(socket: &OwnedFd, mut take: impl FnMut((SocketAddr, SocketAddr), &[u8])) {
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        match rustix::net::recv(socket, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((0, _)) => return,
            Ok((length, _)) => {
                if let Some((local, remote, payload)) = parse(&buffer[..length.min(MAX_MESSAGE)]) {
                    take((local, remote), payload);
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::debug!(%error, "datagrams of the newer process");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> (SocketAddr, SocketAddr) {
        let (local, remote) = text.split_once(' ').unwrap();
        (local.parse().unwrap(), remote.parse().unwrap())
    }

    #[test]
    fn datagrams_arrive_with_their_addresses_until_the_newer_process_is_gone() {
        let (ours, theirs) = pair().unwrap();
        let counts = Arc::new(Counts::default());
        let sender = Sender::new(ours, Arc::clone(&counts));
        let sent = [
            (path("192.0.2.1:443 198.51.100.9:40000"), b"one".to_vec()),
            (path("[fe80::1%3]:443 [fe80::2%3]:1"), vec![7; 1400]),
            (path("[2001:db8::1]:443 [2001:db8::2]:65535"), Vec::new()),
        ];
        for ((local, remote), payload) in &sent {
            assert_eq!(sender.forward(*local, *remote, payload), Forwarded::Sent);
        }
        drop(sender);
        let mut received = Vec::new();
        receive(&theirs, |path, payload| received.push((path, payload.to_vec())));
        assert_eq!(received, sent);
        assert_eq!(counts.sent.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_process_that_is_behind_costs_datagrams_and_one_that_is_gone_is_noticed() {
        let (ours, theirs) = pair().unwrap();
        let counts = Arc::new(Counts::default());
        let sender = Sender::new(ours, Arc::clone(&counts));
        let (local, remote) = path("192.0.2.1:443 198.51.100.9:40000");
        let mut sent = 0;
        while sender.forward(local, remote, &[0; 1200]) == Forwarded::Sent {
            sent += 1;
            assert!(sent < 100_000, "the buffer has no bound");
        }
        assert!(sent > 10, "{sent}");
        assert_eq!(counts.dropped.load(Ordering::Relaxed), 1);
        assert!(!is_closed(&sender.socket));
        drop(theirs);
        assert!(is_closed(&sender.socket));
        assert_eq!(sender.forward(local, remote, b"x"), Forwarded::Gone);
        assert!(counts.is_gone());
    }

    #[test]
    fn what_is_cut_or_of_no_family_is_no_datagram() {
        let (local, remote) = path("[fe80::1%3]:443 [fe80::2%3]:1");
        let mut header = [0; MAX_HEADER];
        let length = write_header(&mut header, local, remote);
        assert_eq!(length, MAX_HEADER);
        assert!((0..length).all(|end| parse(&header[..end]).is_none()));
        assert_eq!(parse(&header), Some((local, remote, &[][..])));
        header[0] = 5;
        assert_eq!(parse(&header), None);
    }
}
