//! Messages of moq-lite-05 (draft-lcurley-moq-lite), as read from streams and written to them.
//!
//! A stream begins with its type. Then come messages, each preceded by its length. Integers are those of QUIC (RFC 9000, section 16).
//! Everything here works on the bytes that are there: [`Incomplete`](Problem::Incomplete) says that more are needed. Nothing is allocated
//! for a length that a peer claims: a message has at most [`MAX_MESSAGE`] bytes, and they stay in the stream.

mod codes;
mod frames;
mod message;
#[cfg(test)]
mod tests;
pub mod write;

use expressway_h3::varint;

pub use codes::{data, request, session_code, stream_code};
pub use frames::Frames;
pub use message::{
    Announce, AnnounceOk, AnnounceRequest, Answer, Fetch, Goaway, Group, Setup, Subscribe, Track, TrackInfo,
    Wishes,
};

/// The longest message that is read, in bytes: a path, a name and a chain of hops fit three times.
pub const MAX_MESSAGE: usize = 4096;
/// The longest path of a broadcast, in bytes.
pub const MAX_PATH: usize = 512;
/// The longest name of a track, in bytes.
pub const MAX_NAME: usize = 256;
/// Relays that a broadcast has passed at most.
pub const MAX_HOPS: usize = 32;

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Not all of it is there.
    Incomplete,
    /// It can never be read; the words are for the peer.
    Invalid(&'static str),
}

/// A reader of the body of a message, which is all there: what is missing is an error.
#[derive(Debug)]
pub struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn integer(&mut self) -> Result<u64, Problem> {
        let (value, length) =
            varint::read(self.0).ok_or(Problem::Invalid("a message ends within a field"))?;
        self.0 = &self.0[length..];
        Ok(value)
    }

    fn octet(&mut self) -> Result<u8, Problem> {
        let (first, rest) = self.0.split_first().ok_or(Problem::Invalid("a message ends within a field"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn octets(&mut self) -> Result<&'a [u8], Problem> {
        let length = usize::try_from(self.integer()?).unwrap_or(usize::MAX);
        if length > self.0.len() {
            return Err(Problem::Invalid("a field is longer than its message"));
        }
        let (octets, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(octets)
    }

    fn text(&mut self, longest: usize) -> Result<&'a str, Problem> {
        let octets = self.octets()?;
        if octets.len() > longest {
            return Err(Problem::Invalid("a path or name is too long"));
        }
        std::str::from_utf8(octets).map_err(|_| Problem::Invalid("a path or name is not UTF-8"))
    }

    /// An integer that is absent as 0, and one too high otherwise.
    fn optional(&mut self) -> Result<Option<u64>, Problem> {
        Ok(self.integer()?.checked_sub(1))
    }

    fn end(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::Invalid("a message is longer than its fields")) }
    }
}

/// The type at the front of a stream, and its length.
pub fn stream_type(input: &[u8]) -> Option<(u64, usize)> {
    varint::read(input)
}

/// The body of the message at the front of `input`, and the length of both.
fn body(input: &[u8]) -> Result<(Body<'_>, usize), Problem> {
    let (length, prefix) = varint::read(input).ok_or(Problem::Incomplete)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        return Err(Problem::Invalid("a message is too long"));
    }
    match input.get(prefix..prefix + length) {
        Some(body) => Ok((Body(body), prefix + length)),
        None => Err(Problem::Incomplete),
    }
}

/// A message that can be read.
pub trait Message<'a>: Sized {
    /// Reads the fields.
    ///
    /// # Errors
    /// A field that cannot be.
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem>;

    /// The message at the front of `input`, and its length.
    ///
    /// # Errors
    /// [`Problem::Incomplete`] until all of it is there.
    fn read(input: &'a [u8]) -> Result<(Self, usize), Problem> {
        let (mut body, length) = body(input)?;
        let message = Self::fields(&mut body)?;
        body.end()?;
        Ok((message, length))
    }
}
