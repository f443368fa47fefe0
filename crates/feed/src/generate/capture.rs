//! UDP payloads and times of a capture file, pcap or pcapng. Whatever a file says, memory is bounded, and what is left
//! out is counted with its reason.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use expressway_wire::{ParseError, parse_udp, protocol};
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};

/// Bytes of the file in memory; no block may be longer. Packets are of 256 KiB at most (tcpdump's snapshot length).
const BUFFER: usize = 512 << 10;

/// Interfaces that a pcapng file may describe.
const INTERFACES: usize = 256;

const SECOND: u128 = 1_000_000_000;

/// A capture that cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct CaptureError {
    path: PathBuf,
    problem: String,
}

/// What became of a capture's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// UDP datagrams that are replayed.
    pub replayed: u64,
    /// Other protocols, fragments, and link types that are not understood.
    pub other: u64,
    /// Packets of which the capture does not have all bytes, or whose headers are wrong.
    pub broken: u64,
    /// Datagrams without payload, or with more of it than may be sent.
    pub unfit: u64,
}

/// How packets of one interface are to be read.
#[derive(Clone, Copy)]
struct Interface {
    link: Linktype,
    /// Units of time a second.
    resolution: u64,
    /// Seconds to add.
    offset: i64,
}

/// A capture file that is read from beginning to end.
pub struct Capture {
    path: PathBuf,
    reader: Box<dyn PcapReaderIterator>,
    interfaces: Vec<Interface>,
    speed: f64,
    /// Longest payload that may be sent.
    largest: usize,
    /// Time of the first datagram.
    first: Option<i128>,
    /// Time of the last one, from the first, at the speed of the replay.
    last: u64,
    scratch: Vec<u8>,
    stats: CaptureStats,
}

impl Capture {
    /// Opens a file to be replayed at `speed` times its own (more than 0). Payloads longer than `largest` are left
    /// out.
    ///
    /// # Errors
    /// A file that cannot be read or is no capture.
    pub fn open(path: &Path, speed: f64, largest: usize) -> Result<Self, CaptureError> {
        let fail = |problem: String| CaptureError { path: path.to_owned(), problem };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        Self::read(path, file, speed, largest)
    }

    /// The same of any input; errors call it `path`.
    ///
    /// # Errors
    /// As [`Capture::open`].
    pub fn read(
        path: &Path,
        input: impl Read + 'static,
        speed: f64,
        largest: usize,
    ) -> Result<Self, CaptureError> {
        let reader = create_reader(BUFFER, input).map_err(|error| CaptureError {
            path: path.to_owned(),
            problem: match error {
                PcapError::ReadError => "cannot be read".into(),
                _ => "is not a pcap or pcapng file".into(),
            },
        })?;
        Ok(Self {
            path: path.to_owned(),
            reader,
            interfaces: Vec::new(),
            speed,
            largest,
            first: None,
            last: 0,
            scratch: Vec::new(),
            stats: CaptureStats::default(),
        })
    }

    /// Appends the next UDP payload to `out`, and returns when it is due: nanoseconds from the first one. `None` at
    /// the end of the file. Times never decrease: a packet that was captured out of order goes with the one before.
    ///
    /// # Errors
    /// A file that is truncated within a packet or makes no sense.
    pub fn next_payload(&mut self, out: &mut Vec<u8>) -> Result<Option<u64>, CaptureError> {
        loop {
            let fail = |problem: &str| CaptureError { path: self.path.clone(), problem: problem.into() };
            let (offset, block) = match self.reader.next() {
                Ok(next) => next,
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_)) => {
                    self.reader.refill().map_err(|_| fail("cannot be read"))?;
                    continue;
                }
                Err(PcapError::UnexpectedEof) => return Err(fail("is truncated within a packet")),
                Err(PcapError::BufferTooSmall) => return Err(fail("has a block of more than 512 KiB")),
                Err(_) => return Err(fail("is corrupt: invalid block")),
            };
            let length = out.len();
            let found = packet(&mut self.interfaces, &block).map(|found| {
                found.and_then(|packet| {
                    payload(&packet, &mut self.scratch, self.largest, out).map(|()| packet.time)
                })
            });
            self.reader.consume(offset);
            match found {
                // A block without a packet.
                None => {}
                Some(Ok(time)) => {
                    self.stats.replayed += 1;
                    return Ok(Some(self.due(time)));
                }
                Some(Err(reason)) => {
                    out.truncate(length);
                    *match reason {
                        Left::Other => &mut self.stats.other,
                        Left::Broken => &mut self.stats.broken,
                        Left::Unfit => &mut self.stats.unfit,
                    } += 1;
                }
            }
        }
    }

    /// What became of the packets so far.
    pub fn stats(&self) -> CaptureStats {
        self.stats
    }

    fn due(&mut self, time: i128) -> u64 {
        let first = *self.first.get_or_insert(time);
        let due = ((time - first).max(0) as f64 / self.speed) as u64;
        self.last = self.last.max(due);
        self.last
    }
}

