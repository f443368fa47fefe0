//! The document: TOML, with its signature in a comment at the end.
//!
//! ```toml
//! # Keys that servers share, made by `expressway keys`. Secret.
//! format = 1
//! version = 1764108736
//!
//! [current]
//! tickets = "…"          # 160 hexadecimal digits: name (16 bytes), HMAC key (32), AES key (32)
//! retry = "…"            # 64
//! connection_ids = "…"   # 32: QUIC-LB
//! config = 0             # its rotation codepoint, 0 to 6
//! tokens = "…"           # 64: signed URLs
//!
//! [next]                 # the same; so [previous], once there was a rotation
//!
//! # signature = 128 hexadecimal digits
//! ```
//!
//! What is signed is all before the line of the signature.

use std::fmt;
use std::fmt::Write;

use boring::error::ErrorStack;
use boring::rand::rand_bytes;
use boring::sha::sha256;
use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use serde::Deserialize;

use crate::Refusal;
use crate::signature::{SIGNATURE_LENGTH, Signer, Signers};

/// Bytes of a key of session tickets, in nginx's order: name, HMAC key, AES key.
pub const TICKET_LENGTH: usize = 80;
/// Bytes of a key of Retry tokens.
pub const RETRY_LENGTH: usize = 32;
/// Bytes of a key of signed URLs.
pub const TOKEN_LENGTH: usize = 32;
/// Rotation codepoints of connection IDs (draft-ietf-quic-load-balancers, section 3.1).
pub const CONFIGS: u8 = 7;

/// The only form there is.
const FORMAT: u32 = 1;

/// Begins the last line.
const SIGNATURE: &str = "# signature = ";

/// One set of keys, for all that servers share.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Of session tickets.
    pub tickets: [u8; TICKET_LENGTH],
    /// Of Retry tokens.
    pub retry: [u8; RETRY_LENGTH],
    /// Of server IDs in connection IDs: AES-128.
    pub connection_ids: [u8; 16],
    /// The rotation codepoint of that key, below [`CONFIGS`].
    pub config: u8,
    /// Of signed URLs.
    pub tokens: [u8; TOKEN_LENGTH],
}

/// The keys are not printed.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("id", &self.id()).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Keys {
    /// Random ones.
    fn random(config: u8) -> Result<Self, ErrorStack> {
        let mut keys = Self {
            tickets: [0; TICKET_LENGTH],
            retry: [0; RETRY_LENGTH],
            connection_ids: [0; 16],
            config,
            tokens: [0; TOKEN_LENGTH],
        };
        for part in [&mut keys.tickets[..], &mut keys.retry, &mut keys.connection_ids, &mut keys.tokens] {
            rand_bytes(part)?;
        }
        Ok(keys)
    }

    /// Eight hexadecimal digits that tell them from others, and tell nothing of them.
    pub fn id(&self) -> String {
        let all =
            [&self.tickets[..], &self.retry, &self.connection_ids, &[self.config], &self.tokens].concat();
        HEX.encode(&sha256(&all)[..4])
    }

    /// The key of session tickets, of Retry tokens, of connection IDs and of signed URLs, by the names that they have in the document, in
    /// hexadecimal.
    pub fn secrets(&self) -> [(&'static str, String); 4] {
        [
            ("tickets", HEX.encode(&self.tickets)),
            ("retry", HEX.encode(&self.retry)),
            ("connection_ids", HEX.encode(&self.connection_ids)),
            ("tokens", HEX.encode(&self.tokens)),
        ]
    }

    fn write(&self, name: &str, text: &mut String) {
        let _ = writeln!(text, "\n[{name}]");
        for (key, value) in self.secrets() {
            let _ = writeln!(text, "{key} = \"{value}\"");
        }
        let _ = writeln!(text, "config = {}", self.config);
    }
}

/// A version of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Greater than that of all before: the Unix time at which it was made, or one more than the version before it.
    pub version: u64,
    /// Makes what is new.
    pub current: Keys,
    /// Accepted: other servers may be ahead by a rotation.
    pub next: Keys,
    /// Accepted: other servers, and clients, may be behind by one.
    pub previous: Option<Keys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: u32,
    version: u64,
    current: RawKeys,
    next: RawKeys,
    previous: Option<RawKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    tickets: String,
    retry: String,
    connection_ids: String,
    config: u8,
    tokens: String,
}

