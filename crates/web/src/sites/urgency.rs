//! How urgent media is to a player that does not say so (RFC 9218).

/// The urgency of what is at a path; `None` leaves the default of 3.
///
/// In order: playlists and initialization sections, without which nothing is played, and which are short; audio and
/// subtitles, whose lack is noticed first, and which are short beside video; everything else.
pub(super) fn urgency(path: &[u8]) -> Option<u8> {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    let (stem, extension) = (name[..dot].to_ascii_lowercase(), name[dot + 1..].to_ascii_lowercase());
    Some(match &*extension {
        b"m3u8" | b"mpd" => 1,
        b"m4s" | b"mp4" | b"m4v" | b"m4a" | b"cmfv" | b"cmfa" | b"cmft" | b"webm" if is_init(&stem) => 1,
        b"aac" | b"ac3" | b"ec3" | b"m4a" | b"cmfa" | b"mp3" | b"opus" | b"weba" => 2,
        b"vtt" | b"ttml" | b"cmft" => 2,
        _ => return None,
    })
}

/// The word `init` stands at an end of the name, as packagers have it: `init-0`, `video_init`.
fn is_init(stem: &[u8]) -> bool {
    let is_end =
        |rest: &[u8], next: Option<&u8>| rest.is_empty() || next.is_some_and(|b| !b.is_ascii_alphabetic());
    stem.strip_prefix(b"init").is_some_and(|rest| is_end(rest, rest.first()))
        || stem.strip_suffix(b"init").is_some_and(|rest| is_end(rest, rest.last()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlists_come_before_audio_and_audio_before_video() {
        for (path, expected) in [
            ("/live/index.m3u8", Some(1)),
            ("/a.b/manifest.MPD", Some(1)),
            ("/v/init.mp4", Some(1)),
            ("/v/init-stream0.m4s", Some(1)),
            ("/v/1080p_init.cmfv", Some(1)),
            ("/a/segment1.cmfa", Some(2)),
            ("/a/1.aac", Some(2)),
            ("/s/en.vtt", Some(2)),
            ("/v/initial.mp4", None),
            ("/v/reinit.mp4", None),
            ("/v/segment1.m4s", None),
            ("/init.html", None),
            ("/init", None),
            ("/", None),
        ] {
            assert_eq!(urgency(path.as_bytes()), expected, "{path}");
        }
    }
}
