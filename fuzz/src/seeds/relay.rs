//! Inputs of the relay's target: who sends and when, a length, and the datagram.

/// A step.
fn step(kind: u8, datagram: &[u8]) -> Vec<u8> {
    [&[kind, datagram.len() as u8], datagram].concat()
}

fn rtp(sequence: u16, ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&u32::from(sequence).to_be_bytes());
    packet.extend_from_slice(&ssrc.to_be_bytes());
    packet.extend_from_slice(b"payload");
    packet
}

fn rtcp(kind: u8, form: u8, words: &[u32]) -> Vec<u8> {
    let mut packet = vec![0x80 | form, kind];
    packet.extend_from_slice(&(words.len() as u16).to_be_bytes());
    words.iter().for_each(|word| packet.extend_from_slice(&word.to_be_bytes()));
    packet
}

/// One for each kind of packet and sender.
pub(super) fn rooms() -> Vec<(&'static str, Vec<u8>)> {
    let report = rtcp(201, 0, &[7]);
    let stream = |numbers: &[u16]| -> Vec<u8> {
        numbers.iter().flat_map(|number| step(0, &rtp(*number, 1))).collect()
    };
    let nack = |media: u32, entries: &[u32]| {
        [report.clone(), rtcp(205, 1, &[&[7, media], entries].concat())].concat()
    };
    let block = [1, 0x0100_0005, 9, 3, 0x5678_9abc, 0];
    vec![
        ("stream", stream(&[65_534, 65_535, 0, 1, 2])),
        ("gap", [stream(&[1, 5, 9]), step(16, &rtp(10, 1)), step(16, &rtp(11, 1))].concat()),
        ("late-and-twice", stream(&[1, 3, 2, 3, 2])),
        ("jump", stream(&[1, 2, 40_000, 40_001])),
        (
            "nack",
            [stream(&[1, 2, 3, 4]), step(2, &nack(1, &[0x0001_ffff])), step(3, &nack(9, &[0x0002_0001]))]
                .concat(),
        ),
        ("nack-much", [stream(&[1, 2, 3, 4]), step(2, &nack(1, &[0x0001_ffff; 40]))].concat()),
        ("pli", [stream(&[1]), step(2, &[report.clone(), rtcp(206, 1, &[7, 1])].concat())].concat()),
        (
            "fir",
            [stream(&[1]), step(3, &[report.clone(), rtcp(206, 4, &[7, 0, 9, 0x0100_0000])].concat())]
                .concat(),
        ),
        (
            "sender-report",
            [
                stream(&[1, 2]),
                step(1, &rtcp(200, 0, &[1, 0x1234_5678, 0x9abc_def0, 5, 6, 7])),
                step(2, &rtcp(201, 1, &[&[7], &block[..]].concat())),
                step(8, &rtp(3, 1)),
            ]
            .concat(),
        ),
        ("bye", [stream(&[1]), step(1, &rtcp(203, 1, &[1])), step(4, &rtp(1, 2))].concat()),
        (
            "second-publisher",
            [stream(&[1]), step(4, &rtp(1, 2)), step(5, &rtp(2, 1)), step(24 + 4, &rtp(9, 2))].concat(),
        ),
        ("many-ssrcs", (0..20).flat_map(|ssrc| step(0, &rtp(1, ssrc))).collect()),
        ("stranger", [stream(&[1]), step(6, &report)].concat()),
        ("description", [stream(&[1]), step(1, &rtcp(202, 1, &[1, 0x0103_6162, 0x6300_0000]))].concat()),
        (
            "cut",
            [step(0, &rtp(1, 1)[..11]), step(1, &rtcp(200, 0, &[1])), step(2, &[0x80, 0xc8, 0xff, 0xff])]
                .concat(),
        ),
    ]
}