impl Document {
    /// A first one; `now` is Unix time in seconds.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn new(now: u64) -> Result<Self, ErrorStack> {
        Ok(Self { version: now, current: Keys::random(0)?, next: Keys::random(1)?, previous: None })
    }

    /// The document after this one: each set of keys moves on by one, the last is forgotten and the first is new.
    ///
    /// # Errors
    /// When the TLS library has no random bytes.
    pub fn rotated(&self, now: u64) -> Result<Self, ErrorStack> {
        // Three of seven in a row: none of the three has that of another.
        let config = (self.next.config + 1) % CONFIGS;
        let is_taken = |keys: &Keys| keys.config == config;
        let config = match is_taken(&self.current) {
            true => (config + 1) % CONFIGS,
            false => config,
        };
        Ok(Self {
            version: now.max(self.version.saturating_add(1)),
            current: self.next.clone(),
            next: Keys::random(config)?,
            previous: Some(self.current.clone()),
        })
    }

    /// All sets of keys by name, those in use first.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Keys)> {
        let sets = [("current", Some(&self.current)), ("next", Some(&self.next))];
        sets.into_iter()
            .chain([("previous", self.previous.as_ref())])
            .filter_map(|(name, keys)| Some((name, keys?)))
    }

    /// The text of a file, signed.
    ///
    /// # Errors
    /// When the TLS library refuses.
    pub fn signed(&self, signer: &Signer) -> Result<String, ErrorStack> {
        let mut text = format!(
            "# Keys that servers share, made by `expressway keys`. Secret.\nformat = {FORMAT}\nversion = {}\n",
            self.version
        );
        self.all().for_each(|(name, keys)| keys.write(name, &mut text));
        text.push('\n');
        let signature = signer.sign(text.as_bytes())?;
        let _ = writeln!(text, "{SIGNATURE}{}", HEX.encode(&signature));
        Ok(text)
    }

    /// Takes a file's bytes apart, if one of `signers` has signed them: nothing else is looked at before.
    ///
    /// # Errors
    /// [`Refusal::Format`] or [`Refusal::Signature`].
    pub fn parse(bytes: &[u8], signers: &Signers) -> Result<Self, Refusal> {
        let wrong = |problem: &str| Refusal::Format(problem.to_owned());
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("not a document of keys"))?;
        let (signed, signature) = split(text).ok_or_else(|| {
            wrong("the last line is not a signature: the file was cut off, or not made by `expressway keys`")
        })?;
        if !signers.have_signed(signed.as_bytes(), &signature) {
            return Err(Refusal::Signature);
        }
        let raw: Raw = toml::from_str(signed)
            .map_err(|error| Refusal::Format(error.message().lines().collect::<Vec<_>>().join(" ")))?;
        if raw.format != FORMAT {
            let problem = format!("format {}: this version reads format {FORMAT}", raw.format);
            return Err(Refusal::Format(problem));
        }
        let document = Self {
            version: raw.version,
            current: keys("current", &raw.current)?,
            next: keys("next", &raw.next)?,
            previous: raw.previous.as_ref().map(|raw| keys("previous", raw)).transpose()?,
        };
        document.check_distinct()?;
        Ok(document)
    }

    /// Tickets say by a name what they were made with, and connection IDs by a codepoint.
    fn check_distinct(&self) -> Result<(), Refusal> {
        let all: Vec<_> = self.all().collect();
        for (index, (name, keys)) in all.iter().enumerate() {
            for (other, before) in &all[..index] {
                if keys.tickets[..16] == before.tickets[..16] || keys.config == before.config {
                    return Err(Refusal::Format(format!(
                        "`{other}` and `{name}` have the same ticket name or the same config"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// What is signed, and the signature.
fn split(text: &str) -> Option<(&str, [u8; SIGNATURE_LENGTH])> {
    let body = text.strip_suffix('\n')?;
    let start = body.rfind('\n')? + 1;
    let signature = HEX.decode(body[start..].strip_prefix(SIGNATURE)?.as_bytes()).ok()?;
    Some((&text[..start], signature.try_into().ok()?))
}

fn keys(name: &str, raw: &RawKeys) -> Result<Keys, Refusal> {
    fn bytes<const N: usize>(name: &str, key: &str, digits: &str) -> Result<[u8; N], Refusal> {
        let problem = || Refusal::Format(format!("{name}.{key}: not {} hexadecimal digits", 2 * N));
        HEX.decode(digits.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(problem)
    }
    if raw.config >= CONFIGS {
        return Err(Refusal::Format(format!("{name}.config: {} is not between 0 and 6", raw.config)));
    }
    Ok(Keys {
        tickets: bytes(name, "tickets", &raw.tickets)?,
        retry: bytes(name, "retry", &raw.retry)?,
        connection_ids: bytes(name, "connection_ids", &raw.connection_ids)?,
        config: raw.config,
        tokens: bytes(name, "tokens", &raw.tokens)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::tests::{pair, sign_text};

    const NOW: u64 = 1_764_108_736;

    #[test]
    fn a_document_comes_back_as_it_was_signed() {
        let (signer, signers) = pair();
        let mut document = Document::new(NOW).unwrap();
        for _ in 0..20 {
            let text = document.signed(&signer).unwrap();
            assert_eq!(Document::parse(text.as_bytes(), &signers), Ok(document.clone()));
            document = document.rotated(NOW).unwrap();
        }
        assert_eq!(document.version, NOW + 20, "greater each time, whatever the clock says");
        assert_eq!(document.rotated(NOW + 1000).unwrap().version, NOW + 1000);
    }

    #[test]
    fn a_rotation_moves_each_set_on_by_one_and_forgets_the_last() {
        let first = Document::new(NOW).unwrap();
        let second = first.rotated(NOW).unwrap();
        assert_eq!((&second.current, second.previous.as_ref()), (&first.next, Some(&first.current)));
        let third = second.rotated(NOW).unwrap();
        assert!(third.all().all(|(_, keys)| *keys != first.current));
        let ids: std::collections::HashSet<String> = third.all().map(|(_, keys)| keys.id()).collect();
        assert_eq!(ids.len(), 3);
        let configs: Vec<u8> = third.all().map(|(_, keys)| keys.config).collect();
        assert_eq!(configs, [2, 3, 1]);
    }

    #[test]
    fn codepoints_of_keys_that_meet_differ_also_where_they_were_given_by_hand() {
        let mut document = Document::new(NOW).unwrap();
        for (current, next) in [(0, 1), (1, 0), (0, 6), (6, 5)] {
            (document.current.config, document.next.config) = (current, next);
            let after = document.rotated(NOW).unwrap().rotated(NOW).unwrap();
            assert_eq!(after.check_distinct(), Ok(()), "{current} {next}");
            assert_eq!(document.rotated(NOW).unwrap().check_distinct(), Ok(()), "{current} {next}");
        }
    }

    #[test]
    fn a_changed_byte_or_another_signer_is_refused() {
        let (signer, signers) = pair();
        let text = Document::new(NOW).unwrap().signed(&signer).unwrap();
        for at in (0..text.len()).step_by(7) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(Document::parse(&bytes, &signers).is_err(), "byte {at}");
        }
        let digit = text.len() - 10;
        let changed = text.replacen("version = 1", "version = 2", 1);
        assert_eq!(Document::parse(changed.as_bytes(), &signers), Err(Refusal::Signature));
        assert_eq!(Document::parse(text.as_bytes(), &pair().1), Err(Refusal::Signature));
        for length in 0..text.len() {
            let refusal = Document::parse(&text.as_bytes()[..length], &signers).unwrap_err();
            assert!(matches!(refusal, Refusal::Format(_)), "cut off at {length}");
        }
        assert!(Document::parse(format!("{text}x = 1\n").as_bytes(), &signers).is_err(), "text behind it");
        assert!(text[digit..].ends_with('\n'));
    }

    #[test]
    fn what_is_signed_and_no_document_is_refused_with_what_is_wrong() {
        let (signer, signers) = pair();
        let good = Document::new(NOW).unwrap().rotated(NOW).unwrap().signed(&signer).unwrap();
        let (body, _) = good.split_once(SIGNATURE).unwrap();
        let line = |key: &str| body.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        let cases = [
            (body.replacen("format = 1", "format = 2", 1), "format 2"),
            (body.replacen("format = 1", "format = 1\nolder = 1", 1), "unknown field `older`"),
            (body.replacen("[next]", "[later]", 1), "unknown field `later`"),
            (body.replacen(&line("retry"), "retry = \"00\"", 1), "current.retry: not 64 hexadecimal digits"),
            (body.replacen(&line("retry"), "", 1), "missing field `retry`"),
            (body.replacen(&line("config"), "config = 7", 1), "current.config: 7"),
            (body.replacen(&line("config"), "config = 2", 1), "the same config"),
            (body.replacen(&line("version"), "version = -1", 1), "invalid value"),
        ];
        for (text, words) in cases {
            let error = Document::parse(sign_text(&signer, &text).as_bytes(), &signers).unwrap_err();
            assert!(error.to_string().contains(words), "{error}: {words}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
        let binary = [0xff; 100];
        assert!(matches!(Document::parse(&binary, &signers), Err(Refusal::Format(_))));
    }

    #[test]
    fn keys_are_not_printed() {
        let document = Document::new(NOW).unwrap();
        let text = format!("{document:?}");
        for (_, digits) in document.current.secrets() {
            assert!(!text.contains(&digits));
        }
        assert!(text.contains(&document.current.id()));
    }
}
