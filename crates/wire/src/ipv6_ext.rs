//! IPv6 extension headers (RFC 8200, section 4): hop-by-hop, routing, destination options, fragment.
//!
//! [`Extensions`] yields them one by one. [`Extensions::upper_layer`] walks them as a receiving host must. It
//! refuses headers that change the meaning of the packet: fragments, routes with segments left, options that
//! ask for discard. Such packets therefore reach the kernel's stack instead of being misread.

use crate::ethernet::require;
use crate::protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use crate::{Layer, ParseError};

/// The most extension headers that are walked. RFC 8200 allows five kinds, destination options twice; RFC
/// 8504, section 5.3, allows a host to limit the chain.
pub const MAX_EXTENSION_HEADERS: usize = 8;

const PAD1: u8 = 0;
/// The two bits of an option type that say what to do with an unknown option: 00 is "skip".
const OPTION_ACTION: u8 = 0xc0;

/// One extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// What it is: one of the constants of [`crate::protocol`].
    pub kind: u8,
    /// Protocol of what follows it.
    pub next_header: u8,
    /// Offset of its first byte behind the fixed header.
    pub offset: usize,
    /// Its bytes, from the next-header field on.
    pub bytes: &'a [u8],
}

impl Extension<'_> {
    /// Checks that nothing in the header changes what the packet means.
    fn check(&self) -> Result<(), ParseError> {
        match self.kind {
            FRAGMENT => Err(ParseError::Fragment),
            ROUTING => match self.bytes {
                [_, _, _, 0, ..] => Ok(()),
                [_, _, kind, ..] => Err(ParseError::Ipv6RoutingPending(*kind)),
                _ => Err(ParseError::Truncated {
                    layer: Layer::Ipv6Extension,
                    needed: 4,
                    available: self.bytes.len(),
                }),
            },
            _ => check_options(self.bytes.get(2..).unwrap_or_default()),
        }
    }
}

/// Walks the options of a hop-by-hop or destination options header.
fn check_options(mut rest: &[u8]) -> Result<(), ParseError> {
    while let Some((&kind, behind)) = rest.split_first() {
        if kind == PAD1 {
            rest = behind;
            continue;
        }
        if kind & OPTION_ACTION != 0 {
            return Err(ParseError::Ipv6Option(kind));
        }
        let (&length, data) = behind.split_first().ok_or(ParseError::Ipv6Option(kind))?;
        rest = data.get(usize::from(length)..).ok_or(ParseError::Ipv6Option(kind))?;
    }
    Ok(())
}

/// Where the extension headers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpperLayer {
    /// Protocol of the transport.
    pub protocol: u8,
    /// Offset of the transport header.
    pub offset: usize,
}

/// Walks extension headers; ends at the first header that is none of them, or at an error.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    bytes: &'a [u8],
    next_header: u8,
    offset: usize,
    seen: usize,
    failed: bool,
}

impl<'a> Extensions<'a> {
    /// The extension headers of a fixed header that says `next_header`, in the payload `bytes`.
    #[inline]
    pub fn new(next_header: u8, bytes: &'a [u8]) -> Self {
        Self { bytes, next_header, offset: 0, seen: 0, failed: false }
    }

    /// Walks to the transport. Errors if the chain is cut, out of order or too long, and on whatever changes
    /// the meaning of the packet. The offset counts from behind the fixed header.
    #[inline]
    pub fn upper_layer(mut self) -> Result<UpperLayer, ParseError> {
        for extension in &mut self {
            extension?.check()?;
        }
        Ok(UpperLayer { protocol: self.next_header, offset: self.offset })
    }

    fn step(&mut self) -> Result<Extension<'a>, ParseError> {
        let kind = self.next_header;
        if kind == HOP_BY_HOP && self.seen > 0 {
            return Err(ParseError::Ipv6ExtensionOrder);
        }
        if self.seen == MAX_EXTENSION_HEADERS {
            return Err(ParseError::Ipv6TooManyExtensions);
        }
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        require(rest, 8, Layer::Ipv6Extension)?;
        // The fragment header has no length field; the others count units of eight behind the first.
        let length = if kind == FRAGMENT { 8 } else { (usize::from(rest[1]) + 1) * 8 };
        require(rest, length, Layer::Ipv6Extension)?;
        let extension = Extension { kind, next_header: rest[0], offset: self.offset, bytes: &rest[..length] };
        self.next_header = rest[0];
        self.offset += length;
        self.seen += 1;
        Ok(extension)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, ParseError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let known = matches!(self.next_header, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS);
        if self.failed || !known {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        Some(step)
    }
}
