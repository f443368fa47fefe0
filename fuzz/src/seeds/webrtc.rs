//! What peers of WebRTC sessions send: what players and publishers do, DTLS in fragments, and what costs much in SCTP, RTP and RTCP.

const RAW: u8 = 1;
const PLAY: u8 = 2;
const DATA: u8 = 4;
const EAGER: u8 = 8;
const LIVE: u8 = 16;

/// Steps of this target (see `webrtc::script`).
const DATAGRAM: u8 = 0;
const SCTP: u8 = 1;
const WITHIN: u8 = 2;
const RTP: u8 = 3;
const FEEDBACK: u8 = 4;
const RTCP: u8 = 5;
const ICE: u8 = 6;
const PEER: u8 = 7;
const CHUNK: u8 = 8;
const FEED: u8 = 9;
const RECORD: u8 = 10;
const HELLO: u8 = 11;
const STRANGER: u8 = 12;
const TIME: u8 = 13;
const GUESS: u8 = 14;
const TURN: u8 = 15;

/// Arguments of feedback: NACK and TWCC of transport, PLI, FIR and REMB of payloads.
const NACK: u8 = 1;
const TWCC: u8 = 15;
const PLI: u8 = 0x20 | 1;
const FIR: u8 = 0x20 | 4;
const REMB: u8 = 0x20 | 15;

fn step(what: u8, doublings: u8, argument: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a payload of a step").to_be_bytes();
    [&[doublings << 4 | what, argument], length.as_slice(), payload].concat()
}

fn script(manner: u8, steps: &[Vec<u8>]) -> Vec<u8> {
    [&[manner], steps.concat().as_slice(), &step(TIME, 2, 20, b"")].concat()
}

/// A chunk of SCTP.
fn chunk(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut chunk = vec![kind, flags];
    chunk.extend_from_slice(&(4 + body.len() as u16).to_be_bytes());
    chunk.extend_from_slice(body);
    chunk.resize(chunk.len().next_multiple_of(4), 0);
    chunk
}

/// A ClientHello (RFC 5246, section 7.4.1.2; RFC 6347, section 4.2.1).
fn hello() -> Vec<u8> {
    let extensions: &[&[u8]] = &[
        b"\0\x17\0\0",
        b"\0\x0a\0\x04\0\x02\0\x17",
        b"\0\x0b\0\x02\x01\0",
        b"\0\x0d\0\x04\0\x02\x04\x03",
        b"\0\x0e\0\x07\0\x04\0\x08\0\x07\0",
    ];
    let extensions = extensions.concat();
    let length = (extensions.len() as u16).to_be_bytes();
    [b"\xfe\xfd", &[7; 32][..], b"\0\0\0\x04\xc0\x2b\xc0\x2c\x01\0", &length, &extensions].concat()
}

/// A message of a handshake, in a fragment.
fn handshake(kind: u8, message: u8, (start, end): (usize, usize), body: &[u8]) -> Vec<u8> {
    let three = |value: usize| [0, (value >> 8) as u8, value as u8];
    let mut fragment = vec![kind];
    fragment.extend_from_slice(&three(body.len()));
    fragment.extend_from_slice(&[0, message]);
    fragment.extend_from_slice(&three(start));
    fragment.extend_from_slice(&three(end - start));
    fragment.extend_from_slice(&body[start..end]);
    fragment
}

