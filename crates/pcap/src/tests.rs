use std::io::{Cursor, Read};
use std::path::Path;

use crate::{ReadError, Reader, Skipped};

/// A pcap file with packets at times (seconds, fraction), of a link type.
fn pcap(packets: &[(u32, u32, &[u8])], magic: u32, link: u32, big: bool) -> Vec<u8> {
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let half = |value: u16| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = word(magic).to_vec();
    file.extend([half(2), half(4)].concat());
    file.extend([0, 0, 262_144, link].map(word).concat());
    for (seconds, fraction, bytes) in packets {
        let length = bytes.len() as u32;
        file.extend([*seconds, *fraction, length, length].map(word).concat());
        file.extend(*bytes);
    }
    file
}

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// Blocks of pcapng in a byte order.
struct Section {
    big: bool,
    bytes: Vec<u8>,
}

impl Section {
    fn new(big: bool) -> Self {
        let mut section = Self { big, bytes: Vec::new() };
        let body = [section.words(&[0x1a2b_3c4d]), section.halves(&[1, 0]), vec![0xff; 8]].concat();
        section.block(0x0a0d_0d0a, &body);
        section
    }

    fn words(&self, values: &[u32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| if self.big { value.to_be_bytes() } else { value.to_le_bytes() })
            .collect()
    }

    fn halves(&self, values: &[u16]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| if self.big { value.to_be_bytes() } else { value.to_le_bytes() })
            .collect()
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let length = 12 + body.len() as u32;
        let block = [&self.words(&[kind, length])[..], body, &self.words(&[length])].concat();
        self.bytes.extend(block);
    }

    fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&self.halves(&[code, value.len() as u16])[..], value, &padding].concat()
    }

    fn interface(&mut self, link: u16, options: &[(u16, &[u8])]) {
        let mut body = [self.halves(&[link, 0]), self.words(&[0])].concat();
        for (code, value) in options {
            body.extend(self.option(*code, value));
        }
        body.extend([0; 4]);
        self.block(1, &body);
    }

    fn packet(&mut self, interface: u32, time: u64, data: &[u8], original: u32, options: &[(u16, &[u8])]) {
        let mut body =
            self.words(&[interface, (time >> 32) as u32, time as u32, data.len() as u32, original]);
        body.extend(data);
        body.resize(body.len().next_multiple_of(4), 0);
        for (code, value) in options {
            body.extend(self.option(*code, value));
        }
        self.block(6, &body);
    }
}

/// A packet without its borrows.
#[derive(Debug, PartialEq, Eq)]
struct Copied {
    time: i128,
    name: String,
    frame: Vec<u8>,
    length: u32,
    is_whole: bool,
    /// Code, and the value as a number where it has four or eight bytes.
    options: Vec<(u16, Option<u64>)>,
}

fn read(input: impl Read + 'static) -> Result<Vec<Result<Copied, Skipped>>, ReadError> {
    let mut reader = Reader::new(Path::new("file"), input)?;
    let mut found = Vec::new();
    while let Some(packet) = reader.next(|packet| {
        packet.map(|packet| Copied {
            time: packet.time,
            name: packet.name.to_owned(),
            frame: packet.frame.to_vec(),
            length: packet.length,
            is_whole: packet.is_whole,
            options: packet
                .options
                .iter()
                .map(|(code, value)| {
                    let long = packet.options.u64(value);
                    (code, long.or(packet.options.u32(value).map(u64::from)))
                })
                .collect(),
        })
    })? {
        found.push(packet);
    }
    Ok(found)
}

fn bytes(file: Vec<u8>) -> Result<Vec<Result<Copied, Skipped>>, ReadError> {
    read(Cursor::new(file))
}

/// Gives one byte at a time, as a slow pipe may.
struct Drops(Cursor<Vec<u8>>);

