//! TCP (RFC 9293), as tcpdump shows it with absolute numbers.

use std::fmt::Write;

use super::TextOptions;
use super::line::Bytes;

pub(super) fn print(segment: Bytes<'_>, options: &TextOptions, out: &mut String) {
    let fields = || Some((segment.u32(4)?, segment.u32(8)?, segment.u16(12)?, segment.u16(14)?));
    let Some((sequence, acknowledgment, field, window)) = fields() else {
        let _ = write!(out, "TCP [truncated], length {}", segment.len());
        return;
    };
    let header = usize::from(field >> 12) * 4;
    if header < 20 || header > segment.len() {
        let _ = write!(out, "TCP [header length {header}], length {}", segment.len());
        return;
    }
    let payload = segment.len() - header;
    if options.quiet {
        let _ = write!(out, "tcp {payload}");
        return;
    }
    out.push_str("Flags [");
    let flags = (field & 0x1ff) as u32;
    let names =
        [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (32, 'U'), (64, 'E'), (128, 'W'), (256, 'e'), (16, '.')];
    if flags == 0 {
        out.push_str("none");
    }
    out.extend(names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name));
    out.push(']');
    if payload > 0 || flags & 7 != 0 {
        let _ = write!(out, ", seq {sequence}");
        if payload > 0 {
            let _ = write!(out, ":{}", sequence.wrapping_add(payload as u32));
        }
    }
    if flags & 16 != 0 {
        let _ = write!(out, ", ack {acknowledgment}");
    }
    let _ = write!(out, ", win {window}");
    print_options(segment.limit(header).behind(20), out);
    let _ = write!(out, ", length {payload}");
}

fn print_options(options: Bytes<'_>, out: &mut String) {
    if options.len() == 0 {
        return;
    }
    out.push_str(", options [");
    let mut rest = options;
    let mut comma = "";
    while let Some(kind) = rest.u8(0) {
        out.push_str(comma);
        comma = ",";
        let length = match kind {
            0 => {
                out.push_str("eol");
                break;
            }
            1 => {
                out.push_str("nop");
                rest = rest.behind(1);
                continue;
            }
            _ => usize::from(rest.u8(1).unwrap_or_default()),
        };
        if length < 2 || length > rest.captured().len() {
            out.push_str("[malformed]");
            break;
        }
        let value = rest.limit(length).behind(2);
        let _ = match (kind, length) {
            (2, 4) => write!(out, "mss {}", value.u16(0).unwrap_or_default()),
            (3, 3) => write!(out, "wscale {}", value.u8(0).unwrap_or_default()),
            (4, 2) => write!(out, "sackOK"),
            (5, _) => write!(out, "sack {}", value.len() / 8),
            (8, 10) => {
                let [value, echo] = [0, 4].map(|at| value.u32(at).unwrap_or_default());
                write!(out, "TS val {value} ecr {echo}")
            }
            _ => write!(out, "{kind}"),
        };
        rest = rest.behind(length);
    }
    out.push(']');
}
