//! What `expressway dump` is told: the options of tcpdump, and those for what tcpdump does not see.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum};

/// Captures the packets of interfaces, AF_XDP included: those that an XDP program redirects, drops or sends back, those that
/// any process sends through AF_XDP sockets, and those that the kernel receives and sends. Prints packets, or writes them as pcapng with
/// queue, verdict, drop reason and process. Ends on SIGINT, SIGTERM or -c, with counts on standard error. The options are
/// those of tcpdump. Never resolves names and never puts interfaces into promiscuous mode.
#[derive(Args)]
#[command(after_help = "FILTER is an expression of pcap-filter(7), such as: udp port 443 and host 192.0.2.1")]
pub(crate) struct Dump {
    /// Interface to capture on; may be repeated; `any` for all [default: the first that is up]
    #[arg(short, long = "interface", value_name = "IFACE")]
    pub(crate) interfaces: Vec<String>,
    /// List interfaces with their XDP programs, then exit
    #[arg(short = 'D', long)]
    pub(crate) list_interfaces: bool,
    /// Write packets to this file as pcapng instead of printing them; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Read packets from this file (pcapng or pcap) instead; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "interfaces")]
    pub(crate) read: Option<PathBuf>,
    /// Exit after this many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Bytes to capture of each packet; 0 for all
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) snapshot_length: u32,
    /// Where to capture the packets that an XDP program handles
    #[arg(long, value_enum, value_name = "POINT", default_value = "once")]
    pub(crate) point: XdpPoint,
    /// Capture only incoming or only outgoing packets
    #[arg(short = 'Q', long, value_enum, value_name = "WAY", default_value = "inout")]
    pub(crate) direction: Directions,
    /// Show each packet that the kernel drops again, with the reason
    #[arg(long)]
    pub(crate) drops: bool,
    /// Buffer of each CPU in KiB
    #[arg(short = 'B', long, value_name = "KIB", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub(crate) buffer_size: u32,
    /// Start a new file after this many millions of bytes (with k, m or g: KiB, MiB or GiB)
    #[arg(short = 'C', value_name = "SIZE", requires = "write")]
    pub(crate) file_size: Option<FileSize>,
    /// Start a new file after this many seconds; FILE may be a strftime(3) format
    #[arg(short = 'G', value_name = "SECONDS", requires = "write", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rotate_seconds: Option<u32>,
    /// With -C: keep this many files, overwriting the oldest. With -G: exit after this many
    #[arg(short = 'W', value_name = "COUNT", requires = "write", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) file_count: Option<u32>,
    /// Add the TLS secrets that a server appends to this file (SSLKEYLOGFILE; `[tls] keylog` of expressway) to the
    /// capture: anyone who has it can decrypt it. Only the owner can read the files. Not with -Z
    #[arg(long, value_name = "FILE", requires = "write")]
    pub(crate) secrets: Option<PathBuf>,
    /// Switch to this user after attaching; files are written as that user
    #[arg(short = 'Z', long, value_name = "USER")]
    pub(crate) relinquish_privileges: Option<String>,
    /// Read the filter from this file
    #[arg(short = 'F', value_name = "FILE", conflicts_with = "filter")]
    pub(crate) filter_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) text: Text,
    #[command(flatten)]
    pub(crate) extcap: Extcap,
    /// Packets to capture [default: all]
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Vec<String>,
}

/// How packets are printed.
#[derive(Args)]
pub(crate) struct Text {
    /// Also print packets that are written to a file
    #[arg(long)]
    pub(crate) print: bool,
    /// Print each packet as one JSON document per line
    #[arg(long, conflicts_with_all = ["link", "hex", "ascii", "time"])]
    pub(crate) json: bool,
    /// Print the Ethernet header too
    #[arg(short = 'e')]
    pub(crate) link: bool,
    /// Print less
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the fields of IP headers too
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print the bytes in hexadecimal; twice: with the Ethernet header
    #[arg(short = 'x', action = ArgAction::Count)]
    pub(crate) hex: u8,
    /// Print the bytes in hexadecimal and ASCII; twice: with the Ethernet header
    #[arg(short = 'X', action = ArgAction::Count)]
    pub(crate) ascii: u8,
    /// -t: no times; -tt: seconds since the epoch; -ttt: since the previous packet; -tttt: with the date; -ttttt: since
    /// the first packet
    #[arg(short, action = ArgAction::Count)]
    pub(crate) time: u8,
    /// Print nanoseconds
    #[arg(long)]
    pub(crate) nano: bool,
    /// Number the packets
    #[arg(short = '#', long)]
    pub(crate) number: bool,
    /// Decode all UDP datagrams as this protocol
    #[arg(short = 'T', value_enum, value_name = "TYPE")]
    pub(crate) payload: Option<PayloadType>,
    /// Accepted for compatibility with tcpdump: names are never resolved
    #[arg(short, action = ArgAction::Count, hide = true)]
    pub(crate) n: u8,
    /// Likewise: lines are always printed as packets arrive
    #[arg(short, long, hide = true)]
    pub(crate) line_buffered: bool,
    /// Likewise: interfaces are never put into promiscuous mode
    #[arg(short = 'p', long, hide = true)]
    pub(crate) no_promiscuous_mode: bool,
    /// Write each packet to the file as it arrives
    #[arg(short = 'U', long)]
    pub(crate) packet_buffered: bool,
}

/// The protocol between Wireshark and programs that capture for it (extcap(4)).
#[derive(Args)]
pub(crate) struct Extcap {
    #[arg(long, hide = true)]
    pub(crate) extcap_interfaces: bool,
    #[arg(long, hide = true, value_name = "VERSION")]
    pub(crate) extcap_version: Option<String>,
    #[arg(long, hide = true, value_name = "IFACE")]
    pub(crate) extcap_interface: Option<String>,
    #[arg(long, hide = true, requires = "extcap_interface")]
    pub(crate) extcap_dlts: bool,
    #[arg(long, hide = true, requires = "extcap_interface")]
    pub(crate) extcap_config: bool,
    #[arg(long, hide = true, value_name = "FILTER")]
    pub(crate) extcap_capture_filter: Option<String>,
    #[arg(long, hide = true, requires = "extcap_interface", requires = "fifo")]
    pub(crate) capture: bool,
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) fifo: Option<PathBuf>,
}

/// Where packets that an XDP program handles are captured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum XdpPoint {
    /// On entry, with the program's verdict
    Once,
    /// On entry, without the verdict
    Entry,
    /// On exit, with the verdict
    Exit,
    /// On entry and on exit
    Both,
    /// Not at all: only packets that pass on to the kernel
    None,
}

/// Which way packets go.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Directions {
    In,
    Out,
    Inout,
}

/// What datagrams are taken for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PayloadType {
    Quic,
    Rtp,
    Moldudp64,
    None,
}

/// The size of a file, as tcpdump takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSize(pub(crate) u64);

impl FromStr for FileSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
            _ => (text, 1_000_000),
        };
        let size = digits.parse().ok().and_then(|number: u64| number.checked_mul(unit));
        size.filter(|size| *size > 0)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a size, such as 10 or 512k"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_tcpdumps() {
        let size = |text: &str| text.parse().map(|FileSize(size)| size).ok();
        assert_eq!(
            ["5", "2k", "1M", "1g"].map(size),
            [Some(5_000_000), Some(2048), Some(1 << 20), Some(1 << 30)]
        );
        assert_eq!(["", "k", "0", "-1", "1t", "99999999999999g"].map(size), [None; 6]);
    }
}
