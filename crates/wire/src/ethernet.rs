//! Ethernet II frames with up to two VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).
//!
//! [`EthernetFrame`] and [`VlanHeader`] are views of one header each. [`EthernetRepr`] is the whole link layer,
//! from the addresses to the EtherType behind the last tag.

use crate::protocol::{TPID_8021AD, TPID_8021Q};
use crate::{BuildError, Layer, MacAddr, ParseError};

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_HEADER_LEN: usize = 14;
/// Bytes of one VLAN tag.
pub const VLAN_TAG_LEN: usize = 4;
/// VLAN tags that a frame may carry.
pub const MAX_VLAN_TAGS: usize = 2;
/// The highest VLAN identifier that may be used; 4095 is reserved.
pub const MAX_VLAN_ID: u16 = 4094;

/// A view of an Ethernet frame whose header is known to be there.
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> EthernetFrame<T> {
    /// Checks that the header is whole.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        require(buffer.as_ref(), ETHERNET_HEADER_LEN, Layer::Ethernet)?;
        Ok(Self { buffer })
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> MacAddr {
        MacAddr(octets(self.buffer.as_ref(), 0))
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> MacAddr {
        MacAddr(octets(self.buffer.as_ref(), 6))
    }

    /// EtherType, or the TPID of the first tag.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        u16::from_be_bytes(octets(self.buffer.as_ref(), 12))
    }

    /// Everything behind the header, padding included.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[ETHERNET_HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> EthernetFrame<T> {
    /// Sets the destination address.
    pub fn set_destination(&mut self, address: MacAddr) {
        self.buffer.as_mut()[0..6].copy_from_slice(&address.0);
    }

    /// Sets the source address.
    pub fn set_source(&mut self, address: MacAddr) {
        self.buffer.as_mut()[6..12].copy_from_slice(&address.0);
    }
}

/// A view of what follows a TPID: two bytes of tag control information and the next EtherType.
#[derive(Clone, Copy, Debug)]
pub struct VlanHeader<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> VlanHeader<T> {
    /// Checks that the tag is whole.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        require(buffer.as_ref(), VLAN_TAG_LEN, Layer::Vlan)?;
        Ok(Self { buffer })
    }

    /// Tag control information: priority (3 bits), drop eligible (1), identifier (12).
    #[inline]
    pub fn control(&self) -> u16 {
        u16::from_be_bytes(octets(self.buffer.as_ref(), 0))
    }

    /// The EtherType behind the tag, or the TPID of the next tag.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        u16::from_be_bytes(octets(self.buffer.as_ref(), 2))
    }

    /// Everything behind the tag.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[VLAN_TAG_LEN..]
    }
}

/// One VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Tag protocol identifier: [`TPID_8021Q`] or [`TPID_8021AD`].
    pub tpid: u16,
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 0 (priority tag only) to 4094; 4095 is read but never built.
    pub id: u16,
}

impl VlanTag {
    /// An 802.1Q tag of priority 0.
    pub const fn customer(id: u16) -> Self {
        Self { tpid: TPID_8021Q, priority: 0, drop_eligible: false, id }
    }

    /// An 802.1ad (QinQ) service tag of priority 0.
    pub const fn service(id: u16) -> Self {
        Self { tpid: TPID_8021AD, priority: 0, drop_eligible: false, id }
    }

    /// The tag from its TPID and its tag control information.
    #[inline]
    pub const fn from_parts(tpid: u16, control: u16) -> Self {
        Self {
            tpid,
            priority: (control >> 13) as u8,
            drop_eligible: control & 0x1000 != 0,
            id: control & 0x0fff,
        }
    }

    /// Tag control information as it goes on the wire.
    #[inline]
    pub const fn control(self) -> u16 {
        (self.priority as u16) << 13 | (self.drop_eligible as u16) << 12 | self.id & 0x0fff
    }

    /// Checks that each field fits.
    pub const fn validate(self) -> Result<(), BuildError> {
        if self.tpid != TPID_8021Q && self.tpid != TPID_8021AD {
            return Err(BuildError::VlanTpid(self.tpid));
        }
        if self.priority > 7 {
            return Err(BuildError::VlanPriority(self.priority));
        }
        if self.id > MAX_VLAN_ID {
            return Err(BuildError::VlanId(self.id));
        }
        Ok(())
    }
}

