//! Ports that come, go, fail and open anew while the worker runs.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::ExpressIo;
use crate::express::config::HEADER_SPACE;
use crate::express::inlet::Change;
use crate::express::path_cache::Routes;
use crate::express::port::Port;
use crate::io::PacketIo;
use crate::wait::Wait;

/// Link notices and readers are looked for no oftener than this while there is nothing else to do.
const LINK_INTERVAL: Duration = Duration::from_millis(10);

impl<K: PacketIo, R: Routes> ExpressIo<K, R> {
    /// Adds and removes the ports that the inlet says.
    fn follow_inlet(&mut self) {
        for change in self.inlet.take() {
            match change {
                Change::Add(mut port) => {
                    port.set_link(self.links.state(port.ifindex()));
                    if let Err(error) = port.set_wait(self.wait) {
                        tracing::warn!(%error, "cannot enable busy polling on the added socket");
                    }
                    self.ports.push(*port);
                    self.follow_port(self.ports.len() - 1);
                }
                Change::Remove { ifindex } => {
                    for mut port in self.ports.extract_if(.., |port| port.ifindex() == ifindex) {
                        port.close();
                        port.count(&mut self.stats);
                        self.lent += port.lend_report();
                    }
                }
            }
        }
    }

    /// Has a port that is new to the worker, or whose socket is, wake it, and makes room for what it may send.
    fn follow_port(&mut self, index: usize) {
        let port = &self.ports[index];
        if port.max_payload() > port.max_in_frame() && self.staging.len() < HEADER_SPACE + port.max_payload()
        {
            self.staging = vec![0; HEADER_SPACE + port.max_payload()].into_boxed_slice();
        }
        // Who spins needs no wake-up, and one that is watched costs whoever delivers a packet.
        if !matches!(self.wait, Wait::Spin(_)) {
            port.descriptor().into_iter().for_each(|fd| self.follow(fd));
        }
        port.reader_events().into_iter().for_each(|fd| self.follow(fd));
    }

    /// Has a descriptor wake the worker.
    pub(super) fn follow(&self, fd: BorrowedFd<'_>) {
        // Failing (no memory) costs wake-ups by this one only; busy workers do not notice.
        let _ = epoll::add(&self.events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }

    /// Follows link changes, lets readers in, and opens failed sockets anew.
    pub(super) fn watch(&mut self, now: Instant) {
        self.follow_inlet();
        if self.armed.is_some_and(|armed| armed <= now) {
            let mut expirations = [0u8; 8];
            // Nothing to read means that it has not fired yet, and it stays armed.
            if rustix::io::read(&self.timer, &mut expirations).is_ok() {
                self.armed = None;
            }
        }
        for index in 0..self.ports.len() {
            if self.ports[index].reopen(now) {
                self.follow_port(index);
            }
        }
        if now.saturating_duration_since(self.links_checked) >= LINK_INTERVAL {
            self.links_checked = now;
            self.ports.iter_mut().for_each(Port::attend);
            if self.links.drain() {
                for port in &mut self.ports {
                    port.set_link(self.links.state(port.ifindex()));
                    if let Ok(mtu) = self.links.mtu(port.ifindex()) {
                        port.set_mtu(now, mtu);
                    }
                }
            }
        }
    }
}
