//! What `expressway recv` is told.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use expressway_dataplane::{IoMode, WaitStrategy};
use expressway_feed::receive::Clock;
use expressway_settings::{Size, Span};

/// Receives datagrams sent to UDP addresses or multicast groups, through AF_XDP or kernel sockets. Ends on SIGTERM, SIGINT,
/// --count or --seconds and prints a report: datagrams by path and by timestamp source, losses by reason, and
/// latencies. Prints `ready listen=ADDR io=MODE stamps=WHO` for each address once it is receiving (with --json, in the log).
#[derive(Args)]
pub(crate) struct Recv {
    /// Address and port to receive on: an address of this machine or a multicast group; may be
    /// repeated
    #[arg(long, value_name = "ADDR", required = true)]
    pub(crate) listen: Vec<SocketAddr>,
    /// Interface to join multicast groups on [default: that of the route to the group]. AF_XDP needs it
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// Accept datagrams from this address only; may be repeated. Multicast groups are joined for these sources
    /// only
    #[arg(long, value_name = "ADDR")]
    pub(crate) source: Vec<IpAddr>,
    /// How to receive: auto (AF_XDP if available, otherwise kernel sockets with the reason logged), zerocopy, copy,
    /// generic or udp
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) io: IoMode,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that does the privileged set-up
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// How to wait for datagrams: interrupt, busy-poll (needs CAP_NET_ADMIN) or spin (occupies a whole CPU)
    #[arg(long, value_name = "HOW", default_value = "interrupt")]
    pub(crate) wait: WaitStrategy,
    /// CPU to pin the receiving thread to
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Lock all memory (mlockall) to avoid page faults while receiving
    #[arg(long)]
    pub(crate) lock_memory: bool,
    /// Entries of each AF_XDP RX ring, a power of two from 64 to 32768 [default: 2048]
    #[arg(long, value_name = "N")]
    pub(crate) ring: Option<RingSize>,
    /// Receive buffer of each kernel socket (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) receive_buffer: Size,
    /// Timestamp each datagram: in the NIC if it supports that, otherwise in the XDP program; on kernel sockets in the
    /// kernel. Turns off UDP_GRO
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Measure latency from timestamp to callback, and for datagrams of `expressway gen` also from the time they were
    /// due. Implies --timestamps
    #[arg(long)]
    pub(crate) latency: bool,
    /// Clock that the NIC's clock is synchronised to (phc2sys): tai or realtime
    #[arg(long, value_name = "CLOCK", default_value = "tai")]
    pub(crate) nic_clock: NicClock,
    /// Plot latency by percentile to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Send each datagram back to its sender
    #[arg(long)]
    pub(crate) echo: bool,
    /// How messages are numbered: none, seq64 (64 bits, big endian, at the start of each datagram), moldudp64
    #[arg(long, value_enum, value_name = "FRAMING", default_value = "none", hide_possible_values = true)]
    pub(crate) sequence: Sequence,
    /// Address of the feed's second line, a copy of the first (--listen). The first copy of each message is used
    #[arg(long, value_name = "ADDR")]
    pub(crate) line_b: Option<SocketAddr>,
    /// Sequence number of the first message wanted [default: that of the first message received]
    #[arg(long, value_name = "N")]
    pub(crate) first: Option<u64>,
    /// How long to wait for a missing message before reporting a gap [default: 10ms, with --rerequest 200ms]
    #[arg(long, value_name = "DURATION")]
    pub(crate) hold: Option<Span>,
    /// Maximum number of messages to buffer while an earlier one is missing [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<u32>,
    /// MoldUDP64 re-request server to ask for messages missing on all lines
    #[arg(long, value_name = "ADDR")]
    pub(crate) rerequest: Option<SocketAddr>,
    /// Pass messages, or datagrams, to other processes through a shared-memory ring; readers connect to this socket
    #[arg(long, value_name = "PATH")]
    pub(crate) broadcast: Option<PathBuf>,
    /// Size of that ring, a power of two: how far a reader may fall behind
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub(crate) broadcast_size: Size,
    /// Lend packets to other processes in place in the AF_XDP UMEM, without a copy: each queue's readers connect to
    /// IFACE.QUEUE in this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) lend: Option<PathBuf>,
    /// Maximum number of concurrent readers per queue, 1 to 32
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) lend_readers: u32,
    /// Packets that each reader may hold at a time, 1 to 32768; more are dropped for that reader and counted. Uses
    /// --lend-readers x N x 2 KiB of memory per queue
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=32_768))]
    pub(crate) lend_quota: u32,
    /// Exit after this many datagrams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit after this many seconds
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub(crate) seconds: Option<Seconds>,
    /// Print the report as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

impl Recv {
    /// Where datagrams come to: of each line.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.listen.iter().copied().chain(self.line_b).collect()
    }
}

/// How the messages of a feed are numbered.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sequence {
    None,
    Seq64,
    Moldudp64,
}

/// Entries of a ring.
#[derive(Clone, Copy)]
pub(crate) struct RingSize(pub(crate) u32);

impl FromStr for RingSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |entries: &u32| entries.is_power_of_two() && (64..=32_768).contains(entries);
        let entries = text.parse().ok().filter(fits);
        entries.map(Self).ok_or_else(|| format!("`{text}` is not a power of two from 64 to 32768"))
    }
}

/// The clock that NICs are kept to.
#[derive(Clone, Copy)]
pub(crate) struct NicClock(pub(crate) Clock);

impl FromStr for NicClock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tai" => Ok(Self(Clock::Tai)),
            "realtime" => Ok(Self(Clock::Realtime)),
            _ => Err(format!("`{text}` is neither tai nor realtime")),
        }
    }
}

/// A time in seconds, with or without a fraction.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) f64);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |seconds: &f64| (0.001..=1e9).contains(seconds);
        let seconds = text.parse().ok().filter(fits);
        seconds.map(Self).ok_or_else(|| format!("`{text}` is not a number of seconds above 0"))
    }
}
