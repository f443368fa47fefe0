//! The `priority` field and the PRIORITY_UPDATE frame (RFC 9218).

use crate::quic::engine::Priority;

/// Reads a priority field value: a structured-field dictionary (RFC 9651, section 3.2) of which `u` and `i`
/// count. What cannot be parsed leaves the defaults (RFC 9218, section 4).
pub(super) fn parse(value: &[u8]) -> Priority {
    let mut priority = Priority::default();
    for member in value.split(|byte| *byte == b',') {
        // Parameters of a member mean nothing here.
        let member = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match member {
            b"i" | b"i=?1" => priority.incremental = true,
            b"i=?0" => priority.incremental = false,
            [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
            _ => {}
        }
    }
    priority
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgency_and_incremental_are_read_and_the_rest_ignored() {
        let priority = |urgency, incremental| Priority { urgency, incremental };
        for (value, expected) in [
            ("", priority(3, false)),
            ("u=1", priority(1, false)),
            ("u=0, i", priority(0, true)),
            ("i=?1,u=7;x=1", priority(7, true)),
            ("i, i=?0", priority(3, false)),
            ("u=8", priority(3, false)),
            ("u=-1,i=1", priority(3, false)),
            (",,;;==", priority(3, false)),
        ] {
            assert_eq!(parse(value.as_bytes()), expected, "{value:?}");
        }
    }
}
