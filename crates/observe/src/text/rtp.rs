//! RTP (RFC 3550). Its header has few distinctive features, so it is only recognised when a second packet follows the
//! first.

use std::fmt::Write;

use super::conversation::{Conversations, Known, Pair};
use super::line::Bytes;

/// Numbers that may be missing between two packets that follow each other.
const GAP: u16 = 64;

/// Appends what a packet says; false if it does not look like RTP. `sure`: it is, if it can be.
pub(super) fn print(
    packet: Bytes<'_>,
    pair: Pair,
    conversations: &mut Conversations,
    sure: bool,
    out: &mut String,
) -> bool {
    let fields = || Some((packet.u8(0)?, packet.u8(1)?, packet.u16(2)?, packet.u32(4)?, packet.u32(8)?));
    let Some((first, second, sequence, timestamp, source)) = fields() else { return false };
    let (kind, marker) = (second & 0x7f, second & 0x80 != 0);
    let contributors = usize::from(first & 15);
    // Types 72 to 76 are those of RTCP (RFC 5761, section 4).
    if first >> 6 != 2 || (72..=76).contains(&kind) || packet.len() < 12 + 4 * contributors {
        return false;
    }
    let before = conversations.find(pair);
    let run = match before {
        Some(Known::Rtp { source: known, kind: same, sequence: last, run })
            if known == source && same == kind && (1..=GAP).contains(&sequence.wrapping_sub(last)) =>
        {
            run.saturating_add(1)
        }
        // One that comes late is of it as well.
        Some(Known::Rtp { source: known, run, .. }) if known == source && run > 0 => run,
        Some(Known::Quic { .. }) if !sure => return false,
        _ => 0,
    };
    conversations.learn(pair, Known::Rtp { source, kind, sequence, run });
    if run == 0 && !sure {
        return false;
    }
    let _ = write!(
        out,
        "RTP type {kind}{} seq {sequence} ts {timestamp} ssrc {source:#010x}",
        if marker { " marker" } else { "" }
    );
    true
}
