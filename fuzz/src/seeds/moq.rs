//! What peers of Media over QUIC do: publish and subscribe in one session, begin what they do not end, and break the protocol.

use super::quic::{EAGER, FRAMES, PACKED, STREAM, STREAM_FIN, TURN, UNI, script, step};

/// Steps of this target (see `quic::script`).
const ANSWER: u8 = 4;
const SETUP: u8 = 6;

/// The stream that says that the room is wanted.
const ENTER: &[u8] = b"\x01\x05\x01\x02\x02/a";

/// A message of that type, whose body is shorter than 64 bytes.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, body.len() as u8], body].concat()
}

/// SUBSCRIBE to the track `v` of `cam`: ID, priority, and no limits of it.
fn subscribe(id: u8) -> Vec<u8> {
    message(2, &[&[id][..], b"\x03cam\x01v", &[1, 1, 0x40, 100, 0, 0]].concat())
}

/// ANNOUNCE_OK of hop 7 with one broadcast, and that broadcast.
const ANNOUNCED: &[u8] = b"\x02\x07\x01\x06\x01\x03cam\0";

/// GROUP of a number, with an object.
fn group(id: u8, number: u8, object: &[u8]) -> Vec<u8> {
    [&message(0, &[id, number])[..], &[0, object.len() as u8], object].concat()
}

/// Messages as their target reads them: which they are, and one or more.
pub(super) fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let of = |kind: u8, body: &[u8]| [&[kind, body.len() as u8], body].concat();
    let path = b"\x03cam";
    vec![
        ("setup", of(0, b"\x02\x02\x02/a\x07\x01x")),
        ("setup-many", of(0, &[&[60][..], &[9, 0].repeat(30)].concat())),
        ("setup-twice", of(0, b"\x02\x02\x01a\x02\x01a")),
        ("announce-request", of(1, &[path, &[7][..]].concat())),
        ("announce-ok", of(2, b"\x07\x40\xff")),
        ("announce", of(3, b"\x01\x03cam\x02\x07\x09")),
        ("announce-hops", of(3, &[b"\x01\x03cam\x20", &[7; 32][..]].concat())),
        ("announces", [&[3][..], &b"\x06\x01\x03cam\0\x06\0\x03cam\0".repeat(50)].concat()),
        ("subscribe", of(4, b"\x01\x03cam\x01v\x01\x01\x40\x64\0\0")),
        ("update", of(5, b"\x01\x01\x40\x64\x05\0")),
        ("track", of(6, b"\x03cam\x01v")),
        ("track-info", of(7, b"\x01\x01\x40\x64\x80\x01\x5f\x90")),
        ("fetch", of(8, b"\x03cam\x01v\x01\x05")),
        ("goaway", of(9, b"\x05other")),
        ("group", of(10, b"\x01\x40\x80")),
        ("answers", [&[11][..], b"\0\x01\x05\x01\x01\x09\x02\x03\x01\x02\x01"].concat()),
        ("types", b"\x0c\x00\x40\x01\xc0\0\0\0\0\0\0\x02\x80".to_vec()),
        ("too-long", b"\x00\x80\0\xff\xff".to_vec()),
        ("frames", [&[20][..], &b"\x00\x03abc\x40\x01\x00".repeat(20)].concat()),
        ("frames-octets", [&[255][..], &b"\x00\x00".repeat(500)].concat()),
        ("frame-too-long", b"\x0d\x00\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()),
    ]
}

pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let entered = |manner: u8, steps: &[Vec<u8>]| {
        let enter = [step(SETUP, 0, 1, ENTER), step(TURN, 0, 0, b"")].concat();
        script(manner, &[&[enter][..], steps, &[step(TURN, 2, 0, b"")]].concat())
    };
    let published = |manner: u8, steps: &[Vec<u8>]| {
        let begin = [step(ANSWER, 0, 0, ANNOUNCED), step(STREAM, 0, 0, &subscribe(0)), step(TURN, 1, 0, b"")]
            .concat();
        entered(manner, &[&[begin][..], steps].concat())
    };
    let groups = |numbers: std::ops::Range<u8>, object: &[u8]| -> Vec<Vec<u8>> {
        // Streams of one direction from the second on, and each ends.
        numbers.map(|number| step(UNI, 0, 0x80 | (number + 1), &group(0, number, object))).collect()
    };
    let part = b"\x02\x44\x00xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    vec![
        ("enter", entered(0, &[])),
        ("enter-nowhere", script(0, &[step(SETUP, 0, 1, b"\x01\x05\x01\x02\x02/b"), step(TURN, 1, 0, b"")])),
        (
            "announcements",
            entered(EAGER, &[step(STREAM_FIN, 0, 0, &message(1, b"\0\0")), step(ANSWER, 4, 0, ANNOUNCED)]),
        ),
        ("groups", published(PACKED, &groups(0..20, b"object"))),
        ("groups-large", published(EAGER, &groups(0..40, &[b'x'; 60]))),
        ("groups-of-nobody", entered(PACKED, &groups(0..20, b"object"))),
        (
            "objects-tiny",
            published(EAGER, &[step(UNI, 0, 1, &group(0, 0, b"x")), step(UNI, 9, 1, b"\0\x01x")]),
        ),
        ("updates", published(PACKED, &[step(STREAM, 7, 0, b"\x06\x01\x01\x40\x64\0\0")])),
        ("updates-cut", published(EAGER, &[step(STREAM, 0, 0, b"\x40"), step(STREAM, 6, 0, b"")])),
        (
            "subscriptions",
            entered(PACKED, &[step(ANSWER, 0, 0, ANNOUNCED), step(STREAM, 6, 0, &subscribe(0))]),
        ),
        (
            "subscriptions-reset",
            published(
                PACKED,
                &(1..30u8)
                    .flat_map(|n| {
                        [
                            step(STREAM, 0, n, &subscribe(n)),
                            step(FRAMES, 0, 0, &[0x04, 0x40, n << 2, 1, 0x18]),
                        ]
                    })
                    .collect::<Vec<_>>(),
            ),
        ),
        ("questions", published(PACKED, &[step(STREAM_FIN, 5, 1, &message(6, b"\x03cam\x01v"))])),
        (
            "fetches",
            published(
                PACKED,
                &[
                    step(UNI, 0, 0x81, &group(0, 0, b"x")),
                    step(STREAM_FIN, 5, 1, &message(3, b"\x03cam\x01v\0\0")),
                ],
            ),
        ),
        ("beginnings", entered(PACKED, &[step(STREAM, 6, 0, part)])),
        ("beginnings-one-direction", entered(PACKED, &[step(UNI, 6, 1, b"\x00\x44\x00xxxx")])),
        (
            "beginnings-octets",
            entered(EAGER, &[step(STREAM, 0, 0, b"\x02\x40\x40"), step(STREAM, 5, 0, b"x")]),
        ),
        (
            "before-setup",
            script(
                PACKED,
                &[
                    step(STREAM, 6, 0, part),
                    step(TURN, 0, 0, b""),
                    step(SETUP, 0, 1, ENTER),
                    step(TURN, 2, 0, b""),
                ],
            ),
        ),
        (
            "setup-in-octets",
            script(
                EAGER,
                &[
                    &ENTER.iter().map(|octet| step(SETUP, 0, 0, &[*octet])).collect::<Vec<_>>()[..],
                    &[step(TURN, 1, 0, b"")],
                ]
                .concat(),
            ),
        ),
        ("setups", script(PACKED, &[step(UNI, 5, 0, ENTER), step(TURN, 1, 0, b"")])),
        (
            "types-long",
            entered(PACKED, &[step(STREAM, 5, 0, b"\xc0\0\0\0\0\0\0\x02"), step(UNI, 5, 1, b"\xc0")]),
        ),
        ("types-unknown", entered(PACKED, &[step(STREAM, 5, 0, b"\x04\0"), step(UNI, 5, 1, b"\x3f")])),
        ("goaway", entered(0, &[step(STREAM_FIN, 0, 0, b"\x05\x01\0")])),
        ("invalid", entered(0, &[step(STREAM, 0, 0, b"\x02\x01\xff")])),
    ]
}
