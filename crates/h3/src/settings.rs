//! The SETTINGS frame (RFC 9114, section 7.2.4).

use crate::webtransport::{self, Limits};
use crate::{Error, code, frame, varint};

/// SETTINGS_QPACK_MAX_TABLE_CAPACITY (RFC 9204, section 5).
pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
/// SETTINGS_MAX_FIELD_SECTION_SIZE.
pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
/// SETTINGS_QPACK_BLOCKED_STREAMS (RFC 9204, section 5).
pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
/// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 9220, section 5).
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
/// SETTINGS_H3_DATAGRAM (RFC 9297, section 5.1).
const H3_DATAGRAM: u64 = 0x33;

/// The longest SETTINGS payload that is read, in bytes: some hundred settings.
pub const MAX_LEN: u64 = 2048;

/// What a client says of itself, as far as it matters to a server without a dynamic table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The largest header section that it takes, in bytes as RFC 9114, section 4.2.2 counts them.
    pub max_field_section_size: Option<u64>,
    /// What it sets for WebTransport sessions.
    pub webtransport: Limits,
}

/// Reads the payload of a SETTINGS frame.
pub fn parse(mut payload: &[u8]) -> Result<Settings, Error> {
    let mut settings = Settings::default();
    let mut seen = 0u64;
    while !payload.is_empty() {
        let setting = varint::read(payload).and_then(|(id, one)| {
            let (value, two) = varint::read(&payload[one..])?;
            Some((id, value, one + two))
        });
        let Some((id, value, length)) = setting else {
            return Err(Error::connection(code::FRAME_ERROR, "a setting is cut short"));
        };
        payload = &payload[length..];
        if let Some(bit) = 1u64.checked_shl(u32::try_from(id).unwrap_or(u32::MAX)) {
            if seen & bit != 0 {
                return Err(Error::connection(code::SETTINGS_ERROR, "a setting is repeated"));
            }
            seen |= bit;
        }
        match id {
            // What HTTP/2 used (RFC 9114, section 7.2.4.1).
            0x00 | 0x02..=0x05 => {
                return Err(Error::connection(code::SETTINGS_ERROR, "a setting of HTTP/2"));
            }
            ENABLE_CONNECT_PROTOCOL | H3_DATAGRAM if value > 1 => {
                return Err(Error::connection(code::SETTINGS_ERROR, "a switch that is neither 0 nor 1"));
            }
            MAX_FIELD_SECTION_SIZE => settings.max_field_section_size = Some(value),
            webtransport::INITIAL_MAX_DATA => settings.webtransport.data = value,
            webtransport::INITIAL_MAX_STREAMS_BIDI => settings.webtransport.bidirectional = value,
            webtransport::INITIAL_MAX_STREAMS_UNI => settings.webtransport.unidirectional = value,
            _ => {}
        }
    }
    Ok(settings)
}

/// Appends this server's SETTINGS frame: no dynamic table, `more` settings, and a reserved one made from `seed` (RFC 9114,
/// section 7.2.4.1).
pub fn write(max_field_section_size: u64, more: &[(u64, u64)], seed: u32, out: &mut Vec<u8>) {
    let own = [
        (QPACK_MAX_TABLE_CAPACITY, 0),
        (MAX_FIELD_SECTION_SIZE, max_field_section_size.min(varint::MAX)),
        (QPACK_BLOCKED_STREAMS, 0),
    ];
    frame::write(frame::SETTINGS, out, |out| {
        for (id, value) in own.iter().chain(more).copied().chain([(frame::reserved(seed), u64::from(seed))]) {
            varint::write(id, out);
            varint::write(value, out);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(list: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        list.iter().for_each(|(id, value)| {
            varint::write(*id, &mut out);
            varint::write(*value, &mut out);
        });
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let mut out = Vec::new();
        write(65_536, &[], 12, &mut out);
        let expected = Settings { max_field_section_size: Some(65_536), ..Settings::default() };
        assert_eq!(parse(&out[3..]), Ok(expected));
        let mut out = Vec::new();
        write(65_536, &webtransport::SETTINGS, 12, &mut out);
        let limits = Limits { data: varint::MAX, bidirectional: 1 << 60, unidirectional: 1 << 60 };
        assert_eq!(parse(&out[3..]), Ok(Settings { webtransport: limits, ..expected }));
    }

    #[test]
    fn wrong_settings_have_their_code() {
        let code = |payload: &[u8]| parse(payload).map_err(|error| error.code);
        for id in [0x00, 0x02, 0x03, 0x04, 0x05] {
            assert_eq!(code(&settings(&[(id, 1)])), Err(code::SETTINGS_ERROR), "{id}");
        }
        for twice in [0x01, 0x06, 0x33] {
            assert_eq!(code(&settings(&[(twice, 1), (twice, 1)])), Err(code::SETTINGS_ERROR));
        }
        assert_eq!(code(&settings(&[(0x33, 2)])), Err(code::SETTINGS_ERROR));
        assert_eq!(code(&settings(&[(0x08, 2)])), Err(code::SETTINGS_ERROR));
        let whole = settings(&[(0x06, 1 << 40)]);
        for cut in 1..whole.len() {
            assert_eq!(code(&whole[..cut]), Err(code::FRAME_ERROR));
        }
        assert_eq!(code(&settings(&[(0x21, 5), (0x4000, 1), (0x4000, 1), (64, 1)])), Ok(Settings::default()));
        assert_eq!(code(&[]), Ok(Settings::default()));
    }
}
