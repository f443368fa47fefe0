//! What clients do to a QUIC endpoint, as the target's script reads it.

/// A step: what (see `quic::script`), how often by powers of two, its argument and payload.
pub(super) fn step(what: u8, doublings: u8, argument: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("a payload of a step").to_be_bytes();
    [&[doublings << 4 | what, argument], length.as_slice(), payload].concat()
}

pub(super) fn script(manner: u8, steps: &[Vec<u8>]) -> Vec<u8> {
    [&[manner], steps.concat().as_slice()].concat()
}

const RAW: u8 = 1;
pub(super) const PACKED: u8 = 2;
pub(super) const EAGER: u8 = 4;

const DATAGRAM: u8 = 0;
pub(super) const FRAMES: u8 = 1;
pub(super) const STREAM: u8 = 2;
pub(super) const STREAM_FIN: u8 = 3;
const REQUEST: u8 = 4;
pub(super) const UNI: u8 = 5;
const CONTROL: u8 = 6;
const ACK: u8 = 7;
pub(super) const ACK_ALL: u8 = 8;
const INITIAL: u8 = 9;
const HANDSHAKE: u8 = 10;
const CRYPTO: u8 = 11;
const MOVE: u8 = 12;
const KEYS: u8 = 13;
const NEW_ID: u8 = 14;
pub(super) const TURN: u8 = 15;

/// Field lines of a GET of `/`, by the static table, and an authority.
const GET: &[u8] = b"\xd1\xd7\xc1\x50\x0cedge.example";

/// The same of the path `/wait`, which is never answered.
const WAIT: &[u8] = b"\xd1\xd7\x51\x05/wait\x50\x0cedge.example";

