//! What a worker drives: an application above packet I/O, without I/O, threads or a clock of its own.

use std::time::Instant;

use crate::io::{Datagram, IoError, PacketIo};
use crate::mailbox::Mailbox;
use crate::slice::Slice;
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
    /// What this part of the turn may still take.
    pub slice: &'a mut Slice,
}

/// What a service has left when it has sent what it could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transmit {
    /// Nothing, until something happens.
    #[default]
    Done,
    /// It could send more at once if buffers were free.
    Blocked,
    /// More to do at once: the turn's slice was spent.
    More,
}

/// An application on a worker.
///
/// One turn of the worker: a batch of `handle_datagram`, then waiting `handle_message`s, then due
/// `handle_timer`s, then one `poll_transmit`, then `flush`. Each of the four has a slice of the turn ([`crate::slice`]): what
/// is left when that is spent comes in the next turn. A service whose pieces of work may take long looks at
/// [`Context::slice`] in between.
pub trait Service {
    /// What other threads send to this service.
    type Message: Send + 'static;

    /// Datagrams that are handled between two looks at the slice: more where each is known to cost little.
    const DATAGRAMS_A_LOOK: usize = 1;

    /// One datagram has come in. Replies are sent from `poll_transmit`.
    fn handle_datagram(&mut self, context: &mut Context<'_, Self::Message>, datagram: Datagram<'_>);

    /// A message from another worker or thread. A service that nobody sends any needs none of it.
    fn handle_message(&mut self, _context: &mut Context<'_, Self::Message>, _message: Self::Message) {}

    /// A timer is due; `token` as it was given to [`TimerWheel::arm`]. A service that arms none needs none of it.
    fn handle_timer(&mut self, _context: &mut Context<'_, Self::Message>, _token: usize) {}

    /// Sends whatever is ready, and says whether there is more: then the worker turns again instead of sleeping, after a pause
    /// where it is for want of buffers.
    fn poll_transmit(
        &mut self,
        context: &mut Context<'_, Self::Message>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError>;

    /// Time to show counters to other threads. A worker that runs calls it when it publishes its own: at most a tenth of
    /// a second ([`PUBLISH_INTERVAL`](crate::worker::PUBLISH_INTERVAL)) after a turn that did something, so that nothing
    /// stays unseen while the worker sleeps, and once more when it ends.
    fn publish(&mut self) {}

    /// The worker ends when this is true, after a last flush.
    fn is_finished(&self) -> bool {
        false
    }
}
