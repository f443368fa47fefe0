//! Reads capture files from any source, pcapng and pcap, in linear time and bounded memory.
//!
//! It returns each packet as an Ethernet frame with its time, its interface and the options of its block, and says why it
//! skips one. What a packet means is up to the caller; `pcap-parser` parses the blocks.

#![forbid(unsafe_code)]

mod frame;
mod interface;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use interface::{Interface, Interfaces};
use pcap_parser::pcapng::PcapNGOption;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, EnhancedPacketBlock, LegacyPcapBlock, PcapBlockOwned, PcapError, create_reader};

/// Bytes of the file in memory; no block may be longer. Packets are of 256 KiB at most (tcpdump's snapshot length).
const BUFFER: usize = 512 << 10;

/// How pcapng begins: a section header block.
const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A file that cannot be read any further.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ReadError {
    path: PathBuf,
    problem: String,
}

/// Why a packet was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// Its link type is not supported, or has no Ethernet header and the packet is not IP.
    Unsupported,
    /// It has no interface or no time, or is shorter than its headers say.
    Damaged,
}

/// A packet as it was captured.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub time: i128,
    /// The number of its interface within the section.
    pub interface: u32,
    /// The name of its interface; empty if the file gives none.
    pub name: &'a str,
    /// What was captured of the Ethernet frame. Link types without an Ethernet header get one with zeros as addresses.
    pub frame: &'a [u8],
    /// Length of the whole frame; at least that of `frame`.
    pub length: u32,
    /// Whether all of it was captured.
    pub is_whole: bool,
    /// What else the file says of it.
    pub options: Options<'a>,
}

/// Options of a pcapng block.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    list: &'a [PcapNGOption<'a>],
    is_big_endian: bool,
}

impl<'a> Options<'a> {
    /// Their codes and values, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        self.list.iter().filter_map(|option| Some((option.code.0, option.as_bytes()?)))
    }

    /// A value of four bytes as a number in the byte order of the section.
    pub fn u32(&self, value: &[u8]) -> Option<u32> {
        let value = value.try_into().ok()?;
        Some(if self.is_big_endian { u32::from_be_bytes(value) } else { u32::from_le_bytes(value) })
    }

    /// The same of eight bytes.
    pub fn u64(&self, value: &[u8]) -> Option<u64> {
        let value = value.try_into().ok()?;
        Some(if self.is_big_endian { u64::from_be_bytes(value) } else { u64::from_le_bytes(value) })
    }
}

/// A capture file, read from beginning to end.
pub struct Reader {
    path: PathBuf,
    inner: Box<dyn PcapReaderIterator>,
    interfaces: Interfaces,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read or is not a capture file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path)
            .map_err(|error| ReadError { path: path.to_owned(), problem: error.to_string() })?;
        Self::new(path, file)
    }

    /// Reads any input; errors call it `path`.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn new(path: &Path, mut input: impl Read + 'static) -> Result<Self, ReadError> {
        let failed = |problem: &str| ReadError { path: path.to_owned(), problem: problem.into() };
        let head = first_block(&mut input).map_err(|_| failed("cannot be read"))?;
        let inner = create_reader(BUFFER, Cursor::new(head).chain(input)).map_err(|error| match error {
            PcapError::ReadError => failed("cannot be read"),
            _ => failed("is not a pcap or pcapng file"),
        })?;
        let interfaces = Interfaces::default();
        Ok(Self { path: path.to_owned(), inner, interfaces, scratch: Vec::new() })
    }

    /// Hands the next packet to `take`, or why it is skipped, and returns what that returned. `None` at the end of the file.
    ///
    /// # Errors
    /// If the file is truncated within a block or is corrupt.
    pub fn next<T>(
        &mut self,
        take: impl FnOnce(Result<Packet<'_>, Skipped>) -> T,
    ) -> Result<Option<T>, ReadError> {
        loop {
            let fail = |problem: &str| ReadError { path: self.path.clone(), problem: problem.into() };
            let (offset, block) = match self.inner.next() {
                Ok(next) => next,
                Err(PcapError::Eof) => return Ok(None),
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
                    enhanced(&self.interfaces, block, &mut self.scratch)
                }
                PcapBlockOwned::Legacy(block) => legacy(&self.interfaces, block, &mut self.scratch),
                // It has no time.
                PcapBlockOwned::NG(Block::SimplePacket(_)) => Err(Skipped::Damaged),
                other => {
                    self.interfaces.note(other);
                    self.inner.consume(offset);
                    continue;
                }
            };
            let taken = take(found);
            self.inner.consume(offset);
            return Ok(Some(taken));
        }
    }
}

/// The header of a pcap file, or a whole section header. The parser tells the two apart by its first read, which may return less
/// from a pipe.
fn first_block(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    input.by_ref().take(24).read_to_end(&mut head)?;
    if head.len() == 24 && head.starts_with(&SECTION) {
        let length = [head[4], head[5], head[6], head[7]];
        let is_little = head[8] == 0x4d;
        let length = if is_little { u32::from_le_bytes(length) } else { u32::from_be_bytes(length) };
        let rest = u64::from(length).min(BUFFER as u64).saturating_sub(24);
        input.by_ref().take(rest).read_to_end(&mut head)?;
    }
    Ok(head)
}

fn enhanced<'a>(
    interfaces: &'a Interfaces,
    block: &'a EnhancedPacketBlock<'_>,
    scratch: &'a mut Vec<u8>,
) -> Result<Packet<'a>, Skipped> {
    let interface = interfaces.get(block.if_id).ok_or(Skipped::Damaged)?;
    let time = interface.time(u128::from(block.ts_high) << 32 | u128::from(block.ts_low));
    let options = Options { list: &block.options, is_big_endian: block.big_endian() };
    let lengths = (block.caplen, block.origlen);
    packet(interface, block.if_id, time, lengths, block.data, options, scratch)
}

fn legacy<'a>(
    interfaces: &'a Interfaces,
    block: &'a LegacyPcapBlock<'_>,
    scratch: &'a mut Vec<u8>,
) -> Result<Packet<'a>, Skipped> {
    let interface = interfaces.get(0).ok_or(Skipped::Damaged)?;
    let time = interface.time_of(block.ts_sec, block.ts_usec);
    let options = Options { list: &[], is_big_endian: false };
    packet(interface, 0, time, (block.caplen, block.origlen), block.data, options, scratch)
}

fn packet<'a>(
    interface: &'a Interface,
    number: u32,
    time: i128,
    (captured, original): (u32, u32),
    data: &'a [u8],
    options: Options<'a>,
    scratch: &'a mut Vec<u8>,
) -> Result<Packet<'a>, Skipped> {
    let data = data.get(..captured as usize).ok_or(Skipped::Damaged)?;
    let (frame, length) = frame::ethernet(interface.link, data, original, scratch)?;
    Ok(Packet {
        time,
        interface: number,
        name: &interface.name,
        frame,
        length,
        is_whole: captured == original,
        options,
    })
}
