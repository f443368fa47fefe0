//! Writes outgoing messages: what begins a stream, and what answers on one.

use expressway_h3::varint;

use super::{Announce, Group, MAX_HOPS, TrackInfo, Wishes, data, request};

/// Appends a message, its length in front.
pub(super) fn message(out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    fields(&mut body);
    varint::write(body.len() as u64, out);
    out.append(&mut body);
}

fn text(value: &str, out: &mut Vec<u8>) {
    varint::write(value.len() as u64, out);
    out.extend_from_slice(value.as_bytes());
}

/// The stream that says what this side is: nothing that a peer would need to know.
pub fn setup() -> Vec<u8> {
    let mut out = vec![data::SETUP as u8];
    message(&mut out, |body| varint::write(0, body));
    out
}

/// The head of a group's stream.
pub fn group(group: Group) -> Vec<u8> {
    let mut out = vec![data::GROUP as u8];
    message(&mut out, |body| {
        varint::write(group.subscription, body);
        varint::write(group.sequence, body);
    });
    out
}

/// The request for all announcements but those that passed the hop `own`.
pub fn announce_request(own: u64) -> Vec<u8> {
    let mut out = vec![request::ANNOUNCE as u8];
    message(&mut out, |body| {
        text("", body);
        varint::write(own, body);
    });
    out
}

/// ANNOUNCE_OK of the hop `own`, and how many announcements follow at once.
pub fn announce_ok(own: u64, active: u64, out: &mut Vec<u8>) {
    message(out, |body| {
        varint::write(own, body);
        varint::write(active, body);
    });
}

/// ANNOUNCE_BROADCAST.
pub fn announce(announce: &Announce<'_>, out: &mut Vec<u8>) {
    message(out, |body| {
        body.push(u8::from(announce.is_active));
        text(announce.suffix, body);
        let hops = &announce.hops[..announce.hops.len().min(MAX_HOPS)];
        varint::write(hops.len() as u64, body);
        hops.iter().for_each(|hop| varint::write(*hop, body));
    });
}

/// The request for what a track is like.
pub fn track(broadcast: &str, track: &str) -> Vec<u8> {
    let mut out = vec![request::TRACK as u8];
    message(&mut out, |body| {
        text(broadcast, body);
        text(track, body);
    });
    out
}

/// TRACK_INFO.
pub fn track_info(info: TrackInfo) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, |body| {
        body.extend([info.priority, 0]);
        varint::write(info.max_age, body);
        varint::write(info.timescale, body);
    });
    out
}

/// The request for a track.
pub fn subscribe(id: u64, broadcast: &str, track: &str, wishes: Wishes) -> Vec<u8> {
    let mut out = vec![request::SUBSCRIBE as u8];
    message(&mut out, |body| {
        varint::write(id, body);
        text(broadcast, body);
        text(track, body);
        body.extend([wishes.priority, 0]);
        varint::write(wishes.max_age, body);
        for bound in [wishes.start, wishes.end] {
            varint::write(bound.map_or(0, |bound| bound.saturating_add(1).min(varint::MAX)), body);
        }
    });
    out
}

/// The stream that says that the session is to end, and to go nowhere else.
pub fn goaway() -> Vec<u8> {
    let mut out = vec![request::GOAWAY as u8];
    message(&mut out, |body| text("", body));
    out
}
