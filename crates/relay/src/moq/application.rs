//! The application on the endpoint's connections: sessions in rooms.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use expressway_gateway::quic::{self, Application, Settings, StreamLimits, Turn};
use expressway_gateway::webtransport::{self, Service as _};
use expressway_h3::{code, varint};
use expressway_web::{TokenKey, TokenKeys, TokenRule};
use http::StatusCode;
use percent_encoding::percent_decode_str;

use super::room::Room;
use super::session::Session;
use super::wire::{MAX_MESSAGE, session_code};

/// moq-lite-05 (draft-lcurley-moq-lite, ALPN).
pub const PROTOCOL: &str = "moq-lite-05";

/// Groups that a publisher may have under way at a time, and streams that say what it is.
const GROUPS: u64 = 128;
/// Requests beside those that the limit of a session is for: announcements, GOAWAY.
const REQUESTS: u64 = 16;
/// Bytes of a group that may be under way at first: as much as 10 Mbit/s are in 100 ms.
const GROUP_WINDOW: u64 = 128 << 10;
/// As many as they become while they are used up within two round trips.
const MOST_OF_STREAM: u64 = 1 << 20;
/// Bytes that a peer may have under way in all at first. One that only subscribes never uses them up, so that its window stays.
const CONNECTION_WINDOW: u64 = 512 << 10;
/// As many as a publisher gets to: 640 Mbit/s at 100 ms.
const MOST_OF_CONNECTION: u64 = 8 << 20;
/// Bytes of answers to what we asked.
const ANSWER_WINDOW: u64 = 64 << 10;

/// What a session may do in its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Announce broadcasts.
    pub publish: bool,
    /// Hear of broadcasts, and subscribe to their tracks.
    pub subscribe: bool,
}

/// What a session may take, whatever room it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Requests at a time.
    pub requests: usize,
    /// Bytes on their way to the peer that it has not acknowledged.
    pub memory: usize,
    /// How long a peer that publishes may be silent before it is gone.
    pub publisher_timeout: Duration,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { requests: 128, memory: 2 << 20, publisher_timeout: Duration::from_secs(5) }
    }
}

/// Who may enter rooms.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Who has a token of one of these keys; without keys everyone.
    pub keys: Vec<TokenKey>,
    /// Browsers on pages of these origins only (RFC 6454, section 6.2); `None`: on any. Other clients say no origin.
    pub origins: Option<Vec<String>>,
}

/// Rooms, and who may enter them.
#[derive(Debug)]
pub struct Moq {
    rooms: HashMap<Box<str>, Arc<Room>>,
    token: Option<TokenRule>,
    origins: Option<Vec<String>>,
    pub(super) sessions: Sessions,
    /// The relay as a hop: a number that no other has.
    pub(super) hop: u64,
    counts: Arc<Counts>,
}

/// What stays when keys change.
#[derive(Debug, Default)]
struct Counts {
    sessions: AtomicU64,
    refused: AtomicU64,
}

impl Moq {
    /// Of these rooms.
    pub fn new(rooms: impl IntoIterator<Item = Arc<Room>>, access: Access, sessions: Sessions) -> Arc<Self> {
        let mut seed = [0; 8];
        // Two relays with the same number only miss each other's broadcasts.
        let _ = boring::rand::rand_bytes(&mut seed);
        Arc::new(Self {
            rooms: rooms.into_iter().map(|room| (room.name.clone(), room)).collect(),
            token: token(access.keys),
            origins: access.origins,
            sessions,
            hop: (u64::from_ne_bytes(seed) & varint::MAX).max(1),
            counts: Arc::default(),
        })
    }

    /// The same, for others.
    pub fn with_access(&self, access: Access) -> Arc<Self> {
        let (rooms, counts) = (self.rooms.clone(), Arc::clone(&self.counts));
        let (sessions, hop) = (self.sessions, self.hop);
        let (token, origins) = (token(access.keys), access.origins);
        Arc::new(Self { rooms, token, origins, sessions, hop, counts })
    }

