//! Opens the data path that the options select.

use std::error::Error;

use expressway_dataplane::negotiate::Receive;
use expressway_dataplane::{Config, DataPath, IoConfig, IoMode, Provider, WorkerIo};
use expressway_netio::udp::UdpConfig;

use super::PathArguments;

/// The data path, which has to live as long as its one worker's packet I/O.
pub(crate) fn open(options: &PathArguments) -> Result<(DataPath, WorkerIo), Box<dyn Error>> {
    let mode = match &options.interface {
        None => IoMode::Udp,
        Some(_) if options.zero_copy => IoMode::ZeroCopy,
        Some(_) => IoMode::Copy,
    };
    let io = IoConfig { mode, wait: options.wait.into(), udp_send: options.sending, ..IoConfig::default() };
    let udp = UdpConfig { gro: !options.no_gro, ..io.udp(vec![options.listen]) };
    let (path, mut workers) = DataPath::open(Config::with(io, udp), Provider::Own, 1)?;
    if let Some(interface) = &options.interface
        && !path.queue_modes().iter().any(|(open, ..)| open == interface)
    {
        return Err(format!("interface {interface}: it does not have the address {}", options.listen).into());
    }
    Ok((path, workers.remove(0)))
}

/// What XDP_OPTIONS said of the sockets after bind; none without any.
pub(crate) fn obtained(path: &DataPath) -> Option<&'static str> {
    let receive = path.queue_modes().first().and_then(|(_, _, queues)| Some(queues.first()?.receive))?;
    Some(match receive {
        Receive::ZeroCopy => "zero-copy",
        Receive::Copy => "copy",
        Receive::Kernel => "none",
    })
}
