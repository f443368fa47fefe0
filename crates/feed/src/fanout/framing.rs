//! How datagrams are framed in a subscriber's stream, and how a gap is announced there.

use std::fmt;
use std::str::FromStr;

/// The most bytes that [`Framing::header`] writes.
pub const MAX_HEADER: usize = 4;

/// Length field of a gap marker with [`Framing::Len16`]. No UDP payload is that long (65,507 bytes at most).
const MARKER_16: u16 = u16::MAX;
/// Length field of a gap marker with [`Framing::Len32`].
const MARKER_32: u32 = u32::MAX;

/// RFC 6455, section 5.2: FIN with opcode text, binary, close, pong.
const WS_TEXT: u8 = 0x81;
const WS_BINARY: u8 = 0x82;
const WS_CLOSE: u8 = 0x88;
const WS_PONG: u8 = 0x8a;

/// What stands before each datagram in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Nothing: payloads back to back. Empty datagrams leave no trace, and gaps cannot be announced.
    #[default]
    None,
    /// The payload's length, 2 bytes in network order. A gap marker is 0xffff and the number of datagrams
    /// missed, 8 bytes in network order.
    Len16,
    /// The payload's length, 4 bytes in network order. A gap marker is 0xffffffff and the number of datagrams
    /// missed, 8 bytes in network order.
    Len32,
    /// An unmasked binary WebSocket message (RFC 6455, section 5.2). A gap marker is the text message
    /// `{"gap":N}`.
    WebSocket,
}

impl Framing {
    /// The framings of plain streams by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("none", Self::None), ("len16", Self::Len16), ("len32", Self::Len32)];

    /// Writes what stands before a payload of `length` bytes (at most 65,535) and returns its length.
    pub fn header(self, length: usize, out: &mut [u8; MAX_HEADER]) -> usize {
        match self {
            Self::None => 0,
            Self::Len16 => {
                out[..2].copy_from_slice(&(length as u16).to_be_bytes());
                2
            }
            Self::Len32 => {
                out.copy_from_slice(&(length as u32).to_be_bytes());
                4
            }
            Self::WebSocket => ws_header(WS_BINARY, length, out),
        }
    }

    /// Whether an empty datagram can be told in this framing.
    pub fn tells_empty(self) -> bool {
        self != Self::None
    }

    /// Appends the marker that `missed` datagrams are not in the stream. False where the framing has none.
    pub fn append_gap(self, missed: u64, out: &mut Vec<u8>) -> bool {
        match self {
            Self::None => return false,
            Self::Len16 => out.extend_from_slice(&MARKER_16.to_be_bytes()),
            Self::Len32 => out.extend_from_slice(&MARKER_32.to_be_bytes()),
            Self::WebSocket => {
                append_message(WS_TEXT, format!("{{\"gap\":{missed}}}").as_bytes(), out);
                return true;
            }
        }
        out.extend_from_slice(&missed.to_be_bytes());
        true
    }

    /// Appends a payload with its header.
    pub fn append_frame(self, payload: &[u8], out: &mut Vec<u8>) {
        let mut header = [0; MAX_HEADER];
        let length = self.header(payload.len(), &mut header);
        out.extend_from_slice(&header[..length]);
        out.extend_from_slice(payload);
    }
}

impl FromStr for Framing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, framing)| *framing).ok_or_else(|| format!("`{text}` is not one of none, len16, len32"))
    }
}

impl fmt::Display for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Len16 => "len16",
            Self::Len32 => "len32",
            Self::WebSocket => "websocket",
        })
    }
}

fn ws_header(opcode: u8, length: usize, out: &mut [u8; MAX_HEADER]) -> usize {
    out[0] = opcode;
    if length < 126 {
        out[1] = length as u8;
        return 2;
    }
    // 64-bit lengths begin beyond what a UDP datagram can hold.
    out[1] = 126;
    out[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    4
}

fn append_message(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    let mut header = [0; MAX_HEADER];
    let length = ws_header(opcode, payload.len(), &mut header);
    out.extend_from_slice(&header[..length]);
    out.extend_from_slice(payload);
}

/// Appends a WebSocket Pong with the Ping's payload (RFC 6455, section 5.5.3).
pub(crate) fn append_pong(payload: &[u8], out: &mut Vec<u8>) {
    append_message(WS_PONG, payload, out);
}

/// Appends a WebSocket Close with a status code and a reason of at most 123 bytes (RFC 6455, section 5.5.1).
pub(crate) fn append_close(code: u16, reason: &str, out: &mut Vec<u8>) {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.len().min(123)]);
    append_message(WS_CLOSE, &payload, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(framing: Framing, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        framing.append_frame(payload, &mut out);
        out
    }

    #[test]
    fn lengths_are_in_network_order_and_exclude_themselves() {
        assert_eq!(framed(Framing::None, b"ab"), b"ab");
        assert_eq!(framed(Framing::Len16, b"ab"), b"\0\x02ab");
        assert_eq!(framed(Framing::Len32, b"ab"), b"\0\0\0\x02ab");
        assert_eq!(framed(Framing::WebSocket, b"ab"), b"\x82\x02ab");
        assert_eq!(framed(Framing::Len16, b""), b"\0\0");
        assert_eq!(framed(Framing::WebSocket, &[7; 126])[..4], [0x82, 126, 0, 126]);
        assert_eq!(framed(Framing::WebSocket, &[7; 65_507])[..4], [0x82, 126, 0xff, 0xe3]);
    }

    #[test]
    fn gap_markers_cannot_be_taken_for_frames() {
        let mut out = Vec::new();
        assert!(!Framing::None.append_gap(3, &mut out) && out.is_empty());
        assert!(Framing::Len16.append_gap(3, &mut out));
        assert_eq!(out, [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 3]);
        out.clear();
        assert!(Framing::Len32.append_gap(1 << 40, &mut out));
        assert_eq!(out, [0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 0, 0]);
        out.clear();
        assert!(Framing::WebSocket.append_gap(12, &mut out));
        assert_eq!(out, b"\x81\x0a{\"gap\":12}");
    }

    #[test]
    fn names_parse_as_they_print() {
        for (name, framing) in Framing::NAMES {
            assert_eq!(name.parse(), Ok(framing));
            assert_eq!(framing.to_string(), name);
        }
        assert!("len64".parse::<Framing>().unwrap_err().contains("len16"));
    }

    #[test]
    fn a_long_close_reason_is_cut_to_a_control_frame() {
        let mut out = Vec::new();
        append_close(1013, &"x".repeat(300), &mut out);
        assert_eq!((out[0], out[1], out.len()), (0x88, 125, 127));
    }
}
