//! Receives UDP datagrams by AF_XDP on every queue of an interface, counts them and drops them:
//! `cargo run --example receive_and_drop INTERFACE QUEUES ADDRESS:PORT [COUNT]`. Ends after COUNT packets.

use expressway_netio::xsk::{SharedUmem, UmemConfig, XskConfig, interface_index};
use expressway_xbpf::{AttachMode, Existing, Options, Redirect};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, queues, address, count @ ..] = arguments.as_slice() else {
        return Err("usage: receive_and_drop INTERFACE QUEUES ADDRESS:PORT [COUNT]".into());
    };
    let count: u64 = count.first().map_or(Ok(u64::MAX), |count| count.parse())?;
    let queues: u32 = queues.parse()?;

    // The XDP program gives the datagrams for that address to the socket of their queue; all else passes. It is
    // gone with `_attached`, however this process ends.
    let redirect = Redirect::load(&Options::default())?;
    redirect.add_pair(address.parse()?)?;
    let _attached = redirect.attach(interface_index(interface)?, AttachMode::Native, Existing::Refuse)?;

    // One memory for all queues: each has as many frames as its rings have entries.
    let mut umem = SharedUmem::new(&UmemConfig { frames: queues * 4096, ..UmemConfig::default() })?;
    let sockets = (0..queues)
        .map(|queue| umem.bind(&XskConfig::new(interface, queue), Some(redirect.xsk_map())))
        .collect::<Result<Vec<_>, _>>()?;
    println!("receiving on {queues} queues in {} mode", umem.mode(sockets[0])?);

    let (mut packets, mut bytes) = (0, 0);
    while packets < count {
        let mut batch = 0;
        for &socket in &sockets {
            // A packet that is neither sent nor lent is dropped: its frame receives again at once.
            batch += umem.receive(socket, 64, |mut packet| bytes += packet.bytes().len())?;
        }
        packets += batch as u64;
        if batch == 0 {
            umem.wait(None)?;
        }
    }
    println!("packets {packets} bytes {bytes}");
    Ok(())
}
