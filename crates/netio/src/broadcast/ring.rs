//! The ring itself: positions, records and the check that none was torn. No system calls, no `unsafe`.
//!
//! Positions are byte counts that never wrap. A record is a header of four words and its data, padded to words; it may
//! continue at the start of the ring. The code is generic over [`Memory`], so the same code runs on mapped memory, in
//! property tests and under loom.

use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::fence;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::fence;

/// Bytes of a word: all that is shared is made of such.
pub(super) const WORD: usize = 8;
/// Words of a record before its data.
pub(super) const HEADER_WORDS: usize = 4;
/// Bytes of them.
pub(super) const HEADER: usize = HEADER_WORDS * WORD;

/// Times that a reader that is overtaken while it copies tries again before it lets its caller have a turn.
const TRIES: usize = 8;

/// A shared 64-bit word.
pub(super) trait AtomicWord {
    /// Reads the word.
    fn load(&self, ordering: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, ordering: Ordering);
}

impl AtomicWord for std::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    #[inline]
    fn store(&self, value: u64, ordering: Ordering) {
        self.store(value, ordering);
    }
}

#[cfg(all(test, loom))]
impl AtomicWord for loom::sync::atomic::AtomicU64 {
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        self.store(value, ordering);
    }
}

/// The memory of a ring. Only its writer stores.
pub(super) trait Memory {
    /// The type of the shared words.
    type Word: AtomicWord;
    /// Where the record that is being written ends. What is more than the capacity before it is gone.
    fn intent(&self) -> &Self::Word;
    /// Where the last record that was published ends.
    fn tail(&self) -> &Self::Word;
    /// Where it begins.
    fn latest(&self) -> &Self::Word;
    /// The records; a power of two of words.
    fn words(&self) -> &[Self::Word];
}

/// Says something of a record beside its bytes. The ring gives none of it a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// Its time in nanoseconds.
    pub timestamp: u64,
    /// Its number in the feed that it is of.
    pub number: u64,
    /// Flags.
    pub flags: u16,
    /// Where it came from.
    pub source: u16,
}

/// Bytes that a record of `length` bytes takes in the ring.
pub(super) fn size_of_record(length: usize) -> usize {
    HEADER + length.next_multiple_of(WORD)
}

/// The part of the ring from a position on: up to its end, and from its start.
fn span<W>(words: &[W], position: u64, count: usize) -> impl Iterator<Item = &W> {
    // Masked, so below the length.
    let index = (position as usize / WORD) & (words.len() - 1);
    let first = count.min(words.len() - index);
    words[index..index + first].iter().chain(&words[..count - first])
}

/// The side that writes.
pub(super) struct Writer<M> {
    memory: M,
    /// Where the next record begins.
    tail: u64,
    latest: u64,
    /// Number of the next record.
    sequence: u64,
    /// What readers see: position and number of the record behind the last.
    published: (u64, u64),
    largest: usize,
}

impl<M: Memory> Writer<M> {
    /// Takes memory that is zero, for records of up to `largest` bytes, which must fit it.
    pub(super) fn new(memory: M, largest: usize) -> Self {
        debug_assert!(memory.words().len().is_power_of_two());
        debug_assert!(size_of_record(largest) <= memory.words().len() * WORD);
        Self { memory, tail: 0, latest: 0, sequence: 0, published: (0, 0), largest }
    }

    /// Writes a record over the oldest. False, and nothing written, if it is too long.
    #[inline]
    pub(super) fn push(&mut self, record: &Record<'_>) -> bool {
        let Record { data, timestamp, number, flags, source } = *record;
        if data.len() > self.largest {
            return false;
        }
        let end = self.tail + size_of_record(data.len()) as u64;
        self.memory.intent().store(end, Ordering::Relaxed);
        // Whoever sees a word that is written from here on sees the intent too.
        fence(Ordering::Release);
        let first = data.len() as u64 | u64::from(flags) << 32 | u64::from(source) << 48;
        let header = [first, self.sequence, timestamp, number];
        let words = self.memory.words();
        for (word, value) in span(words, self.tail, HEADER_WORDS).zip(header) {
            word.store(value, Ordering::Relaxed);
        }
        let body = span(words, self.tail + HEADER as u64, data.len().div_ceil(WORD));
        for (word, chunk) in body.zip(data.chunks(WORD)) {
            let mut bytes = [0; WORD];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        self.latest = self.tail;
        self.tail = end;
        self.sequence += 1;
        true
    }

    /// Shows readers what was written. True if that is anything.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.published.0 == self.tail {
            return false;
        }
        self.published = (self.tail, self.sequence);
        // Release: the records are written before the tail says so, and the tail is there before the latest, so
        // that a reader that goes to the latest finds it published.
        self.memory.tail().store(self.tail, Ordering::Release);
        self.memory.latest().store(self.latest, Ordering::Release);
        // Before a look at who sleeps: see `Reader::want_wakeup`.
        fence(Ordering::SeqCst);
        true
    }

    /// Whether a reader asks to be woken. After [`Writer::publish`].
    #[inline]
    pub(super) fn is_asleep(flag: &M::Word) -> bool {
        flag.load(Ordering::Relaxed) != 0
    }

    /// Where a reader that comes now begins: the position of the record to be published next, and its number.
    pub(super) fn entry(&self) -> (u64, u64) {
        self.published
    }

    /// Longest record.
    pub(super) fn largest(&self) -> usize {
        self.largest
    }
}

