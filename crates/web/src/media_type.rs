//! The media type of a file by its extension.

use http::HeaderValue;

/// What a video CDN serves, and web types where `mime_guess` is behind the registry. Searched before
/// `mime_guess`; sorted by extension.
const TYPES: [(&str, &str); 49] = [
    ("3gp", "video/3gpp"),
    ("aac", "audio/aac"),
    ("avif", "image/avif"),
    ("cmfa", "audio/mp4"),
    ("cmfv", "video/mp4"),
    ("css", "text/css"),
    ("flac", "audio/flac"),
    ("flv", "video/x-flv"),
    ("gif", "image/gif"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("ico", "image/x-icon"),
    ("ismv", "video/mp4"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("key", "application/octet-stream"),
    ("m2ts", "video/mp2t"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/x-m4a"),
    ("m4s", "video/iso.segment"),
    ("m4v", "video/x-m4v"),
    ("mjs", "text/javascript"),
    ("mkv", "video/x-matroska"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpd", "application/dash+xml"),
    ("mpeg", "video/mpeg"),
    ("mpg", "video/mpeg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("ts", "video/mp2t"),
    ("ttml", "application/ttml+xml"),
    ("txt", "text/plain"),
    ("vtt", "text/vtt"),
    ("wasm", "application/wasm"),
    ("weba", "audio/webm"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "text/xml"),
    ("zip", "application/zip"),
];

/// The media type of `path`'s last segment; `None` if its extension says nothing. A leading dot begins a
/// name, not an extension, as in nginx.
pub(crate) fn media_type(path: &[u8]) -> Option<HeaderValue> {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    let dot = name.iter().rposition(|&b| b == b'.').filter(|&dot| dot > 0)?;
    let extension = std::str::from_utf8(&name[dot + 1..]).ok()?.to_ascii_lowercase();
    if let Ok(found) = TYPES.binary_search_by_key(&extension.as_str(), |&(extension, _)| extension) {
        return Some(HeaderValue::from_static(TYPES[found].1));
    }
    mime_guess::from_ext(&extension).first_raw().map(HeaderValue::from_static)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(TYPES.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn media_extensions() {
        for (path, expected) in [
            ("/live/index.m3u8", "application/vnd.apple.mpegurl"),
            ("/live/manifest.mpd", "application/dash+xml"),
            ("/live/1.ts", "video/mp2t"),
            ("/live/1.m4s", "video/iso.segment"),
            ("/a.MP4", "video/mp4"),
            ("/a.tar.gz", "application/gzip"),
            ("/a.webm", "video/webm"),
            ("/a.vtt", "text/vtt"),
        ] {
            assert_eq!(media_type(path.as_bytes()).unwrap(), expected, "{path}");
        }
        for path in ["/", "/plain", "/.html", "/a.b/c", "/a.", "/a.zzz", "/a.\u{fc}"] {
            assert_eq!(media_type(path.as_bytes()), None, "{path}");
        }
    }
}