/// The VLAN tags of a frame, outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTags {
    tags: [VlanTag; MAX_VLAN_TAGS],
    count: u8,
}

impl VlanTags {
    /// No tags.
    pub const NONE: Self = Self {
        tags: [VlanTag { tpid: 0, priority: 0, drop_eligible: false, id: 0 }; MAX_VLAN_TAGS],
        count: 0,
    };

    /// The given tags, outermost first. Refuses more than two and fields that do not fit.
    pub fn new(tags: &[VlanTag]) -> Result<Self, BuildError> {
        let mut all = Self::NONE;
        for tag in tags {
            tag.validate()?;
            all.push(*tag).map_err(|_| BuildError::TooManyVlanTags)?;
        }
        Ok(all)
    }

    /// The tags, outermost first.
    #[inline]
    pub fn as_slice(&self) -> &[VlanTag] {
        &self.tags[..usize::from(self.count)]
    }

    /// Bytes that the tags take in a frame.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.count as usize * VLAN_TAG_LEN
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn push(&mut self, tag: VlanTag) -> Result<(), ParseError> {
        let slot = self.tags.get_mut(usize::from(self.count)).ok_or(ParseError::TooManyVlanTags)?;
        *slot = tag;
        self.count += 1;
        Ok(())
    }
}

/// The whole link layer: addresses, tags and the EtherType of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetRepr {
    /// Destination address.
    pub destination: MacAddr,
    /// Source address.
    pub source: MacAddr,
    /// VLAN tags, outermost first.
    pub vlan: VlanTags,
    /// EtherType behind the last tag.
    pub ether_type: u16,
}

impl EthernetRepr {
    /// Reads the link layer of a frame. What follows starts at [`EthernetRepr::wire_len`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let view = EthernetFrame::new_checked(frame)?;
        let mut ether_type = view.ether_type();
        let mut vlan = VlanTags::NONE;
        let mut rest = &frame[ETHERNET_HEADER_LEN..];
        while ether_type == TPID_8021Q || ether_type == TPID_8021AD {
            let tag = VlanHeader::new_checked(rest)?;
            vlan.push(VlanTag::from_parts(ether_type, tag.control()))?;
            ether_type = tag.ether_type();
            rest = &rest[VLAN_TAG_LEN..];
        }
        Ok(Self { destination: view.destination(), source: view.source(), vlan, ether_type })
    }

    /// Bytes of header and tags.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        ETHERNET_HEADER_LEN + self.vlan.wire_len()
    }

    /// Writes header and tags to the front of `frame`; returns their length.
    pub fn emit(&self, frame: &mut [u8]) -> Result<usize, BuildError> {
        let needed = self.wire_len();
        let available = frame.len();
        let header = frame.get_mut(..needed).ok_or(BuildError::BufferTooSmall { needed, available })?;
        header[0..6].copy_from_slice(&self.destination.0);
        header[6..12].copy_from_slice(&self.source.0);
        let mut at = 12;
        for tag in self.vlan.as_slice() {
            tag.validate()?;
            header[at..at + 2].copy_from_slice(&tag.tpid.to_be_bytes());
            header[at + 2..at + 4].copy_from_slice(&tag.control().to_be_bytes());
            at += VLAN_TAG_LEN;
        }
        header[at..at + 2].copy_from_slice(&self.ether_type.to_be_bytes());
        Ok(needed)
    }
}

/// Checks that `buffer` has `needed` bytes.
#[inline]
pub(crate) fn require(buffer: &[u8], needed: usize, layer: Layer) -> Result<(), ParseError> {
    if buffer.len() < needed {
        return Err(ParseError::Truncated { layer, needed, available: buffer.len() });
    }
    Ok(())
}

/// `N` bytes at `at`, which the caller has checked to be there.
#[inline]
pub(crate) fn octets<const N: usize>(buffer: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&buffer[at..at + N]);
    out
}