    /// Sessions that asked for no room that is there, or had no right to it.
    pub fn refused_session(&self) -> &AtomicU64 {
        &self.counts.refused
    }

    /// A number for a session or a broadcast, which no other has.
    pub(super) fn number(&self) -> u64 {
        self.counts.sessions.fetch_add(1, Relaxed)
    }

    /// The room that `target`, path and query of a URL, asks for, the path within it, and what the client may do there. `None`: there is no
    /// such room, or no right to it.
    pub(super) fn enter(&self, target: &str, remote: IpAddr) -> Option<(Arc<Room>, Box<str>, Rights)> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = percent_decode_str(path.trim_matches('/')).decode_utf8().ok()?;
        let (name, prefix) = path.split_once('/').unwrap_or((&path, ""));
        let room = self.rooms.get(name)?;
        let mut rights = Rights { publish: true, subscribe: true };
        if let Some(rule) = &self.token {
            let token = query.split('&').find_map(|field| field.strip_prefix("token="));
            let token = token.filter(|token| token.len() <= MAX_MESSAGE)?;
            let token = percent_decode_str(token).decode_utf8().ok()?;
            let permits = |word: &str| rule.permits(&token, &format!("/moq/{name}/{word}"), remote);
            rights = Rights { publish: permits("publish"), subscribe: permits("subscribe") };
        }
        let is_allowed = rights.publish || rights.subscribe;
        is_allowed.then(|| (Arc::clone(room), prefix.trim_matches('/').into(), rights))
    }
}

fn token(keys: Vec<TokenKey>) -> Option<TokenRule> {
    (!keys.is_empty()).then(|| TokenRule {
        name: "token".into(),
        keys: TokenKeys::new(keys),
        set_cookie: false,
    })
}

impl Application for Moq {
    fn protocols(&self) -> &[&[u8]] {
        static PROTOCOLS: [&[u8]; 2] = [PROTOCOL.as_bytes(), webtransport::ALPN];
        &PROTOCOLS
    }

    fn limits(&self, _settings: &Settings) -> StreamLimits {
        StreamLimits {
            bidirectional: self.sessions.requests as u64 + REQUESTS + webtransport::REQUESTS,
            unidirectional: GROUPS + webtransport::UNIDIRECTIONAL,
            bidirectional_window: 2 * MAX_MESSAGE as u64,
            unidirectional_window: GROUP_WINDOW,
            own_window: ANSWER_WINDOW,
            max_stream_window: MOST_OF_STREAM,
            connection_window: CONNECTION_WINDOW,
            max_connection_window: MOST_OF_CONNECTION,
        }
    }

    fn excess_code(&self, protocol: &[u8]) -> u64 {
        if protocol == webtransport::ALPN { code::EXCESSIVE_LOAD } else { session_code::PROTOCOL_VIOLATION }
    }

    fn datagrams(&self) -> usize {
        webtransport::DATAGRAMS
    }

    fn closing_code(&self, protocol: &[u8]) -> u64 {
        if protocol == webtransport::ALPN { code::NO_ERROR } else { session_code::CANCEL }
    }

    fn start(self: Arc<Self>, turn: &mut Turn<'_>) -> Box<dyn quic::Session> {
        match turn.transport().protocol() == webtransport::ALPN {
            true => webtransport::start(self, turn),
            false => self.begin(turn),
        }
    }
}

impl webtransport::Service for Moq {
    fn session_protocols(&self) -> &[&str] {
        &[PROTOCOL]
    }

