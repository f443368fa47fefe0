//! ICMP (RFC 792) and ICMPv6 (RFC 4443, 4861).

use std::fmt::Write;
use std::net::Ipv6Addr;

use super::line::Bytes;

pub(super) fn print_v4(message: Bytes<'_>, out: &mut String) {
    const UNREACHABLE: &[&str] = &[
        "net",
        "host",
        "protocol",
        "port",
        "need to frag",
        "source route",
        "net unknown",
        "host unknown",
        "isolated",
        "net prohibited",
        "host prohibited",
        "net tos",
        "host tos",
        "filtered",
        "precedence",
        "cutoff",
    ];
    let (kind, code) = (message.u8(0), message.u8(1).unwrap_or_default());
    out.push_str("ICMP ");
    let _ = match kind {
        Some(kind @ (0 | 8)) => echo(message, if kind == 8 { "echo request" } else { "echo reply" }, out),
        Some(3) => match UNREACHABLE.get(usize::from(code)) {
            Some(what @ &"need to frag") => {
                write!(out, "unreachable - {what} (mtu {})", message.u16(6).unwrap_or_default())
            }
            Some(what) => write!(out, "unreachable - {what}"),
            None => write!(out, "unreachable - code {code}"),
        },
        Some(5) => write!(out, "redirect"),
        Some(11) => write!(out, "time exceeded{}", if code == 1 { " (reassembly)" } else { "" }),
        Some(12) => write!(out, "parameter problem"),
        Some(kind) => write!(out, "type {kind} code {code}"),
        None => write!(out, "[truncated]"),
    };
    let _ = write!(out, ", length {}", message.len());
}

pub(super) fn print_v6(message: Bytes<'_>, out: &mut String) {
    const UNREACHABLE: &[&str] =
        &["route", "prohibited", "scope", "address", "port", "source policy", "reject route"];
    let (kind, code) = (message.u8(0), message.u8(1).unwrap_or_default());
    let target = || message.array(8).map(Ipv6Addr::from).unwrap_or(Ipv6Addr::UNSPECIFIED);
    out.push_str("ICMP6, ");
    let _ = match kind {
        Some(1) => match UNREACHABLE.get(usize::from(code)) {
            Some(what) => write!(out, "unreachable {what}"),
            None => write!(out, "unreachable code {code}"),
        },
        Some(2) => write!(out, "packet too big, mtu {}", message.u32(4).unwrap_or_default()),
        Some(3) => write!(out, "time exceeded"),
        Some(4) => write!(out, "parameter problem"),
        Some(kind @ (128 | 129)) => {
            echo(message, if kind == 128 { "echo request" } else { "echo reply" }, out)
        }
        Some(130..=132 | 143) => write!(out, "multicast listener"),
        Some(133) => write!(out, "router solicitation"),
        Some(134) => write!(out, "router advertisement"),
        Some(135) => write!(out, "neighbor solicitation, who has {}", target()),
        Some(136) => write!(out, "neighbor advertisement, tgt is {}", target()),
        Some(kind) => write!(out, "type {kind} code {code}"),
        None => write!(out, "[truncated]"),
    };
    let _ = write!(out, ", length {}", message.len());
}

fn echo(message: Bytes<'_>, name: &str, out: &mut String) -> std::fmt::Result {
    match (message.u16(4), message.u16(6)) {
        (Some(id), Some(sequence)) => write!(out, "{name}, id {id}, seq {sequence}"),
        _ => write!(out, "{name} [truncated]"),
    }
}
