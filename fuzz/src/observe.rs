//! Target of `expressway_observe::{file, text}`: captures of anybody, and packets of anybody, printed.

use std::io::Cursor;
use std::path::Path;

use expressway_observe::file::{Reader, Seen};
use expressway_observe::text::{Dump, Payload, Printer, TextOptions, TimeFormat};
use expressway_observe::{Packet, Point};

use crate::cost::Bound;

/// The buffer of a file, the table of conversations, a line of bounded length a packet, and octets in hexadecimal.
pub const TEXT: Bound =
    Bound { steps: (400, 40_000), allocations: (2, 256), bytes: (80, 4 << 20), peak: (40, 3 << 20) };

/// The first octet says how lines look; the rest is a capture file, or a packet that comes twice.
pub fn text(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let bit = |number: u8| choice >> number & 1 == 1;
    let options = TextOptions {
        time: if bit(0) { TimeFormat::Previous } else { TimeFormat::Epoch },
        nano: bit(0),
        link: bit(1),
        quiet: false,
        verbose: bit(2),
        dump: Dump { hex: bit(3), ascii: bit(4), link: bit(1) },
        number: bit(0),
        payload: [None, Some(Payload::Quic), Some(Payload::Rtp), Some(Payload::Mold)]
            [usize::from(choice >> 5 & 3)],
    };
    let mut printer = Printer::new(options);
    let mut line = String::new();
    let mut print = |seen: &Seen<'_>| {
        let packet = &seen.packet;
        line.clear();
        printer.print_seen(seen, &mut line);
        let rows = if options.dump.hex { packet.data.len().div_ceil(16) } else { 0 };
        assert!(line.lines().count() <= 1 + rows, "a line a packet");
        assert!(line.find('\n').is_some_and(|length| length < 80_000), "of bounded length");
        assert!(
            !line.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')),
            "nothing for a terminal to obey"
        );
    };
    if let Ok(mut reader) = Reader::read(Path::new("fuzz"), Cursor::new(data.to_vec())) {
        while let Ok(true) = reader.next(&mut print) {}
        assert!(reader.skipped() <= data.len() as u64 / 12);
        return;
    }
    for time in 0..2 {
        let packet = Packet {
            time,
            interface: 1,
            queue: None,
            point: Point::KernelReceive,
            id: None,
            verdict: None,
            drop: None,
            process: None,
            metadata: None,
            length: data.len() as u32,
            data,
        };
        print(&Seen { interface: "eth0", directed: time > 0, packet });
    }
}