/// What a reader found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// Nothing new.
    Nothing,
    /// A record, and how many were lost in front of it.
    Record { record: Record<'a>, sequence: u64, lost: u64 },
    /// What a writer of this kind does not write.
    Corrupt,
}

/// The side that reads.
pub(super) struct Reader<M> {
    memory: M,
    position: u64,
    /// Number of the record there.
    sequence: u64,
    buffer: Vec<u8>,
}

/// A header that was read whole.
struct Header {
    length: usize,
    flags: u16,
    source: u16,
    sequence: u64,
    timestamp: u64,
    number: u64,
}

/// Why there is no record.
enum Missing {
    /// It was overwritten.
    Overrun,
    Corrupt,
}

impl<M: Memory> Reader<M> {
    /// Begins where the writer says: [`Writer::entry`].
    pub(super) fn new(memory: M, (position, sequence): (u64, u64), largest: usize) -> Self {
        Self { memory, position, sequence, buffer: vec![0; largest.next_multiple_of(WORD)] }
    }

    /// The next record, copied out.
    pub(super) fn next(&mut self) -> Found<'_> {
        for _ in 0..TRIES {
            // Acquire: what is before the tail is read as it was when that was stored, or later.
            let tail = self.memory.tail().load(Ordering::Acquire);
            if tail == self.position {
                return Found::Nothing;
            }
            if tail < self.position {
                return Found::Corrupt;
            }
            match self.read(tail) {
                Ok(header) => return self.found(&header),
                Err(Missing::Corrupt) => return Found::Corrupt,
                Err(Missing::Overrun) => self.skip(tail),
            }
        }
        Found::Nothing
    }

    fn read(&mut self, tail: u64) -> Result<Header, Missing> {
        let mut header = [0; HEADER_WORDS];
        for (word, value) in span(self.memory.words(), self.position, HEADER_WORDS).zip(&mut header) {
            *value = word.load(Ordering::Relaxed);
        }
        self.check()?;
        let [first, sequence, timestamp, number] = header;
        // The low half, and two quarters.
        let (length, flags, source) = (first as u32 as usize, (first >> 32) as u16, (first >> 48) as u16);
        let size = size_of_record(length) as u64;
        if length > self.buffer.len() || size > tail - self.position || sequence < self.sequence {
            return Err(Missing::Corrupt);
        }
        let body = span(self.memory.words(), self.position + HEADER as u64, length.div_ceil(WORD));
        for (word, chunk) in body.zip(self.buffer.chunks_exact_mut(WORD)) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        self.check()?;
        Ok(Header { length, flags, source, sequence, timestamp, number })
    }

    /// Whether all that was read since the position was looked at is of that record.
    fn check(&self) -> Result<(), Missing> {
        // The other half of the fence in `Writer::push`.
        fence(Ordering::Acquire);
        let intent = self.memory.intent().load(Ordering::Relaxed);
        let capacity = (self.memory.words().len() * WORD) as u64;
        if intent.saturating_sub(self.position) > capacity { Err(Missing::Overrun) } else { Ok(()) }
    }

    /// Goes on with the newest record; behind it, if that is gone too.
    fn skip(&mut self, tail: u64) {
        // Acquire: the tail is seen to be behind it.
        let latest = self.memory.latest().load(Ordering::Acquire);
        self.position = if latest > self.position { latest } else { tail };
    }

    fn found(&mut self, header: &Header) -> Found<'_> {
        let &Header { length, flags, source, sequence, timestamp, number } = header;
        let lost = sequence - self.sequence;
        self.sequence = sequence + 1;
        self.position += size_of_record(length) as u64;
        let data = &self.buffer[..length];
        Found::Record { record: Record { data, timestamp, number, flags, source }, sequence, lost }
    }

    /// Where it is.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Asks the writer for a wake-up, or withdraws that. True if records wait, so that there is nothing to sleep
    /// for.
    pub(super) fn want_wakeup(&mut self, flag: &M::Word, wanted: bool) -> bool {
        flag.store(u64::from(wanted), Ordering::Relaxed);
        // The other half of `Writer::publish`: the flag is seen by a writer whose tail is not seen here.
        fence(Ordering::SeqCst);
        self.memory.tail().load(Ordering::Acquire) > self.position
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
