//! Sends UDP datagrams by AF_XDP from queue 0 of an interface:
//! `cargo run --example transmit INTERFACE SOURCE:PORT DESTINATION:PORT NEXT-HOP-MAC COUNT`.

use std::time::Duration;

use expressway_netio::xsk::{SharedUmem, UmemConfig, XskConfig};
use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};

const PAYLOAD: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, source, destination, next_hop, count] = arguments.as_slice() else {
        return Err("usage: transmit INTERFACE SOURCE:PORT DESTINATION:PORT NEXT-HOP-MAC COUNT".into());
    };
    let count: u64 = count.parse()?;
    let own: MacAddr =
        std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?.trim().parse()?;
    let headers =
        UdpHeaders::new(own, next_hop.parse()?, source.parse()?, destination.parse()?).template()?;

    // Without an XSKMAP the socket sends only, and no XDP program is needed.
    let mut umem = SharedUmem::new(&UmemConfig::default())?;
    let socket = umem.bind(&XskConfig::new(interface, 0), None)?;

    let mut sent = 0u64;
    while sent < count {
        // The packet is built in the frame that the kernel sends from: the payload first, as the UDP checksum
        // in front of it covers it.
        let built = umem.transmit(socket, |frame| {
            let start = headers.header_len();
            frame[start..start + PAYLOAD].fill(b'.');
            frame[start..start + 8].copy_from_slice(&sent.to_be_bytes());
            headers.write(frame, PAYLOAD, ChecksumMode::Full, 0).unwrap_or(0)
        })?;
        if built {
            sent += 1;
        } else {
            // All frames are on their way: have them sent, and wait where the device has no room for more.
            umem.flush()?;
            if umem.unsent(socket)? > 0 {
                umem.wait(None)?;
            }
        }
    }
    umem.flush()?;
    while umem.in_flight(socket)? > 0 {
        umem.flush()?;
        umem.wait(Some(Duration::from_millis(1)))?;
    }
    println!("sent {sent} packets in {} mode", umem.mode(socket)?);
    Ok(())
}
