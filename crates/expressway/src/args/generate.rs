//! The command line of `expressway gen`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use expressway_dataplane::{IoMode, UdpSend};
use expressway_feed::generate::{Pattern, Sizes};
use expressway_settings::Span;
use expressway_wire::MacAddr;

/// What to generate.
#[derive(Subcommand)]
pub(crate) enum Kind {
    /// Send UDP datagrams at a rate, or replay a capture
    ///
    /// The schedule is open-loop: it never waits for a receiver. Each datagram carries its sequence number and the time it was due,
    /// from which receivers measure latency. The final report says what was sent, how late, and whether the schedule was
    /// kept. SIGINT and SIGTERM stop the run and print the report.
    Udp(Box<Udp>),
}

/// What to send, where to, and how.
#[derive(Args)]
pub(crate) struct Udp {
    /// Destination: an address, or a multicast group
    #[arg(long, value_name = "ADDR")]
    pub(crate) to: SocketAddr,
    /// Datagrams per second over all flows: 50000, 2.5k, 1M
    #[arg(long, value_name = "PPS", required_unless_present = "pcap")]
    pub(crate) rate: Option<Rate>,
    /// Bytes of UDP payload, at least 24: a number, a range (64-1400), or imix (packets of 40, 576 and 1500 bytes, 7:4:1)
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub(crate) size: Sizes,
    /// How long to send
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Stop after this many datagrams
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Number of flows, each with its own source; up to 1024, more with --io live
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) flows: u32,
    /// Datagrams to send from one flow before moving to the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) flow_burst: u32,
    /// Source address; may be repeated, and with --io live be ADDRESS/PREFIX [default: that of the route]
    #[arg(long, value_name = "ADDR")]
    pub(crate) source: Vec<Sources>,
    /// With --io live: more source addresses, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) source_file: Option<PathBuf>,
    /// With --to-mac: destination addresses in place of that of --to, one a line, over which flows rotate
    #[arg(long, value_name = "FILE")]
    pub(crate) to_file: Option<PathBuf>,
    /// Source port of the first flow; further flows use the following ports
    #[arg(long, value_name = "PORT", default_value_t = 50_000)]
    pub(crate) source_port: u16,
    /// Number of destination ports, starting at that of --to, over which flows rotate
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) to_ports: u16,
    /// How to send: udp (kernel); auto, zerocopy, copy, hybrid or generic as with `serve` (AF_XDP); or live
    /// (frames redirected out of the interface by XDP, BPF_PROG_TEST_RUN)
    #[arg(long, value_name = "MODE", default_value = "udp")]
    pub(crate) io: Io,
    /// Kernel send method: gso, sendmmsg or sendmsg
    #[arg(long, value_name = "WAY", default_value = "gso")]
    pub(crate) send: UdpSend,
    /// Interface to send on, for multicast groups and --io live [default: that of the route]
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// With --io live: destination MAC address, bypassing routes and neighbours; needs --interface and --source
    #[arg(long, value_name = "MAC", requires = "interface", requires = "source")]
    pub(crate) to_mac: Option<MacAddr>,
    /// TTL or hop limit [default: 64, and 1 for multicast]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) ttl: Option<u8>,
    /// Let the kernel fragment datagrams larger than the MTU, with --io udp
    #[arg(long)]
    pub(crate) fragment: bool,
    /// Datagrams due at the same time; the rate stays the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) burst: u32,
    /// Use exponentially distributed random gaps between bursts instead of equal ones
    #[arg(long)]
    pub(crate) poisson: bool,
    /// Sleep until a datagram is due instead of spinning for the last 100 µs: less exact, but leaves the core to others
    #[arg(long)]
    pub(crate) no_spin: bool,
    /// Payload after the header: zero, random (the same bytes in each datagram) or sequence (each byte is its offset)
    #[arg(long, value_name = "PATTERN", default_value = "zero")]
    pub(crate) payload: Pattern,
    /// Seed for random gaps, sizes and bytes: the same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Replay the UDP payloads of a capture (pcap, pcapng) with its timing instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "size", "burst", "poisson", "payload"])]
    pub(crate) pcap: Option<PathBuf>,
    /// Replay speed as a multiple of the captured one [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub(crate) speed: Option<f64>,
    /// Overwrite the first 24 bytes of each replayed payload with its number and time, if it is long enough
    #[arg(long)]
    pub(crate) stamp: bool,
    /// Wait for the datagrams to come back and report round-trip times, measured from when they were due
    #[arg(long)]
    pub(crate) round_trip: bool,
    /// How long to wait for the last of them
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) linger: Span,
    /// A datagram handed to the kernel or device this long after it was due counts as late: 100us, 1ms
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = fine)]
    pub(crate) late: Duration,
    /// Exit with 1 if the schedule was not kept: a datagram was not sent or was refused, or 1 % of them were late
    #[arg(long)]
    pub(crate) strict: bool,
    /// With AF_XDP: detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that does the privileged set-up
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// How datagrams leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// By packet I/O.
    Mode(IoMode),
    /// As live frames of BPF_PROG_TEST_RUN.
    Live,
}

