//! Common Media Client Data (CTA-5004): what players say of themselves, in a query argument and in four header fields.
//!
//! Read once, on the log's thread. What is malformed, too long or of the wrong type is left out, and the rest counts.

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::scan::{looked_at, position};

/// The header fields.
pub(super) const FIELDS: [&str; 4] = ["cmcd-object", "cmcd-request", "cmcd-session", "cmcd-status"];

/// Octets of the argument or of a field; longer ones are left out.
const MAX_LIST: usize = 4096;

/// Keys that are taken of a request.
const MAX_KEYS: usize = 32;

/// Octets of a key and of a token.
const MAX_TOKEN: usize = 64;

/// Octets of a string.
const MAX_STRING: usize = 512;

/// What a key's value is (CTA-5004, section 3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Decimal,
    Boolean,
    String,
    Token,
}

const KEYS: [(&str, Kind); 18] = [
    ("bl", Kind::Integer),
    ("br", Kind::Integer),
    ("bs", Kind::Boolean),
    ("cid", Kind::String),
    ("d", Kind::Integer),
    ("dl", Kind::Integer),
    ("mtp", Kind::Integer),
    ("nor", Kind::String),
    ("nrr", Kind::String),
    ("ot", Kind::Token),
    ("pr", Kind::Decimal),
    ("rtp", Kind::Integer),
    ("sf", Kind::Token),
    ("sid", Kind::String),
    ("st", Kind::Token),
    ("su", Kind::Boolean),
    ("tb", Kind::Integer),
    ("v", Kind::Integer),
];

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(untagged)]
enum Value {
    Integer(u64),
    Decimal(f64),
    Boolean(bool),
    String(String),
    Token(String),
}

/// What a request says, by key, in the order in which it came; of a key that comes twice the first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Cmcd(Vec<(String, Value)>);

impl Cmcd {
    /// Reads the argument `CMCD` of `target`'s query, then the fields.
    pub(super) fn parse(target: &str, fields: &[&str]) -> Self {
        let mut cmcd = Self::default();
        looked_at(target.len());
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let argument = query.split('&').find_map(|argument| argument.strip_prefix("CMCD="));
        if let Some(argument) = argument.filter(|argument| argument.len() <= 3 * MAX_LIST)
            && let Ok(list) = percent_decode_str(argument).decode_utf8()
        {
            cmcd.add_list(&list);
        }
        fields.iter().for_each(|list| cmcd.add_list(list));
        cmcd
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add_list(&mut self, list: &str) {
        let mut rest = if list.len() <= MAX_LIST { list } else { "" };
        while !rest.is_empty() && self.0.len() < MAX_KEYS {
            let end = member_end(rest.as_bytes());
            // Commas are ASCII, so this is a boundary.
            let (member, behind) = rest.split_at(end);
            rest = behind.get(1..).unwrap_or_default();
            if let Some((key, value)) = read(member.trim_ascii())
                && !self.0.iter().any(|(known, _)| known == key)
            {
                self.0.push((key.to_owned(), value));
            }
        }
    }
}

impl Serialize for Cmcd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
        map.end()
    }
}

/// The fields as they came, for a record.
pub(super) fn fields(headers: &HeaderMap) -> [&str; FIELDS.len()] {
    FIELDS.map(|name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or(""))
}

/// Where the first comma outside of quotes is, or the end.
fn member_end(list: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut is_comma = |octet: u8| {
        let escapes = is_quoted && !is_escaped && octet == b'\\';
        if octet == b'"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = escapes;
        octet == b',' && !is_quoted
    };
    list.iter().position(|&octet| is_comma(octet)).inspect(|at| looked_at(at + 1)).unwrap_or_else(|| {
        looked_at(list.len());
        list.len()
    })
}

/// A key and its value; a key alone is true.
fn read(member: &str) -> Option<(&str, Value)> {
    let (key, text) = match position(member.as_bytes(), |octet| octet == b'=') {
        Some(at) => (&member[..at], Some(&member[at + 1..])),
        None => (member, None),
    };
    let known = KEYS.iter().find(|(known, _)| *known == key).map(|(_, kind)| *kind);
    if known.is_none() && !is_custom(key) {
        return None;
    }
    let value = match text {
        None => Value::Boolean(true),
        Some(text) => value(text)?,
    };
    let value = match (known, value) {
        (None, value) => value,
        (Some(Kind::Decimal), Value::Integer(number)) => Value::Decimal(number as f64),
        (Some(kind), value) => (value.kind() == kind).then_some(value)?,
    };
    Some((key, value))
}

/// A key of a player's own: it has a hyphen, behind what tells it from others'.
fn is_custom(key: &str) -> bool {
    let is_allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"-._".contains(&octet);
    key.len() <= MAX_TOKEN && key.contains('-') && key.bytes().all(is_allowed)
}

impl Value {
    fn kind(&self) -> Kind {
        match self {
            Self::Integer(_) => Kind::Integer,
            Self::Decimal(_) => Kind::Decimal,
            Self::Boolean(_) => Kind::Boolean,
            Self::String(_) => Kind::String,
            Self::Token(_) => Kind::Token,
        }
    }
}

fn value(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'"' => string(text).map(Value::String),
        b'0'..=b'9' => number(text),
        _ => match text {
            "true" => Some(Value::Boolean(true)),
            "false" => Some(Value::Boolean(false)),
            _ => {
                let is_allowed =
                    |octet: u8| octet.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~:/".contains(&octet);
                let is_token = text.len() <= MAX_TOKEN && text.bytes().all(is_allowed);
                is_token.then(|| Value::Token(text.to_owned()))
            }
        },
    }
}

