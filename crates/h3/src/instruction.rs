//! Parses a client's QPACK streams, for an endpoint without a dynamic table (RFC 9204, section 4).

use crate::{Error, code};

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// The client's encoder: it may only say that the capacity is 0.
    Encoder,
    /// The client's decoder: it may only cancel streams.
    Decoder,
}

/// Checks a QPACK stream. Keeps nothing but where it is within an integer.
#[derive(Debug)]
pub struct InstructionReader {
    kind: Instructions,
    /// The bytes of a stream ID that were seen.
    continued: Option<u8>,
}

/// The longest continuation of an integer of 62 bits (RFC 9204, section 4.1.1).
const MAX_CONTINUATION: u8 = 9;

impl InstructionReader {
    /// A reader from the stream's first byte after its type.
    pub fn new(kind: Instructions) -> Self {
        Self { kind, continued: None }
    }

    /// Reads on.
    pub fn read(&mut self, input: &[u8]) -> Result<(), Error> {
        input.iter().try_for_each(|byte| match self.kind {
            Instructions::Encoder => encoder(*byte),
            Instructions::Decoder => self.decoder(*byte),
        })
    }

    fn decoder(&mut self, byte: u8) -> Result<(), Error> {
        let error = |reason| Err(Error::connection(code::QPACK_DECODER_STREAM_ERROR, reason));
        match self.continued {
            Some(MAX_CONTINUATION) => return error("an integer without end"),
            Some(_) if byte & 0x80 == 0 => self.continued = None,
            Some(count) => self.continued = Some(count + 1),
            // Stream Cancellation.
            None if byte & 0xc0 == 0x40 => self.continued = (byte & 0x3f == 0x3f).then_some(0),
            None if byte & 0x80 != 0 => return error("acknowledgment of a section that used no table"),
            None => return error("increment beyond what was inserted"),
        }
        Ok(())
    }
}

fn encoder(byte: u8) -> Result<(), Error> {
    // Set Dynamic Table Capacity to 0 is the one thing that can be done with a table of capacity 0.
    if byte == 0x20 {
        return Ok(());
    }
    let reason = if byte & 0xe0 == 0x20 {
        "a table larger than allowed"
    } else {
        "an insertion into a table without capacity"
    };
    Err(Error::connection(code::QPACK_ENCODER_STREAM_ERROR, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Instructions, bytes: &[u8]) -> Result<(), u64> {
        let whole = InstructionReader::new(kind).read(bytes).map_err(|error| error.code);
        let mut reader = InstructionReader::new(kind);
        let parts = bytes.chunks(1).try_for_each(|byte| reader.read(byte)).map_err(|error| error.code);
        assert_eq!(whole, parts);
        whole
    }

    #[test]
    fn an_encoder_may_say_that_there_is_no_table() {
        assert_eq!(read(Instructions::Encoder, &[0x20, 0x20]), Ok(()));
        // Capacity 220, inserts with a name reference and without, a duplicate (RFC 9204, appendix B).
        for bytes in [&[0x3f, 0xbd, 0x01][..], &[0x21], &[0xc0, 0x0f], &[0x4a, 0x63], &[0x02]] {
            assert_eq!(read(Instructions::Encoder, bytes), Err(code::QPACK_ENCODER_STREAM_ERROR));
        }
    }

    #[test]
    fn a_decoder_may_cancel_streams() {
        // Streams 8, 63 and a large one.
        assert_eq!(read(Instructions::Decoder, &[0x48, 0x7f, 0x00, 0x7f, 0xff, 0xff, 0x01, 0x40]), Ok(()));
        // A section acknowledgment and an increment (RFC 9204, appendix B), an increment of 0, no end.
        let endless = [[0x7f].as_slice(), &[0xff; 12]].concat();
        for bytes in [&[0x84][..], &[0x01], &[0x00], &endless] {
            assert_eq!(read(Instructions::Decoder, bytes), Err(code::QPACK_DECODER_STREAM_ERROR));
        }
    }
}