    fn admit(&self, request: &webtransport::Request<'_>) -> Result<(), StatusCode> {
        let is_allowed = |origin: &str| match &self.origins {
            Some(origins) => origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)),
            None => true,
        };
        let status = match self.enter(request.target, request.remote.ip()) {
            _ if !request.origin.is_none_or(is_allowed) => StatusCode::FORBIDDEN,
            Some(_) => return Ok(()),
            // Who has no token hears nothing of rooms.
            None if self.token.is_some() => StatusCode::FORBIDDEN,
            None => StatusCode::NOT_FOUND,
        };
        self.counts.refused.fetch_add(1, Relaxed);
        Err(status)
    }

    fn begin(self: Arc<Self>, turn: &mut Turn<'_>) -> Box<dyn quic::Session> {
        Box::new(Session::start(self, turn))
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::Limits;
    use super::*;

    #[test]
    fn a_room_is_entered_by_its_path() {
        let moq = Moq::new([Room::new("a room", Limits::default())], Access::default(), Sessions::default());
        let enter = |target: &str| {
            let entered = moq.enter(target, "192.0.2.1".parse().unwrap());
            entered.map(|(room, prefix, _)| (room.name.to_string(), prefix.to_string()))
        };
        assert_eq!(enter("/a%20room"), Some(("a room".into(), String::new())));
        assert_eq!(enter("a room/cam/1/?x=1"), Some(("a room".into(), "cam/1".into())));
        for wrong in ["", "/", "/other", "/%ff", "?a room", "/a", "//"] {
            assert_eq!(enter(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_token_says_what_may_be_done() {
        // HMAC-SHA256 of the part before `~hmac=`, computed by openssl.
        let key = TokenKey::from_hex("000102030405060708090a0b0c0d0e0f").unwrap();
        let moq = Moq::new(
            [Room::new("studio", Limits::default())],
            Access { keys: vec![key], origins: None },
            Sessions::default(),
        );
        let enter = |target: &str| {
            moq.enter(target, "192.0.2.1".parse().unwrap())
                .map(|(_, _, rights)| (rights.publish, rights.subscribe))
        };
        assert_eq!(enter("/studio"), None);
        assert_eq!(enter("/studio?token=nonsense"), None);
        let subscribes = "exp=4000000000~acl=/moq/studio/subscribe~hmac=62feb8dfd670268cc77761fdee1a02fd868307e51ef7c12c16c081a28c9cc4c6";
        assert_eq!(enter(&format!("/studio?x=1&token={subscribes}")), Some((false, true)));
        let both = "exp=4000000000~acl=/moq/studio/*~hmac=66f4f80b0a8b56fba0c8b1568ef3400bd4492ccad8b723235e24d431e5d16327";
        assert_eq!(enter(&format!("/studio?token={both}")), Some((true, true)));
        assert_eq!(enter(&format!("/other?token={both}")), None);
    }

    #[test]
    fn who_asks_for_a_session_over_http3_is_told_why_not() {
        let rooms = || [Room::new("studio", Limits::default())];
        let status = |moq: &Moq, target: &str, origin: Option<&str>| {
            let request = webtransport::Request { target, origin, remote: "192.0.2.1:1".parse().unwrap() };
            moq.admit(&request).err().map(|status| status.as_u16())
        };
        let open = Moq::new(rooms(), Access::default(), Sessions::default());
        assert_eq!(status(&open, "/studio/cam", Some("https://any.example")), None);
        assert_eq!(status(&open, "/other", None), Some(404));
        let key = TokenKey::from_hex("000102030405060708090a0b0c0d0e0f").unwrap();
        let origins = Some(vec!["https://player.example".to_owned()]);
        let closed = open.with_access(Access { keys: vec![key], origins: origins.clone() });
        assert_eq!(
            (status(&closed, "/studio", None), status(&closed, "/other", None)),
            (Some(403), Some(403))
        );
        let pages = open.with_access(Access { keys: Vec::new(), origins });
        assert_eq!(status(&pages, "/studio", None), None, "no browser");
        assert_eq!(status(&pages, "/studio", Some("https://PLAYER.example")), None);
        for other in ["https://player.example:8443", "http://player.example", "null", ""] {
            assert_eq!(status(&pages, "/studio", Some(other)), Some(403), "{other}");
        }
        assert_eq!(open.refused_session().load(Relaxed), 7, "one count for all");
    }
}
