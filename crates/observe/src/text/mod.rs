//! One line per packet, like tcpdump's: time, interface, direction, fate, process and contents.
//!
//! Whatever the bytes are, the length of a line is bounded, and printing takes time in proportion to what was captured.
//! Nothing from a packet, a process or a file reaches a terminal unescaped.

mod arp;
mod clock;
mod conversation;
mod hex;
mod icmp;
mod ip;
mod line;
mod link;
mod quic;
mod rtp;
mod tcp;
mod udp;

use std::fmt::Write;
use std::net::IpAddr;

use crate::file::Seen;
use crate::{Direction, Packet, Point, Verdict};
use clock::Clock;
pub use clock::TimeFormat;
use conversation::Conversations;
pub use hex::Dump;
use line::{Bytes, Escaped};

/// What UDP datagrams are taken for, whatever they look like (`-T`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// QUIC (RFC 8999, 9000).
    Quic,
    /// RTP (RFC 3550).
    Rtp,
    /// MoldUDP64.
    Mold,
    /// Not looked into.
    Opaque,
}

/// What lines look like.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextOptions {
    /// How times are shown (`-t`).
    pub time: TimeFormat,
    /// Times with nanoseconds (`--nano`).
    pub nano: bool,
    /// The Ethernet header too (`-e`).
    pub link: bool,
    /// Less of each packet (`-q`).
    pub quiet: bool,
    /// The fields of IP headers too (`-v`).
    pub verbose: bool,
    /// The octets too (`-x`, `-X`).
    pub dump: Dump,
    /// A number in front (`-#`).
    pub number: bool,
    /// What datagrams are taken for (`-T`).
    pub payload: Option<Payload>,
}

/// Who speaks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// The protocol above IP, as IP numbers it.
    pub protocol: u8,
    /// Source and destination ports of UDP and TCP.
    pub ports: Option<(u16, u16)>,
}

/// Prints packets. What it has seen of a conversation it uses to understand the rest, within bounds.
#[derive(Debug)]
pub struct Printer {
    options: TextOptions,
    clock: Clock,
    conversations: Conversations,
    number: u64,
}

impl Printer {
    /// A printer that has seen nothing.
    #[must_use]
    pub fn new(options: TextOptions) -> Self {
        let clock = Clock::new(options.time, options.nano);
        Self { options, clock, conversations: Conversations::new(), number: 0 }
    }

    /// Appends the line of a packet of that interface to `out`, and lines of its octets if they are wanted.
    pub fn print(&mut self, interface: &str, packet: &Packet<'_>, out: &mut String) {
        self.print_seen(&Seen { interface, directed: true, packet: *packet }, out);
    }

    /// The same of a packet of a file.
    pub fn print_seen(&mut self, seen: &Seen<'_>, out: &mut String) {
        let Seen { interface, directed, packet } = seen;
        self.number += 1;
        if self.options.number {
            let _ = write!(out, "{:5}  ", self.number);
        }
        self.clock.print(packet.time, out);
        if !interface.is_empty() {
            let _ = write!(out, "{} ", Escaped(interface));
        }
        if *directed {
            place(packet, out);
        }
        let layers = self.describe(packet, out);
        remarks(packet, out);
        out.push('\n');
        self.options.dump.print(packet.data, layers, out);
    }

    /// Appends what a packet says to `out`, without its time and place, and returns who speaks to whom.
    pub fn summarize(&mut self, packet: &Packet<'_>, out: &mut String) -> Option<Addresses> {
        self.describe(packet, out);
        ip::addresses(packet.data)
    }

    /// Returns the length of the link layer.
    fn describe(&mut self, packet: &Packet<'_>, out: &mut String) -> usize {
        let length = (packet.length as usize).max(packet.data.len());
        link::print(Bytes::new(packet.data, length), &self.options, &mut self.conversations, out)
    }
}

/// Direction, queue, hook and verdict.
fn place(packet: &Packet<'_>, out: &mut String) {
    out.push_str(match packet.point.direction() {
        Direction::In => "In  ",
        Direction::Out => "Out ",
    });
    if let Some(queue) = packet.queue {
        let _ = write!(out, "q{queue} ");
    }
    match packet.point {
        Point::XdpEntry if packet.verdict.is_none() => out.push_str("entry "),
        Point::XskTransmit { zero_copy: true } => out.push_str("xsk zero-copy "),
        Point::XskTransmit { zero_copy: false } => out.push_str("xsk copy "),
        Point::XdpTransmit => out.push_str("xdp "),
        Point::XdpEntry | Point::XdpExit | Point::KernelReceive | Point::KernelTransmit => {}
    }
    let _ = match packet.verdict {
        None => Ok(()),
        Some(Verdict::Redirect { error: Some(error) }) => write!(out, "redirect failed {} ", errno(error)),
        Some(verdict) => write!(out, "{} ", verdict_name(verdict)),
    };
}

/// The name of a verdict, as `enum xdp_action` has it.
#[must_use]
pub const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Aborted => "aborted",
        Verdict::Drop => "drop",
        Verdict::Pass => "pass",
        Verdict::Tx => "tx",
        Verdict::Redirect { .. } => "redirect",
        Verdict::Unknown(_) => "unknown",
    }
}

/// The errors of `xdp_do_redirect` by name.
fn errno(error: i32) -> String {
    let name = match error {
        6 => "ENXIO",
        7 => "E2BIG",
        12 => "ENOMEM",
        22 => "EINVAL",
        28 => "ENOSPC",
        90 => "EMSGSIZE",
        95 => "EOPNOTSUPP",
        100 => "ENETDOWN",
        105 => "ENOBUFS",
        _ => return format!("errno {error}"),
    };
    name.to_owned()
}

/// What its descriptor asked for, whose it is, and why it went no further.
fn remarks(packet: &Packet<'_>, out: &mut String) {
    if let Some(metadata) = packet.metadata {
        let _ = write!(out, " [tx metadata {metadata}]");
    }
    if let Some(reason) = packet.drop {
        let _ = write!(out, " [dropped: {}]", Escaped(reason));
    }
    if let Some(process) = packet.process {
        let _ = write!(out, " [{} {}]", Escaped(process.name), process.id);
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
