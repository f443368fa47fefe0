//! Making and binding the sockets of a group.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::config::{SendMode, SendOptions, Steering, UdpConfig};
use super::{control, sys};
use crate::io::IoError;
use crate::wait;

/// `IP_PMTUDISC_PROBE` and its IPv6 twin: set DF, and leave the size to the sender instead of to ICMP
/// messages that anybody can forge (`linux/in.h`).
const PMTUDISC_PROBE: i32 = 3;
/// `IP_PMTUDISC_DONT`: fragment as needed.
const PMTUDISC_DONT: i32 = 0;

/// One bound socket.
pub(super) struct UdpSocket {
    pub(super) fd: OwnedFd,
    /// The address it is bound to, with the actual port.
    pub(super) bound: SocketAddr,
    /// Whether `UDP_GRO` is on.
    pub(super) gro: bool,
    /// Whether GSO may be used.
    pub(super) gso: bool,
}

impl UdpSocket {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether replies from `local` leave by this socket.
    pub(super) fn serves(&self, local: &SocketAddr) -> bool {
        self.bound.port() == local.port()
            && self.bound.is_ipv4() == local.is_ipv4()
            && (self.bound.ip() == local.ip() || self.bound.ip().is_unspecified())
    }
}

impl UdpSocket {
    pub(super) fn set_sending(&self, options: &SendOptions) -> Result<(), IoError> {
        let set = |level, name, value, call| {
            crate::sys::set_option(self.fd(), level, name, value).map_err(fault(self.bound, call))
        };
        let is_ipv4 = self.bound.is_ipv4();
        if let Some(ttl) = options.ttl.map(i32::from) {
            if is_ipv4 {
                set(libc::IPPROTO_IP, libc::IP_TTL, ttl, "IP_TTL")?;
                set(libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, ttl, "IP_MULTICAST_TTL")?;
            } else {
                set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl, "IPV6_UNICAST_HOPS")?;
                set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, ttl, "IPV6_MULTICAST_HOPS")?;
            }
        }
        if let Some(index) = options.multicast_interface {
            if is_ipv4 {
                sys::set_multicast_interface(self.fd(), index)
                    .map_err(fault(self.bound, "IP_MULTICAST_IF"))?;
            } else {
                set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index as i32, "IPV6_MULTICAST_IF")?;
            }
        }
        if options.fragment {
            if is_ipv4 {
                set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_DONT, "IP_MTU_DISCOVER")?;
            } else {
                set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_DONT, "IPV6_MTU_DISCOVER")?;
                set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0, "IPV6_DONTFRAG")?;
            }
        }
        Ok(())
    }
}

/// The sockets of one worker, one a listen address, in the order of the configuration.
pub struct UdpSockets {
    pub(super) sockets: Vec<UdpSocket>,
    pub(super) worker: usize,
}

impl UdpSockets {
    /// The bound addresses with their actual ports, in the order of the configuration.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().map(|socket| socket.bound)
    }

    /// The descriptors, in the order of the configuration.
    pub fn into_fds(self) -> Vec<OwnedFd> {
        self.sockets.into_iter().map(|socket| socket.fd).collect()
    }

    /// The same sockets once more, for who passes them to another process.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn duplicate(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.iter().map(|socket| socket.fd.try_clone()).collect()
    }

    /// The index of the worker that they belong to.
    pub fn worker(&self) -> usize {
        self.worker
    }
}

/// The sockets of all workers.
///
/// The kernel numbers the sockets of a SO_REUSEPORT group in the order in which they were bound
/// (`__reuseport_add_sock` in `net/core/sock_reuseport.c`), and moves the last into the place of one that
/// is closed. So all are made here, in the order of workers, and should live equally long.
pub struct UdpGroup {
    workers: Vec<UdpSockets>,
}

