//! Reads capture files from any source, including the packet options that [`Writer`](super::Writer) writes.
//! `expressway_pcap` reads the blocks, in linear time and bounded memory.

use std::io::Read;
use std::path::Path;

use expressway_pcap as pcap;

use super::Seen;
use super::block::{Comment, packet_option, verdict_of};
use crate::{Packet, Point, Process};

pub use expressway_pcap::ReadError;

/// A capture file, read from beginning to end.
#[derive(Debug)]
pub struct Reader {
    inner: pcap::Reader,
    skipped: u64,
}

impl Reader {
    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read or is not a capture file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Ok(Self { inner: pcap::Reader::open(path)?, skipped: 0 })
    }

    /// Reads any input; errors call it `path`.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn read(path: &Path, input: impl Read + 'static) -> Result<Self, ReadError> {
        Ok(Self { inner: pcap::Reader::new(path, input)?, skipped: 0 })
    }

    /// Hands the next packet to `take`. False at the end of the file.
    ///
    /// # Errors
    /// If the file is truncated within a block or is corrupt.
    pub fn next(&mut self, take: &mut dyn FnMut(&Seen<'_>)) -> Result<bool, ReadError> {
        loop {
            match self.inner.next(|packet| packet.map(|packet| take(&seen(&packet))))? {
                None => return Ok(false),
                Some(Ok(())) => return Ok(true),
                Some(Err(_)) => self.skipped += 1,
            }
        }
    }

    /// Packets that are not understood: other link types, no interface, no time.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// A packet with what its options say.
fn seen<'a>(found: &pcap::Packet<'a>) -> Seen<'a> {
    let mut packet = Packet {
        time: found.time.clamp(0, u64::MAX.into()) as u64,
        interface: found.interface,
        queue: None,
        point: Point::KernelReceive,
        id: None,
        verdict: None,
        metadata: None,
        drop: None,
        process: None,
        length: found.length,
        data: found.frame,
    };
    let (mut verdict, mut comment, mut directed) = (None, None, false);
    for (code, value) in found.options.iter() {
        match code {
            packet_option::FLAGS => {
                let flags = found.options.u32(value).unwrap_or_default() & 3;
                directed = matches!(flags, 1 | 2);
                if flags == 2 {
                    packet.point = Point::KernelTransmit;
                }
            }
            packet_option::QUEUE => packet.queue = found.options.u32(value),
            packet_option::PACKET_ID => packet.id = found.options.u64(value),
            packet_option::VERDICT => {
                if let Some((&packet_option::XDP, value)) = value.split_first() {
                    let number = found.options.u64(value);
                    verdict = number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
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
    Seen { interface: found.name, directed, packet }
}

/// `opt_comment`.
const COMMENT: u16 = 1;
