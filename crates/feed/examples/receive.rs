//! Receives datagrams by AF_XDP on queue 0 of an interface and shows what came, many at a time, with who stamped it.
//!
//! ```text
//! receive IFACE ADDR:PORT
//! ```
//!
//! Takes CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW. What comes by other queues, in fragments or not through the
//! interface at all, the kernel socket on the same address receives.

use std::error::Error;
use std::net::SocketAddr;

use expressway_feed::receive::{Batch, Batches, Options, Receiver};
use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{XskBinding, XskConfig, XskIo, XskIoConfig, interface_index};
use expressway_xbpf::{AttachMode, Existing, Options as ProgramOptions, Redirect};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(interface), Some(address)) = (words.next(), words.next()) else {
        return Err("usage: receive IFACE ADDR:PORT".into());
    };
    let address: SocketAddr = address.parse()?;

    // The kernel socket first, so that nothing is lost that XDP passes on.
    let config = UdpConfig { timestamps: true, gro: false, ..UdpConfig::new(vec![address]) };
    let kernel = UdpIo::bind(&config)?;
    // The program, without an address yet; it stamps packets, or the NIC does.
    let index = interface_index(&interface)?;
    let (program, _attached) =
        Redirect::describe(&ProgramOptions::default(), index, AttachMode::Native, Existing::Refuse)?;
    let port = XskConfig { description: program.cookie(), ..XskConfig::new(&interface, 0) };
    let port = XskBinding::open(port, program.xsk_map())?;
    program.add_pair(address)?;

    let mirror = RouteMirror::start()?;
    let io = XskIo::new(vec![port], kernel, mirror.resolver()?, XskIoConfig::default())?;
    let show = |batch: &Batch| {
        for (arrival, payload) in batch.iter() {
            println!("{} bytes from {}, {:?}", payload.len(), arrival.remote, arrival.timestamp);
        }
    };
    Receiver::new(io, Options::default(), Batches::new(64, 1 << 18, show))?.run()?;
    Ok(())
}
