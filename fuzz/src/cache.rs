//! Targets of `expressway-cache`: what origins and clients say of a response, and whatever octets a disk has.

use expressway_cache::fuzzing;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::cost::{self, Bound};

/// All that is decided of a response and of a request for it, a few times each.
const EXCHANGE: Bound =
    Bound { steps: (600, 40_000), allocations: (4, 400), bytes: (300, 64 << 10), peak: (100, 64 << 10) };

/// A record, read twice and written once.
pub const RECORD: Bound =
    Bound { steps: (100, 4_000), allocations: (2, 100), bytes: (200, 8 << 10), peak: (100, 8 << 10) };

/// Two regions: whatever is in them, their headers are read once, and each entry once.
pub const STORE: Bound =
    Bound { steps: (100, 20_000), allocations: (2, 200), bytes: (8, 64 << 10), peak: (4, 64 << 10) };

/// Fields that are handed over at most.
const MAX_FIELDS: usize = 128;

/// The fields of the lines that begin with `mark`.
fn fields(data: &[u8], mark: u8) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(&[mark])) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        if headers.len() < MAX_FIELDS
            && let Ok(name) = HeaderName::from_bytes(&line[..colon])
            && let Ok(value) = HeaderValue::from_bytes(line[colon + 1..].trim_ascii())
        {
            headers.append(name, value);
        }
    }
    headers
}

/// A response (its status, then lines that begin with `<`) to a request (`>`), and what it is to another (`?`).
pub fn policy(data: &[u8]) {
    let Some((status, rest)) = data.split_at_checked(3) else { return };
    let Ok(status) = StatusCode::from_bytes(status) else { return };
    let [response, first, second] = [b'<', b'>', b'?'].map(|mark| fields(rest, mark));
    cost::hold(&EXCHANGE, data.len(), || fuzzing::exchange(&first, status, &response, &second));
}

/// A record is one, or is refused.
pub fn record(data: &[u8]) {
    fuzzing::record(data);
}

/// A store is read, whatever is in it.
pub fn store(data: &[u8]) {
    let file = tempfile::tempfile().expect("a folder for temporary files");
    fuzzing::store(file, &data[..data.len().min(8192)]).expect("room for a file");
}
