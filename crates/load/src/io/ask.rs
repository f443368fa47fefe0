//! Measures round trips by a worker: one question at a time, whose answer is taken in the callback.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use expressway_netio::{Context, Datagram, Flow, IoError, PacketIo, Service, Transmit};

use super::ping::{LOST, Trips};

/// Timers: the next question is due; the last one is lost; the end.
const NEXT: usize = 1;
const GIVE_UP: usize = 2;
const END: usize = 0;

/// Asks until its time is over.
pub(crate) struct Ask {
    flow: Flow,
    question: Vec<u8>,
    pause: Duration,
    time: Duration,
    trips: Trips,
    /// When the question that has no answer yet was written.
    asked: Option<Instant>,
    /// When the next question is due, if it is.
    due: Option<Instant>,
    begun: bool,
    finished: bool,
}

impl Ask {
    pub(crate) fn new(
        (from, to): (SocketAddr, SocketAddr),
        size: usize,
        pause: Duration,
        time: Duration,
    ) -> Self {
        Self {
            flow: Flow::new(from, to),
            question: vec![0; size.max(8)],
            pause,
            time,
            trips: Trips::default(),
            asked: None,
            due: Some(Instant::now()),
            begun: false,
            finished: false,
        }
    }

    /// What it saw.
    pub(crate) fn trips(&self) -> &Trips {
        &self.trips
    }

    fn rest(&mut self, context: &mut Context<'_, ()>) {
        context.timers.cancel(GIVE_UP);
        let due = Instant::now() + self.pause;
        self.due = Some(due);
        // For a worker that sleeps: one that spins looks at the clock in every turn.
        context.timers.arm(NEXT, due);
    }
}

impl Service for Ask {
    type Message = ();

    fn handle_datagram(&mut self, context: &mut Context<'_, ()>, datagram: Datagram<'_>) {
        // A late answer to a question that was given up has another number.
        if datagram.payload[..] == self.question[..]
            && let Some(asked) = self.asked.take()
        {
            self.trips.record(Some(asked.elapsed()));
            self.rest(context);
        }
    }

    fn handle_message(&mut self, _: &mut Context<'_, ()>, (): ()) {}

    fn handle_timer(&mut self, context: &mut Context<'_, ()>, token: usize) {
        match token {
            NEXT => {}
            GIVE_UP => {
                self.asked = None;
                self.trips.record(None);
                self.rest(context);
            }
            END => self.finished = true,
            // The worker's first.
            _ if !self.begun => {
                self.begun = true;
                context.timers.arm(END, context.now + self.time);
            }
            _ => {}
        }
    }

    fn poll_transmit(
        &mut self,
        context: &mut Context<'_, ()>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        if self.due.is_none_or(|due| context.now < due) {
            return Ok(Transmit::Done);
        }
        self.question[..8].copy_from_slice(&self.trips.asked().to_be_bytes());
        let (question, asked) = (&self.question, &mut self.asked);
        io.transmit(&self.flow, question.len(), &mut |slot| {
            if asked.is_some() {
                return 0;
            }
            *asked = Some(Instant::now());
            slot[..question.len()].copy_from_slice(question);
            question.len()
        })?;
        match self.asked {
            Some(_) => {
                self.due = None;
                context.timers.arm(GIVE_UP, context.now + LOST);
            }
            // No buffer was free.
            None => return Ok(Transmit::Blocked),
        }
        Ok(Transmit::Done)
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
