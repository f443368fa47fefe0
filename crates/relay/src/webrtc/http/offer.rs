//! Offers: each becomes a session with an answer, or is refused with the reason.

use std::net::IpAddr;

use bytes::Bytes;
use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_netio::mailbox::Rejected;
use expressway_web::{ResponseHead, Wake};
use http::header::{CONTENT_TYPE, ETAG, HeaderName, LINK, LOCATION};
use http::{HeaderValue, StatusCode};

use super::counters::Reason;
use super::fragment::entity_tag;
use super::refusal::{Refusal, head, headers};
use super::{SDP, Shared};
use crate::service::{Message, owner};
use crate::webrtc::answer::{self, Role, Wanted};
use crate::webrtc::table::{Join, Limit, Refused, ReplyReceiver, ReplySender};

/// The relation of the resource that says which layer a session sees (draft-murillo-whep-02, section 4.5.2).
const LAYER: &str = "urn:ietf:params:whep:ext:core:layer";

/// An offer.
pub(super) struct Offer {
    pub(super) room: usize,
    pub(super) role: Role,
    /// What the session's name follows in its URL.
    pub(super) base: String,
    /// Who sends it.
    pub(super) source: IpAddr,
    /// The highest layer that it asks for, by RID.
    pub(super) highest: Option<String>,
}

/// One that waits for the room's worker.
pub(super) struct Asked {
    sdp: String,
    location: String,
    tag: String,
    role: Role,
}

impl Offer {
    /// Agrees on a session, and asks the room's worker to have it.
    pub(super) fn ask(
        &self,
        shared: &Shared,
        offer: &str,
        wake: &Wake,
    ) -> Result<(ReplyReceiver, Asked), Refusal> {
        let Shared { rooms, announce, identity, table, workers, .. } = shared;
        // Before the offer is read, which costs more than all else.
        let registration = table.admit(self.room, self.role, self.source).map_err(refused)?;
        let worker = owner(self.room, workers.len());
        let (room, highest) = (&rooms[self.room], self.highest.as_deref());
        let wanted = Wanted { role: self.role, worker, room, announce, highest };
        let agreed = answer::answer(identity, offer, wanted)
            .map_err(|error| Refusal::new(Reason::Offer, StatusCode::BAD_REQUEST, error))?;
        table.set_tag(&registration.name, &agreed.ufrag);
        let (reply, receiver) = ReplySender::new(wake.clone());
        let asked = Asked {
            sdp: agreed.sdp.clone(),
            location: format!("{}{}", self.base, HEX.encode(&registration.name)),
            tag: agreed.ufrag.clone(),
            role: self.role,
        };
        let join = Join { room: self.room, role: self.role, agreed, registration, reply };
        match workers[worker].try_send(Message::Join(Box::new(join))) {
            Ok(()) => Ok((receiver, asked)),
            Err(Rejected::Full(_) | Rejected::Closed(_)) => Err(Refusal::busy()),
        }
    }
}

impl Asked {
    /// What the worker says.
    pub(super) fn answer(
        self,
        shared: &Shared,
        heard: Result<(), Refused>,
    ) -> Result<(ResponseHead, Bytes), Refusal> {
        heard.map_err(|refused| match refused {
            Refused::Conflict => {
                let text = "the room already has a publisher";
                Refusal::new(Reason::Conflict, StatusCode::CONFLICT, text)
            }
            Refused::Full => {
                let text = "the room's player limit has been reached";
                Refusal::new(Reason::Room, StatusCode::SERVICE_UNAVAILABLE, text).retry(FULL)
            }
            Refused::Busy | Refused::Gone => Refusal::busy(),
        })?;
        let mut headers = headers();
        let mut put = |name: HeaderName, value: &str| {
            let text = "the URL contains characters that cannot be sent in Location";
            let refusal = |_| Refusal::new(Reason::Offer, StatusCode::BAD_REQUEST, text);
            headers.insert(name, HeaderValue::try_from(value).map_err(refusal)?);
            Ok::<_, Refusal>(())
        };
        put(LOCATION, &self.location)?;
        if self.role == Role::Play {
            put(LINK, &format!("<{}/layer>; rel=\"{LAYER}\"", self.location))?;
        }
        headers.extend(entity_tag(&self.tag).map(|tag| (ETAG, tag)));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(SDP));
        shared.counters.answer();
        Ok(head(StatusCode::CREATED, headers, Bytes::from(self.sdp)))
    }
}

/// Seconds after which who found no place may ask again: sessions that never come are gone by then.
const FULL: &str = "10";

fn refused(limit: Limit) -> Refusal {
    let (reason, status, text) = match limit {
        Limit::Sessions => {
            (Reason::Full, StatusCode::SERVICE_UNAVAILABLE, "the session limit has been reached")
        }
        Limit::Publishers => {
            (Reason::Full, StatusCode::SERVICE_UNAVAILABLE, "the publisher limit has been reached")
        }
        Limit::Address => {
            (Reason::Address, StatusCode::TOO_MANY_REQUESTS, "too many sessions from your address")
        }
        Limit::AddressPublishers => {
            (Reason::Address, StatusCode::TOO_MANY_REQUESTS, "too many publishers from your address")
        }
    };
    Refusal::new(reason, status, text).retry(FULL)
}