/// Why a packet is not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Other,
    Broken,
    Unfit,
}

/// A packet as captured; its time in nanoseconds.
struct Packet<'a> {
    time: i128,
    link: Linktype,
    bytes: &'a [u8],
}

/// Units a second by the option `if_tsresol` of pcapng: a power of ten, or with the highest bit set of two; 0 for what
/// does not fit. (pcap-parser 0.16 takes every power of two for invalid.)
fn resolution(option: u8) -> u64 {
    let exponent = u32::from(option & 0x7f);
    match option & 0x80 {
        0 => 10u64.checked_pow(exponent),
        _ => 1u64.checked_shl(exponent),
    }
    .unwrap_or(0)
}

/// The packet in a block. `None`: it has none, but may have described an interface.
fn packet<'a>(
    interfaces: &mut Vec<Interface>,
    block: &'a PcapBlockOwned<'_>,
) -> Option<Result<Packet<'a>, Left>> {
    let whole = |caplen: u32, original: u32, bytes: &'a [u8]| {
        bytes.get(..caplen as usize).filter(|_| caplen == original).ok_or(Left::Broken)
    };
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            *interfaces = vec![Interface { link: header.network, resolution, offset: 0 }];
            None
        }
        PcapBlockOwned::Legacy(block) => {
            let interface = interfaces.first()?;
            let fraction = u128::from(block.ts_usec) * SECOND / u128::from(interface.resolution);
            let time = i128::from(block.ts_sec) * SECOND as i128 + fraction as i128;
            let bytes = whole(block.caplen, block.origlen, block.data);
            Some(bytes.map(|bytes| Packet { time, link: interface.link, bytes }))
        }
        // A section has interfaces of its own.
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            None
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
            if interfaces.len() < INTERFACES {
                let resolution = resolution(block.if_tsresol);
                interfaces.push(Interface { link: block.linktype, resolution, offset: block.ts_offset() });
            }
            None
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
            let interface = interfaces.get(block.if_id as usize).filter(|interface| interface.resolution > 0);
            let Some(interface) = interface else { return Some(Err(Left::Broken)) };
            let units = u128::from(block.ts_high) << 32 | u128::from(block.ts_low);
            let time = (units * SECOND / u128::from(interface.resolution)) as i128
                + i128::from(interface.offset) * SECOND as i128;
            let bytes = whole(block.caplen, block.origlen, block.data);
            Some(bytes.map(|bytes| Packet { time, link: interface.link, bytes }))
        }
        // It has no time.
        PcapBlockOwned::NG(Block::SimplePacket(_)) => Some(Err(Left::Broken)),
        PcapBlockOwned::NG(_) => None,
    }
}

