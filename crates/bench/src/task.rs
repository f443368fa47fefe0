//! The tasks of the client's end: a fixed set of the suite's programs, with numbers and enumerated words as
//! parameters. No part of a command line comes from the other end.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Tools;
use crate::load::{Load, whom};

/// Longest time of a task's load or warm-up, seconds; that of scenarios.
const SECONDS_MAX: f64 = 3600.0;

/// How much longer than its time a task may take to start and to end, seconds.
const SLACK: f64 = 60.0;

/// A program with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Task {
    /// `expressway-load`: HTTP/3 requests to a server, whose certificate it checks.
    Load {
        /// The server.
        to: SocketAddrV4,
        /// The load.
        load: Load,
    },
    /// `expressway gen udp`: datagrams on a schedule.
    Generate {
        /// Destination.
        to: SocketAddrV4,
        /// Datagrams a second.
        rate: u64,
        /// Bytes of a datagram's payload.
        size: u64,
        /// Duration, seconds.
        seconds: f64,
        /// Method of sending.
        sender: Sender,
        /// The destination's hardware address, for a receiver that takes every packet and so answers no ARP request.
        to_mac: Option<[u8; 6]>,
    },
    /// `expressway-io send`: datagrams as fast as they go.
    Send {
        /// Destination.
        to: SocketAddrV4,
        /// Bytes of a datagram's payload.
        size: u64,
        /// Duration, seconds.
        seconds: f64,
        /// Method of sending.
        sender: Sender,
    },
    /// `expressway-io sink`: takes datagrams off the wire.
    Sink {
        /// The port to receive at.
        port: u16,
        /// Duration, seconds.
        seconds: f64,
        /// Whether by AF_XDP.
        xsk: bool,
    },
}

/// How a task sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sender {
    /// Kernel sockets, many datagrams a call.
    Sendmmsg,
    /// Kernel sockets, many datagrams a message.
    Gso,
    /// AF_XDP in copy mode.
    Copy,
    /// Live frames of BPF_PROG_TEST_RUN.
    Live,
}

/// Where a task runs.
pub(crate) struct Site<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) interface: &'a str,
    pub(crate) address: Ipv4Addr,
}

impl Task {
    /// Checks that its parameters are within the bounds of scenarios.
    pub(crate) fn check(&self) -> Result<(), String> {
        let time = |what: &str, seconds: f64| match (0.0..=SECONDS_MAX).contains(&seconds) {
            true => Ok(()),
            false => Err(format!("{what} {seconds} s: must be at most {SECONDS_MAX}")),
        };
        let size = |size: u64| match (1..=9000).contains(&size) {
            true => Ok(()),
            false => Err(format!("datagrams of {size} B: must be 1 to 9000")),
        };
        match self {
            Self::Load { load, .. } => {
                if load.connections > 100_000 || load.streams > 128 || load.body.max(load.range) > 1 << 30 {
                    return Err(
                        "load: at most 100000 connections, 128 streams and bodies of 1 GiB are allowed"
                            .into(),
                    );
                }
                if !(0.0..=1e8).contains(&load.rate) {
                    return Err(format!("load: {} requests a second: must be at most 1e8", load.rate));
                }
                time("warm-up", load.warmup).and(time("load", load.seconds))
            }
            Self::Generate { rate, size: bytes, seconds, sender, to_mac, .. } => {
                // The lowest bit of the first byte is a group's (IEEE 802, section 8.2).
                if to_mac.is_some_and(|mac| mac[0] & 1 == 1 || *sender != Sender::Live) {
                    return Err("a unicast hardware address is allowed, with live frames only".into());
                }
                if !(1..=100_000_000).contains(rate) {
                    return Err(format!("{rate} datagrams a second: must be 1 to 100000000"));
                }
                size(*bytes).and(time("load", *seconds))
            }
            Self::Send { size: bytes, seconds, .. } => size(*bytes).and(time("load", *seconds)),
            Self::Sink { seconds, .. } => time("sink", *seconds),
        }
    }

