//! What a worker drives: an application above packet I/O, without I/O, threads or a clock of its own.

use std::time::Instant;

use crate::io::{Datagram, IoError, PacketIo};
use crate::mailbox::Mailbox;
use crate::timer::TimerWheel;

/// What a service may use while it handles an event.
pub struct Context<'a, M> {
    /// The time of this turn: read once a turn, virtual in simulation.
    pub now: Instant,
    /// Timers of this worker; a due one comes back by [`Service::handle_timer`].
    pub timers: &'a mut TimerWheel,
    /// This worker's index.
    pub worker: usize,
    /// Mailboxes of all workers, by index, this one's own included: datagrams whose owner is another
    /// worker, and finished work, travel through them.
    pub peers: &'a [Mailbox<M>],
}

/// An application on a worker.
///
/// One turn of the worker: a batch of `handle_datagram`, then waiting `handle_message`s, then due
/// `handle_timer`s, then one `poll_transmit`, then `flush`.
pub trait Service {
    /// What other threads send to this service.
    type Message: Send + 'static;

    /// One datagram has come in. Replies are sent from `poll_transmit`.
    fn handle_datagram(&mut self, context: &mut Context<'_, Self::Message>, datagram: Datagram<'_>);

    /// A message from another worker or thread.
    fn handle_message(&mut self, context: &mut Context<'_, Self::Message>, message: Self::Message);

    /// A timer is due; `token` as it was given to [`TimerWheel::arm`].
    fn handle_timer(&mut self, context: &mut Context<'_, Self::Message>, token: usize);

    /// Sends whatever is ready. Returns true when more could be sent at once if buffers were free, so
    /// that the worker turns again instead of sleeping.
    fn poll_transmit(
        &mut self,
        context: &mut Context<'_, Self::Message>,
        io: &mut dyn PacketIo,
    ) -> Result<bool, IoError>;

    /// Time to show counters to other threads. A worker that runs calls it when it publishes its own: at most a tenth of
    /// a second ([`PUBLISH_INTERVAL`](crate::worker::PUBLISH_INTERVAL)) after a turn that did something, so that nothing
    /// stays unseen while the worker sleeps, and once more when it ends.
    fn publish(&mut self) {}

    /// The worker ends when this is true, after a last flush.
    fn is_finished(&self) -> bool;
}
