//! Reads capture files of anybody, pcapng and pcap: in linear time and bounded memory.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use expressway_wire::protocol;
use pcap_parser::pcapng::PcapNGOption;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, EnhancedPacketBlock, Linktype, PcapBlockOwned, PcapError, create_reader};

use super::Seen;
use super::block::{Comment, packet_option, verdict_of};
use crate::{Packet, Point, Process};

/// Octets of the file in memory; no block may be longer. Packets are of 256 KiB at most (tcpdump's snapshot length).
const BUFFER: usize = 512 << 10;

/// Interfaces that a section may describe.
const INTERFACES: usize = 256;

/// Octets of an interface's name (`IFNAMSIZ` is 16; other systems have longer ones).
const NAME: usize = 64;

/// How pcapng begins: a section header block.
const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const SECOND: u128 = 1_000_000_000;

/// A file that cannot be read on.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReadError {
    path: PathBuf,
    problem: String,
}

/// How packets of one interface are to be read.
#[derive(Clone, Debug)]
struct Described {
    name: String,
    link: Linktype,
    /// Units of time a second; 0: makes no sense.
    resolution: u64,
    /// Seconds to add.
    offset: i64,
}

/// A capture file that is read from its beginning to its end.
pub struct Reader {
    path: PathBuf,
    inner: Box<dyn PcapReaderIterator>,
    interfaces: Vec<Described>,
    scratch: Vec<u8>,
    skipped: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The header of a pcap file, or a whole section header: what a pipe gives first may be less, and is all that the parser looks at
/// to tell which it is.
fn first_block(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    input.by_ref().take(24).read_to_end(&mut head)?;
    if head.len() == 24 && head.starts_with(&SECTION) {
        let length = [head[4], head[5], head[6], head[7]];
        let is_little = head[8] == 0x4d;
        let length = if is_little { u32::from_le_bytes(length) } else { u32::from_be_bytes(length) };
        input
            .by_ref()
            .take(u64::from(length).min(BUFFER as u64).saturating_sub(24))
            .read_to_end(&mut head)?;
    }
    Ok(head)
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// A file that cannot be read or is no capture.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path)
            .map_err(|error| ReadError { path: path.to_owned(), problem: error.to_string() })?;
        Self::read(path, file)
    }

    /// The same of any input; errors call it `path`.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn read(path: &Path, mut input: impl Read + 'static) -> Result<Self, ReadError> {
        let failed = |problem: &str| ReadError { path: path.to_owned(), problem: problem.into() };
        let head = first_block(&mut input).map_err(|_| failed("cannot be read"))?;
        let inner = create_reader(BUFFER, Cursor::new(head).chain(input)).map_err(|error| match error {
            PcapError::ReadError => failed("cannot be read"),
            _ => failed("is not a pcap or pcapng file"),
        })?;
        Ok(Self { path: path.to_owned(), inner, interfaces: Vec::new(), scratch: Vec::new(), skipped: 0 })
    }

    /// Hands the next packet to `take`. False at the end of the file.
    ///
    /// # Errors
    /// A file that is truncated within a block or makes no sense.
    pub fn next(&mut self, take: &mut dyn FnMut(&Seen<'_>)) -> Result<bool, ReadError> {
        loop {
            let fail = |problem: &str| ReadError { path: self.path.clone(), problem: problem.into() };
            let (offset, block) = match self.inner.next() {
                Ok(next) => next,
                Err(PcapError::Eof) => return Ok(false),
                Err(PcapError::Incomplete(_)) => {
                    self.inner.refill().map_err(|_| fail("cannot be read"))?;
                    continue;
                }
                Err(PcapError::UnexpectedEof) => return Err(fail("is truncated within a packet")),
                Err(PcapError::BufferTooSmall) => return Err(fail("has a block of more than 512 KiB")),
                Err(_) => return Err(fail("is corrupt: invalid block")),
            };
            let found = match &block {
                PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
                    Some(enhanced(&self.interfaces, block, &mut self.scratch, take))
                }
                PcapBlockOwned::Legacy(block) => {
                    let packet = self.interfaces.first().and_then(|interface| {
                        let fraction = u128::from(block.ts_usec) * SECOND / u128::from(interface.resolution);
                        let time = u128::from(block.ts_sec) * SECOND + fraction;
                        let (data, length) = ethernet(
                            interface.link,
                            block.data.get(..block.caplen as usize)?,
                            block.origlen,
                            &mut self.scratch,
                        )?;
                        Some(plain(time as u64, 0, length, data))
                    });
                    Some(packet.is_some_and(|packet| {
                        take(&Seen { interface: "", directed: false, packet });
                        true
                    }))
                }
                other => describe(&mut self.interfaces, other).then_some(false),
            };
            self.inner.consume(offset);
            match found {
                Some(true) => return Ok(true),
                Some(false) => self.skipped += 1,
                None => {}
            }
        }
    }

    /// Packets that are not understood: other link types, no interface, no time.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// A packet of which no more is known.
fn plain(time: u64, interface: u32, length: u32, data: &[u8]) -> Packet<'_> {
    Packet {
        time,
        interface,
        queue: None,
        point: Point::KernelReceive,
        id: None,
        verdict: None,
        metadata: None,
        drop: None,
        process: None,
        length,
        data,
    }
}

