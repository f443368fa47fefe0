//! AF_XDP with its XDP program, kernel sockets and route mirror, at the near end of a pair.

use std::any::Any;
use std::net::SocketAddr;

use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{BindMode, ObtainedMode, TransmitVia, XskBinding, XskConfig, XskIo, XskIoConfig};
use expressway_xbpf::{AttachMode, Existing, Options, Redirect};

use super::netns::{FAR_DEVICE, NEAR, NEAR_DEVICE, Pair};

/// What must stay alive while the backend is used: the program on its interface, the mirror's thread.
pub type Around = Vec<Box<dyn Any + Send>>;

/// Every address of the near end, with the port.
pub fn listen(port: u16) -> Vec<SocketAddr> {
    NEAR.iter().map(|&ip| SocketAddr::new(ip, port)).collect()
}

/// AF_XDP in copy mode, as veth has no other, on every one of `queues`, sending by itself.
pub fn open(pair: &Pair, queues: u32, port: u16, config: XskIoConfig) -> (XskIo, Around) {
    open_sending(pair, queues, port, config, TransmitVia::Xsk)
}

/// As [`open`], sending as told.
pub fn open_sending(
    pair: &Pair,
    queues: u32,
    port: u16,
    config: XskIoConfig,
    transmit: TransmitVia,
) -> (XskIo, Around) {
    if config.verify_checksum {
        // A veth hands over what its own kernel sends with unfinished checksums.
        pair.far.exec(&format!("ethtool -K {FAR_DEVICE} tx off"));
    }
    open_mode(pair, queues, port, config, (ObtainedMode::Copy, transmit))
}

/// AF_XDP in a mode that XDP_OPTIONS must confirm, on every one of `queues`.
pub fn open_mode(
    pair: &Pair,
    queues: u32,
    port: u16,
    config: XskIoConfig,
    (mode, transmit): (ObtainedMode, TransmitVia),
) -> (XskIo, Around) {
    open_bindings(pair, queues, port, config, mode, |config| XskConfig { transmit, ..config })
}

/// The same with bindings as `adapt` makes them.
pub fn open_bindings(
    pair: &Pair,
    queues: u32,
    port: u16,
    config: XskIoConfig,
    mode: ObtainedMode,
    adapt: impl Fn(XskConfig) -> XskConfig + Sync,
) -> (XskIo, Around) {
    let mtu = pair.mtu;
    pair.near.enter(|| {
        let redirect = Redirect::load(&Options::default()).expect("root may load the program");
        for address in listen(port) {
            redirect.add_pair(address).expect("there is room for the pair");
        }
        let index = ifindex(NEAR_DEVICE);
        let attachment = redirect
            .attach(index, AttachMode::Native, Existing::Refuse)
            .expect("the device takes the program");
        let bindings: Vec<XskBinding> = (0..queues)
            .map(|queue| {
                let bind = match mode {
                    ObtainedMode::Copy => BindMode::Copy,
                    ObtainedMode::ZeroCopy => BindMode::ZeroCopy,
                };
                let config = adapt(XskConfig { mode: bind, ..XskConfig::new(NEAR_DEVICE, queue) });
                let binding =
                    XskBinding::open(config, redirect.xsk_map()).expect("the device takes AF_XDP sockets");
                assert_eq!(binding.mode(), Some(mode), "what XDP_OPTIONS says");
                binding
            })
            .collect();
        let udp = UdpConfig { receive_buffer: mtu.max(2048), ..UdpConfig::new(listen(port)) };
        let mut kernel = UdpIo::bind(&udp).expect("the addresses are free");
        let mirror = RouteMirror::start().expect("rtnetlink can be read");
        kernel.set_resolver(mirror.resolver().expect("rtnetlink can be asked"));
        let resolver = mirror.resolver().expect("rtnetlink can be asked");
        let io = XskIo::new(bindings, kernel, resolver, config).expect("descriptors are left");
        (io, vec![Box::new(attachment) as Box<dyn Any + Send>, Box::new(redirect), Box::new(mirror)])
    })
}

fn ifindex(device: &str) -> u32 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback is up");
    rustix::net::netdevice::name_to_index(&socket, device).expect("the device is there")
}