/// What is said before DTLS is done.
fn handshakes() -> Vec<(&'static str, Vec<u8>)> {
    let hello = hello();
    let whole = handshake(1, 0, (0, hello.len()), &hello);
    let parts = |order: &[usize]| -> Vec<Vec<u8>> {
        let part = |at: &usize| handshake(1, 0, (at * 10, (at * 10 + 10).min(hello.len())), &hello);
        order.iter().map(|at| step(RECORD, 0, 4, &part(at))).collect()
    };
    let count = hello.len().div_ceil(10);
    let forward: Vec<usize> = (0..count).collect();
    let backward: Vec<usize> = (0..count).rev().collect();
    let certificate = handshake(11, 1, (0, 400), &[7; 400]);
    vec![
        ("hello", script(RAW, &[step(RECORD, 0, 4, &whole)])),
        ("hello-twice", script(RAW, &[step(RECORD, 6, 4, &whole), step(TIME, 0, 200, b"")])),
        ("hello-parts", script(RAW, &parts(&forward))),
        ("hello-parts-backward", script(RAW | EAGER, &parts(&backward))),
        ("hello-never-whole", script(RAW, &[step(HELLO, 7, 0xf0, &[3; 1100]), step(TIME, 3, 100, b"")])),
        ("hello-octets", script(RAW, &[step(HELLO, 10, 0x10, b"x")])),
        (
            "hello-numbers",
            script(RAW, &(0..15).map(|n| step(HELLO, 3, 0x10 | n, &[3; 100])).collect::<Vec<_>>()),
        ),
        (
            "records-eight",
            script(RAW, &[step(DATAGRAM, 6, 0, &[22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0].repeat(8))]),
        ),
        (
            "records-many",
            script(RAW, &[step(DATAGRAM, 2, 0, &[23, 254, 253, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0].repeat(90))]),
        ),
        ("records-later", script(RAW, &[step(RECORD, 6, 7, &[1; 1000])])),
        ("alerts", script(RAW, &[step(RECORD, 3, 2, b"\x01\x0a"), step(RECORD, 0, 2, b"\x02\x28")])),
        (
            "certificates",
            script(
                RAW,
                &[step(RECORD, 0, 4, &whole), step(RECORD, 5, 4, &certificate), step(RECORD, 3, 0, b"\x01")],
            ),
        ),
        (
            "guesses",
            script(
                RAW,
                &[step(GUESS, 7, 0, b""), step(GUESS, 5, 0, &[0x80, 0x30, 0, 4, 1, 2, 3, 4].repeat(60))],
            ),
        ),
        ("addresses", script(RAW, &[step(ICE, 8, 0, b"")])),
        (
            "addresses-later",
            script(
                RAW,
                &(0..60)
                    .map(|n| [step(ICE, 2, 4 * n, b""), step(TIME, 0, 100, b"")].concat())
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "strangers",
            script(RAW, &[step(STRANGER, 6, 0, &[22, 254, 253, 0, 0]), step(STRANGER, 6, 0, &[0x80; 100])]),
        ),
    ]
}

/// What is said by SCTP.
fn associations() -> Vec<(&'static str, Vec<u8>)> {
    let data = |manner: u8, steps: &[Vec<u8>]| script(PLAY | DATA | manner, steps);
    let sacks =
        chunk(3, 0, &[&[0; 4][..], &[0, 1, 0, 0], &[0, 100, 0, 0], &[0, 1, 0, 2].repeat(100)].concat());
    let forward = |count: usize| chunk(192, 0, &[&[0xff; 4][..], &[0, 1, 0, 1].repeat(count)].concat());
    let reset = |count: usize| {
        chunk(130, 0, &[&[0, 13, 0, 16 + 2 * count as u8][..], &[0; 12], &[0, 1].repeat(count)].concat())
    };
    vec![
        ("messages", data(LIVE, &[step(CHUNK, 5, 0, b"\x03\0\0hello"), step(PEER, 2, 0, b"")])),
        ("messages-empty", data(0, &[step(CHUNK, 6, 0, b"\x03\0\0x")])),
        ("gaps", data(0, &[step(CHUNK, 9, 0, b"\x07\0\x02x")])),
        ("gaps-many", data(0, &(0..60).map(|n| step(CHUNK, 0, 0, &[4, n, 0x80, b'x'])).collect::<Vec<_>>())),
        ("parts", data(0, &[step(CHUNK, 0, 0, b"\x02\0\0x"), step(CHUNK, 10, 0, b"\0\0\x01x")])),
        (
            "parts-large",
            data(
                0,
                &[step(CHUNK, 0, 0, b"\x02\0\0x"), step(CHUNK, 7, 0, &[&[0, 0, 1][..], &[9; 1100]].concat())],
            ),
        ),
        ("streams", data(0, &(0..70).map(|n| step(CHUNK, 0, n, &[4, 0, n, b'x'])).collect::<Vec<_>>())),
        ("sacks", data(0, &[step(SCTP, 5, 0, &sacks)])),
        ("forward-tsn", data(0, &[step(SCTP, 3, 0, &forward(200))])),
        ("resets", data(0, &[step(SCTP, 5, 0, &reset(100))])),
        (
            "heartbeats",
            data(0, &[step(SCTP, 6, 0, &chunk(4, 0, &[&[0, 1, 3, 232][..], &[5; 996]].concat()))]),
        ),
        (
            "inits",
            data(0, &[step(SCTP, 6, 0, &chunk(1, 0, &[0, 0, 0, 7, 0, 16, 0, 0, 0, 16, 0, 16, 0, 0, 0, 1]))]),
        ),
        ("cookies", data(0, &[step(SCTP, 5, 0, &chunk(10, 0, &[7; 600]))])),
        ("errors", data(0, &[step(SCTP, 4, 0, &chunk(9, 0, &[0, 6, 0, 4].repeat(200)))])),
        ("chunks-unknown", data(0, &[step(SCTP, 2, 0, &chunk(0xc5, 0, &[]).repeat(280))])),
        ("chunks-tiny", data(0, &[step(SCTP, 2, 0, &chunk(11, 0, &[]).repeat(280))])),
        ("abort", data(0, &[step(SCTP, 0, 0, &chunk(6, 0, &[]))])),
        ("shutdown", data(LIVE, &[step(SCTP, 0, 0, &chunk(7, 0, &[0; 4])), step(PEER, 2, 0, b"")])),
        ("no-sctp", data(0, &[step(WITHIN, 6, 0, b"x"), step(WITHIN, 2, 0, &[0; 1100])])),
        (
            "channels",
            data(
                0,
                &(0..40)
                    .map(|n| {
                        step(
                            CHUNK,
                            0,
                            2 * n,
                            &[&[3, 0, n, 3, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0][..], b"all"].concat(),
                        )
                    })
                    .collect::<Vec<_>>(),
            ),
        ),
        ("no-association", script(PLAY, &[step(WITHIN, 5, 0, &[1; 100])])),
    ]
}

/// What is sent by RTP and RTCP.
fn media() -> Vec<(&'static str, Vec<u8>)> {
    let published = |steps: &[Vec<u8>]| script(0, steps);
    let played = |steps: &[Vec<u8>]| {
        let begin = [step(FEED, 5, 0, &[0x10; 200]), step(TIME, 2, 2, b"")].concat();
        script(PLAY, &[&[begin][..], steps].concat())
    };
    let picture = [&[0x10u8, 0][..], &[8; 600]].concat();
    let compound = |kind: u8, count: u8, words: u16, body: &[u8]| {
        [&[0x80 | count, kind][..], &words.to_be_bytes(), body].concat()
    };
    let runs = |count: usize| [&[0u8, 0, 0xff, 0xff, 0, 0, 0, 1][..], &[0x1f, 0xff].repeat(count)].concat();
    vec![
        ("publish", published(&[step(RTP, 6, 0, &picture), step(TIME, 3, 5, b"")])),
        ("publish-live", script(LIVE, &[step(RTP, 5, 0, &picture), step(TIME, 4, 10, b"")])),
        ("publish-gaps", published(&[step(RTP, 5, 0xb0, b"\x10x"), step(TIME, 3, 5, b"")])),
        ("publish-jumps", published(&[step(RTP, 6, 0xf0, b"\x10x"), step(TIME, 4, 30, b"")])),
        ("publish-streams", published(&(0..8).map(|n| step(RTP, 2, n, b"\x10x")).collect::<Vec<_>>())),
        (
            "extensions",
            published(&[step(RTP, 4, 8, &[&[0xbe, 0xde, 0, 200][..], &[0x10, 7].repeat(400)].concat())]),
        ),
        (
            "extensions-two",
            published(&[step(RTP, 4, 8, &[&[0x10, 0, 0, 200][..], &[1, 2, 7, 7].repeat(200)].concat())]),
        ),
        (
            "streams-by-number",
            published(
                &(0..200u8)
                    .map(|n| {
                        step(
                            DATAGRAM,
                            0,
                            0,
                            &[&[0x80, 96, 0, n, 0, 0, 0, 0, 9, 9, n, 1][..], &[0; 30]].concat(),
                        )
                    })
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "probes",
            published(&[step(
                DATAGRAM,
                6,
                0,
                &[&[0x80, 97, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0; 200]].concat(),
            )]),
        ),
        ("play", played(&[step(FEEDBACK, 0, PLI, b""), step(FEED, 6, 0, &picture), step(TIME, 3, 5, b"")])),
        ("play-live", script(PLAY | LIVE, &[step(FEED, 6, 0, &picture), step(TIME, 4, 10, b"")])),
        ("nacks", played(&[step(FEEDBACK, 4, NACK, &[0, 17, 0xff, 0xff]), step(TIME, 3, 5, b"")])),
        (
            "nacks-much",
            played(&[step(FEEDBACK, 3, NACK, &[0, 17, 0xff, 0xff].repeat(250)), step(TIME, 3, 5, b"")]),
        ),
        (
            "nacks-all",
            played(&[step(
                FEEDBACK,
                1,
                NACK,
                &(0..250u8).flat_map(|n| [n, 17, 0xff, 0xff]).collect::<Vec<_>>(),
            )]),
        ),
        ("twcc-runs", played(&[step(FEEDBACK, 4, TWCC, &runs(200))])),
        (
            "twcc",
            played(&[step(
                FEEDBACK,
                3,
                TWCC,
                &[&[0, 1, 0, 14, 0, 0, 0, 1, 0xbf, 0xff][..], &[4; 14]].concat(),
            )]),
        ),
        ("remb", played(&[step(FEEDBACK, 3, REMB, &[&b"REMB"[..], &[1, 10, 0, 1, 0, 0, 0, 9]].concat())])),
        ("fir", played(&[step(FEEDBACK, 5, FIR, &[0, 0, 0, 9, 1, 0, 0, 0].repeat(100))])),
        ("plis", played(&[step(FEEDBACK, 8, PLI, b"")])),
        ("reports", played(&[step(RTCP, 3, 0, &compound(201, 31, 187, &[7; 748]))])),
        ("reports-tiny", played(&[step(RTCP, 2, 0, &compound(201, 0, 1, &[0, 0, 0, 1]).repeat(140))])),
        (
            "descriptions",
            played(&[step(
                RTCP,
                2,
                0,
                &compound(202, 31, 62, &[0, 0, 0, 1, 1, 2, b'a', b'b', 0, 0, 0, 0].repeat(20)),
            )]),
        ),
        ("byes", played(&[step(RTCP, 4, 0, &compound(203, 31, 31, &[0, 0, 0, 9].repeat(31)))])),
        (
            "extended",
            played(&[step(
                RTCP,
                3,
                0,
                &compound(
                    207,
                    0,
                    250,
                    &[&[0, 0, 0, 1][..], &[4, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8].repeat(83)].concat(),
                ),
            )]),
        ),
        ("applications", played(&[step(RTCP, 3, 0, &compound(204, 0, 250, &[7; 1000]))])),
        ("padding", played(&[step(RTCP, 3, 0, &compound(201, 0x20, 100, &[100; 400]))])),
        ("turns", played(&[step(TURN, 4, 0, b"")])),
    ]
}

pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    [handshakes(), associations(), media()].concat()
}
