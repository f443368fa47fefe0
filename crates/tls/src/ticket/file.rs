//! Files of ticket keys. Either TOML with `current`, and optionally `next` and `previous`, each of 160 hexadecimal
//! digits. Or one to three of nginx's keys of 80 bytes: the current one first, then the previous, then the next.

use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use serde::Deserialize;

use super::{Ring, TicketKey};
use crate::error::TlsError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    current: String,
    next: Option<String>,
    previous: Option<String>,
}

pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Ring, TlsError> {
    let ring = match text(bytes) {
        Some(text) => document(text),
        None => binary(bytes),
    };
    ring.and_then(distinct).map_err(|problem| TlsError::content(path, problem))
}

/// The text of a document: random keys are no text.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.contains('='))
}

fn document(text: &str) -> Result<Ring, String> {
    let document: Document =
        toml::from_str(text).map_err(|error| error.message().lines().collect::<Vec<_>>().join(" "))?;
    let optional = |name, digits: Option<String>| digits.map(|digits| key(name, &digits)).transpose();
    Ok(Ring {
        current: key("current", &document.current)?,
        next: optional("next", document.next)?,
        previous: optional("previous", document.previous)?,
    })
}

fn key(name: &str, digits: &str) -> Result<TicketKey, String> {
    let bytes = HEX.decode(digits.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
    let bytes = bytes.ok_or_else(|| format!("{name}: give 160 hexadecimal digits (openssl rand -hex 80)"))?;
    Ok(TicketKey::from_bytes(&bytes))
}

fn binary(bytes: &[u8]) -> Result<Ring, String> {
    let (keys, rest) = bytes.as_chunks::<{ TicketKey::BYTES }>();
    let mut keys = keys.iter().map(TicketKey::from_bytes);
    match (keys.next(), keys.next(), keys.next(), keys.next()) {
        (Some(current), previous, next, None) if rest.is_empty() => Ok(Ring { current, next, previous }),
        _ => Err(format!(
            "{} bytes; give 80, 160 or 240 (nginx's ssl_session_ticket_key), or TOML with current, next, previous",
            bytes.len()
        )),
    }
}

fn distinct(ring: Ring) -> Result<Ring, String> {
    let names: Vec<_> =
        [Some(&ring.current), ring.next.as_ref(), ring.previous.as_ref()].into_iter().flatten().collect();
    let twice =
        names.iter().enumerate().any(|(index, key)| names[..index].iter().any(|one| one.name == key.name));
    if twice {
        return Err("two keys have the same name (the first 16 bytes)".into());
    }
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Ring, String> {
        parse(Path::new("t"), bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn both_formats_say_the_same() {
        let [one, two, three]: [[u8; 80]; 3] = [1, 2, 0xfe].map(|byte| [byte; 80]);
        let text = format!(
            "current = \"{}\"\nprevious = \"{}\"\nnext = \"{}\"\n",
            HEX.encode(&one),
            HEX.encode(&two),
            HEX.encode(&three).to_uppercase()
        );
        assert_eq!(parsed(text.as_bytes()).unwrap(), parsed(&[one, two, three].concat()).unwrap());
        let only = parsed(&one).unwrap();
        assert_eq!((only.next, only.previous), (None, None));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let digits = "0".repeat(160);
        for (bytes, expected) in [
            (String::new().into_bytes(), "t: 0 bytes; give 80"),
            (vec![0; 81], "t: 81 bytes"),
            (vec![0; 320], "t: 320 bytes"),
            (vec![0; 160], "the same name"),
            (b"current = \"00\"".to_vec(), "t: current: give 160"),
            (format!("current = \"{}x\"", &digits[1..]).into_bytes(), "current: give 160"),
            (format!("current = \"{digits}\"\nnext = \"{digits}\"").into_bytes(), "the same name"),
            (format!("current = \"{digits}\"\nolder = \"{digits}\"").into_bytes(), "unknown field `older`"),
            (format!("next = \"{digits}\"").into_bytes(), "missing field `current`"),
        ] {
            let error = parsed(&bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert_eq!(error.lines().count(), 1);
        }
    }
}
