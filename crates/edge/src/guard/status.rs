//! What the filter did, as documents show it.

use serde::Serialize;

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Whether packets that would be dropped pass.
    pub dry_run: bool,
    /// Where the program is.
    pub interfaces: Vec<InterfaceStatus>,
    /// Packets by what became of them and why.
    pub reasons: Vec<ReasonStatus>,
    /// By rule, in their order.
    pub rules: Vec<RuleStatus>,
    /// Entries of the allow and block lists.
    pub allowed: usize,
    /// Likewise.
    pub blocked: usize,
    /// Buckets that are in use, when last looked.
    pub buckets: usize,
    /// Sources that are banned, when last looked.
    pub bans: usize,
    /// Packets whose bucket found no room, so that they shared one.
    pub bucket_overflows: u64,
    /// Bans that found no room.
    pub ban_overflows: u64,
}

/// An interface.
#[derive(Clone, Debug, Serialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub interface: String,
    /// `native` or `generic`; `null` while the program is not on it.
    pub mode: Option<&'static str>,
}

/// A reason.
#[derive(Clone, Debug, Serialize)]
pub struct ReasonStatus {
    /// `pass` or `drop`.
    pub verdict: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A rule.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RuleStatus {
    /// Its name.
    pub rule: String,
    /// Packets that it was the first to match.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of those, what it dropped.
    pub dropped_packets: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
}