/// An integer of up to 15 digits, or a decimal of 12 and 3 more (RFC 8941, sections 3.3.1 and 3.3.2).
fn number(text: &str) -> Option<Value> {
    let is_digits = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|octet| octet.is_ascii_digit())
    };
    match text.split_once('.') {
        None => is_digits(text, 15).then(|| text.parse().ok().map(Value::Integer))?,
        Some((whole, fraction)) => {
            let is_decimal = is_digits(whole, 12) && is_digits(fraction, 3);
            is_decimal.then(|| text.parse().ok().map(Value::Decimal))?
        }
    }
}

/// A string in quotes, in which a backslash precedes a quote or a backslash.
fn string(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"').filter(|inner| inner.len() <= MAX_STRING)?;
    let mut string = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        let character = match character {
            '\\' => characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?,
            '"' => return None,
            other => other,
        };
        if character.is_control() {
            return None;
        }
        string.push(character);
    }
    Some(string)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scan::assert_linear;

    fn json(target: &str, fields: &[&str]) -> serde_json::Value {
        serde_json::to_value(Cmcd::parse(target, fields)).unwrap()
    }

    #[test]
    fn the_argument_of_a_query() {
        let target = "/a.m4s?x=1&CMCD=br%3D3200%2Cbs%2Cd%3D4004%2Cnor%3D%22..%252F3.m4s%22%2Cot%3Dv%2Cpr%3D1.08%2C\
                      sid%3D%226e2fb550-c457-11e9-bb97-0800200c9a66%22%2Csf%3Dd&y=2";
        assert_eq!(
            json(target, &[]),
            serde_json::json!({
                "br": 3200, "bs": true, "d": 4004, "nor": "..%2F3.m4s", "ot": "v", "pr": 1.08,
                "sid": "6e2fb550-c457-11e9-bb97-0800200c9a66", "sf": "d",
            })
        );
        for none in ["/", "/?", "/?CMCD=", "/?cmcd=br%3D1", "/?CMCD=%FF", "/?xCMCD=br%3D1", "/CMCD=br%3D1"] {
            assert!(Cmcd::parse(none, &[""; 4]).is_empty(), "{none}");
        }
    }

    #[test]
    fn the_four_fields() {
        let fields =
            ["br=3200,d=4004,ot=v,tb=6000", "bl=21300,mtp=48100,su", "cid=\"a,\\\"b\\\\\",pr=2,v=1", "bs"];
        assert_eq!(
            json("/?CMCD=br%3D1", &fields),
            serde_json::json!({
                "br": 1, "d": 4004, "ot": "v", "tb": 6000, "bl": 21300, "mtp": 48100, "su": true, "cid": "a,\"b\\",
                "pr": 2.0, "v": 1, "bs": true,
            })
        );
    }

    #[test]
    fn keys_of_a_players_own_are_taken_with_any_value() {
        assert_eq!(
            json(
                "/",
                &[
                    "com.example-a=1,com.example-b=\"x\",com.example-c,com.example-d=tok,own=1, com.example-e=1.5"
                ]
            ),
            serde_json::json!({
                "com.example-a": 1, "com.example-b": "x", "com.example-c": true, "com.example-d": "tok",
                "com.example-e": 1.5,
            })
        );
    }

    #[test]
    fn what_is_wrong_is_left_out_and_the_rest_counts() {
        for wrong in [
            "br=x",
            "br=\"1\"",
            "br=-1",
            "br=1.5",
            "br=",
            "br",
            "br=1234567890123456",
            "pr=1.2345",
            "pr=.5",
            "pr=1.",
            "bs=1",
            "bs=maybe",
            "cid=x",
            "cid=\"",
            "cid=\"a\\b\"",
            "cid=\"a\"b\"",
            "cid=\"\u{7}\"",
            "ot=\"v\"",
            "ot=a b",
            "bl=(1 2)",
            "=",
            "==",
            ",",
            "unknown=1",
            "-\u{e9}=1",
        ] {
            // Behind what follows a quote that is not closed nothing can be told apart.
            assert_eq!(json("/", &[&format!("d=1,{wrong}")]), serde_json::json!({ "d": 1 }), "{wrong}");
            if wrong.matches('"').count() % 2 == 0 {
                assert_eq!(json("/", &[&format!("{wrong},d=1")]), serde_json::json!({ "d": 1 }), "{wrong}");
            }
        }
        let long = format!("cid=\"{}\",d=1", "x".repeat(MAX_STRING + 1));
        assert_eq!(json("/", &[&long]), serde_json::json!({ "d": 1 }));
        assert!(Cmcd::parse("/", &[&"d=1,".repeat(MAX_LIST)]).is_empty());
        let many: String = (0..2 * MAX_KEYS).map(|i| format!("a-{i}=1,")).collect();
        assert_eq!(Cmcd::parse("/", &[&many]).0.len(), MAX_KEYS);
    }

    #[test]
    fn lists_are_read_once() {
        for member in ["br=1,", ",", "\"", "\\", "a-b=\"\\\"\",", "=", "x"] {
            let list = |size: usize| member.repeat(size / member.len() / 16).into_bytes();
            assert_linear(member, 3, list, |list| {
                Cmcd::parse("/", &[std::str::from_utf8(list).unwrap()]);
                looked_at(1);
            });
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_json_within_bounds(target in "(/\\?CMCD=)?[ -~\u{80}-\u{ff}]{0,200}", field in "[a-z=,\"\\\\0-9.\u{e9}-]{0,200}") {
            let value = json(&target, &[&field]);
            prop_assert!(value.as_object().unwrap().len() <= MAX_KEYS);
        }
    }
}
