//! Request streams that a client has not finished.

use expressway_h3::{Error, RequestReader, code};

use super::stream::StreamMap;

/// How many header sections' worth of bytes a connection keeps of sections that come in parts. Parts are what
/// packets cut, so that a client has one or, after a loss, a few; a hundred are an attack.
const SECTIONS: u64 = 16;

/// The readers of streams that go on; a request that comes whole has none here.
#[derive(Default)]
pub(super) struct Incoming {
    readers: StreamMap<RequestReader>,
    kept: u64,
}

impl Incoming {
    /// The reader to go on with; a new one for a stream that is not known.
    #[inline]
    pub(super) fn take(&mut self, stream: u64) -> Box<RequestReader> {
        if self.readers.is_empty() {
            return Box::default();
        }
        match self.readers.remove(&stream) {
            Some(reader) => {
                self.kept -= reader.kept() as u64;
                reader
            }
            None => Box::default(),
        }
    }

    /// Keeps a reader for what is still to come. `max_section` bounds a section in bytes.
    pub(super) fn keep(
        &mut self,
        stream: u64,
        reader: Box<RequestReader>,
        max_section: u64,
    ) -> Result<(), Error> {
        self.kept += reader.kept() as u64;
        self.readers.insert(stream, reader);
        if self.kept > max_section * SECTIONS {
            return Err(Error::connection(code::EXCESSIVE_LOAD, "too many header sections in parts"));
        }
        Ok(())
    }

    /// Forgets a stream that is not read any more.
    #[inline]
    pub(super) fn forget(&mut self, stream: u64) {
        if !self.readers.is_empty() {
            drop(self.take(stream));
            self.shrink();
        }
    }

    /// Gives back the room of what has gone.
    pub(super) fn shrink(&mut self) {
        if self.readers.is_empty() && self.readers.capacity() > 0 {
            self.readers = StreamMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_sections_are_bounded_for_all_streams_together() {
        let mut incoming = Incoming::default();
        let mut refused = None;
        for stream in (0..).step_by(4) {
            let mut reader = incoming.take(stream);
            let mut input: &[u8] = &[&[1, 0x40, 100][..], &[0; 80]].concat();
            assert_eq!(reader.next(&mut input, 100), Ok(None));
            if incoming.keep(stream, reader, 100).is_err() {
                refused = Some(stream / 4);
                break;
            }
        }
        assert_eq!(refused, Some(20), "1600 bytes are 20 parts of 80");
        for stream in (0..=80).step_by(4) {
            incoming.forget(stream);
        }
        assert_eq!((incoming.kept, incoming.readers.capacity()), (0, 0));
    }
}
