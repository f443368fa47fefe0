//! What a response's head and framing look like on its stream.

use expressway_h3::{frame, qpack};
use expressway_web::ResponseHead;
use http::HeaderMap;

/// Room for a usual response head with its frame headers.
const HEAD: usize = 320;

/// A HEADERS frame of trailers.
pub(super) fn trailers(trailers: &HeaderMap) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD);
    frame::write(frame::HEADERS, &mut out, |out| {
        let mut encoder = qpack::Encoder::new(out);
        for (name, value) in trailers {
            encoder.field(name.as_str().as_bytes(), value.as_bytes());
        }
    });
    out
}

/// A HEADERS frame that tells the client to go on (RFC 9114, section 4.1).
pub(super) fn go_on() -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD);
    frame::write(frame::HEADERS, &mut out, |out| qpack::Encoder::new(out).field(b":status", b"100"));
    out
}

/// A buffer with a HEADERS frame of `head`, and room for `more` bytes behind it and a frame header.
pub(crate) fn head(head: &ResponseHead, more: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + more);
    frame::write(frame::HEADERS, &mut out, |out| {
        let mut encoder = qpack::Encoder::new(out);
        encoder.field(b":status", head.status.as_str().as_bytes());
        for (name, value) in &head.headers {
            encoder.field(name.as_str().as_bytes(), value.as_bytes());
        }
    });
    out
}
