//! Compressors behind one interface.

use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::GzEncoder;
use zstd::stream::write::Encoder as ZstdEncoder;

use crate::files::Encoding;

/// Windows, as logarithms: 256 KiB and 128 KiB. Larger ones cost memory for each client and gain little on the web's
/// texts.
const BROTLI_WINDOW: i32 = 18;
const ZSTD_WINDOW: u32 = 17;

/// Octets of brotli's own output buffer.
const BROTLI_BUFFER: usize = 4096;

/// Octets of coded data that a compressor may hold back and hand out at once.
const HELD_BACK: usize = 128 << 10;

/// A compressor that writes into memory.
pub(super) enum Encoder {
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Gzip(Box<GzEncoder<Vec<u8>>>),
}

impl Encoder {
    /// Fails for lack of memory.
    pub(super) fn new(encoding: Encoding, level: u8) -> io::Result<Self> {
        Ok(match encoding {
            Encoding::Brotli => {
                let parameters = BrotliEncoderParams {
                    quality: level.into(),
                    lgwin: BROTLI_WINDOW,
                    ..BrotliEncoderParams::default()
                };
                let writer = CompressorWriter::with_params(Vec::new(), BROTLI_BUFFER, &parameters);
                Self::Brotli(Box::new(writer))
            }
            Encoding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), level.into())?;
                encoder.window_log(ZSTD_WINDOW)?;
                Self::Zstd(encoder)
            }
            Encoding::Gzip => {
                Self::Gzip(Box::new(GzEncoder::new(Vec::new(), Compression::new(level.into()))))
            }
        })
    }

    /// Octets that a compressor takes at most, with what it holds back.
    pub(super) fn footprint(encoding: Encoding, level: u8) -> usize {
        let kibibytes = match (encoding, level) {
            (Encoding::Brotli, 0 | 1) => 512,
            (Encoding::Brotli, 2 | 3) => 1800,
            (Encoding::Brotli, 4) => 3800,
            (Encoding::Brotli, 5) => 4400,
            (Encoding::Brotli, _) => 5600,
            (Encoding::Zstd, 1 | 2) => 1600,
            (Encoding::Zstd, 3) => 1800,
            (Encoding::Zstd, _) => 3600,
            (Encoding::Gzip, _) => 512,
        };
        (kibibytes << 10) + HELD_BACK
    }

    /// Compresses `octets`. What comes of it may be held back.
    pub(super) fn write(&mut self, octets: &[u8]) -> io::Result<()> {
        match self {
            Self::Brotli(encoder) => encoder.write_all(octets),
            Self::Zstd(encoder) => encoder.write_all(octets),
            Self::Gzip(encoder) => encoder.write_all(octets),
        }
    }

    /// Holds nothing back.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Brotli(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
            Self::Gzip(encoder) => encoder.flush(),
        }
    }

    /// What has come out since it was last called.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(match self {
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Gzip(encoder) => encoder.get_mut(),
        })
    }

    /// The rest of the output.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Brotli(encoder) => Ok(encoder.into_inner()),
            Self::Zstd(encoder) => encoder.finish(),
            Self::Gzip(encoder) => encoder.finish(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    pub(crate) const ALL: [Encoding; 3] = [Encoding::Brotli, Encoding::Zstd, Encoding::Gzip];

    /// What a client makes of `coded`; `None` if it is not complete.
    pub(crate) fn decode(encoding: Encoding, coded: &[u8]) -> Option<Vec<u8>> {
        let mut plain = Vec::new();
        let read = match encoding {
            Encoding::Brotli => brotli::Decompressor::new(coded, 4096).read_to_end(&mut plain),
            Encoding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(coded).unwrap();
                decoder.window_log_max(ZSTD_WINDOW).unwrap();
                decoder.read_to_end(&mut plain)
            }
            Encoding::Gzip => flate2::read::GzDecoder::new(coded).read_to_end(&mut plain),
        };
        read.ok().map(|_| plain)
    }

    /// What a client has by now of `coded`, which goes on.
    pub(crate) fn decode_so_far(encoding: Encoding, coded: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        let mut reader: Box<dyn Read> = match encoding {
            Encoding::Brotli => Box::new(brotli::Decompressor::new(coded, 4096)),
            Encoding::Zstd => Box::new(zstd::stream::read::Decoder::new(coded).unwrap()),
            Encoding::Gzip => Box::new(flate2::read::GzDecoder::new(coded)),
        };
        let mut octet = [0];
        while let Ok(1) = reader.read(&mut octet) {
            plain.push(octet[0]);
        }
        plain
    }

    fn text(length: usize) -> Vec<u8> {
        let words = (0u32..).map(|i| format!("<p>{}</p> ", i.wrapping_mul(2_654_435_761) >> 20));
        words.flat_map(String::into_bytes).take(length).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn what_is_decoded_is_what_was_written(
            chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..3000), 1usize..20, any::<bool>()), 0..12),
            which in 0usize..3,
            level in 1u8..=6,
        ) {
            let encoding = ALL[which];
            let mut encoder = Encoder::new(encoding, level).unwrap();
            let (mut plain, mut coded) = (Vec::new(), Vec::new());
            for (octets, times, flush) in chunks {
                let chunk = octets.repeat(times);
                encoder.write(&chunk).unwrap();
                plain.extend_from_slice(&chunk);
                if flush {
                    encoder.flush().unwrap();
                }
                coded.extend(encoder.take());
                if flush {
                    prop_assert_eq!(decode_so_far(encoding, &coded).len(), plain.len());
                }
            }
            coded.extend(encoder.finish().unwrap());
            prop_assert_eq!(decode(encoding, &coded), Some(plain));
        }
    }

    #[test]
    fn text_gets_shorter_at_every_level_and_little_is_held_back() {
        let text = text(1 << 20);
        for encoding in ALL {
            for level in 1..=6 {
                let mut encoder = Encoder::new(encoding, level).unwrap();
                let mut coded = Vec::new();
                for chunk in text.chunks(32 << 10) {
                    encoder.write(chunk).unwrap();
                    let out = encoder.take();
                    assert!(out.len() <= HELD_BACK, "{encoding:?} {level}: {}", out.len());
                    coded.extend(out);
                }
                coded.extend(encoder.finish().unwrap());
                assert!(coded.len() < text.len() / 2, "{encoding:?} {level}: {}", coded.len());
                assert!(decode(encoding, &coded).unwrap() == text, "{encoding:?} {level}");
            }
        }
    }

    #[test]
    fn a_zstd_compressor_takes_what_is_counted_for_it() {
        for level in 1..=6 {
            let mut context = zstd::zstd_safe::CCtx::create();
            for parameter in [
                zstd::zstd_safe::CParameter::CompressionLevel(level.into()),
                zstd::zstd_safe::CParameter::WindowLog(ZSTD_WINDOW),
            ] {
                context.set_parameter(parameter).unwrap();
            }
            let text = text(1 << 20);
            let mut out = vec![0; 1 << 20];
            let mut output = zstd::zstd_safe::OutBuffer::around(&mut out[..]);
            let mut input = zstd::zstd_safe::InBuffer::around(&text);
            while input.pos < text.len() {
                context.compress_stream(&mut output, &mut input).unwrap();
            }
            let footprint = Encoder::footprint(Encoding::Zstd, level);
            assert!(context.sizeof() <= footprint, "{level}: {} of {footprint}", context.sizeof());
        }
    }
}
