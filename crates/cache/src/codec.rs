//! Entries as bytes, for the disk. Data read from disk has passed its checksum, but is still not trusted to be well
//! formed: another version of this program may have written it.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::object::{Entry, Object};
use crate::policy::Freshness;

/// Changes with the format.
const FORMAT: u8 = 1;

/// The octets of `entry`.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    let mut out = vec![FORMAT];
    text(&mut out, entry.key.as_bytes());
    number(&mut out, entry.variants.len() as u64);
    for object in &entry.variants {
        let Freshness { received, initial_age, lifetime, while_revalidate, if_error, strict, always } =
            object.freshness;
        number(&mut out, object.version);
        number(&mut out, u64::from(object.status.as_u16()));
        number(&mut out, object.length);
        for time in [received, initial_age, lifetime, while_revalidate, if_error] {
            number(&mut out, time);
        }
        out.push(u8::from(strict) | u8::from(always) << 1 | u8::from(object.is_sliced) << 2);
        number(&mut out, object.purges_seen);
        number(&mut out, object.headers.len() as u64);
        for (name, value) in &object.headers {
            text(&mut out, name.as_str().as_bytes());
            text(&mut out, value.as_bytes());
        }
        number(&mut out, object.selecting.len() as u64);
        for (name, value) in &object.selecting {
            text(&mut out, name.as_str().as_bytes());
            text(&mut out, value);
        }
    }
    out
}

/// The entry that `octets` are of.
pub(crate) fn decode(octets: &[u8]) -> Option<Entry> {
    let mut reader = Reader(octets);
    if reader.octet()? != FORMAT {
        return None;
    }
    let key = std::str::from_utf8(reader.text()?).ok()?.into();
    let mut variants = Vec::new();
    for _ in 0..reader.number()? {
        variants.push(Arc::new(reader.object()?));
    }
    reader.0.is_empty().then_some(Entry { key, variants })
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(text);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn octet(&mut self) -> Option<u8> {
        self.take(1).map(|octets| octets[0])
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_le_bytes(self.take(4)?.try_into().ok()?);
        self.take(length as usize)
    }

    fn object(&mut self) -> Option<Object> {
        let version = self.number()?;
        let status = StatusCode::from_u16(u16::try_from(self.number()?).ok()?).ok()?;
        let length = self.number()?;
        let (received, initial_age, lifetime) = (self.number()?, self.number()?, self.number()?);
        let (while_revalidate, if_error) = (self.number()?, self.number()?);
        let flags = self.octet()?;
        let freshness = Freshness {
            received,
            initial_age,
            lifetime,
            while_revalidate,
            if_error,
            strict: flags & 1 != 0,
            always: flags & 2 != 0,
        };
        let purges_seen = self.number()?;
        let mut headers = HeaderMap::new();
        for _ in 0..self.number()? {
            let name = HeaderName::from_bytes(self.text()?).ok()?;
            headers.try_append(name, HeaderValue::from_bytes(self.text()?).ok()?).ok()?;
        }
        let mut selecting = Vec::new();
        for _ in 0..self.number()? {
            selecting.push((HeaderName::from_bytes(self.text()?).ok()?, self.text()?.to_vec()));
        }
        let is_sliced = flags & 4 != 0;
        Some(Object { version, status, headers, length, selecting, freshness, is_sliced, purges_seen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let freshness = Freshness {
            received: 1,
            initial_age: 2,
            lifetime: 3,
            while_revalidate: 4,
            if_error: 5,
            strict: true,
            always: false,
        };
        let headers = HeaderMap::from_iter([
            (http::header::ETAG, HeaderValue::from_static("\"a\"")),
            (http::header::LINK, HeaderValue::from_static("<a>")),
        ]);
        let object = Object {
            version: 7,
            status: StatusCode::NOT_FOUND,
            headers,
            length: 9,
            selecting: vec![(http::header::ACCEPT, b"=x".to_vec())],
            freshness,
            is_sliced: true,
            purges_seen: 4,
        };
        Entry {
            key: "https://a/b".into(),
            variants: vec![Arc::new(object.clone()), Arc::new(Object { version: 8, ..object })],
        }
    }

    #[test]
    fn an_entry_comes_back_as_it_was() {
        assert_eq!(decode(&encode(&entry())), Some(entry()));
    }

    #[test]
    fn a_part_of_an_entry_or_anything_else_is_none() {
        let octets = encode(&entry());
        for length in 0..octets.len() {
            assert_eq!(decode(&octets[..length]), None, "{length}");
        }
        for at in 0..octets.len() {
            let mut wrong = octets.clone();
            wrong[at] = 0xff;
            let _ = decode(&wrong);
        }
    }
}
