//! Network interfaces.

use expressway_wire::MacAddr;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    VlanProtocol,
};

/// What sort of device an interface is, as far as frames are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A device of its own: hardware, or a virtual machine's.
    Physical,
    /// One end of a veth pair.
    Veth,
    /// A tun or tap device.
    Tun,
    /// The loopback device.
    Loopback,
    /// A VLAN over another device.
    Vlan {
        /// VLAN identifier, 1 to 4094.
        id: u16,
        /// Ethernet type of the tag: 0x8100 or 0x88a8.
        protocol: u16,
        /// Index of the device below; `None` when that is in another namespace.
        lower: Option<u32>,
    },
    /// A device that forwards to others by rules of its own: a bond, bridge, macvlan, tunnel and so on.
    Other(String),
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Kernel index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware address, if it has an Ethernet one.
    pub mac: Option<MacAddr>,
    /// Largest IP packet in bytes.
    pub mtu: usize,
    /// Set up by the administrator (`IFF_UP`).
    pub is_up: bool,
    /// Has carrier and can pass packets (`IFF_LOWER_UP`).
    pub has_carrier: bool,
    /// What it is.
    pub kind: LinkKind,
    /// Index of the bond, bridge or VRF that it is a port of.
    pub controller: Option<u32>,
    /// RX queues that were allocated (`IFLA_NUM_RX_QUEUES`): an upper bound of those in use, for which see
    /// [`crate::device::channels`].
    pub rx_queues: u32,
    /// TX queues that were allocated.
    pub tx_queues: u32,
}

impl Link {
    /// Whether frames can be put on it as they are.
    pub fn is_direct(&self) -> bool {
        self.mac.is_some() && matches!(self.kind, LinkKind::Physical | LinkKind::Veth | LinkKind::Tun)
    }

    /// Whether it is a bond, which passes the frames of its members on (`drivers/net/bonding`).
    pub fn is_bond(&self) -> bool {
        matches!(&self.kind, LinkKind::Other(kind) if kind == "bond")
    }

    /// Whether it is up and has carrier.
    pub fn is_running(&self) -> bool {
        self.is_up && self.has_carrier
    }

    /// Reads a link of a dump. `None` for messages of bridge ports.
    pub(super) fn decode(message: LinkMessage) -> Option<Self> {
        if message.header.interface_family != AddressFamily::Unspec {
            return None;
        }
        let flags = message.header.flags;
        let ethernet = message.header.link_layer_type == LinkLayerType::Ether;
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            is_up: flags.contains(LinkFlags::Up),
            has_carrier: flags.contains(LinkFlags::LowerUp),
            kind: LinkKind::Physical,
            controller: None,
            rx_queues: 1,
            tx_queues: 1,
        };
        let (mut lower, mut foreign) = (None, false);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(address) if ethernet => {
                    link.mac = <[u8; 6]>::try_from(address).ok().map(MacAddr);
                }
                LinkAttribute::Mtu(mtu) => link.mtu = mtu as usize,
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::NumRxQueues(count) => link.rx_queues = count,
                LinkAttribute::NumTxQueues(count) => link.tx_queues = count,
                LinkAttribute::Link(index) => lower = Some(index),
                LinkAttribute::LinkNetNsId(_) => foreign = true,
                LinkAttribute::LinkInfo(infos) => link.kind = decode_kind(infos),
                _ => {}
            }
        }
        if flags.contains(LinkFlags::Loopback) {
            link.kind = LinkKind::Loopback;
        }
        if let LinkKind::Vlan { lower: below, .. } = &mut link.kind {
            *below = lower.filter(|_| !foreign);
        }
        Some(link)
    }
}

fn decode_kind(infos: Vec<LinkInfo>) -> LinkKind {
    let mut kind = LinkKind::Physical;
    let mut vlan = (0, 0x8100);
    for info in infos {
        match info {
            LinkInfo::Kind(InfoKind::Veth) => kind = LinkKind::Veth,
            LinkInfo::Kind(InfoKind::Tun) => kind = LinkKind::Tun,
            LinkInfo::Kind(InfoKind::Vlan) => kind = LinkKind::Vlan { id: 0, protocol: 0, lower: None },
            LinkInfo::Kind(other) => kind = LinkKind::Other(other.to_string()),
            LinkInfo::Data(InfoData::Vlan(attributes)) => {
                for attribute in attributes {
                    match attribute {
                        InfoVlan::Id(id) => vlan.0 = id,
                        InfoVlan::Protocol(VlanProtocol::Ieee8021Ad) => vlan.1 = 0x88a8,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if let LinkKind::Vlan { id, protocol, .. } = &mut kind {
        (*id, *protocol) = vlan;
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(infos: Vec<LinkInfo>, foreign: bool) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 5;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = vec![
            LinkAttribute::IfName("v.7".into()),
            LinkAttribute::Mtu(1496),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::Link(3),
            LinkAttribute::LinkInfo(infos),
        ];
        if foreign {
            message.attributes.push(LinkAttribute::LinkNetNsId(0));
        }
        message
    }

    #[test]
    fn a_vlan_names_its_tag_and_the_device_below() {
        for (protocol, tpid) in [(VlanProtocol::Ieee8021Q, 0x8100), (VlanProtocol::Ieee8021Ad, 0x88a8)] {
            let data = InfoData::Vlan(vec![InfoVlan::Id(7), InfoVlan::Protocol(protocol)]);
            let infos = vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(data)];
            let link = Link::decode(message(infos.clone(), false)).unwrap();
            assert_eq!(link.kind, LinkKind::Vlan { id: 7, protocol: tpid, lower: Some(3) });
            assert!(link.is_running() && !link.is_direct());
            let link = Link::decode(message(infos, true)).unwrap();
            assert_eq!(link.kind, LinkKind::Vlan { id: 7, protocol: tpid, lower: None });
        }
    }

    #[test]
    fn messages_about_bridge_ports_are_no_links() {
        let mut port = message(vec![], false);
        port.header.interface_family = AddressFamily::Bridge;
        assert_eq!(Link::decode(port), None);
    }
}
