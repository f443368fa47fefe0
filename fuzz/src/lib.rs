//! Fuzz targets as plain functions over bytes: they assert what must hold and return nothing.
//!
//! The binaries in `fuzz_targets/` hand libFuzzer's bytes to them, `tests/replay.rs` hands them the committed
//! corpus on every `make test`. [`TARGETS`] is the list of both.

#![forbid(unsafe_code)]

pub mod agent;
pub mod capture;
pub mod h3;
pub mod seeds;
pub mod sequence;
pub mod wire;

/// A fuzz target: the name of its binary and corpus folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("wire_ethernet", wire::ethernet),
    ("wire_ipv4", wire::ipv4),
    ("wire_ipv6", wire::ipv6),
    ("wire_udp", wire::udp),
    ("wire_icmpv4", wire::icmpv4),
    ("wire_icmpv6", wire::icmpv6),
    ("wire_frame", wire::frame),
    ("wire_build", wire::build),
    ("wire_checksum", wire::checksum),
    ("h3_request", h3::request),
    ("h3_control", h3::control),
    ("h3_qpack", h3::qpack),
    ("sequence_mold", sequence::mold),
    ("sequence_arbiter", sequence::arbiter),
    ("agent_request", agent::request),
    ("agent_reply", agent::reply),
    ("capture_replay", capture::replay),
];
