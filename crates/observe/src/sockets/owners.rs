//! Whose AF_XDP socket a queue's packets go through.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Holder, Socket, Sockets};

/// How long an answer is good for. A queue without an owner is looked for again after this time too, so the cost is
/// bounded however many packets ask.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Owners by interface and queue, remembered for a second.
#[derive(Debug)]
pub struct Owners {
    sockets: Sockets,
    known: HashMap<(u32, u32), Holder>,
    read: Option<Instant>,
}

impl Owners {
    /// Of the sockets that are listed there.
    #[must_use]
    pub fn new(sockets: Sockets) -> Self {
        Self { sockets, known: HashMap::new(), read: None }
    }

    /// The process that holds the socket of a queue of an interface of the caller's network namespace. Of several sockets
    /// there, the one made first; of several processes, the one with the highest number, since an agent that bound a
    /// socket for another process is older than it.
    pub fn of(&mut self, interface: u32, queue: u32) -> Option<&Holder> {
        if self.read.is_none_or(|read| read.elapsed() > GOOD_FOR) {
            let sockets = self.sockets.list();
            match sockets {
                Ok(sockets) => self.known = by_queue(&sockets),
                Err(error) => tracing::debug!("AF_XDP sockets: {error}"),
            }
            self.read = Some(Instant::now());
        }
        self.known.get(&(interface, queue))
    }
}

fn by_queue(sockets: &[Socket]) -> HashMap<(u32, u32), Holder> {
    let mut owners = HashMap::new();
    for socket in sockets.iter().filter(|socket| socket.own_namespace) {
        if let (Some(interface), Some(holder)) = (socket.interface, socket.holders.last()) {
            owners.entry((interface, socket.queue)).or_insert_with(|| holder.clone());
        }
    }
    owners
}
