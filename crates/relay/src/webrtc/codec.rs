//! The names of codecs, here and in str0m.

use str0m::format::Codec as Theirs;

use crate::config::Codec;

/// The codec that a session agreed on.
pub(super) fn ours(codec: Theirs) -> Option<Codec> {
    match codec {
        Theirs::Opus => Some(Codec::Opus),
        Theirs::PCMU => Some(Codec::Pcmu),
        Theirs::PCMA => Some(Codec::Pcma),
        Theirs::Vp8 => Some(Codec::Vp8),
        Theirs::Vp9 => Some(Codec::Vp9),
        Theirs::H264 => Some(Codec::H264),
        Theirs::Av1 => Some(Codec::Av1),
        _ => None,
    }
}

/// The room's payload type for a codec.
pub(super) fn payload_type(codecs: &[Option<Codec>; 128], codec: Codec) -> Option<u8> {
    codecs.iter().position(|one| *one == Some(codec)).map(|number| number as u8)
}
