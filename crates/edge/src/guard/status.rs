//! What the filter did, as documents.

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
    /// QUIC packets passed on with connection IDs that no server issued.
    pub unknown_ids: u64,
    /// QUIC Initial packets with a valid token.
    pub tokens: u64,
    /// Samples by reason; empty if nothing is sampled.
    pub sampling: Vec<SamplingStatus>,
    /// Lists in files and with servers.
    pub lists: Vec<ListStatus>,
    /// What is known of sources; `null` if nothing is learned.
    pub learn: Option<LearnStatus>,
    /// What became of samples that were taken; `null` if nothing is sampled.
    pub capture: Option<CaptureStatus>,
}

/// A list in a file, or with a server.
#[derive(Clone, Debug, Serialize)]
pub struct ListStatus {
    /// `allow` or `block`.
    pub list: &'static str,
    /// The file or the URL.
    pub source: String,
    /// Its entries, each once.
    pub entries: usize,
    /// Seconds since it was last read, or known to be current; `null` if it never was.
    pub age_seconds: Option<u64>,
    /// How often it could not be had, or was refused.
    pub failures: u64,
    /// Why, the last time, if that goes on.
    pub error: Option<String>,
}

/// Sources that are known from before an attack.
#[derive(Clone, Debug, Serialize)]
pub struct LearnStatus {
    /// Whether there is one.
    pub attack: bool,
    /// Sources that are preferred then, when last counted.
    pub learned: usize,
    /// Sources that are not yet.
    pub candidates: usize,
    /// Proofs of any source that its address is its own.
    pub proofs: u64,
    /// New sources that were added.
    pub added: u64,
    /// New sources in an attack, which were not.
    pub late: u64,
    /// New sources that found no room.
    pub full: u64,
    /// Why they were not written the last time.
    pub error: Option<String>,
}

/// Files of samples.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CaptureStatus {
    /// Samples that they have.
    pub written: u64,
    /// Samples that could not be written.
    pub unwritten: u64,
    /// Whether that goes on.
    pub failing: bool,
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
    /// `pass`, `answer` or `drop`.
    pub verdict: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Samples of packets that were dropped for a reason.
#[derive(Clone, Debug, Serialize)]
pub struct SamplingStatus {
    /// Why.
    pub reason: &'static str,
    /// Samples that were taken.
    pub taken: u64,
    /// Those that the rate left out.
    pub limited: u64,
    /// Those that buffers had no room for.
    pub lost: u64,
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
