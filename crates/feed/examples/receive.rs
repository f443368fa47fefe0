//! Receives datagrams by the best mode of this host and shows what came, many at a time, with who stamped it.
//!
//! ```text
//! receive ADDR:PORT
//! ```
//!
//! AF_XDP takes CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW. Whatever AF_XDP does not receive (fragments, other
//! interfaces, everything if it is not available) comes by the kernel socket on the same address.

use std::error::Error;
use std::net::SocketAddr;

use expressway_dataplane::{Config, DataPath, IoConfig, Maintainer, Provider, Purpose, WorkerIo};
use expressway_feed::receive::{Batch, Batches, Options, Receiver};
use expressway_netio::udp::UdpConfig;

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).ok_or("usage: receive ADDR:PORT")?.parse()?;
    // The NIC stamps datagrams or else the XDP program, and the kernel those that come by its socket.
    let udp = UdpConfig { timestamps: true, gro: false, ..UdpConfig::new(vec![address]) };
    let purpose = Purpose { timestamps: true, ..Purpose::RECEIVE };
    let config = Config { purpose, ..Config::with(IoConfig::default(), udp) };
    let (path, mut workers) = DataPath::open(config, Provider::Own, 1)?;
    let _maintainer = Maintainer::start(path)?;

    let show = |batch: &Batch| {
        for (arrival, payload) in batch.iter() {
            println!("{} bytes from {}, {:?}", payload.len(), arrival.remote, arrival.timestamp);
        }
    };
    let (options, batches) = (Options::default(), Batches::new(64, 1 << 18, show));
    match workers.remove(0) {
        WorkerIo::Kernel(io) => Receiver::new(*io, options, batches)?.run()?,
        WorkerIo::Xsk(io) => Receiver::new(*io, options, batches)?.run()?,
    }
    Ok(())
}
