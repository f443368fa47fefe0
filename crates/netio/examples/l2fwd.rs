//! Forwards UDP datagrams between two interfaces by AF_XDP, rewriting their hardware addresses. Both sockets are on
//! one UMEM: a packet leaves from the frame that it arrived in.
//! `cargo run --example l2fwd LEFT LEFT-PEER-MAC RIGHT RIGHT-PEER-MAC ADDRESS:PORT...`

use expressway_netio::xsk::{SharedUmem, SocketId, UmemConfig, XskConfig, interface_index};
use expressway_wire::MacAddr;
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

/// One of the two interfaces.
struct Side {
    socket: SocketId,
    own: MacAddr,
    peer: MacAddr,
    _program: (Redirect, Attachment),
}

impl Side {
    fn open(
        umem: &mut SharedUmem,
        interface: &str,
        peer: &str,
        pairs: &[String],
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let redirect = Redirect::load(&Options::default())?;
        for pair in pairs {
            redirect.add_pair(pair.parse()?)?;
        }
        let attached = redirect.attach(interface_index(interface)?, AttachMode::Native, Existing::Refuse)?;
        let socket = umem.bind(&XskConfig::new(interface, 0), Some(redirect.xsk_map()))?;
        let own = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"))?.trim().parse()?;
        Ok(Self { socket, own, peer: peer.parse()?, _program: (redirect, attached) })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [left, left_peer, right, right_peer, pairs @ ..] = arguments.as_slice() else {
        return Err("usage: l2fwd LEFT LEFT-PEER-MAC RIGHT RIGHT-PEER-MAC ADDRESS:PORT...".into());
    };
    let mut umem = SharedUmem::new(&UmemConfig::default())?;
    let left = Side::open(&mut umem, left, left_peer, pairs)?;
    let right = Side::open(&mut umem, right, right_peer, pairs)?;
    println!("forwarding in {} mode", umem.mode(left.socket)?);
    loop {
        for (from, to) in [(&left, &right), (&right, &left)] {
            umem.receive(from.socket, 64, |mut packet| {
                let header = packet.bytes();
                header[..6].copy_from_slice(&to.peer.0);
                header[6..12].copy_from_slice(&to.own.0);
                // A full TX ring is a drop, as in any switch; the socket counts it.
                let _ = packet.send(to.socket);
            })?;
        }
        umem.flush()?;
        umem.wait(None)?;
    }
}
