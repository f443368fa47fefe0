//! WHIP (RFC 9725) and WHEP (draft-ietf-wish-whep): an offer is posted, its answer comes back, and a URL that ends the session.
//!
//! ```text
//!  POST   /whip/ROOM       offer to publish        201, Location: /whip/ROOM/NAME, answer
//!  POST   /whep/ROOM       offer to receive        201, Location: /whep/ROOM/NAME, answer
//!  DELETE /whip/ROOM/NAME  ends the session        200
//!  PATCH                   405: the relay is ICE-lite, needs no candidates of its peers and restarts nothing
//! ```
//!
//! Offers are read and answered on the HTTP workers; a room's worker gets sessions that are agreed on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use bytes::Bytes;
use expressway_netio::Mailbox;
use expressway_netio::mailbox::Rejected;
use expressway_web::{
    BodyError, Exchange, Handler, RequestBody, RequestHead, ResponseHead, ResponseSource, TokenKey,
    TokenRule, Wake, bearer, date_header, hex,
};
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::answer::{self, Identity, Role, Wanted};
use super::table::{Join, Name, Refused, ReplyReceiver, ReplySender, SessionTable};
use crate::config::{Config, Room};
use crate::service::{Message, owner};

const SDP: &str = "application/sdp";

/// What came of requests.
#[derive(Debug, Default)]
pub struct HttpCounters {
    /// Offers that were answered.
    pub answered: AtomicU64,
    /// Requests without a token that is good for what they ask.
    pub refused_token: AtomicU64,
    /// Offers that cannot be read, or that have nothing for their room.
    pub refused_offer: AtomicU64,
    /// Offers to publish where somebody does.
    pub refused_conflict: AtomicU64,
    /// Offers beyond the number of sessions, of a room or of all.
    pub refused_full: AtomicU64,
    /// Offers for a worker that is behind.
    pub refused_busy: AtomicU64,
    /// Requests that are none of WHIP and WHEP.
    pub refused_request: AtomicU64,
}

impl HttpCounters {
    /// Names, help and values.
    pub fn fields(&self) -> [(&'static str, &'static str, u64); 7] {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("answered", "Offers that were answered.", load(&self.answered)),
            (
                "refused_token",
                "Requests without a token that is good for what they ask.",
                load(&self.refused_token),
            ),
            (
                "refused_offer",
                "Offers that cannot be read, or have nothing for their room.",
                load(&self.refused_offer),
            ),
            ("refused_conflict", "Offers to publish where somebody does.", load(&self.refused_conflict)),
            ("refused_full", "Offers beyond the number of sessions.", load(&self.refused_full)),
            ("refused_busy", "Offers for a worker that is behind.", load(&self.refused_busy)),
            ("refused_request", "Requests that are none of WHIP and WHEP.", load(&self.refused_request)),
        ]
    }
}

/// What requests are answered by.
#[derive(Debug)]
pub struct Whip {
    by_name: HashMap<String, usize>,
    token: Option<TokenRule>,
    shared: Arc<Shared>,
}

/// What offers need until they are answered.
#[derive(Debug)]
struct Shared {
    rooms: Vec<Room>,
    announce: Vec<std::net::SocketAddr>,
    identity: Arc<Identity>,
    table: Arc<SessionTable>,
    workers: Arc<[Mailbox<Message>]>,
    counters: Arc<HttpCounters>,
}

