//! What `expressway fanout` is told.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use expressway_dataplane::IoMode;
use expressway_feed::fanout::{Cidr, Framing, SlowClient, StartPolicy};
use expressway_settings::{Size, Span};

/// Sends what comes to a UDP address or multicast group to every subscriber, until SIGTERM or SIGINT. Subscribers
/// connect at any time. A slow one never delays the others, and never gets a part of a datagram for a whole one.
/// Prints `ready udp=ADDR PROTOCOL=ADDR mode=MODE io=IO threads=N` for each address once it serves. SIGUSR1
/// prints statistics.
#[derive(Args)]
pub(crate) struct Fanout {
    /// Where the feed comes to: an address of this machine, or a multicast group
    #[arg(long, value_name = "ADDR")]
    pub(crate) udp: SocketAddr,
    /// Where TCP subscribers connect; may be given several times
    #[arg(long, value_name = "ADDR")]
    pub(crate) tcp: Vec<SocketAddr>,
    /// Where TLS subscribers connect
    #[arg(long, value_name = "ADDR", requires = "certificate")]
    pub(crate) tls: Vec<SocketAddr>,
    /// Where WebSocket subscribers connect: the feed at /feed, a page with a live example at /
    #[arg(long, value_name = "ADDR")]
    pub(crate) ws: Vec<SocketAddr>,
    /// Where WebSocket subscribers connect by TLS
    #[arg(long, value_name = "ADDR", requires = "certificate")]
    pub(crate) wss: Vec<SocketAddr>,
    /// Certificate chain of --tls and --wss (PEM)
    #[arg(long, value_name = "FILE", requires = "private_key")]
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) private_key: Option<PathBuf>,
    /// Interface that the feed comes by: to join the multicast group on [default: that of the route to the group], or to
    /// take a unicast feed at, with --mode kernel [default: the one that has the address]
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// Only datagrams from this address; may be given several times. A multicast group is joined for these
    /// sources alone
    #[arg(long, value_name = "ADDR")]
    pub(crate) source: Vec<IpAddr>,
    /// Who forwards: user (this process), kernel (BPF programs; plain TCP subscribers only, takes privilege), or auto,
    /// which says what it chose and why
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: FanoutMode,
    /// What `expressway bench` has measured of both modes on this machine (its raw.jsonl), for --mode auto to go by for as
    /// many as --max-subscribers [default: /var/lib/expressway/fanout/raw.jsonl, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Option<PathBuf>,
    /// How the feed is received: udp, or as with `serve` auto, zerocopy, copy, hybrid or generic. A multicast group takes
    /// --interface besides
    #[arg(long, value_name = "MODE", default_value = "udp")]
    pub(crate) io: IoMode,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that prepares what takes privilege, in its network namespace: the feed is received
    /// there, subscribers connect here
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// What stands before each datagram in TCP and TLS streams: none, len16 or len32 (its length in network order)
    #[arg(long, value_name = "FRAMING", default_value = "none")]
    pub(crate) framing: Framing,
    /// What becomes of a slow subscriber: drop (it jumps to the newest datagram) or disconnect
    /// [default: drop; disconnect with framing none]
    #[arg(long, value_name = "POLICY")]
    pub(crate) slow_client: Option<SlowClient>,
    /// Bytes that a subscriber may be behind before it is slow
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) max_lag: Size,
    /// How old the oldest datagram that a subscriber waits for may be before it is slow
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) max_age: Span,
    /// A subscriber that takes nothing for so long is disconnected
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) stall: Span,
    /// Send buffer of each subscriber in the kernel (SO_SNDBUF)
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub(crate) send_buffer: Size,
    /// Bytes of the feed that are retained, which memory is taken for at the start; at least twice --max-lag
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub(crate) ring: Size,
    /// Where subscribers start: next, last:N, snapshot, or ask (the first line that they send says which of those)
    #[arg(long, value_name = "START", default_value = "next")]
    pub(crate) start: StartPolicy,
    /// A datagram that begins with these bytes is a snapshot, of which the newest is kept
    #[arg(long, value_name = "HEX")]
    pub(crate) snapshot_prefix: Option<Hex>,
    /// Who may subscribe, as ADDRESS or ADDRESS/PREFIX; may be given several times [default: everybody]
    #[arg(long, value_name = "CIDR")]
    pub(crate) allow: Vec<Cidr>,
    /// A web origin besides the server's own whose pages may subscribe (https://host), or *
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Vec<String>,
    /// Subscribers at once
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) max_subscribers: usize,
    /// Subscribers of one address at once; of IPv6, of one /64 [default: as many as --max-subscribers]
    #[arg(long, value_name = "N")]
    pub(crate) max_subscribers_per_address: Option<usize>,
    /// How long TLS and WebSocket handshakes, and the line of --start ask, may take
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) handshake_timeout: Span,
    /// Handshakes at once. Beyond that the oldest ends if it has had a second, else the newcomer is refused
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_handshakes: usize,
    /// Handshakes of one address at once, likewise; of IPv6, of one /64
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_handshakes_per_address: usize,
    /// Bytes of the head of a WebSocket request
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    pub(crate) max_request: Size,
    /// Bytes that a TLS or WebSocket subscriber may send in a second; one that sends more is disconnected
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    pub(crate) max_input: Size,
    /// Receive buffer of the UDP socket (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) receive_buffer: Size,
    /// Threads that send; the first also receives
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// Address of /metrics, /subscribers and /healthz
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// Print ready lines and statistics as JSON, one document a line; statistics also at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who forwards datagrams to subscribers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FanoutMode {
    /// Whoever does it best here.
    Auto,
    /// This process.
    User,
    /// BPF programs in the kernel.
    Kernel,
}

impl FromStr for FanoutMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "user" => Ok(Self::User),
            "kernel" => Ok(Self::Kernel),
            _ => Err(format!("`{text}` is none of auto, user, kernel")),
        }
    }
}

/// Bytes in hexadecimal.
#[derive(Clone)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl FromStr for Hex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pairs = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| match pair {
            [_, _] => std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()),
            _ => None,
        };
        let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
        bytes.filter(|_| digits).map(Self).ok_or_else(|| format!("`{text}` is no bytes in hexadecimal"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_whole_bytes() {
        assert_eq!("00ffA5".parse::<Hex>().map(|hex| hex.0), Ok(vec![0, 0xff, 0xa5]));
        for bad in ["0", "0g", "+1", "\u{e9}"] {
            assert!(bad.parse::<Hex>().is_err(), "{bad}");
        }
    }
}
