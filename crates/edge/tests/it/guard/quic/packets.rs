//! Datagrams and QUIC packets, put together by hand so that each field can be wrong on purpose.

use std::net::SocketAddr;

use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};

use super::PORT;

pub(crate) const CLIENT: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(crate) const SERVER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// Clients of both families.
pub(crate) const CLIENTS: [&str; 2] = ["198.51.100.1:50000", "[2001:db8::7]:50000"];

/// The server's address for a client.
pub(crate) fn server(client: SocketAddr) -> SocketAddr {
    let address = if client.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
    SocketAddr::new(address.parse().unwrap(), PORT)
}

/// A frame with `payload` from a client to the server.
pub(crate) fn frame(client: &str, payload: &[u8]) -> Vec<u8> {
    let client: SocketAddr = client.parse().unwrap();
    let template = UdpHeaders::new(CLIENT, SERVER, client, server(client)).template().unwrap();
    let header = template.header_len();
    let mut frame = vec![0; header + payload.len()];
    frame[header..].copy_from_slice(payload);
    template.write(&mut frame, payload.len(), ChecksumMode::Full, 0).unwrap();
    frame
}

/// The same behind so many VLAN tags.
pub(crate) fn tagged(mut frame: Vec<u8>, tags: usize) -> Vec<u8> {
    for _ in 0..tags {
        frame.splice(12..12, [0x81, 0, 0, 7]);
    }
    frame
}

/// A long header with two IDs, and what follows, in so many bytes.
pub(crate) fn long(first: u8, version: u32, ids: (&[u8], &[u8]), rest: &[u8], length: usize) -> Vec<u8> {
    let mut payload = vec![first];
    payload.extend(version.to_be_bytes());
    for id in [ids.0, ids.1] {
        payload.push(id.len() as u8);
        payload.extend(id);
    }
    payload.extend(rest);
    payload.resize(length.max(payload.len()), 0x5a);
    payload
}

/// An Initial packet of version 1 with a token.
pub(crate) fn initial(destination: &[u8], source: &[u8], token: &[u8]) -> Vec<u8> {
    let mut rest = match token.len() {
        length @ ..64 => vec![length as u8],
        length => (0x4000 | length as u16).to_be_bytes().to_vec(),
    };
    rest.extend(token);
    long(0xc3, 1, (destination, source), &rest, 1200)
}

/// A short header with an ID.
pub(crate) fn short(id: &[u8], length: usize) -> Vec<u8> {
    let mut payload = vec![0x41];
    payload.extend(id);
    payload.resize(length, 0x5a);
    payload
}
