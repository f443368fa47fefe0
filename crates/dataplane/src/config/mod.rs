//! The configuration of a data path: plain values, as programs pass them, and the `[io]` section of configuration
//! files.

mod section;
mod value;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use expressway_netio::Wait;
use expressway_netio::netdev::NapiSettings;
use expressway_netio::route::Snapshot;
use expressway_netio::udp::{SendOptions, UdpConfig};
use expressway_netio::xsk::ReaderAccess;

pub use section::{IoSection, Napi, ValueError};
pub use value::{Attach, Dispatcher, IoMode, UdpSend, WaitStrategy};

/// How packets move: mode, XDP program and AF_XDP sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoConfig {
    /// The mode.
    pub mode: IoMode,
    /// How the XDP program is attached.
    pub attach: Attach,
    /// How the kernel path sends.
    pub udp_send: UdpSend,
    /// In mode `auto`, measure what sending costs where the order is not certain.
    pub calibrate: bool,
    /// File that keeps such measurements.
    pub calibration_cache: Option<PathBuf>,
    /// For each interface, the one of this machine at the other end of its link, which must receive the
    /// self-test's probe frame.
    pub probe_peers: BTreeMap<String, String>,
    /// UMEM frames of each AF_XDP socket, a power of two; `None`: 8192.
    pub frames: Option<u32>,
    /// Bytes of the kernel sockets' buffers; `None`: the default of [`UdpConfig`].
    pub socket_buffer: Option<usize>,
    /// Detach a foreign XDP program from the interface.
    pub replace: bool,
    /// How workers wait for packets.
    pub wait: Wait,
    /// Settings of the interfaces' NAPI contexts while the path is open.
    pub napi: Option<NapiSettings>,
    /// Packets that one system call may send in AF_XDP copy mode; `None`: the TX ring's size.
    pub tx_budget: Option<u32>,
    /// Whether to share interfaces with other XDP programs by a libxdp dispatcher.
    pub dispatcher: Dispatcher,
    /// Receive queues to open AF_XDP sockets on; `None`: all. Others are served by the kernel sockets.
    pub queues: Option<Vec<u32>>,
}

impl Default for IoConfig {
    /// Mode `auto`; what is measured is not kept.
    fn default() -> Self {
        Self {
            mode: IoMode::default(),
            attach: Attach::default(),
            udp_send: UdpSend::default(),
            calibrate: true,
            calibration_cache: None,
            probe_peers: BTreeMap::new(),
            frames: None,
            socket_buffer: None,
            replace: false,
            wait: Wait::Interrupt,
            napi: None,
            tx_budget: None,
            dispatcher: Dispatcher::default(),
            queues: None,
        }
    }
}

impl IoConfig {
    /// Kernel sockets on these addresses that send, wait and buffer as these settings say.
    pub fn udp(&self, listen: Vec<SocketAddr>) -> UdpConfig {
        let plain = UdpConfig::new(listen);
        UdpConfig {
            send: self.udp_send.into(),
            wait: self.wait,
            socket_receive_buffer: self.socket_buffer.unwrap_or(plain.socket_receive_buffer),
            socket_send_buffer: self.socket_buffer.unwrap_or(plain.socket_send_buffer),
            ..plain
        }
    }
}

/// What interfaces are opened for.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// To send too; else no way of sending is tried, and no frames are kept for it.
    pub sends: bool,
    /// To learn when packets came: from the device where it tells, else from the XDP program. (Of kernel sockets
    /// [`UdpConfig::timestamps`] says it.)
    pub timestamps: bool,
    /// Who may read packets from other processes. The path is of a folder.
    pub lend: Option<ReaderAccess>,
}

impl Purpose {
    /// Receiving and sending.
    pub const SERVE: Self = Self { sends: true, timestamps: false, lend: None };
    /// Receiving alone.
    pub const RECEIVE: Self = Self { sends: false, timestamps: false, lend: None };
}

/// What the data path is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Mode, XDP program, AF_XDP sockets.
    pub io: IoConfig,
    /// The kernel sockets, and with them the addresses.
    pub udp: UdpConfig,
    /// What the interfaces are opened for.
    pub purpose: Purpose,
    /// The interface that multicast groups among the addresses come in on; without one they are the kernel's.
    pub groups_on: Option<String>,
    /// How datagrams are sent, by AF_XDP too.
    pub sending: SendOptions,
}

impl Config {
    /// Receiving and sending on these UDP addresses in mode `auto`.
    pub fn new(listen: Vec<SocketAddr>) -> Self {
        let io = IoConfig::default();
        let udp = io.udp(listen);
        Self::with(io, udp)
    }

    /// Receiving and sending by these settings, the sockets' being [`IoConfig::udp`] with changes.
    pub fn with(io: IoConfig, udp: UdpConfig) -> Self {
        Self { io, udp, purpose: Purpose::SERVE, groups_on: None, sending: SendOptions::default() }
    }

    /// Index of the interface that multicast groups come in on now.
    pub(crate) fn groups_on(&self, snapshot: &Snapshot) -> Option<u32> {
        snapshot.link_by_name(self.groups_on.as_deref()?).map(|link| link.index)
    }
}