    /// The destination of its traffic.
    pub(crate) fn destination(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Load { to, .. } | Self::Generate { to, .. } | Self::Send { to, .. } => Some(*to.ip()),
            Self::Sink { .. } => None,
        }
    }

    /// Whether it attaches an XDP program or sends frames past the kernel.
    pub(crate) fn needs_xdp(&self) -> bool {
        match self {
            Self::Load { .. } => false,
            Self::Generate { sender, .. } | Self::Send { sender, .. } => {
                matches!(sender, Sender::Copy | Sender::Live)
            }
            Self::Sink { xsk, .. } => *xsk,
        }
    }

    /// How long it may take in all, seconds.
    pub(crate) fn limit(&self) -> f64 {
        SLACK
            + match self {
                Self::Load { load, .. } => load.warmup + load.seconds,
                Self::Generate { seconds, .. } | Self::Send { seconds, .. } | Self::Sink { seconds, .. } => {
                    *seconds
                }
            }
    }

    /// Its program and arguments at a site.
    pub(crate) fn command(&self, site: &Site<'_>) -> (PathBuf, Vec<String>) {
        let tools = site.tools;
        match self {
            Self::Load { to, load } => (tools.load.clone(), requests(*to, load, tools)),
            Self::Generate { to, rate, size, seconds, sender, to_mac } => {
                let mut arguments = words("--log-level warn gen udp --json --linger 100ms");
                let (io, send) = match sender {
                    Sender::Sendmmsg => ("udp", "sendmmsg"),
                    Sender::Gso => ("udp", "gso"),
                    Sender::Copy => ("copy", "gso"),
                    Sender::Live => ("live", "gso"),
                };
                arguments.extend(words(&format!(
                    "--to {to} --rate {rate} --size {size} --seconds {seconds} --io {io} --send {send}"
                )));
                if let Some(mac) = to_mac {
                    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
                    let Site { interface, address, .. } = site;
                    let way = format!("--interface {interface} --source {address} --to-mac {mac}");
                    arguments.extend(words(&way));
                }
                (tools.expressway.clone(), arguments)
            }
            Self::Send { to, size, seconds, sender } => {
                let listen = SocketAddrV4::new(site.address, to.port());
                let way = match sender {
                    Sender::Sendmmsg => "--sending sendmmsg".to_owned(),
                    Sender::Gso => "--sending gso".to_owned(),
                    Sender::Copy | Sender::Live => format!("--interface {}", site.interface),
                };
                let arguments =
                    format!("send --listen {listen} {way} --seconds {seconds} --to {to} --size {size}");
                (tools.io.clone(), words(&arguments))
            }
            Self::Sink { port, seconds, xsk } => {
                let listen = SocketAddrV4::new(site.address, *port);
                let mut arguments = words(&format!("sink --listen {listen} --seconds {seconds}"));
                if *xsk {
                    arguments.extend(["--interface".to_owned(), site.interface.to_owned()]);
                }
                (tools.io.clone(), arguments)
            }
        }
    }
}

/// The arguments of `expressway-load`.
fn requests(to: SocketAddrV4, load: &Load, tools: &Tools) -> Vec<String> {
    let mut arguments = whom(to, tools);
    for (option, value) in [
        ("--path", format!("/{}.bin", load.body)),
        ("--connections", load.connections.to_string()),
        ("--streams", load.streams.to_string()),
        ("--rate", load.rate.to_string()),
        ("--range", load.range.to_string()),
        ("--length", load.body.to_string()),
        ("--warmup", load.warmup.to_string()),
        ("--seconds", load.seconds.to_string()),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    arguments.extend(load.handshakes.then(|| "--handshakes".to_owned()));
    arguments
}

/// The words of a command line without quotes.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn load() -> Task {
        let load = Load {
            connections: 1,
            streams: 1,
            rate: 0.0,
            range: 0,
            body: 1024,
            handshakes: false,
            warmup: 0.1,
            seconds: 0.2,
        };
        Task::Load { to: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443), load }
    }

    #[test]
    fn parameters_are_bounded() {
        assert_eq!(load().check(), Ok(()));
        let Task::Load { to, load } = load() else { unreachable!() };
        let with = |change: fn(&mut Load)| {
            let mut load = load.clone();
            change(&mut load);
            Task::Load { to, load }.check()
        };
        assert!(with(|load| load.connections = 1 << 40).is_err());
        assert!(with(|load| load.rate = f64::NAN).is_err());
        assert!(with(|load| load.seconds = 1e9).unwrap_err().contains("1000000000 s"));
        let generate =
            |rate, size| Task::Generate { to, rate, size, seconds: 1.0, sender: Sender::Live, to_mac: None };
        assert_eq!(generate(1, 24).check(), Ok(()));
        let straight = |to_mac, sender| {
            Task::Generate { to, rate: 1, size: 24, seconds: 1.0, sender, to_mac: Some(to_mac) }.check()
        };
        assert_eq!(straight([2, 0, 0, 0, 0, 1], Sender::Live), Ok(()));
        assert!(straight([0xff; 6], Sender::Live).is_err() && straight([2; 6], Sender::Gso).is_err());
        assert!(generate(0, 24).check().is_err() && generate(1, 1 << 20).check().is_err());
        assert!(Task::Sink { port: 1, seconds: -1.0, xsk: false }.check().is_err());
    }

    #[test]
    fn only_the_fixed_set_is_accepted() {
        for text in [
            r#"{"shell": {"command": "id"}}"#,
            r#"{"sink": {"port": 1, "seconds": 1.0, "xsk": false, "program": "/bin/sh"}}"#,
            r#"{"sink": {"port": "1; id", "seconds": 1.0, "xsk": false}}"#,
            r#"{"send": {"to": "192.0.2.1:1", "size": 1, "seconds": 1.0, "sender": "--interface"}}"#,
        ] {
            assert!(serde_json::from_str::<Task>(text).is_err(), "{text}");
        }
    }
}
