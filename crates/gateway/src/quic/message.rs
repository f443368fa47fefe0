//! What other threads send to an endpoint, and the buffers that travel between workers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use expressway_netio::mailbox::Mailbox;
use expressway_web::Notify;

/// A message to an endpoint.
pub enum Message {
    /// A datagram that arrived at another worker.
    Datagram(ForeignDatagram),
    /// Requests can make progress; which ones, the endpoint's wake list says. Or there is a new setup.
    Wake,
    /// Accept no new connections, finish what is under way until the deadline, then end.
    Drain {
        /// When open connections are closed.
        deadline: Instant,
    },
    /// Another process has new connections now: tell clients to go there, serve those that stay until the deadline, then end.
    Retire {
        /// When open connections are closed.
        deadline: Instant,
    },
}

impl std::fmt::Debug for Message {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Datagram(_) => "Datagram",
            Self::Wake => "Wake",
            Self::Drain { .. } => "Drain",
            Self::Retire { .. } => "Retire",
        })
    }
}

/// A datagram on its way between workers, in a buffer of the pool.
pub struct ForeignDatagram {
    pub(crate) buffer: PooledBuffer,
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Buffers for datagrams between workers: a fixed number, shared by all, none made after start.
#[derive(Clone)]
pub(crate) struct BufferPool {
    free: Arc<ArrayQueue<Box<[u8]>>>,
}

impl BufferPool {
    pub(crate) fn new(count: usize, size: usize) -> Self {
        let free = ArrayQueue::new(count.max(1));
        while free.push(vec![0; size].into_boxed_slice()).is_ok() {}
        Self { free: Arc::new(free) }
    }

    /// A buffer with a copy of `payload`; `None` if none is free or `payload` is larger than one.
    pub(crate) fn take(&self, payload: &[u8]) -> Option<PooledBuffer> {
        let mut bytes = self.free.pop()?;
        let Some(target) = bytes.get_mut(..payload.len()) else {
            // It came from the queue a moment ago, so there is room for it.
            let _ = self.free.push(bytes);
            return None;
        };
        target.copy_from_slice(payload);
        Some(PooledBuffer { bytes, length: payload.len(), pool: self.clone() })
    }
}

/// A buffer that goes back to its pool when dropped.
pub(crate) struct PooledBuffer {
    bytes: Box<[u8]>,
    length: usize,
    pool: BufferPool,
}

impl PooledBuffer {
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let _ = self.pool.free.push(bytes);
    }
}

/// Tokens of exchanges that can make progress, filled by any thread and emptied by the worker.
///
/// The list is bounded by the exchanges there are: a token is in it at most once a wait. The mailbox only
/// carries one note that the list is not empty; if it is full the worker is awake anyway and looks at the
/// list in its next turn, so that a wake-up is never lost.
pub(crate) struct WakeList {
    tokens: Mutex<Vec<u64>>,
    filled: AtomicBool,
    bell: Box<dyn Fn() + Send + Sync>,
}

impl WakeList {
    /// Whose worker `mailbox` leads to.
    pub(crate) fn new<M: From<Message> + Send + 'static>(mailbox: Mailbox<M>) -> Arc<Self> {
        let bell = Box::new(move || {
            let _ = mailbox.try_send(Message::Wake.into());
        });
        Arc::new(Self { tokens: Mutex::default(), filled: AtomicBool::new(false), bell })
    }

    /// Swaps the list into `into`, which must be empty.
    pub(crate) fn take(&self, into: &mut Vec<u64>) {
        debug_assert!(into.is_empty());
        if self.filled.swap(false, Ordering::AcqRel) {
            std::mem::swap(&mut *self.tokens.lock().unwrap_or_else(PoisonError::into_inner), into);
        }
    }
}

impl Notify for WakeList {
    fn notify(&self, token: u64) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        if !self.filled.swap(true, Ordering::AcqRel) {
            (self.bell)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_no_more_than_there_are_go_out() {
        let pool = BufferPool::new(2, 8);
        let mut first = pool.take(b"abc").unwrap();
        assert_eq!(first.payload_mut(), b"abc");
        let second = pool.take(b"").unwrap();
        assert!(pool.take(b"x").is_none());
        drop(second);
        assert!(pool.take(b"123456789").is_none(), "larger than a buffer");
        assert!(pool.take(b"12345678").is_some(), "the refusal kept the buffer");
    }

    #[test]
    fn a_full_mailbox_loses_no_wake_up() {
        let (mailbox, inbox) = expressway_netio::mailbox::mailbox::<Message>(1).unwrap();
        let list = WakeList::new(mailbox.clone());
        mailbox.try_send(Message::Wake).unwrap();
        list.notify(1);
        list.notify(2);
        let mut tokens = Vec::new();
        list.take(&mut tokens);
        assert_eq!(tokens, [1, 2]);
        tokens.clear();
        list.take(&mut tokens);
        assert!(tokens.is_empty());
        drop(inbox);
    }
}
