//! Fuzz targets as plain functions over bytes: they assert what must hold, and that it costs no more than it may.
//!
//! The binary `fuzz` hands libFuzzer's bytes to one of them, `tests/replay.rs` hands the committed corpus to all of them on
//! every `make test`. [`TARGETS`] is the list of both.

#![deny(unsafe_code)]

pub mod agent;
pub mod bridge;
pub mod cache;
pub mod capture;
pub mod cost;
pub mod fanout;
pub mod h3;
mod identity;
mod io;
mod meter;
pub mod moq;
pub mod mutate;
pub mod observe;
pub mod quic;
pub mod relay;
pub mod seeds;
pub mod sequence;
pub mod tcp;
pub mod web;
pub mod webrtc;
pub mod wire;

use cost::Bound;

/// A fuzz target.
pub struct Target {
    /// What it and its corpus folder are called.
    pub name: &'static str,
    /// What it does with an input.
    pub body: fn(&[u8]),
    /// What the body may cost, if all of it is measured; the others measure what they call.
    pub bound: Option<Bound>,
}

impl Target {
    const fn whole(name: &'static str, body: fn(&[u8]), bound: Bound) -> Self {
        Self { name, body, bound: Some(bound) }
    }

    const fn parts(name: &'static str, body: fn(&[u8])) -> Self {
        Self { name, body, bound: None }
    }

    /// The target of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs an input. Panics if something does not hold, or costs too much.
    pub fn run(&self, data: &[u8]) {
        match &self.bound {
            Some(bound) => cost::hold(bound, data.len(), || (self.body)(data)),
            None => (self.body)(data),
        }
    }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target::whole("wire_ethernet", wire::ethernet, wire::BOUND),
    Target::whole("wire_ipv4", wire::ipv4, wire::BOUND),
    Target::whole("wire_ipv6", wire::ipv6, wire::BOUND),
    Target::whole("wire_udp", wire::udp, wire::BOUND),
    Target::whole("wire_frame", wire::frame, wire::BOUND),
    Target::whole("wire_build", wire::build, wire::BOUND),
    Target::whole("wire_checksum", wire::checksum, wire::BOUND),
    Target::whole("h3_request", h3::request, h3::REQUEST),
    Target::whole("h3_control", h3::control, h3::CONTROL),
    Target::whole("h3_instructions", h3::instructions, h3::INSTRUCTIONS),
    Target::parts("h3_qpack", h3::qpack),
    Target::whole("h3_webtransport", h3::webtransport, h3::WEBTRANSPORT),
    Target::whole("sequence_mold", sequence::mold, sequence::MOLD),
    Target::parts("sequence_arbiter", sequence::arbiter),
    Target::whole("agent_request", agent::request, agent::BOUND),
    Target::whole("agent_reply", agent::reply, agent::BOUND),
    Target::whole("capture_replay", capture::replay, capture::BOUND),
    Target::parts("cache_policy", cache::policy),
    Target::whole("cache_record", cache::record, cache::RECORD),
    Target::whole("cache_store", cache::store, cache::STORE),
    Target::whole("tcp_proxy", tcp::proxy, tcp::PROXY),
    Target::whole("capture_text", observe::text, observe::TEXT),
    Target::parts("web_request", web::request),
    Target::parts("web_rules", web::rules),
    Target::parts("web_access_log", web::access_log),
    Target::parts("fanout_handshake", fanout::handshake),
    Target::parts("fanout_websocket", fanout::websocket),
    Target::parts("quic_endpoint", quic::endpoint),
    Target::whole("moq_message", moq::message, moq::MESSAGE),
    Target::parts("moq_session", quic::moq),
    Target::parts("relay_room", relay::room_of_rtp),
    Target::parts("relay_bridge", bridge::bridge),
    Target::whole("relay_demux", relay::demux, relay::DEMUX),
    Target::parts("relay_offer", relay::offer),
    Target::parts("webrtc_session", webrtc::session),
];