impl Whip {
    /// For the rooms of a configuration that has WebRTC, whose sessions are `identity` too, and at `table`.
    pub fn new(
        config: &Config,
        identity: Arc<Identity>,
        table: Arc<SessionTable>,
        workers: Arc<[Mailbox<Message>]>,
        counters: Arc<HttpCounters>,
    ) -> Option<Self> {
        let webrtc = config.webrtc.as_ref()?;
        let by_name = config.rooms.iter().enumerate().map(|(index, room)| (room.name.clone(), index));
        let keys: Vec<TokenKey> = webrtc.keys.clone();
        let (rooms, announce) = (config.rooms.clone(), webrtc.announce.clone());
        Some(Self {
            by_name: by_name.collect(),
            token: (!keys.is_empty()).then(|| TokenRule { name: "token".into(), keys, set_cookie: false }),
            shared: Arc::new(Shared { rooms, announce, identity, table, workers, counters }),
        })
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the request has a token that is good for its room.
    fn is_authorized(&self, request: &RequestHead, target: &Target<'_>) -> bool {
        let Some(rule) = &self.token else { return true };
        let path = format!("/{}/{}", target.word(), target.room);
        let token = bearer(&request.headers).and_then(|token| std::str::from_utf8(token).ok());
        token.is_some_and(|token| rule.permits(token, &path, request.remote.ip()))
    }

    fn refuse(&self, request: &RequestHead, refusal: Refusal) -> Exchange {
        let counter = match refusal.status {
            StatusCode::UNAUTHORIZED => &self.shared.counters.refused_token,
            _ => &self.shared.counters.refused_request,
        };
        Self::count(counter);
        refusal.exchange(&request.method)
    }

    fn find(&self, target: &Target<'_>) -> Option<usize> {
        let index = *self.by_name.get(&*target.room)?;
        let room = &self.shared.rooms[index];
        let is_there = match target.role {
            Role::Publish => room.whip,
            Role::Play => room.whep,
        };
        is_there.then_some(index)
    }

    fn post(&self, request: &RequestHead, body: RequestBody, target: &Target<'_>, wake: Wake) -> Exchange {
        let Some(room) = self.find(target) else {
            return self.refuse(request, Refusal::new(StatusCode::NOT_FOUND, "no such room"));
        };
        let content_type = request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.and_then(|value| value.split(';').next());
        if !content_type.is_some_and(|value| value.trim().eq_ignore_ascii_case(SDP)) {
            let refusal =
                Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send the offer as application/sdp");
            return self.refuse(request, refusal.with(HeaderName::from_static("accept-post"), SDP));
        }
        if body.length().is_some_and(|length| length > answer::LONGEST as u64) {
            return self
                .refuse(request, Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the offer is too long"));
        }
        Exchange::new(Box::new(Offering {
            room,
            role: target.role,
            base: format!("{}/", request.target.split('?').next().unwrap_or_default().trim_end_matches('/')),
            shared: Arc::clone(&self.shared),
            waker: wake.waker(),
            wake,
            state: State::Reading(body, Vec::new()),
            answer: Bytes::new(),
        }))
    }

    fn delete(&self, request: &RequestHead, target: &Target<'_>, name: Name) -> Exchange {
        let Shared { table, workers, .. } = &*self.shared;
        let entry = table.find(&name).filter(|entry| {
            entry.role == target.role && self.by_name.get(&*target.room) == Some(&entry.room)
        });
        let Some(entry) = entry else {
            return self.refuse(request, Refusal::new(StatusCode::NOT_FOUND, "no such session"));
        };
        let worker = &workers[owner(entry.room, workers.len())];
        if worker.try_send(Message::Leave(entry.room, entry.number)).is_err() {
            return self.refuse(request, busy());
        }
        Exchange::fixed(&request.method, StatusCode::OK, headers(), Bytes::new())
    }
}

impl Handler for Whip {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        let Some(target) = Target::parse(&request.target) else {
            return self.refuse(
                request,
                Refusal::new(StatusCode::NOT_FOUND, "not found: WHIP is at /whip/ROOM, WHEP at /whep/ROOM"),
            );
        };
        let allowed = if target.name.is_some() { "DELETE, OPTIONS" } else { "POST, OPTIONS" };
        if request.method == Method::OPTIONS {
            return preflight(allowed);
        }
        // What may be asked is nobody's secret; whether a room is there is told to those who may use it.
        let is_method = match target.name {
            Some(_) => request.method == Method::DELETE,
            None => request.method == Method::POST,
        };
        if !is_method {
            let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
            return self.refuse(request, refusal.with(ALLOW, allowed));
        }
        if !self.is_authorized(request, &target) {
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "a valid token for this room is required");
            return self.refuse(request, refusal.with(WWW_AUTHENTICATE, "Bearer"));
        }
        match target.name {
            Some(name) => self.delete(request, &target, name),
            None => self.post(request, body, &target, wake),
        }
    }
}

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
struct Target<'a> {
    role: Role,
    room: std::borrow::Cow<'a, str>,
    name: Option<Name>,
}