/// Takes note of what a block says of interfaces. True if it is a packet that is left out.
fn describe(interfaces: &mut Vec<Described>, block: &PcapBlockOwned<'_>) -> bool {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            let name = String::new();
            *interfaces = vec![Described { name, link: header.network, resolution, offset: 0 }];
        }
        // A section has interfaces of its own.
        PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(block)) if interfaces.len() < INTERFACES => {
            const IF_NAME: u16 = 2;
            let name = block.options.iter().find(|option| option.code.0 == IF_NAME);
            let name = name.and_then(PcapNGOption::as_bytes).unwrap_or_default();
            interfaces.push(Described {
                name: String::from_utf8_lossy(&name[..name.len().min(NAME)]).into_owned(),
                link: block.linktype,
                resolution: resolution(block.if_tsresol),
                offset: block.ts_offset(),
            });
        }
        // They have no time.
        PcapBlockOwned::NG(Block::SimplePacket(_)) => return true,
        _ => {}
    }
    false
}

/// Hands on a packet with what its options say. False if it is not understood.
fn enhanced(
    interfaces: &[Described],
    block: &EnhancedPacketBlock<'_>,
    scratch: &mut Vec<u8>,
    take: &mut dyn FnMut(&Seen<'_>),
) -> bool {
    let interface = interfaces.get(block.if_id as usize).filter(|interface| interface.resolution > 0);
    let Some(interface) = interface else { return false };
    let Some(data) = block.data.get(..block.caplen as usize) else { return false };
    let Some((data, length)) = ethernet(interface.link, data, block.origlen, scratch) else { return false };
    let units = u128::from(block.ts_high) << 32 | u128::from(block.ts_low);
    let time = (units * SECOND / u128::from(interface.resolution)) as i128
        + i128::from(interface.offset) * SECOND as i128;
    let mut packet = plain(time.clamp(0, u64::MAX.into()) as u64, block.if_id, length, data);
    let big = block.big_endian();
    let word = |value: &[u8]| {
        let value = value.try_into().ok()?;
        Some(if big { u32::from_be_bytes(value) } else { u32::from_le_bytes(value) })
    };
    let long = |value: &[u8]| {
        let value = value.try_into().ok()?;
        Some(if big { u64::from_be_bytes(value) } else { u64::from_le_bytes(value) })
    };
    let (mut verdict, mut comment, mut directed) = (None, None, false);
    for option in &block.options {
        let Some(value) = option.as_bytes() else { continue };
        match option.code.0 {
            packet_option::FLAGS => {
                let flags = word(value).unwrap_or_default() & 3;
                directed = matches!(flags, 1 | 2);
                if flags == 2 {
                    packet.point = Point::KernelTransmit;
                }
            }
            packet_option::QUEUE => packet.queue = word(value),
            packet_option::PACKET_ID => packet.id = long(value),
            packet_option::VERDICT => {
                if let Some((&packet_option::XDP, value)) = value.split_first() {
                    verdict = long(value).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
                }
            }
            COMMENT if comment.is_none() => {
                comment = std::str::from_utf8(value).ok().and_then(Comment::parse)
            }
            _ => {}
        }
    }
    let comment = comment.unwrap_or_default();
    if verdict.is_some() {
        packet.point = Point::XdpEntry;
    }
    packet.verdict = verdict.map(|number| verdict_of(number, comment.error));
    packet.point = comment.point.unwrap_or(packet.point);
    packet.metadata = comment.metadata;
    packet.drop = comment.drop;
    packet.process = comment.process.map(|(id, name)| Process { id, name });
    directed |= verdict.is_some() || comment.point.is_some();
    take(&Seen { interface: &interface.name, directed, packet });
    true
}

/// `opt_comment`.
const COMMENT: u16 = 1;

/// Units a second by the option `if_tsresol`: a power of ten, or with the highest bit set of two; 0 for what does not
/// fit. (pcap-parser 0.16 takes every power of two for invalid.)
fn resolution(option: u8) -> u64 {
    let exponent = u32::from(option & 0x7f);
    match option & 0x80 {
        0 => 10u64.checked_pow(exponent),
        _ => 1u64.checked_shl(exponent),
    }
    .unwrap_or(0)
}

/// A packet as an Ethernet frame, and its length on the wire: those of link types without such a header get one of zeros.
/// `None` for link types that are not understood.
fn ethernet<'a>(
    link: Linktype,
    data: &'a [u8],
    length: u32,
    scratch: &'a mut Vec<u8>,
) -> Option<(&'a [u8], u32)> {
    const HEADER: u32 = 14;
    if link == Linktype::ETHERNET {
        return Some((data, length.max(data.len() as u32)));
    }
    let header = link_header(link)?;
    let ip = data.get(header..)?;
    let ethertype = match ip.first().map(|byte| byte >> 4) {
        Some(4) => protocol::ETHERTYPE_IPV4,
        Some(6) => protocol::ETHERTYPE_IPV6,
        _ => return None,
    };
    scratch.clear();
    scratch.extend_from_slice(&[0; 12]);
    scratch.extend_from_slice(&ethertype.to_be_bytes());
    scratch.extend_from_slice(ip);
    let whole = length.saturating_sub(header as u32).saturating_add(HEADER);
    Some((scratch, whole.max(scratch.len() as u32)))
}

/// Octets in front of the IP packet of a link type without an Ethernet header (https://www.tcpdump.org/linktypes.html).
fn link_header(link: Linktype) -> Option<usize> {
    const SLL2: i32 = 276;
    match link {
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Some(0),
        // Of some systems' captures.
        Linktype(12 | 14) => Some(0),
        Linktype::NULL | Linktype::LOOP => Some(4),
        Linktype::LINUX_SLL => Some(16),
        Linktype(SLL2) => Some(20),
        _ => None,
    }
}
