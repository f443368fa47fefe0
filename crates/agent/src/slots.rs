//! The slots of a rule's clients, and what all clients of a rule hold together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::message::{Code, Refusal};
use crate::policy::{Policy, Rule};
use crate::rate::{Bucket, Rate};

/// Rate of requests of the clients of a rule. A server with a hundred queues and as many workers makes a
/// thousand requests at start, and a few per second afterwards.
const REQUESTS: Rate = Rate { burst: 4096, interval: Duration::from_millis(2) };
/// Rate of programs attached and detached: each takes the kernel's lock for all network settings, and some
/// drivers reset the link.
const PROGRAMS: Rate = Rate { burst: 64, interval: Duration::from_millis(500) };

/// What the clients of a rule hold.
#[derive(Debug, Default)]
struct Use {
    /// Connected clients.
    clients: u32,
    /// Disconnected clients that still hold something.
    leaving: u32,
    /// Bytes of UMEM of all of them.
    memory: u64,
    requests: Bucket,
    programs: Bucket,
}

/// The slots of all rules.
#[derive(Debug, Default)]
pub(crate) struct ClientSlots {
    rules: Mutex<HashMap<usize, Use>>,
}

impl ClientSlots {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Use>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for another client of a rule.
    ///
    /// # Errors
    /// None is free.
    pub(crate) fn take(
        self: &Arc<Self>,
        policy: &Policy,
        index: usize,
        rule: &Rule,
    ) -> Result<ClientSlot, Refusal> {
        let mut rules = self.lock();
        let all: u32 = rules.values().map(|of| of.clients).sum();
        let here = rules.entry(index).or_default();
        let full = |what: String| Err(Refusal::new(Code::Clients, what));
        if here.clients >= rule.clients {
            return full(format!(
                "rule `{}`: already has its maximum of {} clients",
                rule.name, rule.clients
            ));
        }
        if here.clients + here.leaving >= rule.clients * 2 {
            return full(format!(
                "rule `{}`: {} disconnected clients still hold AF_XDP sockets or memory",
                rule.name, here.leaving
            ));
        }
        if all >= policy.clients {
            return full(format!("the agent already has its maximum of {} clients", policy.clients));
        }
        here.clients += 1;
        Ok(ClientSlot { index, slots: Arc::clone(self), is_leaving: false })
    }
}

/// A client's slot under its rule.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    index: usize,
    slots: Arc<ClientSlots>,
    is_leaving: bool,
}

impl ClientSlot {
    /// A slot that is not counted with others.
    pub(crate) fn alone() -> Self {
        let slots = Arc::new(ClientSlots::default());
        slots.lock().entry(0).or_default().clients = 1;
        Self { index: 0, slots, is_leaving: false }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Use) -> T) -> T {
        change(self.slots.lock().entry(self.index).or_default())
    }

    /// Counts memory of this client, within the limit for all clients of the rule.
    pub(crate) fn take_memory(&self, rule: &Rule, bytes: u64) -> Result<(), Refusal> {
        let most = rule.memory.saturating_mul(rule.clients.into());
        self.change(|of| {
            let wanted = of.memory.saturating_add(bytes);
            if wanted > most {
                let what = format!(
                    "rule `{}`: {wanted} bytes of UMEM for all of its clients, disconnected ones \
                     included, exceed its total memory ({most})",
                    rule.name
                );
                return Err(Refusal::new(Code::Memory, what));
            }
            of.memory = wanted;
            Ok(())
        })
    }

    /// Gives it back.
    pub(crate) fn give_memory(&self, bytes: u64) {
        self.change(|of| of.memory = of.memory.saturating_sub(bytes));
    }

    /// How long the next request has to wait.
    pub(crate) fn request(&self, now: Instant) -> Duration {
        self.change(|of| of.requests.take(REQUESTS, now))
    }

    /// How long the next program has to wait.
    pub(crate) fn program(&self, now: Instant) -> Duration {
        self.change(|of| of.programs.take(PROGRAMS, now))
    }

    /// The client is gone: its slot is free for another, and what it still holds keeps counting.
    pub(crate) fn leave(&mut self) {
        self.is_leaving = true;
        self.change(|of| {
            of.clients = of.clients.saturating_sub(1);
            of.leaving += 1;
        });
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let is_leaving = self.is_leaving;
        self.change(|of| {
            let count = if is_leaving { &mut of.leaving } else { &mut of.clients };
            *count = count.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(clients: u32) -> Rule {
        Rule { clients, memory: 100, ..Policy::for_own(Vec::new(), false).rules[0].clone() }
    }

    fn policy(clients: u32) -> Policy {
        Policy { clients, ..Policy::for_own(Vec::new(), false) }
    }

    #[test]
    fn slots_are_bounded_per_rule_and_in_all() {
        let (slots, policy) = (Arc::new(ClientSlots::default()), policy(3));
        let take = |index, clients| slots.take(&policy, index, &rule(clients));
        let first = take(0, 1).unwrap();
        assert!(take(0, 1).unwrap_err().message.contains("its maximum of 1 clients"));
        let others = [take(1, 5).unwrap(), take(1, 5).unwrap()];
        assert!(take(1, 5).unwrap_err().message.contains("the agent already has its maximum of 3 clients"));
        drop((first, others));
        let _again = take(1, 5).unwrap();
    }

    #[test]
    fn those_that_are_gone_and_keep_something_are_as_many_as_those_that_are_there() {
        let (slots, policy) = (Arc::new(ClientSlots::default()), policy(64));
        let take = || slots.take(&policy, 0, &rule(2));
        let mut gone: Vec<ClientSlot> = (0..2).map(|_| take().unwrap()).collect();
        gone.iter_mut().for_each(ClientSlot::leave);
        let mut there: Vec<ClientSlot> = (0..2).map(|_| take().unwrap()).collect();
        assert!(take().is_err());
        let mut third = there.remove(0);
        third.leave();
        let refusal = take().unwrap_err();
        assert!(refusal.message.contains("3 disconnected clients still hold"), "{refusal}");
        drop(gone);
        let _slot = take().unwrap();
    }

    #[test]
    fn memory_counts_for_all_clients_of_a_rule_and_beyond_their_end() {
        let (slots, policy, two) = (Arc::new(ClientSlots::default()), policy(64), rule(2));
        let mut first = slots.take(&policy, 0, &two).unwrap();
        first.take_memory(&two, 100).unwrap();
        first.leave();
        let second = slots.take(&policy, 0, &two).unwrap();
        second.take_memory(&two, 100).unwrap();
        assert_eq!(second.take_memory(&two, 1).unwrap_err().code, Code::Memory);
        first.give_memory(100);
        drop(first);
        second.take_memory(&two, 1).unwrap();
    }
}