impl UdpGroup {
    /// Makes and binds `workers` sockets for each listen address, in the network namespace of the calling
    /// thread. Port 0 takes a free port, the same for all workers.
    ///
    /// # Errors
    /// An invalid configuration, an address in use or not of this machine, a port that needs privilege.
    pub fn bind(config: &UdpConfig, workers: usize) -> Result<Self, IoError> {
        config.validate(workers)?;
        let mut group: Vec<_> =
            (0..workers).map(|worker| UdpSockets { sockets: Vec::new(), worker }).collect();
        for listen in &config.listen {
            let mut address = *listen;
            let shared = workers > 1 || !config.exclusive;
            // A socket outside any group can be bound only while nobody else holds the address. Then it founds the
            // group (`reuseport_add_sock` in net/core/sock_reuseport.c takes it in with the next one).
            let mut founder = None;
            if config.exclusive && shared && address.port() != 0 {
                let socket = open(config, address, false)?;
                sockopt::set_socket_reuseport(&socket.fd, true)
                    .map_err(|errno| fault(address, "SO_REUSEPORT")(errno.into()))?;
                founder = Some(socket);
            }
            for member in &mut group {
                let socket = founder.take().map_or_else(|| open(config, address, shared), Ok)?;
                address = socket.bound;
                member.sockets.push(socket);
            }
            if let (true, Steering::ByteAt { offset, clear_mask }) = (workers > 1, config.steering) {
                let first = &group[0].sockets[group[0].sockets.len() - 1];
                sys::attach_selector(first.fd(), &selector(offset, clear_mask))
                    .map_err(fault(address, "SO_ATTACH_REUSEPORT_CBPF"))?;
            }
        }
        Ok(Self { workers: group })
    }

    /// Takes sockets that [`UdpGroup::bind`] made in another process from the same configuration: by worker,
    /// in the order of the listen addresses.
    ///
    /// # Errors
    /// An invalid configuration; a descriptor that is no UDP socket, or is bound to another address; another
    /// number of sockets than of addresses.
    pub fn adopt(config: &UdpConfig, workers: Vec<Vec<OwnedFd>>) -> Result<Self, IoError> {
        config.validate(workers.len())?;
        let adopt = |(fd, listen): (OwnedFd, &SocketAddr)| {
            let bound = rustix::net::getsockname(&fd)
                .and_then(SocketAddr::try_from)
                .map_err(|errno| fault(*listen, "getsockname")(errno.into()))?;
            let is_ours = bound.ip() == listen.ip() && (bound.port() == listen.port() || listen.port() == 0);
            if !is_ours {
                let source = io::Error::from(io::ErrorKind::AddrNotAvailable);
                return Err(fault(*listen, "the given socket is bound to another address")(source));
            }
            let gro = config.gro
                && crate::sys::option(fd.as_fd(), libc::SOL_UDP, control::UDP_GRO).is_ok_and(|on| on != 0);
            Ok(UdpSocket { fd, bound, gro, gso: config.send == SendMode::Gso })
        };
        let mut group = Vec::new();
        for (worker, fds) in workers.into_iter().enumerate() {
            if fds.len() != config.listen.len() {
                let what = format!("udp: got {} sockets for {} addresses", fds.len(), config.listen.len());
                return Err(IoError::Socket { what, source: io::ErrorKind::InvalidInput.into() });
            }
            let sockets = fds.into_iter().zip(&config.listen).map(adopt).collect::<Result<_, _>>()?;
            group.push(UdpSockets { sockets, worker });
        }
        Ok(Self { workers: group })
    }

    /// The sockets of each worker, by index.
    pub fn into_workers(self) -> Vec<UdpSockets> {
        self.workers
    }
}

fn fault(address: SocketAddr, call: &'static str) -> impl Fn(io::Error) -> IoError {
    move |source| IoError::Socket { what: format!("udp {address}: {call}"), source }
}

fn open(config: &UdpConfig, address: SocketAddr, shared: bool) -> Result<UdpSocket, IoError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))
        .map_err(|errno| fault(address, "socket")(errno.into()))?;
    let gro = prepare(fd.as_fd(), config, &address, shared)?;
    rustix::net::bind(&fd, &address).map_err(|errno| fault(address, "bind")(errno.into()))?;
    let bound = rustix::net::getsockname(&fd)
        .and_then(SocketAddr::try_from)
        .map_err(|errno| fault(address, "getsockname")(errno.into()))?;
    wait::prepare_socket(fd.as_fd(), config.wait, true, &format!("udp {bound}"))?;
    Ok(UdpSocket { fd, bound, gro, gso: config.send == SendMode::Gso })
}

