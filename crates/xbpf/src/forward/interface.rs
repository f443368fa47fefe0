//! Interfaces as the router knows them.

use crate::skeleton::forward::types::{
    forward_key, forward_output, forward_output_flag, forward_port, forward_port_flag,
};

/// A VLAN tag in front of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Ethernet type of the tag: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// VLAN identifier.
    pub vlan: u16,
}

/// The words that the program has of tags; 0 is none.
pub(super) fn tag_words(tags: [Option<Tag>; 2]) -> [u32; 2] {
    tags.map(|tag| tag.map_or(0, |tag| u32::from(tag.protocol) << 16 | u32::from(tag.vlan & 0xfff)))
}

/// How IPv4 sources are checked (`rp_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// They must not be of this host.
    #[default]
    Local,
    /// They must be routed to the interface that they came by.
    Strict,
    /// They must be routed anywhere.
    Loose,
}

/// An interface that packets are forwarded from and to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardInterface {
    /// Its index: what routes name.
    pub interface: u32,
    /// The device that receives and sends its frames: the interface itself, or what lies below a VLAN.
    pub device: u32,
    /// Tags of its frames, outermost first.
    pub tags: [Option<Tag>; 2],
    /// Frames to other stations are left to the kernel.
    pub mac: [u8; 6],
    /// Where its packets are counted.
    pub slot: u32,
    /// How IPv4 sources are checked.
    pub source_check: SourceCheck,
    /// The kernel hashes ports to choose among next hops of IPv6 (`net.ipv6.fib_multipath_hash_policy` is not 0).
    pub ipv6_ports: bool,
    /// Packets may be forwarded to it: the device sends redirected frames.
    pub sends: bool,
    /// The device sends multi-buffer frames.
    pub sends_fragments: bool,
    /// Its datagrams may be of feeds. Not in generic mode, where copies share their bytes and so their receiver.
    pub replicates: bool,
}

const _: () = {
    assert!(size_of::<forward_key>() == 12);
    assert!(size_of::<forward_port>() == 16);
    assert!(size_of::<forward_output>() == 16);
};

impl ForwardInterface {
    /// A `struct forward_key`.
    pub(super) fn key(&self) -> [u8; 12] {
        let [outer, inner] = tag_words(self.tags);
        words([self.device, outer, inner])
    }

    /// A `struct forward_port`.
    pub(super) fn value(&self) -> [u8; 16] {
        let mut flags = match self.source_check {
            SourceCheck::Local => 0,
            SourceCheck::Strict => forward_port_flag::FORWARD_SOURCE_STRICT.0,
            SourceCheck::Loose => forward_port_flag::FORWARD_SOURCE_LOOSE.0,
        };
        if self.ipv6_ports {
            flags |= forward_port_flag::FORWARD_IPV6_PORTS.0;
        }
        if self.replicates {
            flags |= forward_port_flag::FORWARD_REPLICATE.0;
        }
        let mut value = [0; 16];
        value[..4].copy_from_slice(&self.interface.to_ne_bytes());
        value[4..8].copy_from_slice(&self.slot.to_ne_bytes());
        value[8..14].copy_from_slice(&self.mac);
        value[14..].copy_from_slice(&(flags as u16).to_ne_bytes());
        value
    }

    /// A `struct forward_output`.
    pub(super) fn output(&self) -> [u8; 16] {
        let [outer, inner] = tag_words(self.tags);
        let flags = if self.sends_fragments { forward_output_flag::FORWARD_FRAGMENTS.0 } else { 0 };
        let mut value = [0; 16];
        value[..12].copy_from_slice(&words([outer, inner, flags]));
        value[12..].copy_from_slice(&self.device.to_ne_bytes());
        value
    }
}

/// Words in host byte order, one behind the other.
pub(super) fn words(words: [u32; 3]) -> [u8; 12] {
    let mut bytes = [0; 12];
    for (into, word) in bytes.chunks_exact_mut(4).zip(words) {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
