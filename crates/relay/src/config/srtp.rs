//! `srtp`: what RTP is protected with, whose key is in the file or in one of its own.

use std::path::{Path, PathBuf};

use boring::base64;
use serde::Deserialize;
use toml::Spanned;

use super::file::Problem;
use crate::srtp::{Keys, Profile};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SrtpTable {
    #[serde(default)]
    profile: Profile,
    key: Option<String>,
    key_file: Option<PathBuf>,
}

impl SrtpTable {
    /// What it means; paths are relative to `folder`.
    pub(super) fn check(table: &Spanned<Self>, folder: &Path) -> Result<Keys, Problem> {
        let wrong = |problem: String| (table.span(), problem);
        let Self { profile, key, key_file } = table.get_ref();
        let text = match (key, key_file) {
            (Some(key), None) => key.clone(),
            (None, Some(file)) => {
                let path = folder.join(file);
                std::fs::read_to_string(&path)
                    .map_err(|error| wrong(format!("{}: {error}", path.display())))?
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

    /// The key, if it is in the file itself.
    pub(super) fn inline(&self) -> Option<&str> {
        self.key.as_deref().filter(|key| !key.is_empty())
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
