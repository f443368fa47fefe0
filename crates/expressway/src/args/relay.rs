//! The command line of `expressway relay`.

use std::path::PathBuf;

use clap::Args;
use expressway_dataplane::IoMode;

/// Relays live media over UDP from one publisher to many receivers and multicast groups: RTP, WebRTC, or plain datagrams such as
/// MPEG-TS.
///
/// Each `[[room]]` of the file has an address to publish to, and its receivers. The relay reports to the publisher and requests lost
/// packets from it. It answers receivers' requests for packets from a bounded history, and merges their requests for key frames.
///
/// With `[webrtc]`, browsers publish to rooms through WHIP and receive through WHEP; RTP comes out as WebRTC, and WebRTC as RTP.
///
/// Prints `ready room=NAME rtp_in=ADDR io=MODE receivers=N` for each room once it is relaying. SIGHUP rereads the file: receivers, and
/// the keys and certificate of `[webrtc]`, change while packets flow; everything else needs a restart. Statistics are printed on SIGUSR1
/// and on exit.
#[derive(Args, Clone)]
pub(crate) struct Relay {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration, then exit
    #[arg(long)]
    pub(crate) check: bool,
    /// Packet I/O mode, overrides `[io] mode`
    #[arg(long, value_name = "MODE")]
    pub(crate) io: Option<IoMode>,
    /// Socket of an `expressway agent` that does the privileged set-up, overrides `[io] agent`
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
    /// Replace foreign XDP programs that were attached through netlink
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print one JSON document per line: ready, then statistics
    #[arg(long)]
    pub(crate) json: bool,
}
