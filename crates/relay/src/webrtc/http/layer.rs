//! The highest simulcast layer that a session may see, by RID. It is given as `layer` in the query of the offer, or
//! later as JSON at the session's `layer` resource, `{"encodingId": "h"}`. Without it, any layer.

use expressway_netio::mailbox::Rejected;
use http::StatusCode;
use serde::Deserialize;

use super::Shared;
use super::counters::Reason;
use super::refusal::Refusal;
use crate::service::{Message, owner};

/// Octets of a choice at most.
pub(super) const LONGEST: usize = 1024;
/// Characters of a RID (RFC 8852, section 3.1).
const RID: std::ops::RangeInclusive<usize> = 1..=16;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choice {
    encoding_id: Option<String>,
}

/// The layer in the query of a target.
pub(super) fn of_query(target: &str) -> Result<Option<String>, Refusal> {
    let Some((_, query)) = target.split_once('?') else { return Ok(None) };
    let rid = query.split('&').find_map(|pair| pair.strip_prefix("layer="));
    rid.map(|rid| checked(rid.into())).transpose()
}

fn checked(rid: String) -> Result<String, Refusal> {
    let is_rid = RID.contains(&rid.len()) && rid.bytes().all(|octet| octet.is_ascii_alphanumeric());
    let refused = || {
        let text = "a layer is named by its RID: 1 to 16 letters and digits";
        Refusal::new(Reason::Request, StatusCode::BAD_REQUEST, text)
    };
    is_rid.then_some(rid).ok_or_else(refused)
}

/// Tells the worker of a session, by room and number, what it asks for.
pub(super) fn set(shared: &Shared, (room, session): (usize, u64), text: &str) -> Result<(), Refusal> {
    let choice: Choice = serde_json::from_str(text).map_err(|_| {
        let text = "send JSON: {\"encodingId\": \"RID\"}, or {} for any layer";
        Refusal::new(Reason::Request, StatusCode::BAD_REQUEST, text)
    })?;
    let rid = choice.encoding_id.map(checked).transpose()?;
    let worker = &shared.workers[owner(room, shared.workers.len())];
    match worker.try_send(Message::Layer(session, rid.map(Into::into))) {
        Ok(()) => Ok(()),
        Err(Rejected::Full(_) | Rejected::Closed(_)) => Err(Refusal::busy()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_queries() {
        for (target, expected) in [
            ("/whep/studio", Some(None)),
            ("/whep/studio?x=1", Some(None)),
            ("/whep/studio?layer=h", Some(Some("h"))),
            ("/whep/studio?x=1&layer=low&y", Some(Some("low"))),
            ("/whep/studio?layer=", None),
            ("/whep/studio?layer=a%20b", None),
            ("/whep/studio?layer=12345678901234567", None),
        ] {
            let found = of_query(target);
            assert_eq!(found.as_ref().ok().map(Option::as_deref), expected, "{target}");
        }
    }
}