impl<'a> Target<'a> {
    /// Of `/whip/ROOM` and `/whip/ROOM/NAME`, and those of WHEP. A room's name may be percent-encoded.
    fn parse(target: &'a str) -> Option<Self> {
        let path = target.split('?').next()?.trim_end_matches('/');
        let mut parts = path.strip_prefix('/')?.split('/');
        let role = match parts.next()? {
            "whip" => Role::Publish,
            "whep" => Role::Play,
            _ => return None,
        };
        let room = percent_encoding::percent_decode_str(parts.next()?).decode_utf8().ok()?;
        let name = match parts.next() {
            Some(text) => Some(hex::decode(text.as_bytes())?.try_into().ok()?),
            None => None,
        };
        (parts.next().is_none() && !room.is_empty()).then_some(Self { role, room, name })
    }

    fn word(&self) -> &'static str {
        match self.role {
            Role::Publish => "whip",
            Role::Play => "whep",
        }
    }
}

/// Fields of all answers: pages of any origin may publish and play, with a token where one is needed (Fetch, section 3.3).
fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::from_static;
    headers.insert("access-control-allow-origin", value("*"));
    headers.insert("access-control-expose-headers", value("location"));
    headers
}

fn preflight(allowed: &'static str) -> Exchange {
    let mut headers = headers();
    let value = HeaderValue::from_static;
    headers.insert("access-control-allow-methods", value(allowed));
    headers.insert("access-control-allow-headers", value("authorization, content-type"));
    headers.insert("access-control-max-age", value("86400"));
    headers.insert("accept-post", value(SDP));
    headers.insert(ALLOW, value(allowed));
    Exchange::bodyless(StatusCode::NO_CONTENT, headers)
}

fn busy() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the room is overloaded: try again")
        .with(HeaderName::from_static("retry-after"), "1")
}

/// Why something is refused, as one line of plain text.
struct Refusal {
    status: StatusCode,
    text: String,
    headers: Box<HeaderMap>,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() + "\n", headers: Box::new(headers()) }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    fn exchange(mut self, method: &Method) -> Exchange {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Exchange::fixed(method, self.status, *self.headers, Bytes::from(self.text))
    }

    fn head(mut self) -> (ResponseHead, Bytes) {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        head(self.status, *self.headers, Bytes::from(self.text))
    }
}

fn head(status: StatusCode, mut headers: HeaderMap, body: Bytes) -> (ResponseHead, Bytes) {
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    headers.insert(DATE, date_header());
    (ResponseHead { status, headers, body_length: Some(body.len() as u64) }, body)
}

/// An offer on its way to an answer.
struct Offering {
    room: usize,
    role: Role,
    /// What the session's name follows in its URL.
    base: String,
    shared: Arc<Shared>,
    waker: Waker,
    wake: Wake,
    state: State,
    answer: Bytes,
}

enum State {
    /// The offer comes.
    Reading(RequestBody, Vec<u8>),
    /// The room's worker has yet to answer.
    Asking(ReplyReceiver, String, String),
    /// The answer goes.
    Answered,
}

