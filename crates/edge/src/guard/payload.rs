//! What a rule searches for in payloads: bytes at an offset, optionally masked.

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_xbpf::{GuardPayloadSets, GuardProbe};
use serde::{Deserialize, Deserializer};
use toml::Value;

/// Bytes at a place of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Where, and which bits count.
    pub probe: GuardProbe,
    /// What they have to be.
    pub value: [u8; GuardPayloadSets::PATTERN],
}

impl Pattern {
    /// The farthest that a pattern may begin, in bytes: what a packet of 1500 bytes holds behind IPv4 and UDP.
    pub const FARTHEST: u16 = 1472;

    fn new(offset: i64, hex: &str, mask: Option<&str>) -> Result<Self, String> {
        let offset = u16::try_from(offset).ok().filter(|offset| *offset <= Self::FARTHEST);
        let offset = offset.ok_or_else(|| format!("an offset must be 0 to {}", Self::FARTHEST))?;
        let bytes = bytes(hex)?;
        let mask = match mask {
            Some(mask) => self::bytes(mask)?,
            None => vec![0xff; bytes.len()],
        };
        if mask.len() != bytes.len() {
            return Err(format!("mask `{}`: give as many bytes as `hex` has", HEX.encode(&mask)));
        }
        if mask.iter().all(|byte| *byte == 0) {
            return Err("a mask of zeros matches everything".to_owned());
        }
        let mut pattern = Self {
            probe: GuardProbe { offset, length: bytes.len() as u8, mask: [0; GuardPayloadSets::PATTERN] },
            value: [0; GuardPayloadSets::PATTERN],
        };
        for (at, (byte, mask)) in bytes.iter().zip(&mask).enumerate() {
            (pattern.probe.mask[at], pattern.value[at]) = (*mask, byte & mask);
        }
        Ok(pattern)
    }

    /// `"offset 4: 17 00 03 2a"`, or a table.
    fn of(value: &Value) -> Result<Self, String> {
        let wrong = || {
            "give \"offset 0: 17 00 03 2a\", or a table of `offset`, `hex` and `mask`, or a list of these"
                .to_owned()
        };
        match value {
            Value::String(text) => {
                let (place, hex) = text.split_once(':').ok_or_else(wrong)?;
                let offset = place.trim().strip_prefix("offset ").ok_or_else(wrong)?;
                Self::new(offset.trim().parse().map_err(|_| wrong())?, hex, None)
            }
            Value::Table(table) => {
                if let Some(key) = table.keys().find(|key| !["offset", "hex", "mask"].contains(&key.as_str()))
                {
                    return Err(format!("unknown key `{key}` of a payload, not one of offset, hex, mask"));
                }
                let text =
                    |key: &str| table.get(key).map(|value| value.as_str().ok_or_else(wrong)).transpose();
                let offset = table.get("offset").map_or(Some(0), Value::as_integer).ok_or_else(wrong)?;
                Self::new(offset, text("hex")?.ok_or_else(wrong)?, text("mask")?)
            }
            _ => Err(wrong()),
        }
    }
}

/// Bytes in hexadecimal digits, with or without spaces.
fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let most = GuardPayloadSets::PATTERN;
    let wrong =
        || format!("`{}` is not 1 to {most} bytes in hexadecimal, such as \"17 00 03 2a\"", text.trim());
    let digits: String = text.split_whitespace().collect();
    let bytes = HEX.decode(digits.as_bytes()).ok();
    bytes.filter(|bytes| (1..=most).contains(&bytes.len())).ok_or_else(wrong)
}

/// One pattern or a list.
pub(super) fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pattern>, D::Error> {
    let found = match Value::deserialize(deserializer)? {
        Value::Array(list) => list.iter().map(Pattern::of).collect(),
        value => Pattern::of(&value).map(|pattern| vec![pattern]),
    };
    found.map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Pattern>, String> {
        #[derive(Deserialize)]
        struct File {
            #[serde(deserialize_with = "patterns")]
            payload: Vec<Pattern>,
        }
        toml::from_str::<File>(text).map(|file| file.payload).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_tables_and_lists_are_read() {
        let plain = read("payload = \"offset 2: 17 00 03 2A\"").unwrap();
        let table = read("payload = { offset = 2, hex = \"1700032a\", mask = \"ff ff ff ff\" }").unwrap();
        assert_eq!(plain, table);
        let several = "payload = [\"offset 0: 01\", { hex = \"ff\", mask = \"0f\" }]";
        let several = read(several).unwrap();
        assert_eq!((several.len(), several[1].value[0], several[1].probe.offset), (2, 0x0f, 0));
        assert_eq!((several[1].probe.length, several[1].probe.mask[0]), (1, 0x0f));
        assert_eq!((plain[0].probe.offset, plain[0].probe.length), (2, 4));
        assert_eq!(
            (&plain[0].value[..5], &plain[0].probe.mask[..5]),
            (&[0x17, 0, 3, 0x2a, 0][..], &[255, 255, 255, 255, 0][..])
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, words) in [
            ("payload = \"17 00\"", "offset 0: 17"),
            ("payload = 5", "offset 0: 17"),
            ("payload = \"offset 0: 1\"", "hexadecimal"),
            ("payload = \"offset 0:\"", "hexadecimal"),
            ("payload = \"offset 0: 0g\"", "hexadecimal"),
            ("payload = \"offset 1473: 00\"", "0 to 1472"),
            ("payload = \"offset -1: 00\"", "0 to 1472"),
            ("payload = { hex = \"0000\", mask = \"ff\" }", "as many bytes"),
            ("payload = { hex = \"00\", mask = \"00\" }", "matches everything"),
            ("payload = { hex = \"00\", masc = \"00\" }", "masc"),
            ("payload = { offset = 3 }", "a table of"),
            ("payload = \"offset 0: 00112233445566778899aabbccddeeff00\"", "1 to 16 bytes"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
