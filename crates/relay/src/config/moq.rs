//! The section `[moq]`: the addresses of Media over QUIC sessions, and their limits.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use expressway_settings::{Size, Span};
use expressway_web::TokenKey;
use serde::Deserialize;
use toml::Spanned;

use super::file::Problem;
use super::sessions::{self, SESSIONS, number};
use crate::moq::room::Limits;
use crate::moq::wire::MAX_PATH;
use crate::moq::{Access, Sessions};

/// What `publisher_timeout` may be: a round trip or three of any path, and no more than QUIC's idle timeout.
const PUBLISHER_TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);

/// Origins at most, which each session of a browser is compared with.
const ORIGINS: usize = 64;
/// Bytes of one: a scheme, a host and a port.
const ORIGIN: usize = 300;

/// Bytes on their way to all peers, if nothing else is set.
const MEMORY: usize = 256 << 20;

/// Where sessions come to.
#[derive(Clone, Debug)]
pub struct Moq {
    /// UDP addresses of this host.
    pub listen: Vec<SocketAddr>,
    /// The chain of certificates.
    pub certificate: PathBuf,
    /// Its private key.
    pub private_key: PathBuf,
    /// Keys whose tokens are good; empty: nobody needs a token.
    pub keys: Vec<TokenKey>,
    /// Origins whose pages may come; `None`: all.
    pub origins: Option<Vec<String>>,
    /// Connections of a worker.
    pub sessions: usize,
    /// Bytes on their way to all peers that these have not acknowledged.
    pub memory: usize,
    /// What a session may take.
    pub of_session: Sessions,
    /// What may be taken of a room.
    pub limits: Limits,
}

impl Moq {
    /// Who may come.
    pub fn access(&self) -> Access {
        Access { keys: self.keys.clone(), origins: self.origins.clone() }
    }