/// Bytes in front of the IP packet of a link type without an Ethernet header; `None` for those not understood.
fn link_header(link: Linktype) -> Option<usize> {
    /// `LINKTYPE_LINUX_SLL2` (https://www.tcpdump.org/linktypes.html).
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

/// Appends a packet's UDP payload to `out`.
fn payload(
    packet: &Packet<'_>,
    scratch: &mut Vec<u8>,
    largest: usize,
    out: &mut Vec<u8>,
) -> Result<(), Left> {
    let frame = match packet.link {
        Linktype::ETHERNET => packet.bytes,
        link => {
            let header = link_header(link).ok_or(Left::Other)?;
            let ip = packet.bytes.get(header..).ok_or(Left::Broken)?;
            let ethertype = match ip.first().map(|byte| byte >> 4) {
                Some(4) => protocol::ETHERTYPE_IPV4,
                Some(6) => protocol::ETHERTYPE_IPV6,
                _ => return Err(Left::Other),
            };
            scratch.clear();
            scratch.extend_from_slice(&[0; 12]);
            scratch.extend_from_slice(&ethertype.to_be_bytes());
            scratch.extend_from_slice(ip);
            &scratch[..]
        }
    };
    let layout = parse_udp(frame).map_err(|error| match error {
        ParseError::EtherType(_) | ParseError::Protocol(_) | ParseError::Fragment => Left::Other,
        _ => Left::Broken,
    })?;
    if layout.payload_len == 0 || layout.payload_len > largest {
        return Err(Left::Unfit);
    }
    out.extend_from_slice(&frame[layout.payload()]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet frame with a UDP datagram.
    fn frame(payload: &[u8]) -> Vec<u8> {
        use expressway_wire::{ChecksumMode, MAX_HEADER_LEN, MacAddr, UdpHeaders};
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let headers =
            UdpHeaders::new(mac, mac, "192.0.2.1:5".parse().unwrap(), "192.0.2.2:6".parse().unwrap());
        let mut frame = vec![0; MAX_HEADER_LEN + payload.len()];
        frame[42..42 + payload.len()].copy_from_slice(payload);
        let length = headers.write(&mut frame, payload.len(), ChecksumMode::Full, 0).unwrap();
        frame.truncate(length);
        frame
    }

    /// A pcap file with frames at times (seconds, fraction), as little or big endian, of a link type.
    fn pcap(packets: &[(u32, u32, Vec<u8>)], magic: u32, link: u32, big: bool) -> Vec<u8> {
        let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let half = |value: u16| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let mut file = word(magic).to_vec();
        file.extend(half(2));
        file.extend(half(4));
        for value in [0, 0, 262_144, link] {
            file.extend(word(value));
        }
        for (seconds, fraction, bytes) in packets {
            for value in [*seconds, *fraction, bytes.len() as u32, bytes.len() as u32] {
                file.extend(word(value));
            }
            file.extend(bytes);
        }
        file
    }

    const MICROSECONDS: u32 = 0xa1b2_c3d4;
    const NANOSECONDS: u32 = 0xa1b2_3c4d;

    /// A pcapng file: one interface with a time resolution, and packets at times in its units.
    fn pcapng(packets: &[(u64, Vec<u8>)], resolution: u8) -> Vec<u8> {
        let block = |kind: u32, body: &[u8]| {
            let length = (12 + body.len()) as u32;
            [&kind.to_le_bytes()[..], &length.to_le_bytes(), body, &length.to_le_bytes()].concat()
        };
        let section = [&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
        let interface =
            [&[1, 0, 0, 0, 0, 0, 4, 0][..], &[9, 0, 1, 0, resolution, 0, 0, 0, 0, 0, 0, 0]].concat();
        let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
        for (time, bytes) in packets {
            let length = (bytes.len() as u32).to_le_bytes();
            let (high, low) = (((time >> 32) as u32).to_le_bytes(), (*time as u32).to_le_bytes());
            let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
            file.extend(block(6, &[&[0; 4], &high[..], &low, &length, &length, bytes, &padding].concat()));
        }
        file
    }

    type Replayed = (Vec<(u64, Vec<u8>)>, CaptureStats);

    fn replay(file: Vec<u8>, speed: f64) -> Result<Replayed, CaptureError> {
        let mut capture = Capture::read(Path::new("file"), std::io::Cursor::new(file), speed, 100)?;
        let mut found = Vec::new();
        loop {
            let mut out = Vec::new();
            match capture.next_payload(&mut out)? {
                Some(time) => found.push((time, out)),
                None => return Ok((found, capture.stats())),
            }
        }
    }

    #[test]
    fn payloads_come_at_their_times_in_every_format() {
        let expected =
            vec![(0, b"one".to_vec()), (1_500_000_000, b"two".to_vec()), (1_500_000_000, b"three".to_vec())];
        let frames = [frame(b"one"), frame(b"two"), frame(b"three")];
        for big in [false, true] {
            for (magic, unit) in [(MICROSECONDS, 1), (NANOSECONDS, 1000)] {
                // The third was captured before the second.
                let times = [(100, 0), (101, 500_000 * unit), (101, 0)];
                let packets: Vec<_> =
                    times.iter().zip(&frames).map(|(time, frame)| (time.0, time.1, frame.clone())).collect();
                let (found, stats) = replay(pcap(&packets, magic, 1, big), 1.0).unwrap();
                assert_eq!((&found, stats.replayed), (&expected, 3), "{magic:x} {big}");
            }
        }
        for (resolution, second) in [(6, 1_000_000), (9, 1_000_000_000), (0x80 | 10, 1024)] {
            let times = [100 * second, 100 * second + second * 3 / 2, 101 * second];
            let packets: Vec<_> = times.into_iter().zip(frames.clone()).collect();
            assert_eq!(replay(pcapng(&packets, resolution), 1.0).unwrap().0, expected, "{resolution}");
        }
    }

    #[test]
    fn speed_divides_times() {
        let packets = [(1, 0, frame(b"a")), (3, 0, frame(b"b"))];
        for (speed, expected) in [(2.0, 1_000_000_000), (0.5, 4_000_000_000)] {
            assert_eq!(replay(pcap(&packets, MICROSECONDS, 1, false), speed).unwrap().0[1].0, expected);
        }
    }

    #[test]
    fn link_types_without_ethernet_are_read() {
        let ip = frame(b"x")[14..].to_vec();
        for (link, header) in [(101, 0), (228, 0), (0, 4), (113, 16), (276, 20)] {
            let bytes = [vec![0; header], ip.clone()].concat();
            let (found, _) = replay(pcap(&[(1, 0, bytes)], MICROSECONDS, link, false), 1.0).unwrap();
            assert_eq!(found, [(0, b"x".to_vec())], "link type {link}");
        }
        let (found, stats) = replay(pcap(&[(1, 0, ip)], MICROSECONDS, 127, false), 1.0).unwrap();
        assert_eq!((found.len(), stats.other), (0, 1), "radiotap is not understood");
    }

    #[test]
    fn what_is_not_replayed_is_counted_with_its_reason() {
        let mut tcp = frame(b"x");
        // The protocol, and the IPv4 checksum that goes with it.
        tcp[23] = 6;
        let sum = u16::from_be_bytes([tcp[24], tcp[25]]).wrapping_add(11);
        tcp[24..26].copy_from_slice(&sum.to_be_bytes());
        let mut arp = frame(b"x");
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut damaged = frame(b"x");
        damaged[16] = 0xff;
        let packets = [
            frame(b"good"),
            tcp,
            arp,
            damaged,
            frame(b"cut")[..30].to_vec(),
            frame(b""),
            frame(&[0; 101]),
            frame(&[1; 100]),
        ];
        let packets: Vec<_> = packets.into_iter().map(|bytes| (1, 0, bytes)).collect();
        let mut file = pcap(&packets, MICROSECONDS, 1, false);
        let (found, stats) = replay(file.clone(), 1.0).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(stats, CaptureStats { replayed: 2, other: 2, broken: 2, unfit: 2 });
        // A snapshot length cut the first packet.
        file[36] += 1;
        assert_eq!(replay(file, 1.0).unwrap().1.broken, 3);
    }

    #[test]
    fn files_that_are_none_are_refused() {
        for file in [&b""[..], b"GIF89a and then some more bytes", &[0; 100]] {
            let error = replay(file.to_vec(), 1.0).err().unwrap();
            assert_eq!(error.to_string(), "file: is not a pcap or pcapng file");
        }
        let whole = pcap(&[(1, 0, frame(b"x"))], MICROSECONDS, 1, false);
        let error = replay(whole[..whole.len() - 1].to_vec(), 1.0).err().unwrap();
        assert_eq!(error.to_string(), "file: is truncated within a packet");
        let error = Capture::open(Path::new("/nonexistent/x"), 1.0, 10).err().unwrap();
        assert!(error.to_string().starts_with("/nonexistent/x: No such file"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn noise_is_an_error_and_no_panic(
            changes in proptest::collection::vec((proptest::num::usize::ANY, proptest::num::u8::ANY), 1..5),
            length in proptest::num::usize::ANY,
        ) {
            let mut file = pcapng(&[(1, frame(b"one")), (2, frame(b"two"))], 6);
            for (index, byte) in changes {
                let index = index % file.len();
                file[index] = byte;
            }
            file.truncate(length % (file.len() + 1));
            let _ = replay(file, 1.0);
        }
    }
}
