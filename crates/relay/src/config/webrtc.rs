//! The section `[webrtc]`: the addresses of WebRTC sessions, and their limits.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use expressway_settings::{Span, named};
use expressway_web::TokenKey;
use serde::Deserialize;
use toml::Spanned;

use super::file::Problem;
use super::sessions::{self, SESSIONS, number};
use crate::webrtc::table::Limits;

/// Who is heard on the data channels of a room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// Nobody.
    #[default]
    Off,
    /// The session that publishes, by all others.
    Publisher,
    /// Everybody, by everybody else.
    All,
}

impl Data {
    const NAMES: [(&'static str, Self); 3] =
        [("off", Self::Off), ("publisher", Self::Publisher), ("all", Self::All)];
}

named!(Data);

/// What becomes of a reliable data channel whose receiver is behind by more than is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowData {
    /// It is closed: what has holes is not reliable.
    #[default]
    Close,
    /// It goes on with what is kept.
    Skip,
}

impl SlowData {
    const NAMES: [(&'static str, Self); 2] = [("close", Self::Close), ("skip", Self::Skip)];
}

named!(SlowData);

/// How browsers and their like publish and play.
#[derive(Clone, Debug)]
pub struct WebRtc {
    /// UDP addresses of this host that media of all sessions come to.
    pub listen: Vec<SocketAddr>,
    /// What peers are told in their place, one for each.
    pub announce: Vec<SocketAddr>,
    /// The TCP address of WHIP and WHEP.
    pub http: SocketAddr,
    /// Certificate and key, for HTTPS; `None`: HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Keys whose tokens are good; empty: nobody needs a token.
    pub keys: Vec<TokenKey>,
    /// How many sessions there may be at once.
    pub limits: Limits,
    /// How long ICE and DTLS may take together.
    pub handshake_timeout: Duration,
}

impl WebRtc {
    /// Whether nothing differs but the certificate and the keys of tokens.
    pub fn same_but_keys(&self, other: &Self) -> bool {
        (&self.listen, &self.announce, self.http, self.tls.is_some(), self.limits, self.handshake_timeout)
            == (
                &other.listen,
                &other.announce,
                other.http,
                other.tls.is_some(),
                other.limits,
                other.handshake_timeout,
            )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebRtcTable {
    listen: Spanned<Vec<SocketAddr>>,
    announce: Option<Spanned<Vec<SocketAddr>>>,
    http: SocketAddr,
    certificate: Option<Spanned<PathBuf>>,
    private_key: Option<Spanned<PathBuf>>,
    token_keys: Option<Spanned<PathBuf>>,
    #[serde(default = "sessions")]
    sessions: Spanned<usize>,
    publishers: Option<Spanned<usize>>,
    sessions_per_address: Option<Spanned<usize>>,
    publishers_per_address: Option<Spanned<usize>>,
    #[serde(default = "handshake_timeout")]
    handshake_timeout: Spanned<Span>,
}

fn sessions() -> Spanned<usize> {
    Spanned::new(0..0, 1024)
}

fn handshake_timeout() -> Spanned<Span> {
    Spanned::new(0..0, Span(Duration::from_secs(10)))
}

impl WebRtcTable {
    /// What it means; paths are relative to `folder`.
    pub(super) fn check(self, folder: &Path) -> Result<WebRtc, Problem> {
        let (span, listen) = (self.listen.span(), sessions::listen(&self.listen)?);
        let announce = match self.announce {
            None => listen.clone(),
            Some(announce) if announce.get_ref().len() == listen.len() => announce.into_inner(),
            Some(announce) => {
                let problem =
                    format!("{} addresses: give one for each of `listen`", announce.get_ref().len());
                return Err((announce.span(), problem));
            }
        };
        let mixed = listen.iter().zip(&announce).find(|(own, told)| own.is_ipv4() != told.is_ipv4());
        if let Some((own, told)) = mixed {
            return Err((span, format!("{own} is announced as {told}, which is of another address family")));
        }
        let tls = match (self.certificate, self.private_key) {
            (None, None) => None,
            (Some(one), Some(other)) => Some((folder.join(one.get_ref()), folder.join(other.get_ref()))),
            (Some(one), None) | (None, Some(one)) => {
                return Err((one.span(), "`certificate` and `private_key` go together".into()));
            }
        };
        let keys = sessions::token_keys(self.token_keys, folder)?;
        let sessions = number(Some(self.sessions), SESSIONS, SESSIONS, "sessions")?;
        let of_address = number(self.sessions_per_address, sessions, sessions, "sessions")?;
        let limits = Limits {
            sessions,
            publishers: number(self.publishers, sessions, sessions, "publishers")?,
            of_address,
            publishers_of_address: number(self.publishers_per_address, of_address, of_address, "publishers")?,
        };
        let timeout = self.handshake_timeout.get_ref().0;
        if !(Duration::from_millis(100)..=Duration::from_secs(300)).contains(&timeout) {
            return Err((self.handshake_timeout.span(), "give a time from \"100ms\" to \"5m\"".into()));
        }
        Ok(WebRtc { listen, announce, http: self.http, tls, keys, limits, handshake_timeout: timeout })
    }
}

#[cfg(test)]
mod tests {
    use expressway_settings::SourceFile;

    use super::*;
    use crate::config::{Codec, Config};

    fn parsed(webrtc: &str, room: &str) -> Result<Config, String> {
        let text = format!("{webrtc}\n[[room]]\nname = \"a\"\n{room}\n");
        let source = SourceFile { file: "relay.toml".into(), text };
        Config::parse(&source).map_err(|error| error.to_string())
    }

    const SMALL: &str = "[webrtc]\nlisten = [\"192.0.2.1:3478\"]\nhttp = \"192.0.2.1:80\"";

    #[test]
    fn a_room_may_be_of_sessions_alone() {
        let config = parsed(SMALL, "whip = true\nwhep = true").unwrap();
        let (webrtc, room) = (config.webrtc.as_ref().unwrap(), &config.rooms[0]);
        assert_eq!((webrtc.limits.sessions, webrtc.handshake_timeout), (1024, Duration::from_secs(10)));
        let limits = webrtc.limits;
        assert_eq!((limits.publishers, limits.of_address, limits.publishers_of_address), (1024, 1024, 1024));
        assert_eq!(webrtc.announce, webrtc.listen);
        assert_eq!((room.input, room.from, room.data), (None, None, Data::Off));
        assert_eq!((room.codecs[96], room.codecs[111]), (Some(Codec::Vp8), Some(Codec::Opus)));
        assert_eq!((room.clocks[111], room.clocks[96]), (48_000, 90_000));
        assert_eq!(config.listen(), webrtc.listen);
    }

    #[test]
    fn what_cannot_be_is_told() {
        let more = |line: &str| format!("{SMALL}\n{line}");
        for (webrtc, room, words) in [
            ("", "whip = true", "there is no [webrtc]"),
            (SMALL, "whep = true", "the room has no way to publish"),
            (SMALL, "whip = true\npayload = \"any\"", "`payload = \"rtp\"`"),
            (SMALL, "whip = true\nrtp_out = [\"192.0.2.9:5004\"]", "set `from`"),
            (SMALL, "rtp_in = \"192.0.2.1:3478\"", "is used by `[webrtc]`"),
            (SMALL, "whip = true\nplayers = 0", "1 to 4096"),
            (SMALL, "whip = true\ncodecs = { 96 = \"vp8\", 97 = \"vp8\" }", "one payload type"),
            (SMALL, "whip = true\ncodecs = { 200 = \"vp8\" }", "0 to 127"),
            (SMALL, "whip = true\ndata = \"some\"", "publisher"),
            (&SMALL.replace("192.0.2.1:3478", "0.0.0.0:3478"), "whip = true", "an address of this host"),
            (&SMALL.replace("\"192.0.2.1:3478\"", ""), "whip = true", "1 to 8 addresses"),
            (&more("announce = []"), "whip = true", "one for each"),
            (&more("announce = [\"[2001:db8::1]:1\"]"), "whip = true", "another address family"),
            (&more("certificate = \"a.pem\""), "whip = true", "go together"),
            (&more("token_keys = \"/there/is/none\""), "whip = true", "/there/is/none"),
            (&more("sessions = 0"), "whip = true", "1 to 65536"),
            (&more("publishers = 1025"), "whip = true", "1 to 1024 publishers"),
            (&more("sessions_per_address = 0"), "whip = true", "1 to 1024 sessions"),
            (
                &more("sessions_per_address = 4\npublishers_per_address = 5"),
                "whip = true",
                "1 to 4 publishers",
            ),
            (&more("handshake_timeout = \"1ms\""), "whip = true", "100ms"),
        ] {
            let error = parsed(webrtc, room).unwrap_err();
            assert!(error.contains(words) && error.contains("relay.toml"), "{webrtc}\n{room}: {error}");
        }
    }
}
