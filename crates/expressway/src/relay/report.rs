//! What a relay prints and shows: ready lines, statistics, metrics.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use expressway_dataplane::DataPath;
use expressway_metrics::{Metric, Sample};
use expressway_relay::Config;
use expressway_relay::moq::broadcast::Broadcast;
use expressway_relay::moq::room::Room;
use expressway_relay::moq::track::Track;
use expressway_relay::status::{DemuxCounters, RoomStatus};
use expressway_relay::webrtc::http::HttpCounters;
use serde_json::{Value, json};

use crate::fail::Failure;
use crate::metrics::counters_document;
use crate::notify;

/// Says that packets are relayed, one line a room.
pub(super) fn ready(as_json: bool, config: &Config, path: &DataPath) -> Result<(), Failure> {
    let modes = path.modes();
    let mut lines = String::new();
    for room in &config.rooms {
        let sessions = config.webrtc.as_ref().and_then(|webrtc| webrtc.listen.first());
        let sessions = sessions.filter(|_| room.whip || room.whep);
        let of_moq = config.moq.as_ref().and_then(|moq| moq.listen.first());
        let address = room.input.as_ref().or(sessions).or(of_moq);
        let mode = modes.iter().find(|(listen, _)| Some(listen) == address);
        let mode = mode.map_or_else(|| "udp".to_owned(), |(_, mode)| mode.to_string());
        let (name, receivers) = (&room.name, room.outputs.len());
        let input = room.input.map_or_else(|| "-".to_owned(), |input| input.to_string());
        lines += &match as_json {
            true => {
                let ready = json!({ "room": name, "rtp_in": room.input, "io": mode, "receivers": receivers });
                format!("{}\n", json!({ "ready": ready }))
            }
            false => format!("ready room={name} rtp_in={input} io={mode} receivers={receivers}\n"),
        };
    }
    notify::ready(&lines)
}

/// Everything as one JSON document.
pub(super) fn document(rooms: &[RoomStatus]) -> Value {
    let receiver = |receiver: &expressway_relay::status::ReceiverStatus| {
        json!({
            "address": receiver.address,
            "counters": counters_document(receiver.counters.load().fields()),
            "now": counters_document(receiver.gauges.load().fields()),
        })
    };
    let room = |room: &RoomStatus| {
        json!({
            "name": room.name,
            "counters": counters_document(room.counters.load().fields()),
            "now": counters_document(room.gauges.load().fields()),
            "webrtc": room.webrtc.as_ref().map(|webrtc| {
                json!({
                    "counters": counters_document(webrtc.counters.load().fields()),
                    "now": counters_document(webrtc.gauges.load().fields()),
                })
            }),
            "moq": room.moq.as_ref().map(|room| moq(room)),
            "moq_broadcast": room.bridge.as_ref().map(|bridge| {
                json!({
                    "path": bridge.path,
                    "counters": counters_document(bridge.counters.load().fields()),
                    "now": counters_document(bridge.gauges.load().fields()),
                })
            }),
            "receivers": room.receivers.iter().map(receiver).collect::<Vec<_>>(),
        })
    };
    json!({ "rooms": rooms.iter().map(room).collect::<Vec<_>>() })
}

/// What there is of Media over QUIC in a room.
fn moq(room: &Room) -> Value {
    let broadcast = |broadcast: &Arc<Broadcast>| {
        let track = |track: Arc<Track>| json!({ "name": track.name, "newest_group": track.newest() });
        json!({
            "path": broadcast.path,
            "hops": broadcast.hops.len(),
            "tracks": broadcast.tracks().into_iter().map(track).collect::<Vec<_>>(),
        })
    };
    json!({
        "counters": counters_document(room.counters.fields()),
        "now": counters_document(room.gauges.fields()),
        "cached_bytes": room.cached(),
        "broadcasts": room.broadcasts().iter().map(broadcast).collect::<Vec<_>>(),
    })
}

