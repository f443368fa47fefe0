//! WHIP (RFC 9725) and WHEP (draft-ietf-wish-whep): a client posts an offer, and gets an answer and a URL that ends the session.
//!
//! ```text
//!  POST   /whip/ROOM             offer to publish        201, Location: /whip/ROOM/NAME, ETag, answer
//!  POST   /whep/ROOM?layer=RID   offer to receive        201, Location: /whep/ROOM/NAME, ETag, answer
//!  PATCH  /whip/ROOM/NAME        restarts ICE            200, ETag, credentials     (RFC 9725, section 4.3)
//!  DELETE /whip/ROOM/NAME        ends the session        200
//!  POST   /whep/ROOM/NAME/layer  the layer that it sees  204
//! ```
//!
//! Offers are read and answered on the HTTP workers, so no SDP parser runs where packets do. A room's worker gets sessions whose offer has
//! been answered.
//!
//! * `target`: what a request is about; `refusal`, `counters`: why it is refused.
//! * `call`: a request with a body; `offer`, `restart` with `fragment`, `layer`: the kinds of such requests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use expressway_netio::Mailbox;
use expressway_web::{
    Exchange, Handler, RequestBody, RequestHead, TokenKey, TokenKeys, TokenRule, Wake, bearer,
};
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode};

use super::answer::{Identity, Role};
use super::sdp;
use super::table::{Entry, Name, SessionTable};
use crate::config::{Config, Room};
use crate::service::{Message, owner};

mod call;
mod counters;
mod fragment;
mod layer;
mod offer;
mod refusal;
mod restart;
mod target;

pub use counters::HttpCounters;

use call::{Call, Work};
use counters::Reason;
use refusal::{Refusal, headers, preflight};
use target::Target;

const SDP: &str = "application/sdp";
const FRAGMENT: &str = "application/trickle-ice-sdpfrag";

/// What requests are answered by.
#[derive(Debug)]
pub struct Whip {
    by_name: HashMap<String, usize>,
    token: Option<TokenRule>,
    shared: Arc<Shared>,
}

/// What requests need until they are answered.
#[derive(Debug)]
struct Shared {
    rooms: Vec<Room>,
    announce: Vec<SocketAddr>,
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
            token: (!keys.is_empty()).then(|| TokenRule {
                name: "token".into(),
                keys: TokenKeys::new(keys),
                set_cookie: false,
            }),
            shared: Arc::new(Shared { rooms, announce, identity, table, workers, counters }),
        })
    }

    /// Whether the request has a token that is good for its room.
    fn is_authorized(&self, request: &RequestHead, target: &Target<'_>) -> bool {
        let Some(rule) = &self.token else { return true };
        let path = format!("/{}/{}", target.word(), target.room);
        let token = bearer(&request.headers).and_then(|token| std::str::from_utf8(token).ok());
        token.is_some_and(|token| rule.permits(token, &path, request.remote.ip()))
    }

    fn refuse(&self, request: &RequestHead, refusal: Refusal) -> Exchange {
        self.shared.counters.refuse(refusal.reason);
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

    /// The session of that name, if it is in that room.
    fn session(&self, target: &Target<'_>, name: &Name) -> Result<Entry, Refusal> {
        let entry = self.shared.table.find(name).filter(|entry| {
            entry.role == target.role && self.by_name.get(&*target.room) == Some(&entry.room)
        });
        entry.ok_or_else(|| Refusal::gone(Reason::Request))
    }

    /// What is asked by a request with a body, of up to so many octets.
    fn work(&self, request: &RequestHead, target: &Target<'_>) -> Result<(Work, usize), Refusal> {
        match target.name {
            None => {
                let Some(room) = self.find(target) else {
                    return Err(Refusal::new(Reason::Request, StatusCode::NOT_FOUND, "no such room"));
                };
                expect(&request.headers, SDP, "accept-post")?;
                let path = request.target.split('?').next().unwrap_or_default();
                let work = Work::Offer(offer::Offer {
                    room,
                    role: target.role,
                    base: format!("{}/", path.trim_end_matches('/')),
                    source: request.remote.ip(),
                    highest: layer::of_query(&request.target)?.filter(|_| target.role == Role::Play),
                });
                Ok((work, sdp::LONGEST))
            }
            Some(name) => {
                let entry = self.session(target, &name)?;
                if target.is_layer {
                    expect(&request.headers, "application/json", "accept-post")?;
                    return Ok((Work::Layer(entry.room, entry.number), layer::LONGEST));
                }
                expect(&request.headers, FRAGMENT, "accept-patch")?;
                let restarting = restart::Restarting::new(name, entry, &request.headers)?;
                Ok((Work::Restart(restarting), restart::LONGEST))
            }
        }
    }

    fn delete(&self, request: &RequestHead, target: &Target<'_>, name: Name) -> Exchange {
        let entry = match self.session(target, &name) {
            Ok(entry) => entry,
            Err(refusal) => return self.refuse(request, refusal),
        };
        let workers = &self.shared.workers;
        let worker = &workers[owner(entry.room, workers.len())];
        if worker.try_send(Message::Leave(entry.room, entry.number)).is_err() {
            return self.refuse(request, Refusal::busy());
        }
        Exchange::fixed(&request.method, StatusCode::OK, headers(), Bytes::new())
    }
}

/// The media type that a request has to have.
fn expect(headers: &HeaderMap, wanted: &'static str, accept: &'static str) -> Result<(), Refusal> {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let found = found.and_then(|value| value.split(';').next());
    if found.is_some_and(|value| value.trim().eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let refusal = Refusal::new(Reason::Request, status, format!("send {wanted}"));
    Err(refusal.with(HeaderName::from_static(accept), wanted))
}

impl Handler for Whip {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        let Some(target) = Target::parse(&request.target) else {
            let text = "not found: WHIP is at /whip/ROOM, WHEP at /whep/ROOM";
            return self.refuse(request, Refusal::new(Reason::Request, StatusCode::NOT_FOUND, text));
        };
        let allowed = target.methods();
        if request.method == Method::OPTIONS {
            return preflight(allowed);
        }
        // What may be asked is nobody's secret; whether a room is there is told to those who may use it.
        if !allowed.split(", ").any(|method| request.method == method) {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let refusal = Refusal::new(Reason::Request, status, "method not allowed");
            return self.refuse(request, refusal.with(ALLOW, allowed));
        }
        if !self.is_authorized(request, &target) {
            let text = "a valid token for this room is required";
            let refusal = Refusal::new(Reason::Token, StatusCode::UNAUTHORIZED, text);
            return self.refuse(request, refusal.with(WWW_AUTHENTICATE, "Bearer"));
        }
        if let Some(name) = target.name.filter(|_| request.method == Method::DELETE) {
            return self.delete(request, &target, name);
        }
        let (work, longest) = match self.work(request, &target) {
            Ok(work) => work,
            Err(refusal) => return self.refuse(request, refusal),
        };
        if body.length().is_some_and(|length| length > longest as u64) {
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return self.refuse(request, Refusal::new(Reason::Request, status, "the body is too long"));
        }
        Exchange::new(Box::new(Call::new(Arc::clone(&self.shared), work, (body, longest), wake)))
    }
}
