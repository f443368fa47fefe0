//! Bytes of which only some may have been captured, and text that is safe for terminals.

use std::fmt::{self, Display};

/// A part of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a> {
    captured: &'a [u8],
    /// On the wire; no less than was captured.
    length: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(captured: &'a [u8], length: usize) -> Self {
        Self { captured: &captured[..captured.len().min(length)], length }
    }

    /// What was captured of it.
    pub(super) fn captured(self) -> &'a [u8] {
        self.captured
    }

    /// Its length on the wire.
    pub(super) fn len(self) -> usize {
        self.length
    }

    /// Whether all of it was captured.
    pub(super) fn is_whole(self) -> bool {
        self.captured.len() == self.length
    }

    /// The `N` octets at an offset.
    pub(super) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.captured.get(at..)?.first_chunk().copied()
    }

    pub(super) fn u8(self, at: usize) -> Option<u8> {
        self.captured.get(at).copied()
    }

    pub(super) fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    pub(super) fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// What follows a header of that length.
    pub(super) fn behind(self, header: usize) -> Self {
        let captured = self.captured.get(header..).unwrap_or_default();
        Self { captured, length: self.length.saturating_sub(header) }
    }

    /// The first part of it, if a length field says that it is no longer.
    pub(super) fn limit(self, length: usize) -> Self {
        let length = self.length.min(length);
        Self::new(self.captured, length)
    }
}

/// A text without control characters.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for character in self.0.chars() {
            // Marks that turn the direction of writing are as bad.
            if character.is_control()
                || matches!(character, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}
