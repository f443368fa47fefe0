//! What `expressway recv` is told.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use expressway_dataplane::{IoMode, WaitStrategy};
use expressway_feed::receive::Clock;
use expressway_settings::{Size, Span};

/// Receives what comes to UDP addresses or multicast groups, by AF_XDP or kernel sockets, until SIGTERM, SIGINT,
/// --count or --seconds, and then reports: how much came by which way, who stamped it, what was lost and why, and
/// latencies. Prints `ready listen=ADDR io=MODE stamps=WHO` for each address once it receives (with --json in the log).
#[derive(Args)]
pub(crate) struct Recv {
    /// Where datagrams come to: an address of this machine, or a multicast group, with its port; may be given several
    /// times
    #[arg(long, value_name = "ADDR", required = true)]
    pub(crate) listen: Vec<SocketAddr>,
    /// Interface to join multicast groups on [default: that of the route to the group]. AF_XDP takes it
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Option<String>,
    /// Only datagrams from this address; may be given several times. Multicast groups are joined for these sources
    /// alone
    #[arg(long, value_name = "ADDR")]
    pub(crate) source: Vec<IpAddr>,
    /// How datagrams come: auto (AF_XDP where it can be had, else kernel sockets, and says why), zerocopy, copy,
    /// generic or udp
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) io: IoMode,
    /// Detach a foreign XDP program from the interface first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Socket of an `expressway agent` that prepares what takes privilege
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// How to wait for datagrams: interrupt, busy-poll (takes CAP_NET_ADMIN) or spin (takes a whole CPU)
    #[arg(long, value_name = "HOW", default_value = "interrupt")]
    pub(crate) wait: WaitStrategy,
    /// CPU to pin the receiving thread to
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Lock all memory (mlockall), so that no page fault comes between datagrams
    #[arg(long)]
    pub(crate) lock_memory: bool,
    /// Entries of each AF_XDP RX ring, a power of two from 64 to 32768 [default: 2048]
    #[arg(long, value_name = "N")]
    pub(crate) ring: Option<RingSize>,
    /// Receive buffer of each kernel socket (SO_RCVBUF)
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) receive_buffer: Size,
    /// Have each datagram stamped: by the NIC where it does that, else by the XDP program, by kernel sockets by the
    /// kernel. Turns UDP_GRO off
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Measure latencies, from the stamp to the callback, and of datagrams of `expressway gen` from when they were due
    /// to be sent. Means --timestamps
    #[arg(long)]
    pub(crate) latency: bool,
    /// The clock that the NIC's is kept to (phc2sys): tai or realtime
    #[arg(long, value_name = "CLOCK", default_value = "tai")]
    pub(crate) nic_clock: NicClock,
    /// Draw latencies by percentile into this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Send each datagram back to whoever sent it
    #[arg(long)]
    pub(crate) echo: bool,
    /// How messages are numbered: none, seq64 (64 bits, big endian, at the start of each datagram), moldudp64
    #[arg(long, value_enum, value_name = "FRAMING", default_value = "none", hide_possible_values = true)]
    pub(crate) sequence: Sequence,
    /// Where the feed's second line comes to: a copy of the first, --listen. Of each message the first copy counts
    #[arg(long, value_name = "ADDR")]
    pub(crate) line_b: Option<SocketAddr>,
    /// Number of the first message wanted [default: of the first that comes]
    #[arg(long, value_name = "N")]
    pub(crate) first: Option<u64>,
    /// How long a missing message is waited for before its gap is announced [default: 10ms, with --rerequest 200ms]
    #[arg(long, value_name = "DURATION")]
    pub(crate) hold: Option<Span>,
    /// Messages that are kept at most while one in front of them is missing [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<u32>,
    /// MoldUDP64 re-request server to be asked for what is missing on all lines
    #[arg(long, value_name = "ADDR")]
    pub(crate) rerequest: Option<SocketAddr>,
    /// Hand messages, or datagrams, on to other processes by a ring in shared memory; its readers connect here
    #[arg(long, value_name = "PATH")]
    pub(crate) broadcast: Option<PathBuf>,
    /// Bytes of that ring: how far a reader may fall behind. A power of two
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub(crate) broadcast_size: Size,
    /// Lend packets to other processes where AF_XDP took them, without a copy: each queue's readers connect to
    /// IFACE.QUEUE in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) lend: Option<PathBuf>,
    /// Processes that may read from each queue at a time, 1 to 32
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) lend_readers: u32,
    /// Packets that each of them may hold at a time, 1 to 32768; what comes beyond is dropped for it and counted. Memory:
    /// readers x this x 2 KiB a queue
    #[arg(long, value_name = "N", default_value = "1024", value_parser = clap::value_parser!(u32).range(1..=32_768))]
    pub(crate) lend_quota: u32,
    /// End after so many datagrams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after so many seconds
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
        entries.map(Self).ok_or_else(|| format!("`{text}` is no power of two from 64 to 32768"))
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
        seconds.map(Self).ok_or_else(|| format!("`{text}` is no number of seconds above 0"))
    }
}
