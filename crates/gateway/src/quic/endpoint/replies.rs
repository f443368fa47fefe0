//! Datagrams that no connection sends: Version Negotiation, Retry, refusal, stateless reset.

use std::net::SocketAddr;

use expressway_netio::{Flow, IoError, PacketIo};

/// Replies that may wait.
const MAX_REPLIES: usize = 2048;

/// Replies sent in one turn of the worker: each is a separate message to the kernel.
const REPLIES_A_TURN: usize = 64;

/// Long enough for a Version Negotiation packet with the longest connection IDs there can be.
const MAX_REPLY: usize = 600;

/// Replies that wait, back to back in one buffer that is used again.
#[derive(Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    entries: Vec<(Flow, usize)>,
}

impl Replies {
    /// Has `write` write one to be sent from `local` to `remote`. False if there is no room or nothing was
    /// written.
    pub(super) fn push(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        if self.is_full() {
            return false;
        }
        let start = self.bytes.len();
        self.bytes.resize(start + MAX_REPLY, 0);
        let length = write(&mut self.bytes[start..]).unwrap_or(0);
        self.bytes.truncate(start + length);
        if length > 0 {
            self.entries.push((Flow::new(local, remote), length));
        }
        length > 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_REPLIES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sends them in order, as many as fit one turn. Returns the number of datagrams and bytes sent, and
    /// whether the next had no buffer; the rest stays queued.
    pub(super) fn send(&mut self, io: &mut dyn PacketIo) -> Result<(usize, usize, bool), IoError> {
        let (mut count, mut offset, mut blocked) = (0, 0, false);
        for (flow, length) in self.entries.iter().take(REPLIES_A_TURN) {
            let mut source = Some(&self.bytes[offset..offset + length]);
            let sent = io.transmit(flow, *length, &mut |slot| {
                source.take().map_or(0, |reply| {
                    slot[..reply.len()].copy_from_slice(reply);
                    reply.len()
                })
            })?;
            if sent.blocked && source.is_some() {
                blocked = true;
                break;
            }
            count += 1;
            offset += length;
        }
        self.entries.drain(..count);
        self.bytes.drain(..offset);
        Ok((count, offset, blocked))
    }
}
