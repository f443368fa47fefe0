//! Bindings that are added, removed, fail and are reopened while the worker runs.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::XskIo;
use crate::io::PacketIo;
use crate::wait::Wait;
use crate::xsk::binding::XskBinding;
use crate::xsk::config::HEADER_SPACE;
use crate::xsk::path_cache::Routes;
use crate::xsk::sender::Change;

/// Link notices and readers are looked for no oftener than this while there is nothing else to do.
const LINK_INTERVAL: Duration = Duration::from_millis(10);

impl<K: PacketIo, R: Routes> XskIo<K, R> {
    /// Adds and removes the bindings that the sender says.
    fn follow_sender(&mut self) {
        let changes = self.sender.take();
        let has_changed = !changes.is_empty();
        for change in changes {
            match change {
                Change::Add(mut binding) => {
                    binding.set_link(self.links.state(binding.ifindex()));
                    if let Err(error) = binding.set_wait(self.wait) {
                        tracing::warn!(%error, "cannot enable busy polling on the added socket");
                    }
                    self.bindings.push(*binding);
                    self.follow_binding(self.bindings.len() - 1);
                }
                Change::Remove { ifindex } => {
                    for mut binding in self.bindings.extract_if(.., |binding| binding.ifindex() == ifindex) {
                        binding.close();
                        binding.count(&mut self.stats);
                        self.lent += binding.lend_report();
                    }
                }
            }
        }
        if has_changed {
            self.tell_places();
        }
    }

    /// Has a binding that is new to the worker, or whose socket is, wake it, and makes room for what it may send.
    fn follow_binding(&mut self, index: usize) {
        let binding = &self.bindings[index];
        if binding.max_payload() > binding.max_in_frame()
            && self.staging.len() < HEADER_SPACE + binding.max_payload()
        {
            self.staging = vec![0; HEADER_SPACE + binding.max_payload()].into_boxed_slice();
        }
        // Who spins needs no wake-up, and one that is watched costs whoever delivers a packet.
        if !matches!(self.wait, Wait::Spin(_)) {
            binding.descriptor().into_iter().for_each(|fd| self.follow(fd));
        }
        binding.reader_events().into_iter().for_each(|fd| self.follow(fd));
    }

    /// Has a descriptor wake the worker.
    pub(super) fn follow(&self, fd: BorrowedFd<'_>) {
        // Failing (no memory) costs wake-ups by this one only; busy workers do not notice.
        let _ = epoll::add(&self.events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }

    /// Follows link changes, lets readers in, and opens failed sockets anew.
    pub(super) fn watch(&mut self, now: Instant) {
        self.follow_sender();
        if self.armed.is_some_and(|armed| armed <= now) {
            let mut expirations = [0u8; 8];
            // Nothing to read means that it has not fired yet, and it stays armed.
            if rustix::io::read(&self.timer, &mut expirations).is_ok() {
                self.armed = None;
            }
        }
        for index in 0..self.bindings.len() {
            if self.bindings[index].reopen(now) {
                self.follow_binding(index);
            }
        }
        if now.saturating_duration_since(self.links_checked) >= LINK_INTERVAL {
            self.links_checked = now;
            self.bindings.iter_mut().for_each(XskBinding::attend);
            if self.links.drain() {
                for binding in &mut self.bindings {
                    binding.set_link(self.links.state(binding.ifindex()));
                    if let Ok(mtu) = self.links.mtu(binding.ifindex()) {
                        binding.set_mtu(now, mtu);
                    }
                }
            }
        }
    }
}
