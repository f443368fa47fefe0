//! Silent peers.
//!
//! A publisher that vanishes must make room for another long before QUIC's idle timeout. While it has broadcasts and is silent, it is
//! probed for a sign of life, and closed if none comes. A peer that acknowledges nothing keeps in memory what is sent to it, so it is closed
//! too, however much it sends.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use expressway_gateway::quic::Turn;
use expressway_web::memory::Account;

use super::Session;
use crate::moq::wire::session_code;

/// A silent publisher is asked so many times before it is gone.
const PROBES: u32 = 3;

/// How long a peer may acknowledge nothing of what is on its way.
pub(super) const STALL: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// When it is to be looked whether the publisher was heard.
    probe: Option<Instant>,
    /// When it is to be looked whether something has arrived, and what had before.
    stall: Option<(Instant, u64)>,
}

impl Silence {
    /// After a turn: something may be on its way now, or nothing.
    pub(super) fn watch(&mut self, account: &Account, now: Instant) {
        match account.in_flight() {
            0 => self.stall = None,
            _ if self.stall.is_none() => self.stall = Some((now + STALL, account.arrived())),
            _ => {}
        }
    }

    /// The peer publishes: it is to be heard from.
    pub(super) fn expect(&mut self, timeout: Duration, now: Instant) {
        self.probe.get_or_insert(now + timeout / PROBES);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.probe, self.stall.map(|(at, _)| at)].into_iter().flatten().min()
    }

    /// Nothing has arrived for so long although something is on its way.
    fn is_stalled(&mut self, account: &Account, now: Instant) -> bool {
        let Some((at, arrived)) = self.stall.filter(|(at, _)| *at <= now) else { return false };
        let is_stalled = account.arrived() == arrived;
        self.stall = Some((at.max(now) + STALL, account.arrived()));
        is_stalled
    }
}

/// What is to be done about a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Look again then.
    Heard(Instant),
    /// Ask for a sign of life.
    Silent,
    /// It is gone.
    Vanished,
}

fn verdict(heard: Instant, timeout: Duration, now: Instant) -> Verdict {
    let silent = now.saturating_duration_since(heard);
    match silent {
        _ if silent >= timeout => Verdict::Vanished,
        _ if silent >= timeout / PROBES => Verdict::Silent,
        _ => Verdict::Heard(heard + timeout / PROBES),
    }
}

impl Session {
    /// Looks at what is due. True: there is more to do, for another turn.
    pub(super) fn handle_silence(&mut self, turn: &mut Turn<'_>) -> bool {
        let now = turn.now();
        if self.silence.is_stalled(&self.account, now) {
            self.count(|counters| &counters.ended_stalled);
            turn.transport().close(session_code::TIMEOUT, "nothing was acknowledged");
            return false;
        }
        if self.silence.probe.is_none_or(|at| at > now) {
            return false;
        }
        self.silence.probe = None;
        if self.broadcasts.is_empty() {
            return false;
        }
        let timeout = self.moq.sessions.publisher_timeout;
        match verdict(turn.heard(), timeout, now) {
            Verdict::Heard(next) => self.silence.probe = Some(next),
            Verdict::Silent => {
                turn.transport().ping();
                self.silence.probe = Some((turn.heard() + timeout).min(now + timeout / PROBES));
            }
            Verdict::Vanished => {
                self.count(|counters| &counters.ended_vanished);
                tracing::debug!(remote = %turn.remote(), "MoQ: a publisher is not heard from any more");
                turn.transport().close(session_code::TIMEOUT, "not heard from");
                // Others may publish in its place at once; the rest goes with the connection.
                self.retract_all(turn);
                while let Some(former) = self.replaced.front() {
                    if !former.close_one() {
                        self.replaced.pop_front();
                    }
                    if turn.spend() {
                        break;
                    }
                }
            }
        }
        false
    }

    fn count(&self, counter: impl FnOnce(&crate::status::MoqCounters) -> &std::sync::atomic::AtomicU64) {
        if let Some(access) = &self.access {
            counter(&access.room.counters).fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::memory::Memory;

    use super::*;

    #[test]
    fn a_publisher_is_asked_before_it_is_gone() {
        let (heard, timeout) = (Instant::now(), Duration::from_secs(6));
        let at = |seconds: u64| verdict(heard, timeout, heard + Duration::from_secs(seconds));
        assert_eq!(at(1), Verdict::Heard(heard + Duration::from_secs(2)));
        assert_eq!([at(2), at(4), at(5)], [Verdict::Silent; 3]);
        assert_eq!([at(6), at(60)], [Verdict::Vanished; 2]);
    }

    #[test]
    fn who_acknowledges_nothing_is_stalled_and_who_does_is_not() {
        let account = Account::new(&Memory::new(1 << 20).ledger(), 1 << 20, 1 << 20);
        let (mut silence, start) = (Silence::default(), Instant::now());
        silence.watch(&account, start);
        assert_eq!(silence.deadline(), None, "nothing is on its way");
        let [first, second] = [(); 2].map(|()| account.own(vec![0; 1000]));
        silence.watch(&account, start);
        assert_eq!(silence.deadline(), Some(start + STALL));
        assert!(!silence.is_stalled(&account, start + STALL / 2));
        drop(first);
        assert!(!silence.is_stalled(&account, start + STALL), "some has arrived");
        assert!(silence.is_stalled(&account, start + 2 * STALL));
        drop(second);
        silence.watch(&account, start + 2 * STALL);
        assert_eq!(silence.deadline(), None);
    }
}
