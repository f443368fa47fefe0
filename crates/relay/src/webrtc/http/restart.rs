//! PATCH of a session (RFC 9725, section 4.3): an ICE restart, or more candidates. The relay does not need the
//! latter, because it is ICE-lite and learns the addresses of peers from their packets.

use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_netio::mailbox::Rejected;
use expressway_web::{ResponseHead, Wake};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderValue, StatusCode};
use str0m::IceCreds;

use super::counters::Reason;
use super::fragment::{Fragment, Matched, entity_tag, matched};
use super::refusal::{Refusal, head, headers};
use super::{FRAGMENT, Shared};
use crate::service::{Message, owner};
use crate::webrtc::crypto::random;
use crate::webrtc::table::{Entry, Name, Refused, ReplyReceiver, ReplySender, Restart};

/// Octets of a fragment at most: some tens of candidates.
pub(super) const LONGEST: usize = 16 << 10;

/// A session's ICE is to change.
pub(super) struct Restarting {
    name: Name,
    entry: Entry,
    /// It begins anew.
    is_anew: bool,
}

/// A restart that waits for the room's worker.
pub(super) struct Asked {
    name: Name,
    tag: Arc<str>,
    fragment: String,
}

impl Restarting {
    /// Of a session of that name, if the request is about its ICE session.
    pub(super) fn new(name: Name, entry: Entry, headers: &HeaderMap) -> Result<Self, Refusal> {
        let is_anew = match matched(headers, &entry.tag) {
            Matched::Current => false,
            Matched::Any => true,
            Matched::Other => {
                let text = "the ICE session has been restarted since: see ETag";
                return Err(Refusal::new(Reason::Stale, StatusCode::PRECONDITION_FAILED, text));
            }
            Matched::Missing => {
                let text = "If-Match is required: the ETag of the ICE session, or * to restart it";
                return Err(Refusal::new(Reason::Request, StatusCode::PRECONDITION_REQUIRED, text));
            }
        };
        Ok(Self { name, entry, is_anew })
    }

    /// Asks the room's worker to begin ICE anew; `None`: nothing is to be done.
    pub(super) fn ask(
        &self,
        shared: &Shared,
        text: &str,
        wake: &Wake,
    ) -> Result<Option<(ReplyReceiver, Asked)>, Refusal> {
        let refused = |text| Refusal::new(Reason::Offer, StatusCode::BAD_REQUEST, text);
        let Some(fragment) = Fragment::parse(text) else {
            return Err(refused("the fragment is not valid SDP"));
        };
        if !self.is_anew {
            return Ok(None);
        }
        let Some(theirs) = fragment.credentials.clone() else {
            return Err(refused("a restart needs ice-ufrag and ice-pwd"));
        };
        let worker = owner(self.entry.room, shared.workers.len());
        let own = IceCreds { ufrag: shared.identity.ufrags.issue(worker), pass: HEX.encode(&random::<16>()) };
        let answer = fragment.answer(&own, &shared.announce);
        let answer = answer.ok_or_else(|| refused("no candidate can be told"))?;
        let asked = Asked { name: self.name, tag: own.ufrag.as_str().into(), fragment: answer };
        let (reply, receiver) = ReplySender::new(wake.clone());
        let session = self.entry.number;
        let restart = Restart { session, credentials: (own, theirs), reply };
        match shared.workers[worker].try_send(Message::Restart(Box::new(restart))) {
            Ok(()) => Ok(Some((receiver, asked))),
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
        match heard {
            Ok(()) => {}
            Err(Refused::Gone) => return Err(Refusal::gone(Reason::Stale)),
            Err(_) => return Err(Refusal::busy()),
        }
        shared.table.set_tag(&self.name, &self.tag);
        shared.counters.restart();
        let mut headers = headers();
        headers.extend(entity_tag(&self.tag).map(|tag| (ETAG, tag)));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(FRAGMENT));
        Ok(head(StatusCode::OK, headers, Bytes::from(self.fragment)))
    }
}
