//! Drives a simulation: runs the turns of workers with something to do, then advances time to the next event.

use std::time::Instant;

use super::endpoint::SimIo;
use super::network::Network;
use crate::io::IoError;
use crate::service::Service;
use crate::worker::Worker;

/// Turns of all nodes at one instant before the simulation is taken to stand still for ever.
const TURNS_AT_ONE_INSTANT: usize = 100_000;

/// Whose time a simulation runs by.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Time jumps from event to event.
    Virtual {
        /// The present.
        now: Instant,
    },
    /// The machine's clock; the thread sleeps between events.
    Real,
}

impl Clock {
    /// A virtual clock that stands at `origin`.
    pub fn virtual_from(origin: Instant) -> Self {
        Self::Virtual { now: origin }
    }

    /// The present.
    pub fn now(&self) -> Instant {
        match self {
            Self::Virtual { now } => *now,
            Self::Real => Instant::now(),
        }
    }

    /// Goes to `instant`, or stays when it has passed.
    fn advance_to(&mut self, instant: Instant) {
        match self {
            Self::Virtual { now } => *now = instant.max(*now),
            Self::Real => std::thread::sleep(instant.saturating_duration_since(Instant::now())),
        }
    }
}

/// Something that a simulation moves: a worker on an endpoint, or a test's own peer.
pub trait Node {
    /// Does what there is to do at `now`; true when there was something.
    fn turn(&mut self, now: Instant) -> Result<bool, IoError>;

    /// When it wants a turn though nothing arrives.
    fn next_deadline(&mut self) -> Option<Instant>;
}

impl<S: Service> Node for Worker<S, SimIo> {
    fn turn(&mut self, now: Instant) -> Result<bool, IoError> {
        let turn = Worker::turn(self, now)?;
        Ok(!turn.is_idle() || turn.has_more() || self.has_messages())
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        Worker::next_deadline(self)
    }
}

/// Turns every node until none has anything to do, then takes the clock to the next arrival or deadline.
/// False, without touching the clock, when there is none until `limit`: the simulation has come to rest.
///
/// # Panics
///
/// When the nodes keep each other busy at one instant without end: a link without delay between two services
/// that answer each answer.
pub fn step(
    network: &Network,
    nodes: &mut [&mut dyn Node],
    clock: &mut Clock,
    limit: Instant,
) -> Result<bool, IoError> {
    settle(nodes, clock)?;
    Ok(advance(network, nodes, clock, limit))
}

/// Steps until `done`, which is asked after the turns of each instant, or until `limit`. When it returns
/// true, the clock stands at the instant that made it so; when false, at `limit`.
///
/// # Panics
///
/// As [`step`].
pub fn run_until(
    network: &Network,
    nodes: &mut [&mut dyn Node],
    clock: &mut Clock,
    limit: Instant,
    mut done: impl FnMut() -> bool,
) -> Result<bool, IoError> {
    loop {
        settle(nodes, clock)?;
        if done() {
            return Ok(true);
        }
        if !advance(network, nodes, clock, limit) {
            clock.advance_to(limit);
            return Ok(false);
        }
    }
}

/// Turns every node until none has anything to do at the present.
fn settle(nodes: &mut [&mut dyn Node], clock: &Clock) -> Result<(), IoError> {
    for _ in 0..TURNS_AT_ONE_INSTANT {
        let now = clock.now();
        let mut busy = false;
        for node in nodes.iter_mut() {
            busy |= node.turn(now)?;
        }
        // Real time ends by itself; whoever wants `done` to be asked is not held up by a busy peer.
        if !busy || matches!(clock, Clock::Real) {
            return Ok(());
        }
    }
    panic!("the simulation is busy without end at one instant");
}

/// Takes the clock to the next arrival or deadline, if there is one until `limit`.
fn advance(network: &Network, nodes: &mut [&mut dyn Node], clock: &mut Clock, limit: Instant) -> bool {
    let now = clock.now();
    let deadlines = nodes.iter_mut().filter_map(|node| node.next_deadline());
    let arrivals = match clock {
        Clock::Virtual { .. } => network.next_arrival_after(now),
        // One may have arrived since the nodes looked.
        Clock::Real => network.first_arrival(),
    };
    match deadlines.chain(arrivals).min() {
        Some(next) if next <= limit => {
            clock.advance_to(next);
            true
        }
        _ => false,
    }
}
