//! What is wrong with a client's first flight, and how it is told: in an Initial packet, as it has no other keys.

use std::time::Instant;

use boring::ssl::{SslContextBuilder, SslMethod};
use expressway_netio::{Flow, PacketIo};

use crate::support::client::{Client, Options};
use crate::support::initial::{Hello, SCID, close_code, crypto, hello_of, number, seal, varint};
use crate::support::world::{Build, World};

const FRAME_ENCODING_ERROR: u64 = 0x7;
const TRANSPORT_PARAMETER_ERROR: u64 = 0x8;
const PROTOCOL_VIOLATION: u64 = 0xa;
/// CRYPTO_ERROR, of which a TLS alert is a part (RFC 9000, section 20.1).
const CRYPTO: u64 = 0x100;
const UNEXPECTED_MESSAGE: u64 = CRYPTO + 10;
const HANDSHAKE_FAILURE: u64 = CRYPTO + 40;
const ILLEGAL_PARAMETER: u64 = CRYPTO + 47;
const DECODE_ERROR: u64 = CRYPTO + 50;
const PROTOCOL_VERSION: u64 = CRYPTO + 70;
const MISSING_EXTENSION: u64 = CRYPTO + 109;
const NO_APPLICATION_PROTOCOL: u64 = CRYPTO + 120;

const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const PARAMETERS: u16 = 57;

/// The ClientHello of a good client: with a key share of a kilobyte, which takes two packets, or without.
fn hello(world: &World, is_long: bool) -> Hello {
    let mut client = Client::new(&world.network, "198.51.100.8:1", world.server(), Options::default());
    if !is_long {
        let mut context = SslContextBuilder::new(SslMethod::tls()).unwrap();
        context.set_curves_list("X25519").unwrap();
        let mut config =
            quiche::Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, context).unwrap();
        config.set_application_protos(&[b"h3"]).unwrap();
        let scid = quiche::ConnectionId::from_ref(&SCID);
        let local = "198.51.100.8:1".parse().unwrap();
        client.quic =
            quiche::connect(Some("edge.example"), &scid, local, world.server(), &mut config).unwrap();
    }
    let mut flight = vec![client.first_flight()];
    if is_long {
        flight.push(client.first_flight());
    }
    let hello = Hello::parse(&hello_of(&flight));
    // It names the connection ID of the packets that it is to be in.
    let mut list = parameters(&hello);
    list.iter_mut().find(|(id, _)| *id == 0xf).unwrap().1 = SCID.to_vec();
    with_parameters(&hello, &list)
}

type Parameters = Vec<(u64, Vec<u8>)>;

fn parameters(hello: &Hello) -> Parameters {
    let (mut rest, mut list) = (hello.extension(PARAMETERS), Vec::new());
    while !rest.is_empty() {
        let (id, size) = number(rest);
        let (length, more) = number(&rest[size..]);
        let start = size + more;
        list.push((id, rest[start..start + length as usize].to_vec()));
        rest = &rest[start + length as usize..];
    }
    list
}

fn with_parameters(hello: &Hello, list: &Parameters) -> Hello {
    let parameter =
        |(id, value): &(u64, Vec<u8>)| [&varint(*id)[..], &varint(value.len() as u64), value].concat();
    let all: Vec<u8> = list.iter().flat_map(parameter).collect();
    hello.clone().with(PARAMETERS, Some(&all))
}

/// What a client sends in its first packets, and the code that it is told.
type Case = (String, Vec<Vec<u8>>, u64);

/// Has a new client send each, and sees that it gets its code and no more than three times what it sent.
#[track_caller]
fn check(world: &mut World, cases: Vec<Case>) {
    for (what, packets, code) in cases {
        let before = world.stats(0).connections_protocol_error;
        let from = format!("198.51.100.9:{}", 1000 + before).parse().unwrap();
        let dcid = before.to_be_bytes();
        let mut io = world.network.endpoint(&[from]).unwrap();
        let flow = Flow::new(from, world.server());
        let mut sent = 0;
        for datagram in seal(dcid, &packets) {
            sent += datagram.len();
            let mut source = Some(datagram);
            io.transmit(&flow, 1200, &mut |slot| {
                source.take().map_or(0, |datagram| {
                    slot.copy_from_slice(&datagram);
                    datagram.len()
                })
            })
            .unwrap();
            io.flush(Instant::now()).unwrap();
        }
        let (mut told, mut received) = (None, 0);
        world.until(&what, |_| {
            io.receive(Instant::now(), &mut |datagram| {
                received += datagram.payload.len();
                told = told.or(close_code(dcid, datagram.payload));
            })
            .unwrap();
            told.is_some()
        });
        assert_eq!(told, Some(code), "{what}");
        assert!(received <= 3 * sent, "{what}: {received} bytes for {sent}");
        assert_eq!(world.stats(0).connections_protocol_error, before + 1, "{what}");
    }
}

