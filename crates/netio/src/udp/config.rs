//! Configuration of the kernel UDP backend.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::io::IoError;
use crate::wait::Wait;

/// The largest UDP payload over IPv4: 65,535 less 20 bytes of IP and 8 of UDP header. Used for IPv6 too.
pub const MAX_PAYLOAD: usize = 65_507;

/// How datagrams are handed to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SendMode {
    /// UDP generic segmentation offload (`UDP_SEGMENT`): a burst to one destination is one message of up
    /// to 64 segments, and all messages of a turn go in one `sendmmsg`.
    #[default]
    Gso,
    /// One datagram a message, all messages of a turn in one `sendmmsg`.
    Sendmmsg,
    /// One datagram a system call: the baseline that others are measured against.
    Sendmsg,
}

/// How sockets send, beyond the defaults that services want. Needs no privilege.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// TTL or hop limit, also of multicast; `None`: the system's, and 1 for multicast.
    pub ttl: Option<u8>,
    /// Interface (index) that multicast leaves by; `None`: that of the route to the group.
    pub multicast_interface: Option<u32>,
    /// Let the kernel fragment datagrams above the MTU instead of refusing them. GSO does not go with it.
    pub fragment: bool,
}

/// How the kernel chooses the worker's socket for a datagram.
///
/// A selector is asked first; where it names no socket of the group, the kernel falls back to its hash of
/// the addresses and ports (`reuseport_select_sock` in `net/core/sock_reuseport.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Steering {
    /// The kernel's hash of addresses and ports alone.
    #[default]
    Hash,
    /// The worker's number stands in the payload.
    ByteAt {
        /// Offset in the payload of the byte that is the worker's number.
        offset: u16,
        /// Only payloads whose first byte has none of these bits set are steered; the hash takes the rest.
        /// 0x80 leaves QUIC's long headers to the hash (RFC 9000, section 17.2).
        clear_mask: u8,
    },
}

/// What the kernel UDP backend is to do, and the memory it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Addresses to receive on, wildcards allowed. An IPv6 address takes IPv6 only: `[::]:443` and
    /// `0.0.0.0:443` are two entries.
    pub listen: Vec<SocketAddr>,
    /// How to send.
    pub send: SendMode,
    /// Receive with `UDP_GRO`: fewer system calls a datagram, at 64 KiB for each receive buffer.
    pub gro: bool,
    /// How the kernel chooses among the workers' sockets.
    pub steering: Steering,
    /// Messages taken by one `recvmmsg` at most, 1 to 256. A worker holds this many receive buffers.
    pub receive_batch: usize,
    /// Bytes of one receive buffer without GRO; a larger datagram is dropped and counted.
    pub receive_buffer: usize,
    /// Bytes of one worker's transmit memory, at least 64 KiB: what can be built between two flushes.
    pub transmit_memory: usize,
    /// Bytes asked for `SO_RCVBUF` of each socket (forced with CAP_NET_ADMIN, else up to `rmem_max`).
    pub socket_receive_buffer: usize,
    /// Bytes asked for `SO_SNDBUF` of each socket (forced with CAP_NET_ADMIN, else up to `wmem_max`).
    pub socket_send_buffer: usize,
    /// Upper bound of what [`crate::PacketIo::max_payload`] answers, in bytes.
    pub max_payload: usize,
    /// How long datagrams wait for room in a full socket buffer before they are dropped and counted.
    pub send_patience: Duration,
    /// Refuse to start when another process has a socket on a listen address. Joining its SO_REUSEPORT
    /// group would shift the worker numbers that [`Steering::ByteAt`] relies on.
    pub exclusive: bool,
    /// Bind addresses that the machine does not have yet (`IP_FREEBIND`).
    pub freebind: bool,
    /// Have what is received stamped (`SO_TIMESTAMPING`), by the device if somebody has told it to stamp what
    /// comes (`SIOCSHWTSTAMP`), by the kernel's stack else: [`crate::Hints::timestamp`]. With GRO the datagrams of
    /// a message share the stamp of the first, so whoever wants each one's own receives without.
    pub timestamps: bool,
    /// Let [`Self::listen`] name multicast groups. Whoever binds one joins it on the socket, and sends nothing
    /// from it. Other sockets may be bound to the group too.
    pub groups: bool,
    /// How the workers will wait, so that whoever binds the sockets prepares them: busy polling takes privilege.
    pub wait: Wait,
}

impl UdpConfig {
    /// The defaults for `listen`: GSO and GRO, 16 receive buffers (1 MiB) and 1 MiB of transmit memory a
    /// worker, 4 MiB and 2 MiB of socket buffers.
    pub fn new(listen: Vec<SocketAddr>) -> Self {
        Self {
            listen,
            send: SendMode::Gso,
            gro: true,
            steering: Steering::Hash,
            receive_batch: 16,
            receive_buffer: 2048,
            transmit_memory: 1 << 20,
            socket_receive_buffer: 4 << 20,
            socket_send_buffer: 2 << 20,
            max_payload: MAX_PAYLOAD,
            send_patience: Duration::from_millis(50),
            exclusive: true,
            freebind: false,
            timestamps: false,
            groups: false,
            wait: Wait::Interrupt,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`IoError::Socket`] of kind `InvalidInput` that names the field and what it may be.
    pub fn validate(&self, workers: usize) -> Result<(), IoError> {
        let complain = |what: String| {
            Err(IoError::Socket { what, source: std::io::Error::from(std::io::ErrorKind::InvalidInput) })
        };
        if self.listen.is_empty() {
            return complain("udp: no listen address".into());
        }
        for (index, address) in self.listen.iter().enumerate() {
            if matches!(address.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
                return complain(format!("udp: listen address {address}: write it as an IPv4 address"));
            }
            if address.ip().is_multicast() && !self.groups {
                return complain(format!("udp: listen address {address} is a multicast group"));
            }
            if address.port() != 0 && self.listen[..index].contains(address) {
                return complain(format!("udp: listen address {address} is listed twice"));
            }
        }
        if workers == 0 || workers > 256 {
            return complain(format!("udp: {workers} workers: must be 1 to 256"));
        }
        if !(1..=256).contains(&self.receive_batch) {
            return complain(format!("udp: receive_batch = {}: must be 1 to 256", self.receive_batch));
        }
        if !(512..=65_536).contains(&self.receive_buffer) {
            return complain(format!("udp: receive_buffer = {}: must be 512 to 65536", self.receive_buffer));
        }
        if !(65_536..=1 << 30).contains(&self.transmit_memory) {
            return complain(format!(
                "udp: transmit_memory = {}: must be 65536 to 1073741824",
                self.transmit_memory
            ));
        }
        for (name, value) in [
            ("socket_receive_buffer", self.socket_receive_buffer),
            ("socket_send_buffer", self.socket_send_buffer),
        ] {
            if !(4096..=1 << 30).contains(&value) {
                return complain(format!("udp: {name} = {value}: must be 4096 to 1073741824"));
            }
        }
        if !(512..=MAX_PAYLOAD).contains(&self.max_payload) {
            return complain(format!(
                "udp: max_payload = {}: must be 512 to {MAX_PAYLOAD}",
                self.max_payload
            ));
        }
        Ok(())
    }
}
