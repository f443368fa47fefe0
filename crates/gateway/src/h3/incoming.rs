//! Request streams that a client has not completed.

use std::collections::hash_map::Entry;
use std::time::Instant;

use expressway_h3::{Error, RequestReader, code};
use expressway_web::memory::{Account, Charge};

use super::stream::StreamMap;

/// How many header sections' worth of bytes a connection keeps of sections that come in parts. Parts are what
/// packets cut, so that a client has one or, after a loss, a few; a hundred are an attack.
const SECTIONS: u64 = 16;

/// Cost of a reader in addition to the bytes it keeps: itself, its map entry, the engine's stream.
const READER: usize = 1 << 10;

/// The reader of an incomplete stream.
struct Kept {
    reader: RequestReader,
    bytes: u64,
    /// When the stream's first bytes came.
    since: Instant,
    charge: Charge,
}

/// The readers of incomplete streams; a request that arrives complete has none here.
#[derive(Default)]
pub(crate) struct Incoming {
    readers: StreamMap<Kept>,
    kept: u64,
}

impl Incoming {
    /// Gives back room that is not needed for what there is.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.readers.shrink_to_fit();
    }

    /// The reader to continue with, and when its stream began; for an unknown stream a new one, which began
    /// `now`. It is given back by [`Self::keep`], or its stream is forgotten.
    #[inline]
    pub(crate) fn take(&mut self, stream: u64, now: Instant) -> (RequestReader, Instant) {
        if self.readers.is_empty() {
            return (RequestReader::default(), now);
        }
        match self.readers.get_mut(&stream) {
            Some(kept) => (std::mem::take(&mut kept.reader), kept.since),
            None => (RequestReader::default(), now),
        }
    }

    /// Keeps a reader, and the entry of its stream, for the remaining data. `max_section` bounds a section in bytes.
    pub(crate) fn keep(
        &mut self,
        stream: u64,
        (reader, since): (RequestReader, Instant),
        max_section: u64,
        account: &Account,
    ) -> Result<(), Error> {
        let (bytes, memory) = (reader.kept() as u64, READER + reader.capacity());
        self.kept += bytes;
        match self.readers.entry(stream) {
            Entry::Occupied(entry) => {
                let kept = &mut **entry.into_mut();
                self.kept -= kept.bytes;
                (kept.reader, kept.bytes) = (reader, bytes);
                if kept.charge.octets() != memory {
                    kept.charge.resize(memory);
                }
            }
            Entry::Vacant(entry) => {
                let charge = account.charge_request(memory);
                entry.insert(Box::new(Kept { reader, bytes, since, charge }));
            }
        }
        if self.kept > max_section * SECTIONS {
            return Err(Error::connection(code::EXCESSIVE_LOAD, "too many incomplete header sections"));
        }
        Ok(())
    }

    /// True if the stream has begun and is incomplete.
    pub(crate) fn contains(&self, stream: u64) -> bool {
        !self.readers.is_empty() && self.readers.contains_key(&stream)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.readers.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.readers.len()
    }

    /// The one that began first, and when.
    pub(crate) fn oldest(&self) -> Option<(u64, Instant)> {
        self.readers.iter().map(|(stream, kept)| (*stream, kept.since)).min_by_key(|(_, since)| *since)
    }

    /// Streams that began before `start`.
    pub(crate) fn older_than(&self, start: Instant) -> impl Iterator<Item = u64> {
        self.readers.iter().filter(move |(_, kept)| kept.since < start).map(|(stream, _)| *stream)
    }

    /// Forgets a stream that is not read any more.
    #[inline]
    pub(crate) fn forget(&mut self, stream: u64) {
        if !self.readers.is_empty() {
            if let Some(kept) = self.readers.remove(&stream) {
                self.kept -= kept.bytes;
            }
            self.shrink();
        }
    }

    /// Releases memory no longer needed.
    pub(crate) fn shrink(&mut self) {
        if self.readers.is_empty() && self.readers.capacity() > 0 {
            self.readers = StreamMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expressway_web::memory::Memory;

    use super::*;

    #[test]
    fn parts_of_sections_are_bounded_for_all_streams_together() {
        let account = Account::new(&Memory::new(1 << 20).ledger(), 1 << 20, 1 << 20);
        let mut incoming = Incoming::default();
        let start = Instant::now();
        let mut now = start;
        let mut refused = None;
        for stream in (0..).step_by(4) {
            now += Duration::from_secs(1);
            let (mut reader, since) = incoming.take(stream, now);
            let mut input: &[u8] = &[&[1, 0x40, 100][..], &[0; 80]].concat();
            assert_eq!(reader.next(&mut input, 100), Ok(None));
            if incoming.keep(stream, (reader, since), 100, &account).is_err() {
                refused = Some(stream / 4);
                break;
            }
        }
        assert_eq!(refused, Some(20), "1600 bytes are 20 parts of 80");
        assert!((21 * READER + 1680..21 * (READER + 200)).contains(&account.requests()));
        let old: Vec<_> = incoming.older_than(start + Duration::from_secs(4)).collect();
        assert_eq!(old.len(), 3);
        let (_, since) = incoming.take(8, now);
        assert_eq!(since, start + Duration::from_secs(3), "a stream that goes on keeps its beginning");
        let before = (incoming.kept, incoming.len(), account.requests());
        let (mut reader, since) = incoming.take(12, now);
        let mut input: &[u8] = &[0; 10];
        assert_eq!(reader.next(&mut input, 100), Ok(None));
        assert!(incoming.keep(12, (reader, since), 100, &account).is_err(), "still too many");
        assert_eq!((incoming.kept, incoming.len()), (before.0 + 10, before.1), "it has one entry");
        assert!(account.requests() < before.2 + READER);
        for stream in (0..=80).step_by(4) {
            incoming.forget(stream);
        }
        assert_eq!((incoming.kept, incoming.readers.capacity(), account.requests()), (0, 0, 0));
    }
}
