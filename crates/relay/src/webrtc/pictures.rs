//! Picture numbers that codecs put into payloads. They must continue when a session changes layers, although the
//! publisher numbers each layer separately.

use str0m::format::{detect_av1_keyframe, detect_h264_keyframe, detect_vp8_keyframe, detect_vp9_keyframe};
use str0m::rtp::{Vp8Descriptor, Vp8Patch};

use crate::config::Codec;

/// Whether a packet is the first of a key frame, or of what stands before one.
pub(crate) fn begins_keyframe(codec: Codec, payload: &[u8]) -> bool {
    match codec {
        Codec::Vp8 => detect_vp8_keyframe(payload),
        Codec::Vp9 => detect_vp9_keyframe(payload),
        Codec::H264 => has_parameters(payload) || detect_h264_keyframe(payload),
        Codec::Av1 => detect_av1_keyframe(payload),
        Codec::Opus | Codec::Pcmu | Codec::Pcma => true,
    }
}

/// Whether a packet of H.264 begins with a sequence parameter set, alone or in a STAP-A (RFC 6184, sections 5.6 and 5.7.1).
fn has_parameters(payload: &[u8]) -> bool {
    const TYPE: u8 = 0x1f;
    const SPS: u8 = 7;
    const STAP_A: u8 = 24;
    match payload {
        [first, ..] if first & TYPE == SPS => true,
        [first, _, _, inner, ..] => first & TYPE == STAP_A && inner & TYPE == SPS,
        _ => false,
    }
}

/// Numbers of pictures that a session has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PictureNumbers {
    picture_offset: u16,
    base_offset: u8,
    /// The last ones that were sent: PictureID and TL0PICIDX.
    sent: (u16, u8),
    /// What follows is of another layer.
    is_new: bool,
}

/// What becomes of a payload.
pub(super) enum Rewritten {
    /// It stays.
    Same,
    /// VP8, as it is written.
    Vp8(Vp8Patch),
    /// Another one.
    Payload(Vec<u8>),
}

impl PictureNumbers {
    /// The next payload begins another layer.
    pub(super) fn change(&mut self) {
        self.is_new = true;
    }

    /// A payload with the numbers that the session is to see.
    pub(super) fn rewrite(&mut self, codec: Codec, payload: &[u8]) -> Rewritten {
        match codec {
            Codec::Vp8 => self.vp8(payload),
            Codec::Vp9 => self.vp9(payload),
            _ => Rewritten::Same,
        }
    }

    /// The numbers for a publisher's, whose PictureID has values up to `mask`.
    fn next(&mut self, picture: u16, base: Option<u8>, mask: u16) -> (u16, Option<u8>) {
        if std::mem::take(&mut self.is_new) {
            self.picture_offset = self.sent.0.wrapping_add(1).wrapping_sub(picture);
            self.base_offset = base.map_or(0, |base| self.sent.1.wrapping_add(1).wrapping_sub(base));
        }
        let picture = picture.wrapping_add(self.picture_offset) & mask;
        let base = base.map(|base| base.wrapping_add(self.base_offset));
        // Late ones are few and near: the next layer begins behind them all.
        if self.sent.0.wrapping_sub(picture) & mask > mask / 2 || self.sent.0 & mask == picture {
            self.sent = (picture, base.unwrap_or(self.sent.1));
        }
        (picture, base)
    }

    /// RFC 7741, section 4.2.
    fn vp8(&mut self, payload: &[u8]) -> Rewritten {
        let Ok(descriptor) = Vp8Descriptor::parse(payload) else { return Rewritten::Same };
        let Some(picture) = descriptor.picture_id() else { return Rewritten::Same };
        // The bits X, I and M: a PictureID of 15 bits.
        let is_long = payload.get(2).is_some_and(|first| first & 0x80 != 0);
        let mask = if is_long { 0x7fff } else { 0x7f };
        let (picture, base) = self.next(picture, descriptor.tl0_pic_idx(), mask);
        let patch = descriptor.patch().picture_id(picture);
        let patch = base.into_iter().fold(patch, |patch, base| patch.tl0_pic_idx(base));
        patch.build().map_or(Rewritten::Same, Rewritten::Vp8)
    }

