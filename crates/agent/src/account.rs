//! Accounts for a client's UMEM memory for as long as it is pinned.
//!
//! A client may keep what it was given beyond its program, its connection, and even the socket, if one of its own
//! sockets shares the UMEM. So memory counts until the kernel reports that nothing uses it any more
//! ([`expressway_netio::xsk::is_released`]). That is checked when the limit would be exceeded.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use expressway_netio::xsk::is_released;

use crate::message::{Code, Refusal};
use crate::policy::Rule;
use crate::slots::ClientSlot;

/// The maximum number of UMEMs per client: each needs a descriptor. Enough for four interfaces of a thousand
/// queues.
const UMEMS: usize = 4096;
/// How many UMEMs still in use are checked at a time: the kernel takes 0.2 s for each.
const IN_USE: usize = 8;
/// Longest pause between two checks of what a disconnected client still holds.
const LONGEST: Duration = Duration::from_secs(2);

/// Memory that a socket was bound over.
struct Umem {
    memory: OwnedFd,
    bytes: u64,
    interface: String,
    queue: u32,
    /// The program that its socket belonged to is gone.
    retired: bool,
}

/// The memory of a client, also counted under its rule.
pub(crate) struct Account {
    umems: Vec<Umem>,
    slot: ClientSlot,
}

impl Account {
    pub(crate) fn new(slot: ClientSlot) -> Self {
        Self { umems: Vec::new(), slot }
    }

    /// The client's slot.
    pub(crate) fn slot(&self) -> &ClientSlot {
        &self.slot
    }

    fn held(&self) -> u64 {
        self.umems.iter().map(|umem| umem.bytes).sum()
    }

    /// Reserves `bytes` for a socket on a queue; [`Account::add`] or [`Account::put_back`] must follow.
    ///
    /// # Errors
    /// The rule does not allow that much.
    pub(crate) fn set_aside(
        &mut self,
        rule: &Rule,
        interface: &str,
        queue: u32,
        bytes: u64,
    ) -> Result<(), Refusal> {
        // A queue has one socket at a time: the previous one is gone or being closed.
        self.retire(|umem| umem.interface == interface && umem.queue == queue);
        self.try_set_aside(rule, bytes).or_else(|refusal| match self.reclaim() {
            true => self.try_set_aside(rule, bytes),
            false => Err(refusal),
        })
    }

    fn try_set_aside(&self, rule: &Rule, bytes: u64) -> Result<(), Refusal> {
        if self.umems.len() >= UMEMS {
            return Err(Refusal::new(Code::Memory, format!("a client may have at most {UMEMS} UMEMs")));
        }
        rule.check_memory(self.held().saturating_add(bytes))?;
        self.slot.take_memory(rule, bytes)
    }

    /// The socket was bound.
    pub(crate) fn add(&mut self, memory: OwnedFd, bytes: u64, interface: &str, queue: u32) {
        self.umems.push(Umem { memory, bytes, interface: interface.to_owned(), queue, retired: false });
    }

    /// The socket was not bound.
    pub(crate) fn put_back(&self, bytes: u64) {
        self.slot.give_memory(bytes);
    }

    /// The program on an interface is gone, and its sockets are useless.
    pub(crate) fn retire_all(&mut self, interface: &str) {
        self.retire(|umem| umem.interface == interface);
    }

    fn retire(&mut self, which: impl Fn(&Umem) -> bool) {
        self.umems.iter_mut().filter(|umem| which(umem)).for_each(|umem| umem.retired = true);
    }

    /// Whether there is memory that should become free soon.
    pub(crate) fn has_retired(&self) -> bool {
        self.umems.iter().any(|umem| umem.retired)
    }

    /// Removes free memory from the account and releases it: while it is held here its pages stay. True if
    /// there was any.
    pub(crate) fn reclaim(&mut self) -> bool {
        let before = self.umems.len();
        let (mut at, mut in_use) = (0, 0);
        while at < self.umems.len() && in_use < IN_USE {
            let umem = &self.umems[at];
            if !umem.retired {
                at += 1;
            } else if is_released(umem.memory.as_fd()) {
                self.slot.give_memory(self.umems.swap_remove(at).bytes);
            } else {
                (at, in_use) = (at + 1, in_use + 1);
            }
        }
        // Start with others next time.
        let looked_at = at.min(self.umems.len());
        self.umems.rotate_left(looked_at);
        self.umems.len() < before
    }

