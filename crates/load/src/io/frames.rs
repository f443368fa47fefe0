//! Whole frames over AF_XDP in copy mode, on the crate's own frames and rings, without kernel sockets: dropped, sent
//! back, or sent. `xdpsock` and DPDK's testpmd do the same.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use expressway_netio::xsk::{BindMode, SharedUmem, SocketId, UmemConfig, XskConfig, interface_index};
use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Packets of one turn.
const BATCH: usize = 64;
/// How often a program without work looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// What becomes of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Drop,
    /// Out of the interface that they came by, hardware addresses swapped.
    Back,
}

/// Takes the UDP datagrams for an address on queue 0 of an interface until SIGINT or SIGTERM, then says how many.
pub(crate) fn take(interface: &str, address: SocketAddr, fate: Fate) -> Result<(), Box<dyn Error>> {
    let end = end_flag()?;
    let (mut umem, socket, _program) = open(interface, Some(address))?;
    println!("ready");
    let mut packets = 0;
    while !end.load(Ordering::Relaxed) {
        let batch = umem.receive(socket, BATCH, |mut packet| {
            if fate == Fate::Back {
                let (to, from) = packet.bytes()[..12].split_at_mut(6);
                to.swap_with_slice(from);
                // A full TX ring is a drop, as in any switch.
                let _ = packet.send(socket);
            }
        })?;
        packets += batch as u64;
        umem.flush()?;
        if batch == 0 {
            umem.wait(Some(LOOK))?;
        }
    }
    println!("packets {packets}");
    Ok(())
}

/// Sends UDP datagrams of a size from queue 0 of an interface, as fast as it can, until SIGINT or SIGTERM.
pub(crate) fn send(
    interface: &str,
    (from, to): (SocketAddr, SocketAddr),
    next_hop: MacAddr,
    size: usize,
) -> Result<(), Box<dyn Error>> {
    let end = end_flag()?;
    let (mut umem, socket, _program) = open(interface, None)?;
    let own: MacAddr =
        std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?.trim().parse()?;
    let headers = UdpHeaders::new(own, next_hop, from, to).template()?;
    println!("ready");
    let mut packets = 0u64;
    while !end.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let built = umem.transmit(socket, |frame| {
                // As others' senders have it: the payload is what the frame has, and there is no UDP checksum.
                headers.write(frame, size, ChecksumMode::None, 0).unwrap_or(0)
            })?;
            if !built {
                break;
            }
            packets += 1;
        }
        umem.flush()?;
        if umem.unsent(socket)? > 0 {
            umem.wait(Some(LOOK))?;
        }
    }
    println!("packets {packets}");
    Ok(())
}

fn end_flag() -> std::io::Result<Arc<AtomicBool>> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end))?;
    }
    Ok(end)
}

/// The program that gives a socket its datagrams.
type Program = (Redirect, Attachment);

/// A socket on queue 0 of an interface, and the program that gives it the datagrams for an address, if any.
fn open(
    interface: &str,
    address: Option<SocketAddr>,
) -> Result<(SharedUmem, SocketId, Option<Program>), Box<dyn Error>> {
    let mut umem = SharedUmem::new(&UmemConfig::default())?;
    let config = XskConfig { mode: BindMode::Copy, ..XskConfig::new(interface, 0) };
    let Some(address) = address else {
        let socket = umem.bind(&config, None)?;
        return Ok((umem, socket, None));
    };
    let redirect = Redirect::load(&Options::default())?;
    redirect.add_pair(address)?;
    let attachment = redirect.attach(interface_index(interface)?, AttachMode::Native, Existing::Refuse)?;
    let socket = umem.bind(&config, Some(redirect.xsk_map()))?;
    Ok((umem, socket, Some((redirect, attachment))))
}
