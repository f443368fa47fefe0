//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), little endian. Each is appended whole.

use crate::{Direction, Packet, Point, TxMetadata, Verdict};

use super::{Interface, Statistics};

/// Enhanced packet block (section 4.3): the type of blocks that are packets.
pub(super) const PACKET: u32 = 6;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const SECRETS: u32 = 10;

/// `LINKTYPE_ETHERNET` (https://www.tcpdump.org/linktypes.html).
const ETHERNET: u16 = 1;

/// `TLS Key Log` (section 4.7).
const TLS_KEY_LOG: u32 = 0x544c_534b;

/// Octets of an option's text that are kept. A filter may be long, a name is not.
const TEXT: usize = 4096;

/// Options of any block.
const COMMENT: u16 = 1;

/// Options of an enhanced packet block.
pub(super) mod packet_option {
    pub(in super::super) const FLAGS: u16 = 2;
    pub(in super::super) const DROP_COUNT: u16 = 4;
    pub(in super::super) const PACKET_ID: u16 = 5;
    pub(in super::super) const QUEUE: u16 = 6;
    pub(in super::super) const VERDICT: u16 = 7;
    /// The first octet of a verdict by XDP; eight of its value follow.
    pub(in super::super) const XDP: u8 = 2;
}

/// A block being appended.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    has_options: bool,
}

impl<'a> Block<'a> {
    fn begin(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        Self { out, start, has_options: false }
    }

    fn u16(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// The octets, padded to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.resize(self.out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.has_options = true;
        let value = &value[..value.len().min(TEXT)];
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    fn text(&mut self, code: u16, text: &str) {
        if !text.is_empty() {
            self.option(code, &text.as_bytes()[..text.floor_char_boundary_at(TEXT)]);
        }
    }

    /// A time in two halves, the higher first (section 4.3): as an option of statistics has it too.
    fn time_option(&mut self, code: u16, time: u64) {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&((time >> 32) as u32).to_le_bytes());
        value[4..].copy_from_slice(&(time as u32).to_le_bytes());
        self.option(code, &value);
    }

    fn end(mut self) {
        if self.has_options {
            self.u32(0);
        }
        let length = (self.out.len() - self.start + 4) as u32;
        self.u32(length);
        self.out[self.start + 4..self.start + 8].copy_from_slice(&length.to_le_bytes());
    }
}

/// Where a text may be cut.
trait Cut {
    fn floor_char_boundary_at(&self, most: usize) -> usize;
}

