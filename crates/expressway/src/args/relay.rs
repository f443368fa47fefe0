//! The command line of `expressway relay`.

use std::path::PathBuf;

use clap::Args;
use expressway_dataplane::IoMode;

/// Relays live media over UDP: RTP or WebRTC of one publisher, or datagrams such as MPEG-TS, to many receivers and multicast groups.
///
/// Each `[[room]]` of the file has an address to publish to and its receivers. The relay reports to the publisher, asks it for lost
/// packets, answers receivers' requests for packets from a bounded history, and collapses their requests for key frames.
///
/// With `[webrtc]`, browsers publish into rooms by WHIP and receive from them by WHEP; RTP comes out as WebRTC, and WebRTC as RTP.
///
/// Prints `ready room=NAME rtp_in=ADDR io=MODE receivers=N` for each room once it relays. SIGHUP reads the file again: receivers change
/// while packets flow, keys and certificate of `[webrtc]` too; everything else needs a restart. SIGUSR1 prints statistics, as does the end.
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
    /// Replace foreign XDP programs that were set through netlink
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print one JSON document per line: ready, then statistics
    #[arg(long)]
    pub(crate) json: bool,
}
