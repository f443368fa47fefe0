//! Sends queued messages: in which calls, which are refused, and which wait for room in a socket's buffer.

use rustix::event::epoll;

use super::{UdpIo, fault};
use crate::io::IoError;
use crate::udp::config::SendMode;
use crate::udp::errors::{Verdict, blames_gso, judge};

/// Messages given to one `sendmmsg`.
pub(super) const SEND_BATCH: usize = 64;

/// Datagrams taken from a caller whose address no socket serves.
const REFUSED_BURST: usize = 64;

impl UdpIo {
    /// Sends what waits for one socket. What is left afterwards waits for room.
    pub(super) fn flush_socket(&mut self, index: usize) -> Result<(), IoError> {
        let limit = if self.mode == SendMode::Sendmsg { 1 } else { SEND_BATCH };
        let mut retried = false;
        while self.outbox.front(index).is_some() {
            let socket = &self.sockets[index];
            let gso = socket.gso;
            self.stats.tx_syscalls += 1;
            match self.send.send(socket.fd(), self.outbox.outgoing(index, gso), limit) {
                Ok(count) => {
                    retried = false;
                    self.account_sent(index, count, gso);
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(0);
                    match judge(errno) {
                        Verdict::Again => {}
                        Verdict::Full => {
                            self.wait_for_room(index);
                            return Ok(());
                        }
                        Verdict::Stale if !retried => {
                            retried = true;
                            self.drain_errors(index);
                        }
                        Verdict::Stale | Verdict::Refused => {
                            retried = false;
                            self.handle_refusal(index, errno);
                        }
                        Verdict::Fatal => return Err(fault(socket, "sendmmsg", error)),
                    }
                }
            }
        }
        self.stop_waiting(index);
        Ok(())
    }

    fn account_sent(&mut self, index: usize, units: usize, gso: bool) {
        for _ in 0..units {
            let unit = self.outbox.advance(index, gso);
            self.stats.tx_kernel_packets += unit.datagrams as u64;
            self.stats.tx_kernel_bytes += unit.bytes as u64;
            let socket = &mut self.sockets[index];
            if let Some(errno) = unit.refused.filter(|errno| socket.gso && blames_gso(*errno)) {
                // The very datagrams that were refused together pass one by one: GSO is to blame.
                socket.gso = false;
                let error = std::io::Error::from_raw_os_error(errno);
                tracing::warn!(address = %socket.bound, %error, "UDP GSO does not work on this path: sending without it");
            }
        }
    }

    /// What is first in the queue was refused for good.
    fn handle_refusal(&mut self, index: usize, errno: i32) {
        let gso = self.sockets[index].gso;
        let Some(message) = self.outbox.front(index) else { return };
        let whole = gso && message.refused.is_none() && message.datagrams() > 1;
        let too_large = errno == libc::EMSGSIZE;
        if whole && (too_large || blames_gso(errno)) {
            // Of a lone datagram that is too large the kernel reports the MTU, of a GSO message not.
            message.refused = Some(errno);
            return;
        }
        let destination = message.flow().remote;
        let datagrams = self.outbox.give_up(index, too_large);
        self.stats.dropped_send_refused += datagrams as u64;
        tracing::debug!(
            local = %self.sockets[index].bound, %destination, datagrams,
            error = %std::io::Error::from_raw_os_error(errno),
            "the kernel refused to send"
        );
        if too_large {
            self.drain_errors(index);
        }
    }

    /// Notes that the socket's buffer is full; gives up what has waited longer than the patience.
    fn wait_for_room(&mut self, index: usize) {
        let since = *self.states[index].full_since.get_or_insert(self.now);
        if since == self.now {
            let data = epoll::EventData::new_u64(index as u64);
            let fd = self.sockets[index].fd();
            // An error (no memory) leaves the retry to the next flush instead of to a wake-up; being there
            // already is what is wanted.
            let _ = epoll::add(&self.writable, fd, data, epoll::EventFlags::OUT);
        }
        if self.now.saturating_duration_since(since) >= self.patience {
            self.stats.dropped_no_buffer += self.outbox.clear(index) as u64;
            self.stop_waiting(index);
        }
    }

    pub(super) fn stop_waiting(&mut self, index: usize) {
        if self.states[index].full_since.take().is_some() {
            // Only fails when it is not there, which is what is wanted.
            let _ = epoll::delete(&self.writable, self.sockets[index].fd());
        }
    }

    pub(super) fn flush_all(&mut self) -> Result<(), IoError> {
        for index in 0..self.sockets.len() {
            self.flush_socket(index)?;
        }
        self.outbox.reclaim();
        Ok(())
    }

    /// Drops what waits for sockets without room, so that they do not hold the memory that others need.
    pub(super) fn give_up_on_full_sockets(&mut self) {
        for index in 0..self.sockets.len() {
            if self.states[index].full_since.is_some() {
                self.stats.dropped_no_buffer += self.outbox.clear(index) as u64;
                self.stop_waiting(index);
            }
        }
        self.outbox.reclaim();
    }

    /// Takes what the caller has for an address that no socket serves, so that it goes on, and counts it.
    pub(super) fn refuse_burst(&mut self, segment: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) {
        let mut scratch = [0u8; 2048];
        let mut large = Vec::new();
        let slice = if segment <= scratch.len() {
            &mut scratch[..segment]
        } else {
            large.resize(segment, 0);
            &mut large[..]
        };
        for _ in 0..REFUSED_BURST {
            if fill(slice) == 0 {
                return;
            }
            self.stats.dropped_send_refused += 1;
        }
    }
}