impl Cut for str {
    fn floor_char_boundary_at(&self, most: usize) -> usize {
        let most = most.min(self.len());
        (0..=most).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// A section header (section 4.1): of what machine, and by whom.
pub(super) fn section(out: &mut Vec<u8>, hardware: &str, system: &str, application: &str) {
    let mut block = Block::begin(out, SECTION);
    block.u32(0x1a2b_3c4d);
    block.u16(1);
    block.u16(0);
    // Its length is not known in advance.
    block.u64(u64::MAX);
    block.text(2, hardware);
    block.text(3, system);
    block.text(4, application);
    block.end();
}

/// An interface description (section 4.2). Times are in nanoseconds.
pub(super) fn interface(out: &mut Vec<u8>, interface: &Interface) {
    let mut block = Block::begin(out, INTERFACE);
    block.u16(ETHERNET);
    block.u16(0);
    block.u32(interface.snaplen);
    block.text(2, &interface.name);
    block.text(3, &interface.description);
    if let Some(address) = &interface.mac {
        block.option(6, address);
    }
    block.option(9, &[9]);
    if !interface.filter.is_empty() {
        // 0: in the words of libpcap.
        let end = interface.filter.floor_char_boundary_at(TEXT - 1);
        block.option(11, &[&[0], &interface.filter.as_bytes()[..end]].concat());
    }
    block.end();
}

/// What is said of a packet besides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct About<'a> {
    /// Which way it went is known.
    pub(super) directed: bool,
    /// Packets of the interface that were lost since the one before.
    pub(super) dropped: u64,
    /// What happened since the one before.
    pub(super) notes: &'a [String],
}

/// An enhanced packet block.
pub(super) fn packet(out: &mut Vec<u8>, id: u32, packet: &Packet<'_>, about: &About<'_>) {
    let mut block = Block::begin(out, PACKET);
    block.u32(id);
    block.u32((packet.time >> 32) as u32);
    block.u32(packet.time as u32);
    block.u32(packet.data.len() as u32);
    block.u32(packet.length);
    block.padded(packet.data);
    let flags: u32 = match packet.point.direction() {
        Direction::In => 1,
        Direction::Out => 2,
    };
    if about.directed {
        block.option(packet_option::FLAGS, &flags.to_le_bytes());
    }
    if about.dropped > 0 {
        block.option(packet_option::DROP_COUNT, &about.dropped.to_le_bytes());
    }
    if let Some(id) = packet.id {
        block.option(packet_option::PACKET_ID, &id.to_le_bytes());
    }
    if let Some(queue) = packet.queue {
        block.option(packet_option::QUEUE, &queue.to_le_bytes());
    }
    if let Some(verdict) = packet.verdict {
        let mut value = [packet_option::XDP; 9];
        value[1..].copy_from_slice(&u64::from(verdict_number(verdict)).to_le_bytes());
        block.option(packet_option::VERDICT, &value);
    }
    let comment = comment(packet);
    block.text(COMMENT, &comment);
    for note in about.notes {
        block.text(COMMENT, note);
    }
    block.end();
}

/// Interface statistics (section 4.6), from the first of `times` to the second: what was counted, and how many packets of
/// it the files have; and what happened since the last of them.
pub(super) fn statistics(
    out: &mut Vec<u8>,
    id: u32,
    times: (u64, u64),
    counted: (&Statistics, u64),
    notes: &[String],
) {
    let ((started, now), (counts, delivered)) = (times, counted);
    let mut block = Block::begin(out, STATISTICS);
    block.u32(id);
    block.u32((now >> 32) as u32);
    block.u32(now as u32);
    block.time_option(2, started);
    block.time_option(3, now);
    let options = [(4, counts.received), (5, counts.dropped), (6, counts.accepted), (8, Some(delivered))];
    for (code, count) in options {
        if let Some(count) = count {
            block.option(code, &count.to_le_bytes());
        }
    }
    for note in notes {
        block.text(COMMENT, note);
    }
    block.end();
}

/// Octets of secrets in a block, so that readers need no large buffer.
const SECRETS_OF_BLOCK: usize = 64 << 10;

/// Decryption secrets (section 4.7): lines of a TLS key log, in as many blocks as they need.
pub(super) fn secrets(out: &mut Vec<u8>, mut lines: &[u8]) {
    while lines.len() > SECRETS_OF_BLOCK {
        let whole = lines[..SECRETS_OF_BLOCK].iter().rposition(|byte| *byte == b'\n');
        let (block, rest) = lines.split_at(whole.map_or(SECRETS_OF_BLOCK, |last| last + 1));
        secrets_block(out, block);
        lines = rest;
    }
    secrets_block(out, lines);
}

fn secrets_block(out: &mut Vec<u8>, lines: &[u8]) {
    let mut block = Block::begin(out, SECRETS);
    block.u32(TLS_KEY_LOG);
    block.u32(lines.len() as u32);
    block.padded(lines);
    block.end();
}

/// `enum xdp_action` (include/uapi/linux/bpf.h).
const fn verdict_number(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Aborted => 0,
        Verdict::Drop => 1,
        Verdict::Pass => 2,
        Verdict::Tx => 3,
        Verdict::Redirect { .. } => 4,
        Verdict::Unknown(number) => number,
    }
}