/// Sets every option before bind, so that no datagram arrives at a half-made socket. Returns whether GRO
/// was obtained.
fn prepare(
    fd: BorrowedFd<'_>,
    config: &UdpConfig,
    address: &SocketAddr,
    shared: bool,
) -> Result<bool, IoError> {
    let set = |level, name, value, call| {
        crate::sys::set_option(fd, level, name, value).map_err(fault(*address, call))
    };
    let wildcard = address.ip().is_unspecified();
    if shared {
        sockopt::set_socket_reuseport(fd, true)
            .map_err(|errno| fault(*address, "SO_REUSEPORT")(errno.into()))?;
    }
    if address.ip().is_multicast() {
        // Each socket of a group gets its own copy (`__udp4_lib_mcast_deliver` in net/ipv4/udp.c).
        sockopt::set_socket_reuseaddr(fd, true)
            .map_err(|errno| fault(*address, "SO_REUSEADDR")(errno.into()))?;
    }
    if config.freebind {
        set(libc::IPPROTO_IP, libc::IP_FREEBIND, 1, "IP_FREEBIND")?;
    }
    match address.ip() {
        IpAddr::V4(_) => {
            set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1, "IP_RECVTOS")?;
            set(libc::IPPROTO_IP, libc::IP_RECVERR, 1, "IP_RECVERR")?;
            set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_PROBE, "IP_MTU_DISCOVER")?;
            if wildcard {
                set(libc::IPPROTO_IP, libc::IP_PKTINFO, 1, "IP_PKTINFO")?;
            }
        }
        IpAddr::V6(ip) => {
            set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1, "IPV6_V6ONLY")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1, "IPV6_RECVERR")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_PROBE, "IPV6_MTU_DISCOVER")?;
            set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1, "IPV6_DONTFRAG")?;
            if wildcard || ip.is_unicast_link_local() {
                set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1, "IPV6_RECVPKTINFO")?;
            }
        }
    }
    size_buffers(fd, config, address)?;
    Ok(config.gro && enable_gro(fd, address))
}

/// GRO is an optimisation: a kernel without it (before 5.0) serves as well, only dearer.
fn enable_gro(fd: BorrowedFd<'_>, address: &SocketAddr) -> bool {
    let result = crate::sys::set_option(fd, libc::SOL_UDP, control::UDP_GRO, 1);
    if let Err(error) = &result {
        tracing::warn!(%address, %error, "UDP_GRO is not available: receiving one datagram at a time");
    }
    result.is_ok()
}

fn size_buffers(fd: BorrowedFd<'_>, config: &UdpConfig, address: &SocketAddr) -> Result<(), IoError> {
    let wanted = [
        ("SO_RCVBUF", libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, config.socket_receive_buffer),
        ("SO_SNDBUF", libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, config.socket_send_buffer),
    ];
    for (name, plain, force, bytes) in wanted {
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        if crate::sys::set_option(fd, libc::SOL_SOCKET, force, value).is_err() {
            crate::sys::set_option(fd, libc::SOL_SOCKET, plain, value).map_err(fault(*address, name))?;
        }
        // The kernel doubles the value for its bookkeeping (socket(7)).
        let obtained =
            crate::sys::option(fd, libc::SOL_SOCKET, plain).map_err(fault(*address, name))? as usize / 2;
        if obtained < bytes {
            tracing::warn!(
                %address, option = name, wanted = bytes, obtained,
                "socket buffer is smaller than configured: raise net.core.rmem_max and wmem_max, or grant CAP_NET_ADMIN"
            );
        }
    }
    Ok(())
}

/// The selector of [`Steering::ByteAt`], in classic BPF. It sees the UDP payload (`run_bpf_filter` in
/// `net/core/sock_reuseport.c`); a result that is no index of the group makes the kernel use its hash.
fn selector(offset: u16, clear_mask: u8) -> [libc::sock_filter; 7] {
    const LOAD_LENGTH: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const JUMP_GREATER: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    const JUMP_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    [
        // A load beyond the payload would end the program with 0, which is worker 0: look first.
        op(LOAD_LENGTH, 0, 0, 0),
        op(JUMP_GREATER, 0, 4, u32::from(offset)),
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_SET, 2, 0, u32::from(clear_mask)),
        op(LOAD_BYTE, 0, 0, u32::from(offset)),
        op(RETURN_A, 0, 0, 0),
        op(RETURN, 0, 0, u32::MAX),
    ]
}
