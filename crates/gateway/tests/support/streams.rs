//! A client that writes its streams byte by byte.

use expressway_gateway::quic::Settings;

use super::client::{Client, Options};
use super::world::{Build, World};

/// A client's first streams of one direction.
pub const CONTROL: u64 = 2;
pub const SECOND: u64 = 6;
pub const THIRD: u64 = 10;

/// The stream type of a control stream, and empty SETTINGS.
pub const SETTINGS: &[u8] = &[0, 4, 0];

/// HEADERS with a GET of /bytes/10 at a host named "a": `:method`, `:scheme`, `:authority`, `:path`.
pub const GET: &[u8] = b"\x01\x12\x00\x00\xd1\xd7\x50\x01a\x51\x09/bytes/10";

/// The same for /slow/400000, whose answer is not over before all that comes with the request was read.
pub const SLOW: &[u8] = b"\x01\x15\x00\x00\xd1\xd7\x50\x01a\x51\x0c/slow/400000";

/// What a client writes: stream, bytes, and whether it ends the stream.
pub type Write<'a> = (u64, &'a [u8], bool);

/// HEADERS with a GET of `path` at the same host.
pub fn get(path: &str) -> Vec<u8> {
    let length = path.len() as u8;
    [&[1, 9 + length], &GET[2..9], &[0x51, length], path.as_bytes()].concat()
}

/// A frame.
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for value in [kind, payload.len() as u64] {
        match value {
            0..0x40 => out.push(value as u8),
            0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
            _ => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        }
    }
    out.extend_from_slice(payload);
    out
}

/// HEADERS with these fields as they are: literals with literal names (RFC 9204, section 4.5.6).
pub fn headers<'a>(fields: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        string(name, 0x20, 3, &mut section);
        string(value, 0, 7, &mut section);
    }
    frame(1, &section)
}

fn string(text: &str, flags: u8, bits: u32, out: &mut Vec<u8>) {
    let (mut length, full) = (text.len(), (1 << bits) - 1);
    if length < full {
        out.push(flags | length as u8);
    } else {
        out.push(flags | full as u8);
        length -= full;
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
    }
    out.extend_from_slice(text.as_bytes());
}

pub fn connected(tune: fn(&mut Settings)) -> (World, usize) {
    let mut world = Build { tune, ..Build::default() }.world();
    let id = join(&mut world, "198.51.100.1:5000", Options::default().max_data);
    (world, id)
}

/// A client from `local` that takes `max_data` bytes before it has read some.
pub fn join(world: &mut World, local: &str, max_data: u64) -> usize {
    let options = Options { http: false, max_data, ..Options::default() };
    let client = Client::new(&world.network, local, world.server(), options);
    let id = world.add(client);
    world.until("a connection", |world| world.clients[id].quic.is_established());
    id
}

pub fn write(world: &mut World, id: usize, writes: &[Write<'_>]) {
    for (stream, bytes, last) in writes {
        let sent = world.clients[id].quic.stream_send(*stream, bytes, *last).unwrap();
        assert_eq!(sent, bytes.len());
    }
}

/// All that comes on `stream` until it ends, or the code that it is reset with.
pub fn read(world: &mut World, id: usize, stream: u64) -> Result<Vec<u8>, u64> {
    let (mut all, mut end) = (Vec::new(), None);
    world.until("the end of a stream", |world| {
        let mut buffer = [0; 4096];
        loop {
            match world.clients[id].quic.stream_recv(stream, &mut buffer) {
                Ok((length, last)) => {
                    all.extend_from_slice(&buffer[..length]);
                    if last {
                        end = Some(Ok(()));
                    }
                }
                Err(quiche::Error::StreamReset(code)) => end = Some(Err(code)),
                Err(_) => return end.is_some(),
            }
        }
    });
    end.unwrap().map(|()| all)
}