impl Offering {
    /// The offer, once all of it is there.
    fn poll_offer(&mut self) -> Poll<Result<String, Refusal>> {
        let State::Reading(body, offer) = &mut self.state else { return Poll::Pending };
        loop {
            match body.poll_chunk(answer::LONGEST + 1, &self.waker) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(chunk))) if offer.len() + chunk.len() <= answer::LONGEST => {
                    offer.extend_from_slice(&chunk);
                }
                Poll::Ready(Some(Ok(_))) => {
                    return Poll::Ready(Err(Refusal::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "the offer is too long",
                    )));
                }
                Poll::Ready(Some(Err(_))) => {
                    return Poll::Ready(Err(Refusal::new(
                        StatusCode::BAD_REQUEST,
                        "the offer is incomplete",
                    )));
                }
                Poll::Ready(None) => {
                    let offer = String::from_utf8(std::mem::take(offer));
                    return Poll::Ready(
                        offer
                            .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the offer is not valid SDP")),
                    );
                }
            }
        }
    }

    /// Agrees on a session, and asks the room's worker to have it.
    fn ask(&self, offer: &str) -> Result<State, Refusal> {
        let Shared { rooms, announce, identity, table, workers, .. } = &*self.shared;
        let worker = owner(self.room, workers.len());
        let wanted = Wanted { role: self.role, worker, room: &rooms[self.room], announce };
        let agreed = answer::answer(identity, offer, wanted)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error))?;
        let full = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the session limit has been reached");
        let registration = table.admit(self.room, self.role).ok_or_else(full)?;
        let name = hex::encode(&registration.name);
        let sdp = agreed.sdp.clone();
        let (reply, receiver) = ReplySender::new(self.wake.clone());
        let join = Join { room: self.room, role: self.role, agreed, registration, reply };
        match workers[worker].try_send(Message::Join(Box::new(join))) {
            Ok(()) => Ok(State::Asking(receiver, sdp, format!("{}{name}", self.base))),
            Err(Rejected::Full(_) | Rejected::Closed(_)) => Err(busy()),
        }
    }

    fn refused(&mut self, refusal: Refusal) -> ResponseHead {
        let counters = &self.shared.counters;
        Whip::count(match refusal.status {
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => &counters.refused_offer,
            StatusCode::CONFLICT => &counters.refused_conflict,
            _ if refusal.headers.contains_key("retry-after") => &counters.refused_busy,
            _ => &counters.refused_full,
        });
        let (head, body) = refusal.head();
        (self.state, self.answer) = (State::Answered, body);
        head
    }

    fn answered(&mut self, heard: Result<(), Refused>, sdp: String, location: &str) -> ResponseHead {
        match heard {
            Err(Refused::Conflict) => {
                self.refused(Refusal::new(StatusCode::CONFLICT, "the room already has a publisher"))
            }
            Err(Refused::Full) => {
                let text = "the room's player limit has been reached";
                self.refused(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text))
            }
            Err(Refused::Busy) => self.refused(busy()),
            Ok(()) => {
                let Ok(location) = HeaderValue::try_from(location) else {
                    return self.refused(Refusal::new(
                        StatusCode::BAD_REQUEST,
                        "the URL contains characters that cannot be sent in Location",
                    ));
                };
                Whip::count(&self.shared.counters.answered);
                let mut headers = headers();
                headers.insert(LOCATION, location);
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(SDP));
                let (head, body) = head(StatusCode::CREATED, headers, Bytes::from(sdp));
                (self.state, self.answer) = (State::Answered, body);
                head
            }
        }
    }
}

impl ResponseSource for Offering {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if let State::Reading(..) = self.state {
            let asked = match self.poll_offer() {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(offer) => offer.and_then(|offer| self.ask(&offer)),
            };
            match asked {
                Ok(state) => self.state = state,
                Err(refusal) => return Poll::Ready(self.refused(refusal)),
            }
        }
        let State::Asking(receiver, ..) = &self.state else { return Poll::Pending };
        let Some(heard) = receiver.try_recv() else { return Poll::Pending };
        let State::Asking(_, sdp, location) = std::mem::replace(&mut self.state, State::Answered) else {
            return Poll::Pending;
        };
        Poll::Ready(self.answered(heard, sdp, &location))
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.answer.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.answer.len().min(max);
        Poll::Ready(Some(Ok(self.answer.split_to(length))))
    }

    fn remaining(&self) -> Option<u64> {
        matches!(self.state, State::Answered).then_some(self.answer.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_rooms_and_sessions() {
        let name = "000102030405060708090a0b0c0d0e0f";
        fn found(target: &str) -> Option<(Role, String, Option<Name>)> {
            Target::parse(target).map(|found| (found.role, found.room.into_owned(), found.name))
        }
        assert_eq!(found("/whip/studio"), Some((Role::Publish, "studio".into(), None)));
        assert_eq!(found("/whep/a%20room/?x=1"), Some((Role::Play, "a room".into(), None)));
        let octets: Name = std::array::from_fn(|index| index as u8);
        let session = found(&format!("/whip/studio/{name}"));
        assert_eq!(session, Some((Role::Publish, "studio".into(), Some(octets))));
        for wrong in ["", "/", "/whip", "/whip/", "/whop/a", "/whip/%ff", "whip/a", "/whip//a"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
        for wrong in ["00", &name[1..], "é00102030405060708090a0b0c0d0e0"] {
            assert_eq!(found(&format!("/whip/studio/{wrong}")), None, "{wrong}");
        }
        assert_eq!(found(&format!("/whip/studio/{name}/more")), None);
    }
}
