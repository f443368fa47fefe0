//! Messages between agent and client.

use expressway_agent::channel::encode;
use expressway_agent::message::{
    BusyPoll, Code, Device, Mode, Netlink, Refusal, Reply, Request, Socket, Udp,
};
use expressway_netio::device::{Channels, DeviceFacts};
use serde::Serialize;

/// A message as its target reads it: the number of descriptors, then the message.
fn message<T: Serialize>(content: &T, fds: u8) -> Vec<u8> {
    let mut bytes = vec![fds];
    bytes.extend(encode(7, content, fds.into()).expect("a valid seed"));
    bytes
}

/// One of each request, and what is wrong in other ways than random bytes are.
pub(super) fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let interface = || "eth0".to_owned();
    let listen = "[2001:db8::1]:443".parse().expect("a literal address");
    let busy_poll = Some(BusyPoll { microseconds: 50, budget: 64 });
    let udp = Udp {
        listen,
        workers: 2,
        steering: Some((1, 0x80)),
        gro: true,
        receive_buffer: 1 << 20,
        send_buffer: 1 << 20,
        busy_poll,
    };
    let socket = Socket {
        interface: interface(),
        queue: 3,
        mode: Mode::ZeroCopy,
        frame_size: 2048,
        rx_ring: 2048,
        tx_ring: 2048,
        sends: true,
        patience_ms: 3000,
        busy_poll: None,
    };
    let framed = |body: &str| [&[0x80], body.as_bytes()].concat();
    let hello = message(&Request::Hello { client: "expressway serve \u{1f6e3} \"\\\u{0}".into() }, 0);
    let changed = |at: usize, byte: u8| {
        let mut bytes = hello.clone();
        bytes[at] = byte;
        bytes
    };
    vec![
        ("magic", changed(1, b'Y')),
        ("version", changed(5, 9)),
        ("descriptors", changed(7, 1)),
        ("length", changed(13, 0xff)),
        ("netlink", message(&Request::Netlink { usage: Netlink::Changes }, 0)),
        ("device", message(&Request::Device { interface: interface(), ifindex: 7 }, 0)),
        ("udp", message(&Request::Udp(udp), 0)),
        (
            "attach",
            message(
                &Request::Attach {
                    interface: interface(),
                    queues: 8,
                    generic: false,
                    replace: true,
                    timestamps: true,
                },
                0,
            ),
        ),
        ("detach", message(&Request::Detach { interface: interface() }, 0)),
        ("socket", message(&Request::Socket(socket), 1)),
        ("add-pair", message(&Request::AddPair { interface: interface(), pair: listen }, 0)),
        ("remove-pair", message(&Request::RemovePair { interface: interface(), pair: listen }, 0)),
        ("counters", message(&Request::Counters { interface: interface() }, 0)),
        ("attached", message(&Request::Attached { interface: interface() }, 0)),
        ("hello", hello),
        ("framed", framed(r#"{"add_pair":{"interface":"eth0","pair":"192.0.2.1:443"}}"#)),
        ("nested", framed(&"[".repeat(200))),
        ("escapes", framed(&format!(r#"{{"hello":{{"client":"{}"}}}}"#, r"\u0000".repeat(100)))),
        ("unknown-fields", framed(r#"{"hello":{"client":"x","a":[1,2,{}],"b":1e400}}"#)),
    ]
}

/// One of each reply.
pub(super) fn replies() -> Vec<(&'static str, Vec<u8>)> {
    let channels = Some(Channels { rx: 4, tx: 4, max_rx: 8, max_tx: 8 });
    let facts = DeviceFacts { channels, ..DeviceFacts::default() };
    let device = Device { facts, allowed: Some(vec![0, 2]), transmits: true };
    vec![
        ("welcome", message(&Reply::Welcome { rule: "edge".into() }, 0)),
        ("done", message(&Reply::Done, 1)),
        ("program", message(&Reply::Program { cookie: Some(u32::MAX) }, 1)),
        ("device", message(&Reply::Device(Box::new(device)), 0)),
        ("sockets", message(&Reply::Sockets { remaining: 9 }, 64)),
        ("bound", message(&Reply::Bound { zero_copy: true, segments: 17 }, 1)),
        ("counters", message(&Reply::Counters { packets: vec![0, 1, u64::MAX] }, 0)),
        ("many-counters", [&[0x80], br#"{"counters":{"packets":[0,1,2,3]}}"#.as_slice()].concat()),
        ("attached", message(&Reply::Attached { attached: true }, 0)),
        ("refused", message(&Reply::Refused(Refusal::new(Code::BusyPoll, "rule `edge`: no")), 0)),
    ]
}
