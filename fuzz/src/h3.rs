//! Targets of the HTTP/3 readers: whatever a client sends, cut however the network cuts it.

use expressway_h3::qpack::{Encoder, Fields};
use expressway_h3::webtransport::HeadReader;
use expressway_h3::{
    CapsuleReader, ControlReader, InstructionReader, Instructions, RequestEvent, RequestReader,
};

use crate::cost::{self, Bound};

/// The longest section that the targets let a reader keep: what the gateway reads by default.
const MAX_SECTION: u64 = 32 << 10;

/// The longest string that an index of a byte or two can stand for: the longest entry of the static table.
const LONGEST_ENTRY: u64 = 110;

/// For [`request`]; its own copies of what was read count too.
pub const REQUEST: Bound =
    Bound { steps: (100, 2000), allocations: (0, 128), bytes: (24, 1024), peak: (12, 1024) };

/// For [`control`]; the text of each event counts too.
pub const CONTROL: Bound =
    Bound { steps: (110, 4000), allocations: (4, 64), bytes: (220, 4096), peak: (140, 4096) };

/// For [`instructions`].
pub const INSTRUCTIONS: Bound = Bound { steps: (36, 200), allocations: (0, 0), bytes: (0, 0), peak: (0, 0) };

/// For [`webtransport`]; the text of each capsule counts too.
pub const WEBTRANSPORT: Bound =
    Bound { steps: (110, 4000), allocations: (4, 64), bytes: (220, 4096), peak: (140, 4096) };

/// The longest capsule that is kept: a code of a session and its words.
const MAX_CAPSULE: usize = 4 + 1024;

/// Decoding of a section.
const QPACK: Bound = Bound { steps: (28, 200), allocations: (0, 1), bytes: (2, 16), peak: (2, 16) };

/// What a reader made of a stream: sections and body, or the code that it was refused with.
fn read_request<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Result<(Vec<Vec<u8>>, Vec<u8>), u64> {
    let (mut reader, mut sections, mut body) = (RequestReader::default(), Vec::new(), Vec::new());
    for mut input in chunks {
        while let Some(event) = reader.next(&mut input, MAX_SECTION).map_err(|error| error.code)? {
            match event {
                RequestEvent::Headers(section) => sections.push(section.to_vec()),
                RequestEvent::Data(piece) => {
                    assert!(!piece.is_empty());
                    body.extend_from_slice(piece);
                }
            }
        }
        assert!(input.is_empty(), "input was left over");
        assert!(reader.kept() as u64 <= MAX_SECTION, "{} bytes kept", reader.kept());
    }
    reader.end().map_err(|error| error.code)?;
    Ok((sections, body))
}

/// A request stream reads the same whole and cut; the first byte says how it is cut.
pub fn request(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let whole = read_request([bytes].into_iter());
    let parts = read_request(bytes.chunks(usize::from(*size).max(1)));
    assert_eq!(whole, parts);
}

/// A control stream reads the same whole and cut; the first byte says how it is cut.
pub fn control(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let read = |size: usize| {
        let (mut reader, mut events) = (ControlReader::default(), Vec::new());
        for mut input in bytes.chunks(size) {
            while let Some(event) = reader.next(&mut input).map_err(|error| error.code)? {
                events.push(format!("{event:?}"));
            }
        }
        Ok::<_, u64>(events)
    };
    assert_eq!(read(bytes.len().max(1)), read(usize::from(*size).max(1)));
}

/// A QPACK stream is understood or refused the same whole and cut; the first byte says how it is cut.
pub fn instructions(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    for kind in [Instructions::Encoder, Instructions::Decoder] {
        let read = |size: usize| {
            let mut reader = InstructionReader::new(kind);
            bytes.chunks(size).try_for_each(|chunk| reader.read(chunk)).map_err(|error| error.code)
        };
        assert_eq!(read(bytes.len().max(1)), read(usize::from(*size).max(1)));
    }
}

/// Capsules, and the head of a stream, read the same whole and cut; the first byte says how they are cut.
pub fn webtransport(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let read = |size: usize| {
        let (mut reader, mut capsules) = (CapsuleReader::default(), Vec::new());
        for mut input in bytes.chunks(size) {
            while let Some(capsule) = reader.next(&mut input).map_err(|error| error.code)? {
                capsules.push(format!("{capsule:?}"));
            }
            assert!(reader.kept() <= MAX_CAPSULE, "{} bytes kept", reader.kept());
        }
        reader.end().map(|()| capsules).map_err(|error| error.code)
    };
    assert_eq!(read(bytes.len().max(1)), read(usize::from(*size).max(1)));
    for is_bidirectional in [true, false] {
        let head = |size: usize| {
            let (mut head, mut at) = (HeadReader::default(), 0);
            while head.kind(is_bidirectional).is_none() && at < bytes.len() {
                let end = (at + head.wanted().min(size)).min(bytes.len());
                head.take(&bytes[at..end]);
                at = end;
            }
            head.kind(is_bidirectional)
        };
        assert_eq!(head(usize::MAX), head(usize::from(*size).max(1)));
    }
}

/// A section decodes to fields that, encoded again, decode to the same, and that are in all no longer than an entry of the
/// static table for each byte.
pub fn qpack(data: &[u8]) {
    let mut scratch = Vec::new();
    let length = cost::hold(&QPACK, data.len(), || {
        Fields::new(data, &mut scratch).map(|(name, value)| name.len() + value.len()).sum::<usize>()
    });
    assert!(length as u64 <= LONGEST_ENTRY * data.len() as u64, "{length} bytes of {}", data.len());
    let mut fields = Fields::new(data, &mut scratch);
    let list: Vec<_> = fields.by_ref().collect();
    if fields.error().is_some() {
        return;
    }
    let (mut again, mut other) = (Vec::new(), Vec::new());
    let mut encoder = Encoder::new(&mut again);
    list.iter().for_each(|(name, value)| encoder.field(name, value));
    let mut decoded = Fields::new(&again, &mut other);
    assert!(decoded.by_ref().eq(list.iter().copied()));
    assert_eq!(decoded.error(), None);
}
