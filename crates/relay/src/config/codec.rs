//! Codecs, which distinguish payload types in WebRTC.

use expressway_settings::named;

/// What a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sound.
    Audio,
    /// Pictures.
    Video,
}

/// A codec that WebRTC sessions may publish and receive. Nothing is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Opus (RFC 7587).
    Opus,
    /// G.711, µ-law (RFC 3551).
    Pcmu,
    /// G.711, A-law (RFC 3551).
    Pcma,
    /// VP8 (RFC 7741).
    Vp8,
    /// VP9 (RFC 9628).
    Vp9,
    /// H.264 (RFC 6184).
    H264,
    /// AV1.
    Av1,
}

impl Codec {
    const NAMES: [(&'static str, Self); 7] = [
        ("opus", Self::Opus),
        ("pcmu", Self::Pcmu),
        ("pcma", Self::Pcma),
        ("vp8", Self::Vp8),
        ("vp9", Self::Vp9),
        ("h264", Self::H264),
        ("av1", Self::Av1),
    ];

    /// The payload types of a room that names none.
    pub(super) const DEFAULTS: [(usize, Self); 7] = [
        (0, Self::Pcmu),
        (8, Self::Pcma),
        (45, Self::Av1),
        (96, Self::Vp8),
        (98, Self::Vp9),
        (102, Self::H264),
        (111, Self::Opus),
    ];

    /// What it is for.
    pub fn kind(self) -> Kind {
        match self {
            Self::Opus | Self::Pcmu | Self::Pcma => Kind::Audio,
            Self::Vp8 | Self::Vp9 | Self::H264 | Self::Av1 => Kind::Video,
        }
    }

    /// Its RTP clock, in Hz.
    pub fn clock(self) -> u32 {
        match self {
            Self::Opus => 48_000,
            Self::Pcmu | Self::Pcma => 8000,
            Self::Vp8 | Self::Vp9 | Self::H264 | Self::Av1 => 90_000,
        }
    }
}

named!(Codec);
