//! What the filter counted: names and meanings of its reasons.

use crate::counters::reasons;
use crate::skeleton::guard::types::{guard_count, guard_reason, guard_rule_count};

reasons! {
    /// What became of a packet and why. Each packet counts under exactly one.
    GuardReason: guard_reason::GUARD_REASONS, &'static str;

    /// Neither IPv4 nor IPv6, or no whole header of it.
    PassNotIp = GUARD_PASS_NOT_IP, "pass", "not_ip";
    /// Its source is on an allow list.
    PassAllowed = GUARD_PASS_ALLOWED, "pass", "allowed";
    /// A fragment behind the first, which no rule matches.
    PassFragment = GUARD_PASS_FRAGMENT, "pass", "fragment";
    /// A rule passes it.
    PassRule = GUARD_PASS_RULE, "pass", "rule";
    /// Within the limit of a rule.
    PassLimit = GUARD_PASS_LIMIT, "pass", "limit";
    /// No rule matches.
    PassDefault = GUARD_PASS_DEFAULT, "pass", "default";
    /// Over the limit of a rule in an attack, from a source that is known from before it.
    PassLearned = GUARD_PASS_LEARNED, "pass", "learned";
    /// A QUIC Initial packet without a token, answered by Retry.
    AnswerRetry = GUARD_ANSWER_RETRY, "answer", "retry";
    /// A TCP SYN, answered with a SYN cookie.
    AnswerSyn = GUARD_ANSWER_SYN, "answer", "syn_cookie";
    /// Its source is on a block list.
    DropBlocked = GUARD_DROP_BLOCKED, "drop", "blocked";
    /// Its source is banned for now.
    DropBanned = GUARD_DROP_BANNED, "drop", "banned";
    /// Its headers contradict themselves, or each other, or the frame's length.
    DropMalformed = GUARD_DROP_MALFORMED, "drop", "malformed";
    /// Its TCP flags exclude each other, or there are none.
    DropTcpFlags = GUARD_DROP_TCP_FLAGS, "drop", "tcp_flags";
    /// Its source is multicast, loopback, IPv4-mapped, or its own destination.
    DropAddress = GUARD_DROP_ADDRESS, "drop", "address";
    /// A fragment.
    DropFragment = GUARD_DROP_FRAGMENT, "drop", "fragment";
    /// A QUIC Initial packet in a datagram below 1200 bytes, or less than any QUIC packet.
    DropQuicInitial = GUARD_DROP_QUIC_INITIAL, "drop", "quic_initial";
    /// A QUIC version or connection ID that no client sends.
    DropQuicVersion = GUARD_DROP_QUIC_VERSION, "drop", "quic_version";
    /// A QUIC packet with a connection ID that no server issued.
    DropQuicConnection = GUARD_DROP_QUIC_CONNECTION, "drop", "quic_connection";
    /// A QUIC Initial packet with a token that is not valid, or not any more.
    DropQuicToken = GUARD_DROP_QUIC_TOKEN, "drop", "quic_token";
    /// A QUIC Initial packet without a token that could not be answered by Retry.
    DropQuicChallenge = GUARD_DROP_QUIC_CHALLENGE, "drop", "quic_challenge";
    /// A TCP SYN whose answer could not be written.
    DropSyn = GUARD_DROP_SYN, "drop", "syn";
    /// A TCP packet of no connection and without a SYN cookie, beyond what is left for the stack to refuse.
    DropTcpAck = GUARD_DROP_TCP_ACK, "drop", "tcp_ack";
    /// A rule drops it.
    DropRule = GUARD_DROP_RULE, "drop", "rule";
    /// Over the limit of a rule.
    DropLimit = GUARD_DROP_LIMIT, "drop", "limit";
    /// No rule matches.
    DropDefault = GUARD_DROP_DEFAULT, "drop", "default";
}

const _: () = {
    let mut index = 0;
    while index < GuardReason::ALL.len() {
        assert!(GuardReason::ALL[index] as usize == index, "the order differs from guard_shared.h");
        index += 1;
    }
    assert!(size_of::<guard_count>() == 16 && size_of::<guard_rule_count>() == 32);
};

impl GuardReason {
    /// Whether packets of this reason are dropped, or would be but for the dry run.
    pub fn drops(self) -> bool {
        self.verdict() == "drop"
    }

    /// Whether packets of this reason are answered in the place of a server, or would be but for the dry run.
    pub fn answers(self) -> bool {
        self.verdict() == "answer"
    }
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
}

impl std::ops::AddAssign for GuardCount {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// What a rule did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardRuleCount {
    /// All that it was the first to match.
    pub matched: GuardCount,
    /// Of those, what it dropped.
    pub dropped: GuardCount,
}

impl std::ops::AddAssign for GuardRuleCount {
    fn add_assign(&mut self, other: Self) {
        self.matched += other.matched;
        self.dropped += other.dropped;
    }
}

/// Sums the words of all CPUs; `None` if one has another size.
pub(super) fn sum<const N: usize>(cpus: &[Vec<u8>]) -> Option<[u64; N]> {
    let mut sum = [0u64; N];
    for value in cpus {
        let (words, rest) = value.as_chunks::<8>();
        if words.len() != N || !rest.is_empty() {
            return None;
        }
        for (total, word) in sum.iter_mut().zip(words) {
            *total = total.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn reasons_are_unique_with_their_verdict() {
        let names: HashSet<_> =
            GuardReason::ALL.iter().map(|reason| (reason.verdict(), reason.name())).collect();
        assert_eq!(names.len(), GuardReason::ALL.len());
    }

    #[test]
    fn cpus_are_summed_and_other_sizes_refused() {
        let cpu = [1u64, 2].map(u64::to_ne_bytes).concat();
        assert_eq!(sum::<2>(&[cpu.clone(), cpu.clone()]), Some([2, 4]));
        assert_eq!(sum::<3>(&[cpu]), None);
    }
}