impl FromStr for Io {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "live" => Ok(Self::Live),
            _ => text.parse().map(Self::Mode).map_err(|error| format!("{error}, live")),
        }
    }
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Live => f.write_str("live"),
        }
    }
}

/// Datagrams a second, more than 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(pub(crate) f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = match text.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1e3),
            None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1e6)),
        };
        let rate =
            digits.parse().map_err(|_| format!("`{text}` is not a rate, such as 50000, 2.5k or 1M"))?;
        let rate =
            positive(rate).ok_or_else(|| format!("{text} datagrams a second: must be more than 0"))? * unit;
        if rate > 1e9 { Err(format!("{text} datagrams a second: at most 1000M")) } else { Ok(Self(rate)) }
    }
}

fn positive(number: f64) -> Option<f64> {
    (number.is_finite() && number > 0.0).then_some(number)
}

fn factor(text: &str) -> Result<f64, String> {
    text.parse().ok().and_then(positive).ok_or_else(|| format!("`{text}` is not a factor above 0"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    positive(seconds)
        .filter(|seconds| *seconds <= 1e7)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{text} seconds: must be more than 0 and at most 10000000"))
}

/// A duration as [`Span`], of which there are microseconds too.
fn fine(text: &str) -> Result<Duration, String> {
    match text.strip_suffix("us") {
        Some(digits) => digits
            .parse()
            .map(Duration::from_micros)
            .map_err(|_| format!("`{text}` is not a duration, such as 100us")),
        None => text.parse::<Span>().map(|span| span.0),
    }
}

/// Source addresses: one, or all of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    first: IpAddr,
    /// How many, 1 to [`Sources::MOST`].
    pub(crate) count: u32,
}

impl Sources {
    /// The most addresses of a prefix.
    const MOST: u32 = 65_536;

    /// The addresses.
    pub(crate) fn addresses(self) -> impl Iterator<Item = IpAddr> {
        (0..self.count).map(move |number| match self.first {
            IpAddr::V4(first) => IpAddr::V4((first.to_bits() + number).into()),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() + u128::from(number))),
        })
    }
}

impl FromStr for Sources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor ADDRESS/PREFIX");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(format!("{address}: not valid as a source address"));
        }
        let width = if address.is_ipv4() { 32 } else { 128 };
        let host = width - prefix.unwrap_or(width).min(width);
        if prefix.is_some_and(|prefix| prefix > width) {
            return Err(wrong());
        }
        if host > Self::MOST.ilog2() {
            return Err(format!("{text}: at most {} source addresses (/{})", Self::MOST, width - 16));
        }
        let mask = (1u128 << host) - 1;
        let first = match address {
            IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & !(mask as u32)).into()),
            IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !mask)),
        };
        Ok(Self { first, count: 1 << host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_and_are_more_than_0() {
        for (text, rate) in [("1000", 1e3), ("2.5k", 2500.0), ("1M", 1e6), ("0.5", 0.5)] {
            assert_eq!(text.parse(), Ok(Rate(rate)));
        }
        for (text, part) in [
            ("0", "more than 0"),
            ("-1", "more than 0"),
            ("x", "not a rate"),
            ("2000M", "at most"),
            ("nan", "more than 0"),
            ("inf", "more than 0"),
        ] {
            assert!(text.parse::<Rate>().unwrap_err().contains(part), "{text}");
        }
        assert!(factor("0").is_err() && factor("2.5") == Ok(2.5));
        assert!(
            seconds("0").is_err()
                && seconds("1e9").is_err()
                && seconds("0.5") == Ok(Duration::from_millis(500))
        );
        assert_eq!(
            (fine("100us"), fine("2ms")),
            (Ok(Duration::from_micros(100)), Ok(Duration::from_millis(2)))
        );
        assert!(fine("us").is_err() && fine("1parsec").is_err());
    }

    #[test]
    fn sources_are_addresses_or_prefixes() {
        let all = |text: &str| -> Vec<String> {
            text.parse::<Sources>().unwrap().addresses().map(|address| address.to_string()).collect()
        };
        assert_eq!(all("192.0.2.5"), ["192.0.2.5"]);
        assert_eq!(all("192.0.2.5/30"), ["192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7"]);
        assert_eq!(all("2001:db8::1/127"), ["2001:db8::", "2001:db8::1"]);
        assert_eq!(all("255.255.255.255/31").len(), 2);
        assert_eq!("10.0.0.0/16".parse::<Sources>().unwrap().count, 65_536);
        for text in ["10.0.0.0/8", "10.0.0.0/33", "10.0.0.0/x", "host", "0.0.0.0", "224.0.0.1", "::/64"] {
            assert!(text.parse::<Sources>().is_err(), "{text}");
        }
    }

    #[test]
    fn io_is_a_mode_or_live() {
        assert_eq!("live".parse(), Ok(Io::Live));
        assert_eq!("copy".parse(), Ok(Io::Mode(IoMode::Copy)));
        assert!("fast".parse::<Io>().unwrap_err().contains("live"));
    }
}