/// An integer with a prefix of so many bits, behind the upper bits `first` (RFC 9204, section 4.1.1).
fn integer(mut value: usize, bits: u8, first: u8, out: &mut Vec<u8>) {
    let most = (1_usize << bits) - 1;
    if value < most {
        return out.push(first | value as u8);
    }
    out.push(first | most as u8);
    value -= most;
    while value >= 0x80 {
        out.push(value as u8 & 0x7f | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The value of a field line, without Huffman coding.
fn value_of(value: &str, line: &mut Vec<u8>) {
    integer(value.len(), 7, 0, line);
    line.extend_from_slice(value.as_bytes());
}

/// A field line of that path.
fn path(path: &str) -> Vec<u8> {
    let mut line = vec![0x51];
    value_of(path, &mut line);
    line
}

/// Field lines of a GET of the path in `line`, of that authority.
fn named(line: &[u8], authority: &str) -> Vec<u8> {
    let mut lines = [b"\xd1\xd7", line, b"\x50"].concat();
    value_of(authority, &mut lines);
    lines
}

pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let one = |what: u8, doublings: u8, argument: u8, payload: &[u8]| {
        script(0, &[step(what, doublings, argument, payload), step(TURN, 1, 0, b"")])
    };
    let packed = |what: u8, doublings: u8, argument: u8, payload: &[u8]| {
        script(PACKED, &[step(what, doublings, argument, payload), step(TURN, 1, 0, b"")])
    };
    let get = |rest: &[u8]| [GET, rest].concat();
    let literal =
        |name: &[u8], value: &[u8]| [&[0x20 | name.len() as u8], name, &[value.len() as u8], value].concat();
    let field = |name: &str, value: &str| {
        let mut line = Vec::new();
        integer(name.len(), 3, 0x20, &mut line);
        line.extend_from_slice(name.as_bytes());
        value_of(value, &mut line);
        line
    };
    // What costs most in a field, as long as a header section may be.
    let long = |name: &str, member: &str, times: usize| {
        one(REQUEST, 0, 0, &get(&field(name, &member.repeat(times))))
    };
    let crumbs = literal(b"cookie", b"").repeat(100);
    let priorities = |id: u8| [b"\x80\x0f\x07\x00\x05".as_slice(), &[id], b"u=1i"].concat();
    vec![
        ("get", one(REQUEST, 0, 0, GET)),
        ("gets", packed(REQUEST, 6, 0, GET)),
        (
            "gets-acknowledged",
            script(PACKED, &[step(REQUEST, 5, 0, GET), step(ACK_ALL, 0, 0, b""), step(REQUEST, 5, 0, GET)]),
        ),
        ("waits", packed(REQUEST, 6, 0, WAIT)),
        ("static-fields", one(REQUEST, 0, 0, &get(&[0xff, 0x16].repeat(400)))),
        ("static-fields-only", one(REQUEST, 0, 0, &[0xfa].repeat(600))),
        ("empty-fields", one(REQUEST, 0, 0, &get(&literal(b"x", b"").repeat(120)))),
        ("cookies", one(REQUEST, 0, 0, &get(&crumbs))),
        ("if-none-match-15000", long("if-none-match", "a,", 15_000)),
        ("if-match-10000", long("if-match", "\"\",", 10_000)),
        ("ranges-7500", long("range", "0-0,", 7500)),
        ("cookies-10000", long("cookie", "a=b", 10_000)),
        ("priorities-7000", long("priority", "u=1,", 7000)),
        ("host-labels-15000", one(REQUEST, 0, 0, &named(b"\xc1", &"a.".repeat(15_000)))),
        (
            "dots-10000",
            one(REQUEST, 0, 0, &named(&path(&format!("/{}", "../".repeat(10_000))), "edge.example")),
        ),
        ("cookies-long", one(REQUEST, 0, 0, &get(&literal(b"cookie", &[b'c'; 100]).repeat(10)))),
        (
            "huffman",
            one(
                REQUEST,
                0,
                0,
                &get(&[
                    &[0x27, 0, b'l', b'o', b'n', b'g', b'v', b'a', b'l', 0xff, 0x21],
                    [0x1c; 160].as_slice(),
                ]
                .concat()),
            ),
        ),
        (
            "post",
            script(
                0,
                &[
                    step(STREAM, 0, 0, b"\x01\x06\0\0\xd4\xd7\xc1\x50\x00"),
                    step(STREAM, 4, 0, b"\0\x01x"),
                    step(STREAM_FIN, 0, 0, b""),
                ],
            ),
        ),
        (
            "data-frames",
            script(
                0,
                &[
                    step(STREAM, 0, 0, &[&[1, 2 + GET.len() as u8, 0, 0], GET].concat()),
                    step(STREAM, 0, 0, &b"\0\x01x".repeat(300)),
                ],
            ),
        ),
        (
            "grease-frames",
            script(0, &[step(STREAM, 0, 0, &b"\x21\x00".repeat(500)), step(STREAM_FIN, 0, 0, b"")]),
        ),
        ("cut-sections", packed(STREAM, 6, 0, b"\x01\x40\x64\0\0")),
        ("late-streams", packed(STREAM, 0, 90, b"\x01")),
        (
            "resets",
            script(
                PACKED,
                &(0..60u8)
                    .map(|n| step(FRAMES, 0, 0, &[0x04, 0x40, n << 2, 0x41, 0x0c, 0]))
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "gets-reset",
            script(
                PACKED,
                &(0..30u8)
                    .flat_map(|n| {
                        [
                            step(REQUEST, 0, 0, GET),
                            step(FRAMES, 0, 0, &[0x04, 0x40, n << 2, 0x41, 0x0c, 0x40, 64]),
                        ]
                    })
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "stops",
            script(
                PACKED,
                &[
                    step(REQUEST, 4, 0, WAIT),
                    step(
                        FRAMES,
                        0,
                        0,
                        &(0..16u8).flat_map(|n| [0x05, n << 2, 0x41, 0x0c]).collect::<Vec<_>>(),
                    ),
                ],
            ),
        ),
        ("control", one(CONTROL, 0, 0, b"\x0d\x01\x05\x07\x01\x00")),
        ("priorities", packed(CONTROL, 6, 0, &priorities(0))),
        (
            "priorities-early",
            script(
                PACKED,
                &(0..60).map(|n| step(CONTROL, 0, 0, &priorities(n << 2 & 0x3f))).collect::<Vec<_>>(),
            ),
        ),
        ("push-ids", packed(CONTROL, 6, 0, b"\x0d\x01\x05")),
        (
            "qpack-streams",
            script(
                PACKED,
                &[step(UNI, 0, 1, b"\x02\x20"), step(UNI, 0, 2, b"\x03\x44"), step(UNI, 7, 2, b"\x44\x48")],
            ),
        ),
        ("unknown-streams", packed(UNI, 3, 1, b"\x21xyz")),
        ("uni-types-cut", packed(UNI, 3, 1, b"\xc0")),
        ("pings", packed(FRAMES, 9, 0, b"\x01")),
        ("paddings", one(FRAMES, 4, 0, &[0; 900])),
        ("challenges", packed(FRAMES, 6, 0, b"\x1aABCDEFGH")),
        ("responses", packed(FRAMES, 6, 0, b"\x1bABCDEFGH")),
        ("max-data", packed(FRAMES, 8, 0, b"\x10\x80\x10\0\0")),
        ("max-streams", packed(FRAMES, 8, 0, b"\x12\x40\x80\x13\x40\x80")),
        ("blocked", packed(FRAMES, 7, 0, b"\x14\0\x15\0\0\x16\0\x17\0")),
        ("tokens", packed(FRAMES, 2, 0, b"\x07\x01t")),
        ("acks-of-nothing", one(ACK, 3, 200, b"\0\x05\0\x01\0\x01")),
        (
            "ack-ranges",
            script(
                PACKED,
                &[step(REQUEST, 6, 0, GET), step(TURN, 2, 0, b""), step(ACK, 3, 250, &b"\0\0".repeat(120))],
            ),
        ),
        ("ack-everything", script(0, &[step(REQUEST, 4, 0, GET), step(ACK_ALL, 3, 0, b"")])),
        (
            "packet-gaps",
            script(
                0,
                &(0..60)
                    .map(|n| [step(KEYS, 1, 2 + n % 3, b""), step(FRAMES, 0, 0, b"\x01")].concat())
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "key-updates",
            script(
                EAGER,
                &(0..20)
                    .map(|_| [step(KEYS, 0, 0, b""), step(FRAMES, 0, 0, b"\x01")].concat())
                    .collect::<Vec<_>>(),
            ),
        ),
        ("new-ids", packed(NEW_ID, 5, 0, b"")),
        ("new-ids-retire", packed(NEW_ID, 6, 255, b"")),
        ("retire-ids", packed(FRAMES, 3, 0, b"\x19\0\x19\x01\x19\x02")),
        (
            "moves",
            script(
                EAGER,
                &(0..20)
                    .map(|n| [step(MOVE, 0, n, b""), step(FRAMES, 0, 0, b"\x01")].concat())
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "moves-train",
            script(
                0,
                &(0..40)
                    .map(|n| [step(MOVE, 0, n, b""), step(FRAMES, 0, 0, b"\x01")].concat())
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "stream-gaps",
            script(
                PACKED,
                &(0..60u8)
                    .rev()
                    .map(|n| step(FRAMES, 0, 0, &[0x0e, 0, 0x40, n * 4, 1, b'x']))
                    .collect::<Vec<_>>(),
            ),
        ),
        ("stream-overlaps", packed(FRAMES, 7, 0, b"\x0e\0\0\x03abc\x0e\0\x01\x03bcd")),
        ("crypto-late", packed(CRYPTO, 6, 0, b"x")),
        ("crypto-gaps", one(CRYPTO, 7, 3, b"x")),
        ("close", one(FRAMES, 0, 0, b"\x1c\0\0\x04text")),
        ("close-then-more", script(0, &[step(FRAMES, 0, 0, b"\x1d\0\0"), step(FRAMES, 5, 0, b"\x01")])),
        ("unknown-frame", one(FRAMES, 0, 0, b"\x40\x40")),
        ("datagram-frames", one(FRAMES, 3, 0, b"\x31\x01x")),
        ("handshake-packets", one(HANDSHAKE, 4, 0, b"\x01")),
        ("initials", script(RAW, &[step(INITIAL, 5, 0, b"\x06\0\x04\x01\0\0\0")])),
        ("initials-pings", script(RAW, &[step(INITIAL, 4, 1, &[1; 400])])),
        ("initials-crypto", script(RAW, &[step(CRYPTO, 7, 3, b"\x01")])),
        (
            "initials-crypto-hello",
            script(RAW, &[step(CRYPTO, 0, 0, b"\x01\0\x01\0\x03\x03"), step(CRYPTO, 5, 0x41, b"x")]),
        ),
        (
            "versions",
            script(
                RAW,
                &[step(
                    DATAGRAM,
                    4,
                    0,
                    &[b"\xc3\x1a\x2a\x3a\x4a\x08ABCDEFGH\x08abcdefgh".as_slice(), &[0; 1150]].concat(),
                )],
            ),
        ),
        ("short-of-nobody", script(RAW, &[step(DATAGRAM, 6, 0, &[0x43; 60])])),
        (
            "tokens-forged",
            script(
                RAW,
                &[step(
                    DATAGRAM,
                    2,
                    0,
                    &[
                        b"\xc3\0\0\0\x01\x08ABCDEFGH\x08abcdefgh\x10ttttttttttttttttD\x90".as_slice(),
                        &[0; 1170],
                    ]
                    .concat(),
                )],
            ),
        ),
        ("nothing", script(RAW, &[step(DATAGRAM, 6, 0, b"")])),
    ]
}
