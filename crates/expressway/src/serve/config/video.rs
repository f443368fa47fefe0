//! `video` of a site: what players of HLS, DASH and CMAF need.

use std::time::Duration;

use expressway_settings::Span;
use expressway_web::PathPattern;
use expressway_web::files::{HlsOptions, MAX_HELD};
use expressway_web::{PathRule, PatternError};
use http::HeaderValue;
use http::header::CACHE_CONTROL;
use serde::{Deserialize, Serialize};

/// How long playlists and segments of HLS, DASH and CMAF may be cached. A live playlist changes with each segment, or part
/// of one; a segment never.
const LIFETIMES: [(&str, &str); 10] = [
    ("*.m3u8", "max-age=2"),
    ("*.mpd", "max-age=2"),
    ("*.m4s", "max-age=86400"),
    ("*.ts", "max-age=86400"),
    ("*.mp4", "max-age=86400"),
    ("*.m4a", "max-age=86400"),
    ("*.m4v", "max-age=86400"),
    ("*.cmfa", "max-age=86400"),
    ("*.cmfv", "max-age=86400"),
    ("*.aac", "max-age=86400"),
];

/// Whether a site serves video, or how.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "true, false, or a table with cache_control, urgency, hls_hold, preload_hints, max_held"
)]
pub(crate) enum VideoSetting {
    Is(bool),
    With(Video),
}

/// How a site serves video.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Video {
    /// Playlists may be cached for two seconds, and segments for a day, unless rules say otherwise.
    pub(crate) cache_control: bool,
    /// Playlists are more urgent than audio, and audio than video, unless clients say otherwise.
    pub(crate) urgency: bool,
    /// The longest time that a blocking reload of a low-latency HLS playlist is held; absent: none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hls_hold: Option<Span>,
    /// Requests for what a playlist hints at are held too.
    pub(crate) preload_hints: bool,
    /// Requests of the site that are held at most; more are answered 503.
    pub(crate) max_held: u32,
}

impl Default for Video {
    fn default() -> Self {
        Self {
            cache_control: true,
            urgency: true,
            hls_hold: None,
            preload_hints: false,
            max_held: MAX_HELD as u32,
        }
    }
}

impl Default for VideoSetting {
    fn default() -> Self {
        Self::Is(false)
    }
}

impl VideoSetting {
    /// How video is served.
    pub(crate) fn video(&self) -> Video {
        match self {
            Self::Is(true) => Video::default(),
            Self::Is(false) => Video { cache_control: false, urgency: false, ..Video::default() },
            Self::With(video) => video.clone(),
        }
    }
}

impl Video {
    /// What is wrong with it, for a site with files or without.
    pub(crate) fn check(&self, has_files: bool) -> Result<(), &'static str> {
        match self.hls_hold {
            Some(hold) if !(Duration::from_secs(1)..=Duration::from_secs(180)).contains(&hold.0) => {
                Err("hls_hold: give a time between \"1s\" and \"180s\"")
            }
            None if self.preload_hints => Err("preload_hints needs hls_hold"),
            _ if !(1..=1_000_000).contains(&self.max_held) => Err("max_held is not between 1 and 1000000"),
            Some(_) if self.preload_hints && !has_files => Err("preload_hints only works for files"),
            _ => Ok(()),
        }
    }

    /// What of requests for files is held.
    pub(crate) fn hls(&self) -> Option<HlsOptions> {
        let (preload_hints, max_held) = (self.preload_hints, self.max_held as usize);
        self.hls_hold.map(|hold| HlsOptions { max_hold: hold.0, preload_hints, max_held })
    }

    /// Rules that come before those of the site.
    pub(crate) fn rules(&self) -> Result<Vec<PathRule>, PatternError> {
        let rule = |(path, control): &(&str, &'static str)| {
            let set = vec![(CACHE_CONTROL, HeaderValue::from_static(control))];
            Ok(PathRule { set, ..PathRule::new(PathPattern::parse(path)?) })
        };
        LIFETIMES.iter().filter(|_| self.cache_control).map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn video(text: &str) -> Result<Video, String> {
        #[derive(Deserialize)]
        struct Site {
            video: VideoSetting,
        }
        let site: Site = toml::from_str(text).map_err(|error| error.to_string())?;
        Ok(site.video.video())
    }

    #[test]
    fn a_site_serves_video_or_not_or_in_its_own_way() {
        let plain = video("video = true").unwrap();
        assert_eq!((plain.rules().unwrap().len(), plain.urgency, plain.hls()), (10, true, None));
        let off = video("video = false").unwrap();
        assert_eq!((off.rules().unwrap().len(), off.urgency, off.hls()), (0, false, None));
        let held =
            video("[video]\nhls_hold = \"18s\"\npreload_hints = true\ncache_control = false\nmax_held = 7")
                .unwrap();
        let expected = HlsOptions { max_hold: Duration::from_secs(18), preload_hints: true, max_held: 7 };
        assert_eq!((held.rules().unwrap().len(), held.urgency, held.hls()), (0, true, Some(expected)));
        assert_eq!(
            (held.check(true), held.check(false)),
            (Ok(()), Err("preload_hints only works for files"))
        );
        for text in ["hls_hold = \"10m\"", "hls_hold = \"0s\"", "preload_hints = true", "max_held = 0"] {
            assert!(video(&format!("[video]\n{text}")).unwrap().check(true).is_err(), "{text}");
        }
        assert!(video("video = \"yes\"").unwrap_err().contains("hls_hold"));
    }
}