    /// Whether nothing differs but who may come, and what the files of the certificate say.
    pub fn same_but_keys(&self, other: &Self) -> bool {
        let own = (&self.listen, self.sessions, self.memory, self.of_session, self.limits);
        own == (&other.listen, other.sessions, other.memory, other.of_session, other.limits)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MoqTable {
    listen: Spanned<Vec<SocketAddr>>,
    certificate: PathBuf,
    private_key: PathBuf,
    token_keys: Option<Spanned<PathBuf>>,
    origins: Option<Spanned<Vec<String>>>,
    sessions: Option<Spanned<usize>>,
    broadcasts: Option<Spanned<usize>>,
    tracks: Option<Spanned<usize>>,
    requests: Option<Spanned<usize>>,
    track_cache: Option<Spanned<Size>>,
    room_cache: Option<Spanned<Size>>,
    max_object: Option<Spanned<Size>>,
    memory: Option<Spanned<Size>>,
    session_memory: Option<Spanned<Size>>,
    publisher_timeout: Option<Spanned<Span>>,
}

/// A size within bounds; `usual` if it is not set.
fn size(
    value: Option<Spanned<Size>>,
    usual: usize,
    (least, most): (u64, u64),
    words: &str,
) -> Result<usize, Problem> {
    match value {
        None => Ok(usual),
        Some(value) if (least..=most).contains(&value.get_ref().0) => Ok(value.get_ref().0 as usize),
        Some(value) => Err((value.span(), words.into())),
    }
}

/// Origins as browsers say them, each a scheme and an authority.
fn origins(value: Spanned<Vec<String>>) -> Result<Vec<String>, Problem> {
    let is_origin = |origin: &String| {
        let uri = origin.parse::<http::Uri>().ok();
        origin.len() <= ORIGIN
            && !origin.ends_with('/')
            && uri.is_some_and(|uri| uri.scheme().is_some() && uri.path() == "/" && uri.query().is_none())
    };
    let origins = value.get_ref();
    if !(1..=ORIGINS).contains(&origins.len()) || !origins.iter().all(is_origin) {
        let words = format!("give 1 to {ORIGINS} origins, such as \"https://player.example\"");
        return Err((value.span(), words));
    }
    Ok(value.into_inner())
}

impl MoqTable {
    /// What it means; paths are relative to `folder`.
    pub(super) fn check(self, folder: &Path) -> Result<Moq, Problem> {
        let (span, listen) = (self.listen.span(), sessions::listen(&self.listen)?);
        let keys = sessions::token_keys(self.token_keys, folder)?;
        let origins = self.origins.map(origins).transpose()?;
        let usual = Limits::default();
        let of_room = self.room_cache.as_ref().map(Spanned::span);
        let limits = Limits {
            broadcasts: number(self.broadcasts, usual.broadcasts, 4096, "broadcasts")?,
            tracks: number(self.tracks, usual.tracks, 1024, "tracks")?,
            subscriptions: number(self.requests, usual.subscriptions, 4096, "requests")?,
            track_cache: size(
                self.track_cache,
                usual.track_cache,
                (64 << 10, 4 << 30),
                "\"64KiB\" to \"4GiB\"",
            )?,
            room_cache: size(
                self.room_cache,
                usual.room_cache,
                (64 << 10, 64 << 30),
                "\"64KiB\" to \"64GiB\"",
            )?,
            frame: size(self.max_object, usual.frame as usize, (1 << 10, 1 << 30), "\"1KiB\" to \"1GiB\"")?
                as u64,
        };
        if limits.room_cache < limits.track_cache {
            return Err((of_room.unwrap_or(span), "`room_cache` is less than `track_cache`".into()));
        }
        let memory = size(self.memory, MEMORY, (1 << 20, 1 << 40), "\"1MiB\" to \"1TiB\"")?;
        let usual = Sessions { requests: limits.subscriptions, ..Sessions::default() };
        let of_session = Sessions {
            memory: size(self.session_memory, usual.memory, (64 << 10, 1 << 30), "\"64KiB\" to \"1GiB\"")?,
            publisher_timeout: match self.publisher_timeout {
                None => usual.publisher_timeout,
                Some(value) if PUBLISHER_TIMEOUTS.contains(&value.get_ref().0) => value.get_ref().0,
                Some(value) => return Err((value.span(), "give a time from \"1s\" to \"30s\"".into())),
            },
            ..usual
        };
        Ok(Moq {
            memory,
            of_session,
            listen,
            certificate: folder.join(self.certificate),
            private_key: folder.join(self.private_key),
            keys,
            origins,
            sessions: number(self.sessions, 1024, SESSIONS, "sessions")?,
            limits,
        })
    }
}

/// `moq_broadcast` of a room that is for sessions or not, of RTP or not, and has a publisher of that or not: the path.
pub(super) fn broadcast(
    path: Option<&Spanned<String>>,
    is_moq: bool,
    is_rtp: bool,
    has_input: bool,
) -> Result<Option<String>, Problem> {
    let Some(path) = path else { return Ok(None) };
    let is_path = |path: &str| {
        (1..=MAX_PATH).contains(&path.len()) && path.split('/').all(|segment| !segment.is_empty())
    };
    let problem = match path.get_ref() {
        _ if !is_moq => "it is for sessions of Media over QUIC: set `moq = true`",
        _ if !is_rtp => "it needs `payload = \"rtp\"`",
        _ if !has_input => "it is made of RTP or WebRTC: set `rtp_in` or `whip`",
        path if !is_path(path) => "give a path of 1 to 512 bytes, such as \"studio.hang\"",
        path => return Ok(Some(path.clone())),
    };
    Err((path.span(), problem.into()))
}

#[cfg(test)]
mod tests {
    use expressway_settings::SourceFile;

    use super::*;
    use crate::config::Config;

    fn parsed(moq: &str, room: &str) -> Result<Config, String> {
        let text = format!("{moq}\n[[room]]\nname = \"a\"\n{room}\n");
        let source = SourceFile { file: "relay.toml".into(), text };
        Config::parse(&source).map_err(|error| error.to_string())
    }

    const SMALL: &str =
        "[moq]\nlisten = [\"192.0.2.1:443\"]\ncertificate = \"cert.pem\"\nprivate_key = \"key.pem\"";

    #[test]
    fn a_room_may_be_of_moq_alone() {
        let config = parsed(SMALL, "moq = true").unwrap();
        let moq = config.moq.as_ref().unwrap();
        assert!(config.rooms[0].moq);
        assert_eq!((moq.sessions, moq.limits.track_cache), (1024, 16 << 20));
        assert_eq!(config.listen(), moq.listen);
        let more = format!("{SMALL}\ntrack_cache = \"1MiB\"\nroom_cache = \"2MiB\"\nrequests = 7");
        let limits = parsed(&more, "moq = true").unwrap().moq.unwrap().limits;
        assert_eq!((limits.track_cache, limits.room_cache, limits.subscriptions), (1 << 20, 2 << 20, 7));
        let more =
            format!("{SMALL}\nmemory = \"1GiB\"\nsession_memory = \"1MiB\"\npublisher_timeout = \"2s\"");
        let moq = parsed(&more, "moq = true").unwrap().moq.unwrap();
        let of_session =
            Sessions { memory: 1 << 20, publisher_timeout: Duration::from_secs(2), ..Sessions::default() };
        assert_eq!((moq.memory, moq.of_session), (1 << 30, of_session));
        assert!(!moq.same_but_keys(config.moq.as_ref().unwrap()));
        let more = format!("{SMALL}\norigins = [\"https://player.example:8443\"]");
        let moq = parsed(&more, "moq = true").unwrap().moq.unwrap();
        assert_eq!(moq.access().origins, Some(vec!["https://player.example:8443".to_owned()]));
        assert!(moq.same_but_keys(config.moq.as_ref().unwrap()), "who may come is reloaded");
    }

    #[test]
    fn what_cannot_be_is_told() {
        let more = |line: &str| format!("{SMALL}\n{line}");
        for (moq, room, words) in [
            ("", "moq = true", "there is no [moq]"),
            (SMALL, "moq = false", "no way to publish"),
            (SMALL, "rtp_in = \"192.0.2.1:443\"", "is used by `[moq]`"),
            (&SMALL.replace("192.0.2.1:443", "0.0.0.0:443"), "moq = true", "an address of this host"),
            (&SMALL.replace("\"192.0.2.1:443\"", ""), "moq = true", "1 to 8 addresses"),
            (&more("token_keys = \"/there/is/none\""), "moq = true", "/there/is/none"),
            (&more("sessions = 0"), "moq = true", "1 to 65536 sessions"),
            (&more("broadcasts = 5000"), "moq = true", "1 to 4096 broadcasts"),
            (&more("tracks = 0"), "moq = true", "1 to 1024 tracks"),
            (&more("requests = 0"), "moq = true", "1 to 4096 requests"),
            (&more("track_cache = \"1KiB\""), "moq = true", "64KiB"),
            (&more("room_cache = \"1MiB\""), "moq = true", "less than `track_cache`"),
            (&more("max_object = \"1\""), "moq = true", "1KiB"),
            (&more("memory = \"1KiB\""), "moq = true", "1MiB"),
            (&more("session_memory = \"1KiB\""), "moq = true", "64KiB"),
            (&more("publisher_timeout = \"31s\""), "moq = true", "\"1s\" to \"30s\""),
            (&more("origins = []"), "moq = true", "1 to 64 origins"),
            (&more("origins = [\"player.example\"]"), "moq = true", "\"https://player.example\""),
            (&more("origins = [\"https://player.example/\"]"), "moq = true", "1 to 64 origins"),
            (&more("origins = [\"https://player.example/a?b\"]"), "moq = true", "1 to 64 origins"),
            (&more("cache = \"1MiB\""), "moq = true", "unknown key"),
        ] {
            let error = parsed(moq, room).unwrap_err();
            assert!(error.contains(words) && error.contains("relay.toml"), "{moq}\n{room}: {error}");
        }
    }

    #[test]
    fn a_broadcast_of_rtp_has_a_path_and_something_to_be_made_of() {
        let rtp = "rtp_in = \"192.0.2.1:5004\"\nmoq = true\nmoq_broadcast = \"studio.hang\"";
        let config = parsed(SMALL, rtp).unwrap();
        let room = &config.rooms[0];
        assert_eq!(room.moq_broadcast.as_deref(), Some("studio.hang"));
        assert_eq!(room.codecs[111], Some(crate::config::Codec::Opus), "payload types are looked at");
        assert_eq!((room.clocks[111], room.clocks[96]), (48_000, 90_000));
        for (from, to, words) in [
            ("moq = true\n", "", "set `moq = true`"),
            ("rtp_in = \"192.0.2.1:5004\"\n", "", "set `rtp_in` or `whip`"),
            ("moq = true", "moq = true\npayload = \"any\"", "payload = \"rtp\""),
            ("studio.hang", "", "1 to 512 bytes"),
            ("studio.hang", "/studio", "1 to 512 bytes"),
            ("studio.hang", "a//b", "1 to 512 bytes"),
        ] {
            let error = parsed(SMALL, &rtp.replace(from, to)).unwrap_err();
            assert!(error.contains(words) && error.contains("relay.toml:"), "{error}");
        }
    }
}
