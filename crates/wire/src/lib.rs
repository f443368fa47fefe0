//! Packet views, builders and checksums for UDP over Ethernet. Pure functions over byte slices.
//!
//! What it does:
//! * [`parse_udp`] finds the UDP datagram in an Ethernet frame (up to two VLAN tags, IPv4 with options,
//!   IPv6 with extension headers) and returns a plain [`UdpLayout`] of offsets, addresses and marks.
//! * [`UdpHeaders`] and its compiled form [`UdpTemplate`] write headers in front of a payload that is already
//!   in place, so packets are sealed where they leave from.
//! * Each protocol has a module with a checked view over bytes (`…Packet`, `…Frame`). Protocols that are also
//!   built have a plain representation (`…Repr`) with `parse` and `emit`.
//! * [`siphash`] is a keyed hash, for values that both a server and the filter in front of it recognise.
//! * [`checksum`] has the Internet checksum: whole, pseudo-header only, and incremental.
//!
//! What it does not: no I/O, no clock, no reassembly, no ICMP, no ARP or neighbour discovery. It never allocates
//! (the crate is `no_std`), and no input makes it panic.
//!
//! ```
//! use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders, parse_udp};
//!
//! let (local, remote) = ("192.0.2.1:443".parse()?, "198.51.100.7:50000".parse()?);
//! let flow = UdpHeaders::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), local, remote);
//! let template = flow.template()?;
//!
//! // The payload is sealed where it leaves from, then its headers are written in front of it.
//! let mut frame = [0u8; 2048];
//! frame[template.header_len()..][..5].copy_from_slice(b"hello");
//! let total = template.write(&mut frame, 5, ChecksumMode::Full, 0)?;
//!
//! let layout = parse_udp(&frame[..total])?;
//! layout.verify_checksum(&frame[..total])?;
//! let payload: &mut [u8] = &mut frame[layout.payload()];
//! assert_eq!((layout.destination, &*payload), (remote, &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Errors are of two kinds: [`ParseError`] blames the bytes that came in, [`BuildError`] the caller.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod edit;
mod error;
mod layout;
mod mac;
mod template;

pub mod checksum;
pub mod ethernet;
pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;
pub mod protocol;
pub mod siphash;
pub mod udp;

pub use checksum::{ChecksumMode, ChecksumState};
pub use error::{BuildError, Layer, ParseError};
pub use ethernet::{VlanTag, VlanTags};
pub use layout::{UdpLayout, parse_udp};
pub use mac::{MacAddr, ParseMacError};
pub use template::{MAX_HEADER_LEN, UdpHeaders, UdpTemplate};
