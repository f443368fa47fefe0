//! UDP payloads and times from a capture file, pcap or pcapng. Memory is bounded, whatever the file contains.
//! Packets that are left out are counted by reason.

use std::io::Read;
use std::path::Path;

use expressway_pcap::{Packet, Reader, Skipped};
use expressway_wire::{ParseError, parse_udp};

pub use expressway_pcap::ReadError as CaptureError;

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

/// A capture file that is read from beginning to end.
pub struct Capture {
    reader: Reader,
    speed: f64,
    /// Longest payload that may be sent.
    largest: usize,
    /// Time of the first datagram.
    first: Option<i128>,
    /// Time of the last one, from the first, at the speed of the replay.
    last: u64,
    stats: CaptureStats,
}

impl Capture {
    /// Opens a file to be replayed at `speed` times its own (more than 0). Payloads longer than `largest` are left
    /// out.
    ///
    /// # Errors
    /// A file that cannot be read or is no capture.
    pub fn open(path: &Path, speed: f64, largest: usize) -> Result<Self, CaptureError> {
        Ok(Self::new(Reader::open(path)?, speed, largest))
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
        Ok(Self::new(Reader::new(path, input)?, speed, largest))
    }

    fn new(reader: Reader, speed: f64, largest: usize) -> Self {
        Self { reader, speed, largest, first: None, last: 0, stats: CaptureStats::default() }
    }

    /// Appends the next UDP payload to `out`, and returns when it is due: nanoseconds from the first one. `None` at
    /// the end of the file. Times never decrease: a packet that was captured out of order goes with the one before.
    ///
    /// # Errors
    /// A file that is truncated within a packet or makes no sense.
    pub fn next_payload(&mut self, out: &mut Vec<u8>) -> Result<Option<u64>, CaptureError> {
        let largest = self.largest;
        loop {
            let found = self.reader.next(|packet| {
                let packet = packet?;
                payload(&packet, largest, out).map(|()| packet.time)
            })?;
            match found {
                None => return Ok(None),
                Some(Ok(time)) => {
                    self.stats.replayed += 1;
                    return Ok(Some(self.due(time)));
                }
                Some(Err(Left::Other)) => self.stats.other += 1,
                Some(Err(Left::Broken)) => self.stats.broken += 1,
                Some(Err(Left::Unfit)) => self.stats.unfit += 1,
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

impl From<Skipped> for Left {
    fn from(skipped: Skipped) -> Self {
        match skipped {
            Skipped::Unsupported => Self::Other,
            Skipped::Damaged => Self::Broken,
        }
    }
}

/// Appends a packet's UDP payload to `out`, or nothing.
fn payload(packet: &Packet<'_>, largest: usize, out: &mut Vec<u8>) -> Result<(), Left> {
    if !packet.is_whole {
        return Err(Left::Broken);
    }
    let layout = parse_udp(packet.frame).map_err(|error| match error {
        ParseError::EtherType(_) | ParseError::Protocol(_) | ParseError::Fragment => Left::Other,
        _ => Left::Broken,
    })?;
    if layout.payload_len == 0 || layout.payload_len > largest {
        return Err(Left::Unfit);
    }
    out.extend_from_slice(&packet.frame[layout.payload()]);
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

    /// A pcap file with frames at times (seconds, microseconds).
    fn pcap(packets: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
        let mut file = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 262_144, 1].map(u32::to_le_bytes).concat();
        for (seconds, fraction, bytes) in packets {
            let length = bytes.len() as u32;
            file.extend([*seconds, *fraction, length, length].map(u32::to_le_bytes).concat());
            file.extend(bytes);
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
    fn payloads_come_at_their_times() {
        let expected =
            vec![(0, b"one".to_vec()), (1_500_000_000, b"two".to_vec()), (1_500_000_000, b"three".to_vec())];
        // The third was captured before the second.
        let packets = [(100, 0, frame(b"one")), (101, 500_000, frame(b"two")), (101, 0, frame(b"three"))];
        let (found, stats) = replay(pcap(&packets), 1.0).unwrap();
        assert_eq!((found, stats.replayed), (expected, 3));
    }

    #[test]
    fn speed_divides_times() {
        let packets = [(1, 0, frame(b"a")), (3, 0, frame(b"b"))];
        for (speed, expected) in [(2.0, 1_000_000_000), (0.5, 4_000_000_000)] {
            assert_eq!(replay(pcap(&packets), speed).unwrap().0[1].0, expected);
        }
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
        let mut file = pcap(&packets);
        let (found, stats) = replay(file.clone(), 1.0).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(stats, CaptureStats { replayed: 2, other: 2, broken: 2, unfit: 2 });
        // A snapshot length cut the first packet.
        file[36] += 1;
        assert_eq!(replay(file, 1.0).unwrap().1.broken, 3);
    }
}