/// The verdict of a number.
pub(super) const fn verdict_of(number: u32, error: Option<i32>) -> Verdict {
    match number {
        0 => Verdict::Aborted,
        1 => Verdict::Drop,
        2 => Verdict::Pass,
        3 => Verdict::Tx,
        4 => Verdict::Redirect { error },
        other => Verdict::Unknown(other),
    }
}

const ENTRY: &str = "xdp entry";
const EXIT: &str = "xdp exit";
const ZERO_COPY: &str = "xsk zero-copy";
const COPY: &str = "xsk copy";
const TRANSMIT: &str = "xdp transmit";
const ERROR: &str = "redirect error ";
const METADATA: &str = "tx metadata ";
const DROPPED: &str = "dropped: ";
const PROCESS: &str = "pid ";

/// What no option has a place for. The process comes last, for its name may have any characters.
fn comment(packet: &Packet<'_>) -> String {
    let mut parts = Vec::new();
    match packet.point {
        Point::XdpEntry if packet.verdict.is_none() => parts.push(ENTRY.to_owned()),
        Point::XdpExit => parts.push(EXIT.to_owned()),
        Point::XskTransmit { zero_copy } => parts.push(if zero_copy { ZERO_COPY } else { COPY }.to_owned()),
        Point::XdpTransmit => parts.push(TRANSMIT.to_owned()),
        // As it came, with its verdict: that says as much.
        Point::XdpEntry | Point::KernelReceive | Point::KernelTransmit => {}
    }
    if let Some(Verdict::Redirect { error: Some(error) }) = packet.verdict {
        parts.push(format!("{ERROR}{error}"));
    }
    if let Some(metadata) = packet.metadata {
        parts.push(format!("{METADATA}{metadata}"));
    }
    if let Some(reason) = packet.drop {
        parts.push(format!("{DROPPED}{reason}"));
    }
    if let Some(process) = packet.process {
        parts.push(format!("{PROCESS}{} {}", process.id, process.name));
    }
    parts.join(", ")
}

/// What a comment of [`comment`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Comment<'a> {
    pub(super) point: Option<Point>,
    pub(super) error: Option<i32>,
    pub(super) metadata: Option<TxMetadata>,
    pub(super) drop: Option<&'a str>,
    pub(super) process: Option<(u32, &'a str)>,
}

impl<'a> Comment<'a> {
    /// Nothing of it is believed unless all of it is understood: others write comments too.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut found = Self::default();
        let mut rest = Some(text);
        while let Some(text) = rest {
            if let Some(process) = text.strip_prefix(PROCESS) {
                let (id, name) = process.split_once(' ')?;
                found.process = Some((id.parse().ok()?, name));
                return Some(found);
            }
            let (part, behind) =
                text.split_once(", ").map_or((text, None), |(part, rest)| (part, Some(rest)));
            rest = behind;
            if let Some(error) = part.strip_prefix(ERROR) {
                found.error = Some(error.parse().ok()?);
            } else if let Some(metadata) = part.strip_prefix(METADATA) {
                found.metadata = Some(metadata.parse().ok()?);
            } else if let Some(reason) = part.strip_prefix(DROPPED) {
                found.drop = Some(reason);
            } else {
                found.point = Some(match part {
                    ENTRY => Point::XdpEntry,
                    EXIT => Point::XdpExit,
                    ZERO_COPY => Point::XskTransmit { zero_copy: true },
                    COPY => Point::XskTransmit { zero_copy: false },
                    TRANSMIT => Point::XdpTransmit,
                    _ => return None,
                });
            }
        }
        Some(found)
    }
}