    /// RFC 9628, section 4.2: I, P, L, F and others; PictureID; layer indices; TL0PICIDX without F.
    fn vp9(&mut self, payload: &[u8]) -> Rewritten {
        let [first, rest @ ..] = payload else { return Rewritten::Same };
        let (has_picture, has_layers, is_flexible) =
            (first & 0x80 != 0, first & 0x20 != 0, first & 0x10 != 0);
        let (picture, width) = match rest {
            [high, low, ..] if high & 0x80 != 0 => (u16::from_be_bytes([high & 0x7f, *low]), 2),
            [short, ..] => (u16::from(*short), 1),
            [] => return Rewritten::Same,
        };
        if !has_picture {
            return Rewritten::Same;
        }
        let place = 1 + width + 1;
        let base = payload.get(place).copied().filter(|_| has_layers && !is_flexible);
        let mask = if width == 2 { 0x7fff } else { 0x7f };
        let (picture, base) = self.next(picture, base, mask);
        let mut payload = payload.to_vec();
        match width {
            2 => payload[1..3].copy_from_slice(&(picture | 0x8000).to_be_bytes()),
            _ => payload[1] = picture as u8,
        }
        if let Some(base) = base {
            payload[place] = base;
        }
        Rewritten::Payload(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// VP8 with X, I and M, and L and T: a PictureID of 15 bits and a TL0PICIDX.
    fn vp8(picture: u16, base: u8) -> Vec<u8> {
        let [high, low] = (picture | 0x8000).to_be_bytes();
        vec![0x90, 0xe0, high, low, base, 0x20, 0x00, 0x01]
    }

    fn patched(numbers: &mut PictureNumbers, picture: u16, base: u8) -> bool {
        matches!(numbers.rewrite(Codec::Vp8, &vp8(picture, base)), Rewritten::Vp8(_))
    }

    fn vp9(numbers: &mut PictureNumbers, payload: &[u8]) -> Vec<u8> {
        match numbers.rewrite(Codec::Vp9, payload) {
            Rewritten::Payload(payload) => payload,
            _ => panic!("it has numbers"),
        }
    }

    #[test]
    fn numbers_go_on_in_another_layer() {
        let mut numbers = PictureNumbers::default();
        numbers.change();
        assert_eq!(numbers.next(500, Some(9), 0x7fff), (1, Some(1)), "whatever the first has");
        assert_eq!(numbers.next(501, Some(10), 0x7fff), (2, Some(2)));
        numbers.change();
        assert_eq!(numbers.next(0x7fff, Some(255), 0x7fff), (3, Some(3)));
        assert_eq!(numbers.next(0, Some(0), 0x7fff), (4, Some(4)), "they wrap");
        assert_eq!(numbers.next(0x7fff, Some(255), 0x7fff), (3, Some(3)), "a late one");
        numbers.change();
        assert_eq!(numbers.next(7, None, 0x7f), (5, None));
    }

    #[test]
    fn they_wrap_as_the_session_sees_them() {
        let mut numbers = PictureNumbers::default();
        for picture in 0..0x1_0005u32 {
            let (seen, _) = numbers.next(picture as u16 & 0x7fff, None, 0x7fff);
            assert_eq!(u32::from(seen), picture & 0x7fff);
        }
        numbers.change();
        assert_eq!(numbers.next(9, None, 0x7fff).0, 5);
    }

    #[test]
    fn descriptors_are_rewritten_where_they_have_numbers() {
        let mut numbers = PictureNumbers::default();
        assert!(patched(&mut numbers, 9, 9));
        assert!(matches!(numbers.rewrite(Codec::Vp8, &[0x10, 0x00]), Rewritten::Same));
        assert!(matches!(numbers.rewrite(Codec::Vp8, &[]), Rewritten::Same));
        assert!(matches!(numbers.rewrite(Codec::H264, &[0x65]), Rewritten::Same));
        for cut in [&[][..], &[0x80], &[0x00, 1]] {
            assert!(matches!(numbers.rewrite(Codec::Vp9, cut), Rewritten::Same), "{cut:?}");
        }
        let mut numbers = PictureNumbers::default();
        // I and L: 15 bits, layer indices, TL0PICIDX.
        numbers.change();
        assert_eq!(vp9(&mut numbers, &[0xa0, 0x81, 0x00, 0x00, 7, 0xff]), [0xa0, 0x80, 0x01, 0x00, 1, 0xff]);
        // With F there is no TL0PICIDX.
        assert_eq!(vp9(&mut numbers, &[0xb0, 0x81, 0x01, 0x00, 7]), [0xb0, 0x80, 0x02, 0x00, 7]);
        // 7 bits.
        numbers.change();
        assert_eq!(vp9(&mut numbers, &[0x80, 0x7f, 0xee]), [0x80, 0x03, 0xee]);
    }

    #[test]
    fn key_frames_are_seen_at_their_first_packet() {
        for (codec, payload, is_first) in [
            (Codec::Vp8, &[0x10, 0x00][..], true),
            (Codec::Vp8, &[0x10, 0x01], false),
            (Codec::Vp8, &[0x00, 0x00], false),
            (Codec::H264, &[0x67, 1, 2], true),
            (Codec::H264, &[0x78, 0, 2, 0x67, 1], true),
            (Codec::H264, &[0x78, 0, 2, 0x68, 1], false),
            (Codec::H264, &[0x7c, 0x85, 1], true),
            (Codec::H264, &[0x41, 1], false),
            (Codec::H264, &[], false),
            (Codec::Vp9, &[], false),
            (Codec::Av1, &[], false),
        ] {
            assert_eq!(begins_keyframe(codec, payload), is_first, "{codec:?} {payload:?}");
        }
    }
}