impl Read for Drops {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(1);
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn times_are_read_in_every_format() {
    let second = 1_000_000_000;
    for big in [false, true] {
        for (magic, unit) in [(MICROSECONDS, 1), (NANOSECONDS, 1000)] {
            let file = pcap(&[(100, 0, b"one"), (101, 500_000 * unit, b"two")], magic, 1, big);
            let found = bytes(file).unwrap();
            let times: Vec<_> = found.iter().map(|one| one.as_ref().unwrap().time).collect();
            assert_eq!(times, [100 * second, 101 * second + second / 2], "{magic:x} {big}");
        }
        for (resolution, units) in [(6, 1_000_000), (9, 1_000_000_000), (0x80 | 10, 1024)] {
            let mut section = Section::new(big);
            section.interface(1, &[(9, &[resolution])]);
            section.packet(0, 100 * units + units / 2, b"one", 3, &[]);
            let found = bytes(section.bytes).unwrap();
            assert_eq!(found[0].as_ref().unwrap().time, 100 * second + second / 2, "{resolution} {big}");
        }
    }
    // A pipe may give the first block in pieces.
    let mut section = Section::new(false);
    section.interface(1, &[]);
    section.packet(0, 1, b"one", 3, &[]);
    for file in [pcap(&[(1, 0, b"one")], MICROSECONDS, 1, false), section.bytes] {
        let found = read(Drops(Cursor::new(file))).unwrap();
        assert_eq!(found[0].as_ref().unwrap().frame, b"one");
    }
}

#[test]
fn what_a_block_says_comes_with_the_packet() {
    for big in [false, true] {
        let mut section = Section::new(big);
        section.interface(1, &[(2, b"eth0")]);
        section.interface(1, &[(2, &[b'x'; 200])]);
        let (word, long) = (section.words(&[7]), [section.words(&[0]), section.words(&[0])].concat());
        section.packet(0, 0, b"data", 1500, &[(2, &word), (5, &long), (1, b"words")]);
        section.packet(1, 0, b"data", 4, &[]);
        let found = bytes(section.bytes).unwrap();
        let expected = Copied {
            time: 0,
            name: "eth0".to_owned(),
            frame: b"data".to_vec(),
            length: 1500,
            is_whole: false,
            options: vec![(2, Some(7)), (5, Some(0)), (1, None)],
        };
        assert_eq!(found[0].as_ref().unwrap(), &expected, "{big}");
        let second = found[1].as_ref().unwrap();
        assert_eq!((second.name.len(), second.length, second.is_whole), (64, 4, true), "{big}");
    }
}

#[test]
fn link_types_without_ethernet_get_a_header() {
    for (link, header) in [(101, 0), (228, 0), (0, 4), (113, 16), (276, 20)] {
        for (first, ethertype) in [(0x45, [8, 0]), (0x60, [0x86, 0xdd])] {
            let packet = [vec![9; header], vec![first; 21]].concat();
            let found = bytes(pcap(&[(1, 0, &packet)], MICROSECONDS, link, false)).unwrap();
            let expected = [&[0; 12][..], &ethertype, &[first; 21]].concat();
            let found = found[0].as_ref().unwrap();
            assert_eq!((&found.frame, found.length), (&expected, 35), "link type {link}");
        }
    }
    for (link, packet, reason) in [
        (127, &[0x45; 30][..], Skipped::Unsupported), // radiotap
        (101, &[0x55; 30], Skipped::Unsupported),     // neither IPv4 nor IPv6
        (113, &[0x45; 15], Skipped::Damaged),
    ] {
        let found = bytes(pcap(&[(1, 0, packet)], MICROSECONDS, link, false)).unwrap();
        assert_eq!(found, [Err(reason)], "link type {link}");
    }
}

#[test]
fn packets_without_interface_or_time_are_skipped() {
    let mut section = Section::new(false);
    section.packet(0, 0, b"none", 4, &[]);
    section.interface(1, &[(9, &[20])]); // 10^20 units a second
    section.packet(0, 0, b"time", 4, &[]);
    let simple = [section.words(&[4]), b"data".to_vec()].concat();
    section.block(3, &simple);
    for _ in 0..300 {
        section.interface(1, &[]);
    }
    section.packet(255, 0, b"last", 4, &[]);
    section.packet(256, 0, b"more", 4, &[]);
    // Another section has interfaces of its own.
    let first = section.bytes;
    let mut section = Section::new(true);
    section.packet(1, 0, b"none", 4, &[]);
    let found = bytes([first, section.bytes].concat()).unwrap();
    let damaged = found.iter().filter(|one| **one == Err(Skipped::Damaged)).count();
    assert_eq!((found.len(), damaged), (6, 5));
    assert_eq!(found[3].as_ref().unwrap().frame, b"last");
}

#[test]
fn files_that_are_not_captures_are_refused() {
    for file in [&b""[..], b"GIF89a and then some more bytes", &[0; 100]] {
        assert_eq!(bytes(file.to_vec()).unwrap_err().to_string(), "file: is not a pcap or pcapng file");
    }
    let whole = pcap(&[(1, 0, b"data")], MICROSECONDS, 1, false);
    let error = bytes(whole[..whole.len() - 1].to_vec()).unwrap_err();
    assert_eq!(error.to_string(), "file: is truncated within a packet");
    let large = vec![0; 600 << 10];
    let error = bytes(pcap(&[(1, 0, &large)], MICROSECONDS, 1, false)).unwrap_err();
    assert_eq!(error.to_string(), "file: has a block of more than 512 KiB");
    let error = Reader::open(Path::new("/nonexistent/x")).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/x: No such file"), "{error}");
}

proptest::proptest! {
    #[test]
    fn noise_is_an_error_and_no_panic(
        changes in proptest::collection::vec((proptest::num::usize::ANY, proptest::num::u8::ANY), 1..5),
        length in proptest::num::usize::ANY,
        big in proptest::bool::ANY,
    ) {
        let mut section = Section::new(big);
        section.interface(1, &[(2, b"eth0"), (9, &[9])]);
        section.packet(0, 1, b"one", 3, &[(1, b"comment")]);
        section.packet(0, 2, b"two", 3, &[]);
        let mut file = section.bytes;
        for (index, byte) in changes {
            let index = index % file.len();
            file[index] = byte;
        }
        file.truncate(length % (file.len() + 1));
        let _ = bytes(file);
    }
}
