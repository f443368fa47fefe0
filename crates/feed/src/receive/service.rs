//! The receiver as a worker's service: wanted datagrams go to the handler, all others are counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use expressway_netio::stats::Published;
use expressway_netio::{Context, Datagram, IoError, PacketIo, Service, Transmit};

use super::counters::Counters;
use super::echo::Echo;
use super::handler::Handler;

/// From another thread.
#[derive(Debug)]
pub(super) enum Message {
    /// End after this turn.
    Stop,
    /// For the handler.
    Post(Box<[u8]>),
}

/// The handler's timer.
const TIMEOUT: usize = 0;
/// How many timers there are.
pub(super) const TIMERS: usize = 1;

pub(super) struct Feed<H> {
    pub(super) handler: H,
    pub(super) sources: Vec<IpAddr>,
    /// Datagrams to hand over.
    pub(super) limit: u64,
    pub(super) echo: Option<Echo>,
    pub(super) counters: Counters,
    pub(super) published: Arc<Published<Counters>>,
    /// When the first and the last datagram arrived, to a turn.
    pub(super) span: Option<(Instant, Instant)>,
    pub(super) stopped: bool,
    /// Datagrams as of the last turn.
    pub(super) seen: u64,
    /// The handler has been told that this turn has something for it.
    pub(super) begun: bool,
    /// What the handler's timer is set to.
    pub(super) timeout: Option<Instant>,
}

impl<H: Handler> Feed<H> {
    #[inline]
    fn begin(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.begun, true) {
            self.handler.begin_batch(now);
        }
    }
}

impl<H: Handler> Service for Feed<H> {
    type Message = Message;

    /// What a datagram takes is the handler's, and nobody else waits for this worker.
    const DATAGRAMS_A_LOOK: usize = usize::MAX;

    #[inline]
    fn handle_datagram(&mut self, context: &mut Context<'_, Message>, datagram: Datagram<'_>) {
        if !self.sources.is_empty() && !self.sources.contains(&datagram.remote.ip()) {
            self.counters.dropped_source += 1;
            return;
        }
        if self.counters.datagrams == self.limit {
            self.counters.dropped_surplus += 1;
            return;
        }
        self.counters.count(&datagram);
        if let Some(echo) = &mut self.echo
            && !echo.push(&datagram)
        {
            self.counters.dropped_echo += 1;
        }
        self.begin(context.now);
        self.handler.handle_datagram(datagram);
    }

    fn handle_message(&mut self, context: &mut Context<'_, Message>, message: Message) {
        match message {
            Message::Stop => self.stopped = true,
            Message::Post(post) => {
                self.begin(context.now);
                self.handler.handle_post(&post);
            }
        }
    }

    fn handle_timer(&mut self, context: &mut Context<'_, Message>, _token: usize) {
        self.timeout = None;
        self.handler.handle_timeout(context.now);
    }

    fn poll_transmit(
        &mut self,
        context: &mut Context<'_, Message>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        let mut left = Transmit::Done;
        if let Some(echo) = &mut self.echo {
            let sent = echo.send(io)?;
            self.counters.echoed += sent.echoed;
            self.counters.dropped_echo += sent.dropped;
            if sent.blocked {
                left = Transmit::Blocked;
            }
        }
        if self.counters.datagrams != self.seen {
            self.seen = self.counters.datagrams;
            self.counters.batches += 1;
            let first = self.span.map_or(context.now, |(first, _)| first);
            self.span = Some((first, context.now));
            self.published.store(&self.counters);
        }
        if std::mem::take(&mut self.begun) {
            self.handler.end_batch();
        }
        let timeout = self.handler.poll_timeout();
        if timeout != self.timeout {
            self.timeout = timeout;
            match timeout {
                Some(time) => context.timers.arm(TIMEOUT, time),
                None => context.timers.cancel(TIMEOUT),
            }
        }
        Ok(left)
    }

    /// What was dropped is seen too when nothing else came in.
    fn publish(&mut self) {
        self.published.store(&self.counters);
    }

    fn is_finished(&self) -> bool {
        self.stopped || self.counters.datagrams == self.limit || self.handler.is_finished()
    }
}