/// How many of `bytes`, which begin with a block, are whole blocks, and how many of these are packets.
pub(super) fn whole(bytes: &[u8]) -> (usize, u64) {
    let (mut at, mut packets) = (0, 0);
    while let Some(header) = bytes.get(at..at + 8) {
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap_or_default());
        let length = u32::from_le_bytes(header[4..].try_into().unwrap_or_default()) as usize;
        if length == 0 || bytes.len() - at < length {
            break;
        }
        at += length;
        packets += u64::from(kind == PACKET);
    }
    (at, packets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;

    fn sample<'a>(point: Point, data: &'a [u8]) -> Packet<'a> {
        Packet {
            time: 0x0102_0304_0506_0708,
            interface: 3,
            queue: Some(2),
            point,
            id: None,
            verdict: None,
            metadata: None,
            drop: None,
            process: None,
            length: 100,
            data,
        }
    }

    /// Octets by the figures of the draft.
    #[test]
    fn a_packet_is_laid_out_as_specified() {
        let mut out = Vec::new();
        let mut given = sample(Point::XdpEntry, b"abcde");
        given.verdict = Some(Verdict::Redirect { error: None });
        packet(&mut out, 1, &given, &About { directed: true, dropped: 7, notes: &[] });
        let expected: &[&[u8]] = &[
            &[6, 0, 0, 0, 88, 0, 0, 0, 1, 0, 0, 0],
            &[4, 3, 2, 1, 8, 7, 6, 5],
            &[5, 0, 0, 0, 100, 0, 0, 0],
            b"abcde\0\0\0",
            &[2, 0, 4, 0, 1, 0, 0, 0],
            &[4, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0, 0],
            &[6, 0, 4, 0, 2, 0, 0, 0],
            &[7, 0, 9, 0, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0],
            &[88, 0, 0, 0],
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn comments_say_what_they_were_made_of() {
        let points = [
            Point::XdpEntry,
            Point::XskTransmit { zero_copy: true },
            Point::XskTransmit { zero_copy: false },
            Point::XdpTransmit,
        ];
        let asked = TxMetadata { checksum: Some((34, 6)), timestamp: true, launch_time: Some(u64::MAX) };
        for point in points {
            let mut packet = sample(point, b"");
            packet.metadata = Some(asked);
            packet.drop = Some("ring full");
            packet.process = Some(Process { id: 12, name: "a, dropped: b" });
            let text = comment(&packet);
            let wanted = Comment {
                point: Some(point),
                error: None,
                metadata: Some(asked),
                drop: Some("ring full"),
                process: Some((12, "a, dropped: b")),
            };
            assert_eq!(Comment::parse(&text), Some(wanted), "{text}");
        }
        let mut failed = sample(Point::XdpEntry, b"");
        failed.verdict = Some(Verdict::Redirect { error: Some(28) });
        assert_eq!(comment(&failed), "redirect error 28");
        assert_eq!(Comment::parse("redirect error 28").unwrap().error, Some(28));
        assert_eq!(Comment::parse("somebody's remark"), None);
        for wrong in
            ["checksum=34", "checksum=34+70000", "launch=-1", "timestamp=1", "", "launch=1  timestamp"]
        {
            assert_eq!(Comment::parse(&format!("tx metadata {wrong}")), None, "{wrong}");
        }
        assert_eq!(comment(&sample(Point::KernelTransmit, b"")), "");
    }

    #[test]
    fn whole_blocks_are_told_from_those_that_are_cut() {
        let mut out = Vec::new();
        section(&mut out, "", "", "");
        let first = out.len();
        packet(&mut out, 0, &sample(Point::KernelReceive, b"abc"), &About::default());
        let second = out.len();
        packet(&mut out, 0, &sample(Point::KernelReceive, b"abc"), &About::default());
        for length in 0..=out.len() {
            let wanted = match length {
                _ if length < first => (0, 0),
                _ if length < second => (first, 0),
                _ if length < out.len() => (second, 1),
                _ => (out.len(), 2),
            };
            assert_eq!(whole(&out[..length]), wanted, "{length}");
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let long = "ü".repeat(TEXT);
        let mut out = Vec::new();
        let description = Interface { description: long, ..Interface::named("eth0", 96) };
        interface(&mut out, &description);
        assert_eq!(whole(&out), (out.len(), 0));
        assert!(out.len() < TEXT + 100);
        assert_eq!("üü".floor_char_boundary_at(3), 2);
    }
}
