//! The configuration file of a relay.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use expressway_dataplane::IoSection;
use expressway_settings::{ConfigError, SourceFile, Span, admin};
use ipnet::IpNet;

mod codec;
mod file;
mod moq;
mod sessions;
mod srtp;
mod webrtc;

use crate::srtp::Keys;

pub use codec::{Codec, Kind};
pub use moq::Moq;
pub use webrtc::{Data, SlowData, WebRtc};

/// Rooms of a relay at most.
pub const ROOMS: usize = 1024;
/// Receivers of a room at most.
pub const RECEIVERS: usize = 4096;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that rooms are dealt out to.
    pub workers: usize,
    /// How packets move.
    pub io: IoSection,
    /// TTL or hop limit of what is sent, also to multicast groups; `None`: the system's, and 1 for groups.
    pub ttl: Option<u8>,
    /// Where metrics and status are served.
    pub admin: Option<admin::Section>,
    /// How browsers and their like publish and play; `None`: they do not.
    pub webrtc: Option<WebRtc>,
    /// Where sessions of Media over QUIC come to; `None`: they do not.
    pub moq: Option<Moq>,
    /// The rooms.
    pub rooms: Vec<Room>,
    /// The file's text.
    pub text: String,
}

/// What a room carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// RTP.
    #[default]
    Rtp,
    /// Any datagrams: MPEG-TS, say. They pass unchanged.
    Any,
}

/// Where RTCP goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rtcp {
    /// To the next port (RFC 3550, section 11).
    #[default]
    NextPort,
    /// To the same port (RFC 5761).
    Mux,
    /// Nowhere.
    None,
}

impl Rtcp {
    /// The address for RTCP beside that for RTP.
    pub fn address(self, rtp: SocketAddr) -> Option<SocketAddr> {
        match self {
            Self::Mux => Some(rtp),
            Self::NextPort => Some(SocketAddr::new(rtp.ip(), rtp.port().checked_add(1)?)),
            Self::None => None,
        }
    }
}

/// A room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its name.
    pub name: String,
    /// Where a publisher sends RTP to: an address of this host, or a group. `None`: none does.
    pub input: Option<SocketAddr>,
    /// What receivers of RTP see as their sender, and where their reports come to: an address of this host. `None`: there are none.
    pub from: Option<SocketAddr>,
    /// The interface that a group comes in on; `None`: that of the route to it.
    pub interface: Option<String>,
    /// Sources of a group (source-specific multicast); empty: all.
    pub sources: Vec<IpAddr>,
    /// Who may publish; empty: everyone.
    pub allow: Vec<IpNet>,
    /// What it carries.
    pub payload: Payload,
    /// Where the publisher's RTCP goes.
    pub rtcp: Rtcp,
    /// Packets that are kept, a power of two.
    pub history: usize,
    /// The longest packet, in bytes.
    pub longest: u16,
    /// Between two requests for a key frame of a stream.
    pub keyframe_interval: Duration,
    /// Silence after which another may publish.
    pub publisher_timeout: Duration,
    /// Clocks by payload type, in Hz.
    pub clocks: Box<[u32; 128]>,
    /// Codecs by payload type, for WebRTC.
    pub codecs: Box<[Option<Codec>; 128]>,
    /// Whether a WebRTC session may publish.
    pub whip: bool,
    /// Whether WebRTC sessions may receive.
    pub whep: bool,
    /// WebRTC sessions that may receive at once.
    pub players: usize,
    /// Whether sessions of Media over QUIC may come.
    pub moq: bool,
    /// The path of the broadcast that RTP and WebRTC become for them; `None`: none.
    pub moq_broadcast: Option<String>,
    /// Who is heard on data channels.
    pub data: Data,
    /// What becomes of those that are slow.
    pub slow_data: SlowData,
    /// What the publisher's RTP and RTCP are protected with; `None`: nothing.
    pub srtp: Option<Keys>,
    /// Who receives.
    pub outputs: Vec<Output>,
}

/// A receiver, and what is changed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Where RTP goes: a host or a group.
    pub address: SocketAddr,
    /// Where RTCP goes.
    pub rtcp: Rtcp,
    /// The SSRC of the first stream, which others follow; `None`: the publisher's.
    pub ssrc: Option<u32>,
    /// Payload types that change: of the publisher, to the receiver.
    pub payload_types: Vec<(u8, u8)>,
    /// What its RTP and RTCP are protected with; `None`: nothing.
    pub srtp: Option<Keys>,
}

impl Output {
    /// Whether packets change for it.
    pub fn is_rewritten(&self) -> bool {
        self.ssrc.is_some() || !self.payload_types.is_empty()
    }

    /// The payload type that it sees.
    pub fn payload_type(&self, publishers: u8) -> u8 {
        let changed = self.payload_types.iter().find(|(from, _)| *from == publishers);
        changed.map_or(publishers, |(_, to)| *to)
    }
}

impl Room {
    /// The addresses of this host, and groups, that a room's packets come to, each once.
    pub fn listen(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = [self.input, self.from].into_iter().flatten().collect();
        if self.payload == Payload::Rtp {
            all.extend(self.input.and_then(|input| self.rtcp.address(input)));
            // Receivers may differ from the publisher in where RTCP goes.
            if let Some(from) = self.from {
                all.extend(self.outputs.iter().filter_map(|output| output.rtcp.address(from)));
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Room {
    /// Whether nothing differs but its receivers.
    pub fn same_but_outputs(&self, other: &Self) -> bool {
        Self { outputs: Vec::new(), ..self.clone() } == Self { outputs: Vec::new(), ..other.clone() }
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&SourceFile::read(path)?)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(source: &SourceFile) -> Result<Self, ConfigError> {
        file::parse(source)
    }

    /// All addresses to receive on.
    pub fn listen(&self) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = self.rooms.iter().flat_map(Room::listen).collect();
        all.extend(self.webrtc.iter().flat_map(|webrtc| webrtc.listen.iter().copied()));
        all.extend(self.moq.iter().flat_map(|moq| moq.listen.iter().copied()));
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// `5s` unless it is said.
fn publisher_timeout() -> Span {
    Span(Duration::from_secs(5))
}

/// `500ms` unless it is said.
fn keyframe_interval() -> Span {
    Span(Duration::from_millis(500))
}
