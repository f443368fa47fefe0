//! The catalog of a broadcast, by which players find its tracks (draft-lcurley-moq-hang, Catalog).

use serde_json::{Map, Value, json};

use super::frames::Decoding;
use crate::config::Kind;

/// The name of its track.
pub(super) const TRACK: &str = "catalog.json";
/// What the RTP clock of Opus always is (RFC 7587, section 4.1), and channels that its decoders have to take (section 7).
const OPUS_RATE: u32 = 48_000;
const OPUS_CHANNELS: u8 = 2;

/// The name of the track of a kind.
pub(super) fn track(kind: Kind) -> &'static str {
    match kind {
        Kind::Video => "video",
        Kind::Audio => "audio",
    }
}

/// The catalog of tracks that are decoded so.
pub(super) fn write<'a>(tracks: impl IntoIterator<Item = (Kind, &'a Decoding)>) -> Vec<u8> {
    let mut catalog = Map::new();
    for (kind, Decoding { codec, size }) in tracks {
        let mut rendition = json!({ "codec": codec, "container": { "kind": "legacy" } });
        if kind == Kind::Audio {
            rendition["sampleRate"] = OPUS_RATE.into();
            rendition["numberOfChannels"] = OPUS_CHANNELS.into();
        }
        if let Some((width, height)) = size {
            rendition["codedWidth"] = (*width).into();
            rendition["codedHeight"] = (*height).into();
        }
        catalog.insert(track(kind).to_owned(), json!({ "renditions": { track(kind): rendition } }));
    }
    Value::Object(catalog).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_tracks_and_how_they_are_decoded() {
        let video = Decoding { codec: "vp8".into(), size: Some((640, 480)) };
        let audio = Decoding { codec: "opus".into(), size: None };
        let written = write([(Kind::Video, &video), (Kind::Audio, &audio)]);
        let read: Value = serde_json::from_slice(&written).unwrap();
        let wanted = json!({
            "video": { "renditions": { "video": {
                "codec": "vp8", "codedWidth": 640, "codedHeight": 480, "container": { "kind": "legacy" },
            } } },
            "audio": { "renditions": { "audio": {
                "codec": "opus", "sampleRate": 48000, "numberOfChannels": 2, "container": { "kind": "legacy" },
            } } },
        });
        assert_eq!(read, wanted);
        assert_eq!(write([]), b"{}");
    }
}
