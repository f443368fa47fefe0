//! `srtp`: how RTP is protected. The key is in this file or in one of its own.

use std::ops::Range;
use std::path::{Path, PathBuf};

use boring::base64;
use expressway_settings::secret;
use serde::Deserialize;
use toml::Spanned;

use super::file::Problem;
use crate::srtp::{Keys, Profile};

/// Bytes of a key's file at most: 60 in base64, and white space.
const LARGEST: u64 = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SrtpTable {
    #[serde(default)]
    profile: Profile,
    key: Option<Spanned<String>>,
    key_file: Option<PathBuf>,
}

impl SrtpTable {
    /// What it means; paths are relative to `folder`.
    pub(super) fn check(table: &Spanned<Self>, folder: &Path) -> Result<Keys, Problem> {
        let wrong = |problem: String| (table.span(), problem);
        let Self { profile, key, key_file } = table.get_ref();
        let text = match (key, key_file) {
            (Some(key), None) => key.get_ref().clone(),
            (None, Some(file)) => {
                let path = folder.join(file);
                let problem = |problem: String| wrong(format!("{}: {problem}", path.display()));
                let (bytes, _) = secret::read(&path, LARGEST).map_err(|error| problem(error.to_string()))?;
                String::from_utf8(bytes).map_err(|error| problem(error.to_string()))?
            }
            _ => return Err(wrong("set one of `key` and `key_file`".into())),
        };
        let material = base64::decode_block(text.trim()).ok();
        let keys = material.and_then(|material| Keys::new(*profile, &material));
        let octets = profile.material();
        keys.ok_or_else(|| {
            wrong(format!("the key has to be base64 of {octets} bytes: 16 of key, the rest of salt"))
        })
    }

    /// Where the key is, if it is in the file itself.
    pub(super) fn inline(&self) -> Option<Range<usize>> {
        self.key.as_ref().map(Spanned::span)
    }
}

#[cfg(test)]
mod tests {
    use expressway_settings::SourceFile;

    use crate::config::Config;

    fn parsed(srtp: &str) -> Result<Config, String> {
        let room = "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"";
        let text = format!("{room}\nsrtp = {{ {srtp} }}\n[[room.out]]\naddress = \"192.0.2.9:5004\"\n");
        let source = SourceFile { file: "relay.toml".into(), text };
        Config::parse(&source).map_err(|error| error.to_string())
    }

    const KEY: &str = "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz";

    #[test]
    fn keys_are_read_and_not_shown() {
        let config = parsed(&format!("key = \"{KEY}\"")).unwrap();
        assert!(config.rooms[0].srtp.is_some() && config.rooms[0].outputs[0].srtp.is_none());
        assert!(
            !config.text.contains(KEY) && config.text.contains("srtp = { key = \"***\" }"),
            "{}",
            config.text
        );
        assert!(!format!("{config:?}").contains(KEY));
    }

    #[test]
    fn keys_are_not_shown_however_they_are_written() {
        let (first, rest) = KEY.split_at(1);
        let escaped = format!("\\u{:04x}{rest}", u32::from(first.as_bytes()[0]));
        for srtp in
            [format!("key = \"{escaped}\""), format!("key = \"\"\"{KEY}\"\"\""), format!("key = '{KEY}'")]
        {
            let config = parsed(&srtp).unwrap();
            assert!(config.rooms[0].srtp.is_some());
            assert!(config.text.contains("srtp = { key = \"***\" }\n[[room.out]]"), "{}", config.text);
        }
    }

    #[test]
    fn a_key_is_used_once() {
        let room = |name: &str, port: u16, key: &str, out: &str| {
            let out = format!("[[room.out]]\naddress = \"192.0.2.9:{port}\"\nsrtp = {{ {out} }}\n");
            format!(
                "[[room]]\nname = \"{name}\"\nrtp_in = \"192.0.2.1:{port}\"\nsrtp = {{ key = \"{key}\" }}\n{out}"
            )
        };
        let material = |first: u8, length: usize| {
            boring::base64::encode_block(&[&[first][..], &vec![9; length - 1]].concat())
        };
        let parse = |text: String| {
            Config::parse(&SourceFile { file: "relay.toml".into(), text }).map_err(|error| error.to_string())
        };
        let key = |first, length| format!("key = \"{}\"", material(first, length));
        let rooms =
            room("a", 5004, &material(1, 30), &key(2, 30)) + &room("b", 6004, &material(3, 30), &key(4, 30));
        assert!(parse(rooms).is_ok());
        // The same key with another salt, for another profile, is still the same key.
        let gcm = format!("profile = \"AEAD_AES_128_GCM\", {}", key(1, 28));
        for (rooms, line) in [
            (room("a", 5004, &material(1, 30), &key(1, 30)), 7),
            (room("a", 5004, &material(1, 30), &gcm), 7),
            (
                room("a", 5004, &material(1, 30), &key(2, 30))
                    + &room("b", 6004, &material(2, 30), &key(3, 30)),
                11,
            ),
        ] {
            let error = parse(rooms).unwrap_err();
            assert!(
                error.starts_with(&format!("relay.toml:{line}:"))
                    && error.contains("each SRTP key is for a single"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_no_key_is_told() {
        let gcm = format!("profile = \"AEAD_AES_128_GCM\", key = \"{KEY}\"");
        let both = format!("key = \"{KEY}\", key_file = \"x\"");
        for (srtp, words) in [
            ("", "one of `key` and `key_file`"),
            (&both, "one of `key` and `key_file`"),
            ("key = \"AAAA\"", "base64 of 30 bytes"),
            ("key = \"not base64!\"", "base64 of 30 bytes"),
            (&gcm, "base64 of 28 bytes"),
            ("key_file = \"/there/is/none\"", "/there/is/none"),
            ("profile = \"NULL\", key = \"x\"", "AEAD_AES_128_GCM"),
        ] {
            let error = parsed(srtp).unwrap_err();
            assert!(error.contains(words), "{srtp}: {error}");
        }
    }
}