#[test]
fn transport_parameters() {
    let mut world = Build::default().world();
    for is_long in [false, true] {
        let good = hello(&world, is_long);
        let list = parameters(&good);
        let with = |id: u64, value: &[u8]| {
            let mut list = list.clone();
            list.retain(|(other, _)| *other != id);
            list.push((id, value.to_vec()));
            with_parameters(&good, &list)
        };
        let all = good.extension(PARAMETERS).to_vec();
        let cases = [
            ("a server's original_destination_connection_id", with(0x0, &[7; 8])),
            ("a server's stateless_reset_token", with(0x2, &[7; 16])),
            ("max_udp_payload_size of 1199", with(0x3, &varint(1199))),
            ("initial_max_streams_bidi beyond 2^60", with(0x8, &varint((1 << 60) + 1))),
            ("initial_max_streams_uni beyond 2^60", with(0x9, &varint((1 << 60) + 1))),
            ("ack_delay_exponent of 21", with(0xa, &[21])),
            ("max_ack_delay of 2^14", with(0xb, &varint(1 << 14))),
            ("disable_active_migration with a value", with(0xc, &[0])),
            ("a server's preferred_address", with(0xd, &[7; 49])),
            ("active_connection_id_limit of 1", with(0xe, &[1])),
            ("another initial_source_connection_id", with(0xf, &[8; 8])),
            ("an initial_source_connection_id that is too long", with(0xf, &[9; 21])),
            ("a server's retry_source_connection_id", with(0x10, &[7; 8])),
            ("a number that is cut", with(0x4, &[0x40])),
            ("a number with something behind it", with(0x4, &[1, 0])),
            ("no number", with(0x1, &[])),
            ("no initial_source_connection_id", {
                with_parameters(&good, &list.iter().filter(|(id, _)| *id != 0xf).cloned().collect())
            }),
            ("one of them twice", {
                with_parameters(&good, &list.iter().chain(&list[..1]).cloned().collect())
            }),
            (
                "a length beyond the end",
                good.clone().with(PARAMETERS, Some(&[&all[..], &[5, 9, 0]].concat())),
            ),
            ("half a header", good.clone().with(PARAMETERS, Some(&[&all[..], &[0x40]].concat()))),
        ];
        let cases = cases.into_iter().map(|(what, hello)| {
            let packets = crypto(&hello.write());
            assert_eq!(packets.len(), 1 + usize::from(is_long));
            (what.to_owned(), packets, TRANSPORT_PARAMETER_ERROR)
        });
        check(&mut world, cases.collect());
    }
    // With nothing wrong the same client gets more than it has Initial keys for.
    let accepted = world.stats(0).connections_protocol_error;
    let sent = seal([7; 8], &crypto(&hello(&world, false).write())).remove(0);
    super::exchange::send_raw(&mut world, "198.51.100.10:1", sent);
    world.for_a_while(std::time::Duration::from_millis(20));
    assert_eq!(world.stats(0).connections_protocol_error, accepted);
    super::exchange::fetch(&mut world, Options::default(), &[("/bytes/1000", 1000)]);
}

#[test]
fn alerts_and_frames() {
    let mut world = Build::default().world();
    let good = hello(&world, false);
    let other = |change: fn(&mut Hello)| {
        let mut hello = good.clone();
        change(&mut hello);
        crypto(&hello.write())
    };
    let without = |id| crypto(&good.clone().with(id, None).write());
    let altered = |at: usize, byte: u8| {
        let mut bytes = good.write();
        bytes[at] = byte;
        crypto(&bytes)
    };
    let cases = vec![
        (
            "another protocol",
            crypto(&good.clone().with(ALPN, Some(b"\0\x03\x02h2")).write()),
            NO_APPLICATION_PROTOCOL,
        ),
        ("no protocol", without(ALPN), NO_APPLICATION_PROTOCOL),
        ("no transport parameters", without(PARAMETERS), MISSING_EXTENSION),
        ("no key share", without(KEY_SHARE), MISSING_EXTENSION),
        ("no version of TLS that QUIC takes", without(SUPPORTED_VERSIONS), PROTOCOL_VERSION),
        ("no cipher in common", other(|hello| hello.ciphers = vec![0x13, 0x99]), HANDSHAKE_FAILURE),
        ("compression", other(|hello| hello.compressions = vec![1]), ILLEGAL_PARAMETER),
        ("a list that is cut", crypto(&good.clone().with(ALPN, Some(b"\0\x09\x02h3")).write()), DECODE_ERROR),
        ("a ServerHello", altered(0, 2), UNEXPECTED_MESSAGE),
        ("a frame that no Initial packet has", vec![vec![0x08, 0, b'x']], PROTOCOL_VIOLATION),
        ("a frame that there is not", vec![vec![0x3e]], FRAME_ENCODING_ERROR),
        ("a frame that is cut", vec![[&[1; 1153][..], &[6]].concat()], PROTOCOL_VIOLATION),
        ("no frame", vec![vec![]], PROTOCOL_VIOLATION),
    ];
    let cases = cases.into_iter().map(|(what, packets, code)| (what.to_owned(), packets, code));
    check(&mut world, cases.collect());
}
