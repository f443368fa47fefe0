//! What a site says of compression.

use expressway_settings::Size;
use expressway_web::CompressOptions;
use expressway_web::files::Encoding;
use serde::{Deserialize, Serialize};

/// `compress` of a site: whether responses are compressed, or how.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "true, false, or a table with types, min_length, algorithms, levels")]
pub(crate) enum SiteCompress {
    Is(bool),
    With(Box<Overrides>),
}

/// What a site does differently.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Overrides {
    /// Media types.
    types: Option<Vec<String>>,
    /// Shorter bodies stay as they are.
    min_length: Option<Size>,
    /// Codings, in order of preference.
    algorithms: Option<Vec<Encoding>>,
    levels: Levels,
}

/// Levels by coding.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct Levels {
    zstd: Option<u8>,
    br: Option<u8>,
    gzip: Option<u8>,
}

impl SiteCompress {
    /// How responses are compressed; `None` if they are not.
    pub(crate) fn options(&self) -> Result<Option<CompressOptions>, String> {
        let options = match self {
            Self::Is(false) => return Ok(None),
            Self::Is(true) => CompressOptions::default(),
            Self::With(overrides) => overrides.options(),
        };
        options.validate()?;
        Ok(Some(options))
    }
}

impl Overrides {
    fn options(&self) -> CompressOptions {
        let defaults = CompressOptions::default();
        let level = |coding| {
            let given = match coding {
                Encoding::Brotli => self.levels.br,
                Encoding::Zstd => self.levels.zstd,
                Encoding::Gzip => self.levels.gzip,
            };
            (coding, given.unwrap_or_else(|| CompressOptions::default_level(coding)))
        };
        let codings = defaults.codings.iter().map(|(coding, _)| *coding).collect();
        CompressOptions {
            types: self.types.clone().unwrap_or(defaults.types),
            min_length: self.min_length.map_or(defaults.min_length, |length| length.0),
            codings: self.algorithms.as_ref().unwrap_or(&codings).iter().copied().map(level).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(text: &str) -> Result<Option<CompressOptions>, String> {
        #[derive(Deserialize)]
        struct Site {
            compress: SiteCompress,
        }
        let site: Site = toml::from_str(text).map_err(|error| error.to_string())?;
        site.compress.options()
    }

    #[test]
    fn a_site_compresses_or_not_or_in_its_own_way() {
        assert_eq!(site("compress = false"), Ok(None));
        assert_eq!(site("compress = true"), Ok(Some(CompressOptions::default())));
        assert_eq!(site("[compress]"), Ok(Some(CompressOptions::default())));
        let options = site(
            "compress = { types = [\"text/*\"], min_length = \"4KiB\", algorithms = [\"br\", \"gzip\"], levels = { gzip = 9 } }",
        );
        let expected = CompressOptions {
            types: vec!["text/*".to_owned()],
            min_length: 4096,
            codings: vec![(Encoding::Brotli, 4), (Encoding::Gzip, 9)],
        };
        assert_eq!(options, Ok(Some(expected)));
        for (text, problem) in [
            ("compress = { types = [\"html\"] }", "is not a media type"),
            ("compress = { levels = { br = 11 } }", "between 0 and 6"),
            ("compress = { algorithms = [] }", "algorithms is empty"),
            ("compress = { algorithms = [\"deflate\"] }", "true, false, or a table"),
            ("compress = { level = 1 }", "true, false, or a table"),
        ] {
            let error = site(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