    /// Waits until all of it is free, which may be never; meanwhile the slot counts as that of a
    /// disconnected client.
    pub(crate) fn settle(mut self) {
        self.slot.leave();
        self.retire(|_| true);
        let mut pause = Duration::from_millis(1);
        while !self.umems.is_empty() {
            if !self.reclaim() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.slot.give_memory(self.held());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;
    use crate::policy::Policy;
    use crate::slots::ClientSlots;

    const PAGE: usize = 4096;

    /// Memory in use for as long as this lives: a writable mapping counts just like a socket.
    struct InUse(*mut core::ffi::c_void);

    impl Drop for InUse {
        #[allow(unsafe_code)]
        fn drop(&mut self) {
            // SAFETY: mapped by `memory` and referred to by nothing.
            unsafe { munmap(self.0, PAGE) }.unwrap();
        }
    }

    #[allow(unsafe_code)]
    fn memory() -> (OwnedFd, InUse) {
        let memory = memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, PAGE as u64).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that is free.
        let start = unsafe { mmap(std::ptr::null_mut(), PAGE, both, MapFlags::SHARED, &memory, 0) };
        (memory, InUse(start.unwrap()))
    }

    fn rule(memory: u64) -> Rule {
        Rule { memory, ..Policy::for_own(Vec::new(), false).rules[0].clone() }
    }

    #[test]
    fn what_a_client_has_counts_until_nothing_has_it() {
        let rule = rule(10);
        let mut account = Account::new(ClientSlot::alone());
        let (first, in_use) = memory();
        account.set_aside(&rule, "eth0", 0, 6).unwrap();
        account.add(first, 6, "eth0", 0);
        let refusal = account.set_aside(&rule, "eth0", 1, 6).unwrap_err();
        assert_eq!(refusal.code, Code::Memory);
        // Neither the end of its program nor another socket on its queue frees it.
        account.retire_all("eth0");
        assert!(account.set_aside(&rule, "eth0", 1, 6).is_err());
        assert!(account.set_aside(&rule, "eth0", 0, 6).is_err());
        drop(in_use);
        account.set_aside(&rule, "eth0", 1, 6).unwrap();
        assert!(!account.has_retired());
        account.put_back(6);
        account.set_aside(&rule, "eth0", 1, 10).unwrap();
    }

    #[test]
    fn what_is_not_known_to_go_is_not_asked_about() {
        let rule = rule(10);
        let mut account = Account::new(ClientSlot::alone());
        let (first, in_use) = memory();
        account.set_aside(&rule, "eth0", 0, 6).unwrap();
        account.add(first, 6, "eth0", 0);
        drop(in_use);
        assert!(
            account.set_aside(&rule, "eth0", 1, 6).is_err(),
            "its queue and its program are as they were"
        );
        account.set_aside(&rule, "eth0", 0, 6).unwrap();
    }

    #[test]
    fn memory_in_use_does_not_hide_what_is_free() {
        let rule = rule(1000);
        let mut account = Account::new(ClientSlot::alone());
        let mut held = Vec::new();
        for queue in 0..2 * IN_USE as u32 + 1 {
            let (memory, in_use) = memory();
            account.set_aside(&rule, "eth0", queue, 1).unwrap();
            account.add(memory, 1, "eth0", queue);
            held.push(in_use);
        }
        held.pop();
        account.retire_all("eth0");
        assert!((0..3).any(|_| account.reclaim()));
        assert_eq!(account.umems.len(), held.len());
    }

    #[test]
    fn a_client_that_is_gone_is_one_until_its_memory_is_free() {
        let (slots, policy, rule) =
            (Arc::new(ClientSlots::default()), Policy::for_own(Vec::new(), false), rule(10));
        let mut account = Account::new(slots.take(&policy, 0, &rule).unwrap());
        let (first, in_use) = memory();
        account.set_aside(&rule, "eth0", 0, 6).unwrap();
        account.add(first, 6, "eth0", 0);
        let leaving = std::thread::spawn(move || account.settle());
        // Another client gets the slot at once, but not the memory that is still in use.
        let mut next = loop {
            match slots.take(&policy, 0, &rule) {
                Ok(slot) => break Account::new(slot),
                Err(_) => std::thread::yield_now(),
            }
        };
        let refusal = next.set_aside(&rule, "eth0", 0, 6).unwrap_err();
        assert!(refusal.message.contains("disconnected ones included"), "{refusal}");
        drop(in_use);
        leaving.join().unwrap();
        next.set_aside(&rule, "eth0", 0, 6).unwrap();
    }
}