/// Prints statistics, as one line of JSON or as a table.
pub(super) fn print(as_json: bool, rooms: &[RoomStatus]) -> Result<(), Failure> {
    if as_json {
        return crate::print(&format!("{}\n", document(rooms)));
    }
    let mut out = String::new();
    for room in rooms {
        let (counters, now) = (room.counters.load(), room.gauges.load());
        let state = if now.publishing == 1 { "publishing" } else { "no publisher" };
        let _ = writeln!(
            out,
            "{}: {state}, {} packets, {} bytes, {} lost, jitter {} µs",
            room.name, counters.packets, counters.bytes, now.lost, now.jitter_microseconds
        );
        for field in
            counters.fields().iter().filter(|field| field.name.starts_with("dropped") && field.value > 0)
        {
            let _ = writeln!(out, "  {} {}", field.name, field.value);
        }
        if let Some(webrtc) = &room.webrtc {
            let (counters, now) = (webrtc.counters.load(), webrtc.gauges.load());
            let _ = writeln!(
                out,
                "  WebRTC: {} publish, {} play; {} sessions connected, {} packets, {} skipped",
                now.publishers, now.players, counters.connected, counters.packets, counters.skipped
            );
        }
        if let Some(moq) = &room.moq {
            let [sessions, broadcasts, _, subscriptions] = moq.gauges.fields().map(|field| field.value);
            let _ = writeln!(
                out,
                "  MoQ: {sessions} sessions, {broadcasts} broadcasts, {subscriptions} subscriptions; {} objects in, {} groups sent, {} \
                 skipped",
                moq.counters.objects.load(Relaxed),
                moq.counters.groups_sent.load(Relaxed),
                moq.counters.groups_skipped.load(Relaxed)
            );
        }
        if let Some(bridge) = &room.bridge {
            let (counters, now) = (bridge.counters.load(), bridge.gauges.load());
            let state = if now.announced == 1 { "announced" } else { "not announced" };
            let _ = writeln!(
                out,
                "  broadcast {}: {state}; {} frames in {} groups, {} lost",
                bridge.path, counters.frames, counters.groups, counters.frames_lost
            );
        }
        for receiver in &room.receivers {
            let (counters, now) = (receiver.counters.load(), receiver.gauges.load());
            let _ = writeln!(
                out,
                "  {:<47} {} packets, {} again, {} skipped, {} lost on the way",
                receiver.address.to_string(),
                counters.packets,
                counters.repairs,
                counters.skipped,
                now.lost
            );
        }
    }
    crate::print(&out)
}

/// Samples of a set of numbers, by the name of each behind `prefix`; `make` says of what kind they are.
fn named(
    prefix: &'static str,
    make: fn(String, &'static str, u64) -> Sample,
    fields: impl IntoIterator<Item = Metric>,
) -> impl Iterator<Item = Sample> {
    fields.into_iter().map(move |field| make(format!("{prefix}{}", field.name), field.help, field.value))
}

/// The metrics. `refused` is what was not handed over to a room's worker, by room.
pub(super) fn samples(rooms: &[RoomStatus], refused: &[u64], out: &mut Vec<Sample>) {
    for (room, refused) in rooms.iter().zip(refused) {
        let of_room = |sample: Sample| sample.label("room", &room.name);
        let mut counters = room.counters.load();
        counters.dropped_handover += refused;
        out.extend(named("relay_", Sample::counter, counters.fields()).map(of_room));
        out.extend(named("relay_", Sample::gauge, room.gauges.load().fields()).map(of_room));
        if let Some(webrtc) = &room.webrtc {
            let (counters, now) = (webrtc.counters.load(), webrtc.gauges.load());
            out.extend(named("relay_webrtc_", Sample::counter, counters.fields()).map(of_room));
            out.extend(named("relay_webrtc_now_", Sample::gauge, now.fields()).map(of_room));
        }
        if let Some(moq) = &room.moq {
            out.extend(named("relay_moq_", Sample::counter, moq.counters.fields()).map(of_room));
            out.extend(named("relay_moq_now_", Sample::gauge, moq.gauges.fields()).map(of_room));
            let help = "Bytes of groups that are kept.";
            out.push(of_room(Sample::gauge("relay_moq_now_cached_bytes", help, moq.cached() as u64)));
        }
        if let Some(bridge) = &room.bridge {
            let (counters, now) = (bridge.counters.load(), bridge.gauges.load());
            out.extend(named("relay_bridge_", Sample::counter, counters.fields()).map(of_room));
            out.extend(named("relay_bridge_", Sample::gauge, now.fields()).map(of_room));
        }
        for receiver in &room.receivers {
            let of_receiver = |sample| of_room(sample).label("receiver", receiver.address.to_string());
            let (counters, now) = (receiver.counters.load(), receiver.gauges.load());
            out.extend(named("relay_receiver_", Sample::counter, counters.fields()).map(of_receiver));
            out.extend(named("relay_receiver_", Sample::gauge, now.fields()).map(of_receiver));
        }
    }
}

/// The metrics of WebRTC that belong to no room.
pub(super) fn sessions(demux: &[DemuxCounters], http: &HttpCounters, there: usize, out: &mut Vec<Sample>) {
    for (worker, counters) in demux.iter().enumerate() {
        let of_worker = |sample: Sample| sample.label("worker", worker.to_string());
        out.extend(named("relay_demux_", Sample::counter, counters.fields()).map(of_worker));
    }
    out.push(Sample::gauge("relay_sessions", "Current WebRTC sessions.", there as u64));
    for (name, help, value) in http.fields() {
        out.push(Sample::counter(format!("relay_http_{name}"), help, value));
    }
}
