//! Capture files.

/// A pcap file with these packets a second apart, of a link type.
fn pcap(magic: u32, link: u32, packets: &[&[u8]]) -> Vec<u8> {
    let mut file = magic.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0]);
    for value in [0, 0, 262_144, link] {
        file.extend(value.to_le_bytes());
    }
    for (second, bytes) in (1u32..).zip(packets) {
        let length = bytes.len() as u32;
        for value in [second, 5, length, length] {
            file.extend(value.to_le_bytes());
        }
        file.extend(*bytes);
    }
    file
}

/// A block of a pcapng file.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len()) as u32;
    [&kind.to_le_bytes()[..], &length.to_le_bytes(), body, &length.to_le_bytes()].concat()
}

/// A pcapng file of one section: one interface with a time resolution, packets on it, and a simple packet.
fn pcapng(resolution: u8, packets: &[&[u8]]) -> Vec<u8> {
    let section = [&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let interface = [&[1, 0, 0, 0, 0, 0, 4, 0][..], &[9, 0, 1, 0, resolution, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for (time, bytes) in (1u32..).zip(packets) {
        let length = (bytes.len() as u32).to_le_bytes();
        let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
        let head = [&[0; 8][..], &time.to_le_bytes(), &length, &length].concat();
        file.extend(block(6, &[&head[..], bytes, &padding].concat()));
    }
    file.extend(block(3, &[4, 0, 0, 0, 1, 2, 3, 4]));
    file
}

/// A pcapng file with a packet that has all the options that a capture writes.
pub(super) fn with_options(frame: &[u8]) -> Vec<u8> {
    let option = |code: u8, value: &[u8]| {
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&[code, 0, value.len() as u8, 0], value, &padding].concat()
    };
    let length = (frame.len() as u32).to_le_bytes();
    let padding = vec![0; frame.len().next_multiple_of(4) - frame.len()];
    let options = [
        option(2, &[1, 0, 0, 0]),
        option(5, &[7; 8]),
        option(6, &[3, 0, 0, 0]),
        option(7, &[2, 4, 0, 0, 0, 0, 0, 0, 0]),
        option(1, b"xdp exit, redirect error 28, dropped: ring full, pid 7 a name"),
        vec![0; 4],
    ];
    let head = [&[0; 8][..], &[9, 0, 0, 0], &length, &length].concat();
    let mut file = pcapng(9, &[]);
    file.extend(block(6, &[&head[..], frame, &padding, &options.concat()].concat()));
    file
}

/// One of each format and way to be wrong, from two frames.
pub(super) fn files(first: &[u8], second: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let both = [first, second];
    let (microseconds, nanoseconds) = (0xa1b2_c3d4, 0xa1b2_3c4d);
    let whole = pcap(microseconds, 1, &both);
    vec![
        ("pcap-nanoseconds", pcap(nanoseconds, 1, &both)),
        ("pcap-raw", pcap(microseconds, 101, &[&first[18..], &second[14..]])),
        ("pcap-cut", whole[..whole.len() - 1].to_vec()),
        ("pcap-none", pcap(microseconds, 1, &[])),
        ("pcap-swapped", [&0xa1b2_c3d4u32.to_be_bytes()[..], &whole[4..]].concat()),
        ("pcapng", pcapng(6, &both)),
        ("pcapng-binary", pcapng(0x80 | 30, &both)),
        ("pcapng-resolution", pcapng(0xff, &both)),
        ("pcapng-two", [pcapng(6, &both), pcapng(9, &both)].concat()),
        ("pcap", whole),
    ]
}
