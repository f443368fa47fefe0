//! What `expressway fanout` is told.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_dataplane::IoMode;
use expressway_feed::fanout::{Cidr, Framing, SlowClient, StartPolicy};
use expressway_settings::{Size, Span};

use super::AdminListener;

/// Forwards datagrams sent to a UDP address or multicast group to every subscriber, until SIGTERM or SIGINT. Subscribers
/// may connect at any time. A slow one never delays the others and never receives a partial datagram as if it were whole.
/// Prints `ready udp=ADDR PROTOCOL=ADDR mode=MODE io=IO threads=N` for each address once it is serving. SIGUSR1
/// prints statistics.
#[derive(Args)]
pub(crate) struct Fanout {
    /// Address that the feed is sent to: one of this machine's, or a multicast group
    #[arg(long, value_name = "ADDR")]
    pub(crate) udp: SocketAddr,
    /// Listen address for TCP subscribers; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub(crate) tcp: Vec<SocketAddr>,
    /// Listen address for TLS subscribers; may be repeated
    #[arg(long, value_name = "ADDR", requires = "certificate")]
    pub(crate) tls: Vec<SocketAddr>,
    /// Listen address for WebSocket subscribers; may be repeated. Serves the feed at /feed and a live example page at /
    #[arg(long, value_name = "ADDR")]
    pub(crate) ws: Vec<SocketAddr>,
    /// Listen address for WebSocket subscribers over TLS; may be repeated
    #[arg(long, value_name = "ADDR", requires = "certificate")]
    pub(crate) wss: Vec<SocketAddr>,
    /// Certificate chain for --tls and --wss (PEM)
    #[arg(long, value_name = "FILE", requires = "private_key")]
    pub(crate) certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) private_key: Option<PathBuf>,
    /// Interface that the feed arrives on: where the multicast group is joined [default: that of the route to the group], or
    /// where --mode kernel picks up a unicast feed [default: the one that has the address]
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// Accept datagrams from this address only; may be repeated. A multicast group is joined for these
    /// sources only
    #[arg(long, value_name = "ADDR")]
    pub(crate) source: Vec<IpAddr>,
    /// Who forwards: user (this process), kernel (BPF programs; plain TCP subscribers only, needs privileges), or auto,
    /// which logs its choice and the reason
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: FanoutMode,
    /// Results of `expressway bench` for both modes on this machine (raw.jsonl). --mode auto chooses by them, for up to
    /// --max-subscribers subscribers [default: /var/lib/expressway/fanout/raw.jsonl, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Option<PathBuf>,
    /// How the feed is received: udp, or as with `serve` auto, zerocopy, copy, hybrid or generic. A multicast group also
    /// needs --interface
    #[arg(long, value_name = "MODE", default_value = "udp")]
    pub(crate) io: IoMode,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that does the privileged set-up, in its network namespace: the feed is received
    /// there, subscribers connect here
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// Prefix of each datagram in TCP and TLS streams: none, len16 or len32 (its length in network byte order)
    #[arg(long, value_name = "FRAMING", default_value = "none")]
    pub(crate) framing: Framing,
    /// What to do with a slow subscriber: drop (it skips to the newest datagram) or disconnect
    /// [default: drop; disconnect with framing none]
    #[arg(long, value_name = "POLICY")]
    pub(crate) slow_client: Option<SlowClient>,
    /// A subscriber this many bytes behind counts as slow
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) max_lag: Size,
    /// A subscriber whose oldest pending datagram is older than this counts as slow
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub(crate) max_age: Span,
    /// Disconnect a subscriber that accepts no data for this long
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub(crate) stall: Span,
    /// Send buffer of each subscriber in the kernel (SO_SNDBUF)
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub(crate) send_buffer: Size,
    /// Bytes of the feed to retain, allocated at start; at least twice --max-lag
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub(crate) ring: Size,
    /// Where subscribers start: next, last:N, snapshot, or ask (the subscriber's first line says which of those)
    #[arg(long, value_name = "START", default_value = "next")]
    pub(crate) start: StartPolicy,
    /// Datagrams that begin with these bytes are snapshots; the newest is kept
    #[arg(long, value_name = "HEX")]
    pub(crate) snapshot_prefix: Option<Hex>,
    /// Clients that may subscribe, as ADDRESS or ADDRESS/PREFIX; may be repeated [default: all]
    #[arg(long, value_name = "CIDR")]
    pub(crate) allow: Vec<Cidr>,
    /// Additional web origin whose pages may subscribe (https://host), or *
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Vec<String>,
    /// Maximum number of subscribers
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(crate) max_subscribers: usize,
    /// Maximum number of subscribers per address (IPv6: per /64) [default: same as --max-subscribers]
    #[arg(long, value_name = "N")]
    pub(crate) max_subscribers_per_address: Option<usize>,
    /// Time limit for TLS and WebSocket handshakes, and for the line of --start ask
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(crate) handshake_timeout: Span,
    /// Maximum number of concurrent handshakes. Beyond it, the oldest is dropped if it is at least a second old; otherwise the new one is refused
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_handshakes: usize,
    /// The same limit per address (IPv6: per /64)
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_handshakes_per_address: usize,
    /// Maximum size of a WebSocket request's head
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    pub(crate) max_request: Size,
    /// Bytes a TLS or WebSocket subscriber may send per second; one that sends more is disconnected
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    pub(crate) max_input: Size,
    /// Receive buffer of the UDP socket (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) receive_buffer: Size,
    /// Sending threads; the first also receives
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) admin: AdminListener,
    /// Print ready lines and statistics as JSON, one document per line; statistics also on exit
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
            _ => Err(format!("`{text}` is not one of auto, user, kernel")),
        }
    }
}

/// Bytes in hexadecimal.
#[derive(Clone)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl FromStr for Hex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = HEX.decode(text.as_bytes());
        bytes.map(Self).map_err(|_| format!("`{text}` is not hexadecimal: give two digits per byte"))
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
