//! A recording as lines, for the requested time.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use expressway_netio::trace::{Batch, Channel, Event, Hop, Recording};

use super::line::{Control, Line, Recorded};
use super::order::Order;

/// Events that are told at once.
const BATCH: usize = 512;

/// How often lines come though nothing happens.
const PROGRESS: Duration = Duration::from_secs(1);

/// What comes next.
#[derive(Debug)]
pub enum Next {
    /// Some lines.
    Lines(Vec<u8>),
    /// Nothing at the moment.
    Nothing,
    /// Nothing any more.
    End,
}

/// The process's side of a trace. Dropping it ends the recording.
pub struct Stream {
    recording: Option<Recording>,
    order: Order,
    /// None before the first line.
    begun: Option<Instant>,
    told: Instant,
    /// AF_XDP sockets that were introduced.
    places: HashSet<(usize, u16)>,
    events: u64,
}

impl Stream {
    /// The lines of `recording`, which `order` has started.
    pub fn new(recording: Recording, order: Order) -> Self {
        let (told, places) = (Instant::now(), HashSet::new());
        Self { recording: Some(recording), order, begun: None, told, places, events: 0 }
    }

    /// The next lines. When the time limit was reached nothing more is recorded, and what was is told.
    pub fn poll(&mut self) -> Next {
        let Some(recording) = &mut self.recording else { return Next::End };
        let (now, mut out) = (Instant::now(), Vec::new());
        let time = recording.clock().nanoseconds(now);
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            let Order { seconds, sample, .. } = self.order;
            let (workers, realtime_ahead) = (recording.workers(), recording.clock().realtime_ahead());
            write(&mut out, Control::Begin { time, realtime_ahead, workers, seconds, sample });
            return Next::Lines(out);
        };
        let is_over = now.duration_since(begun) >= Duration::from_secs(self.order.seconds.into());
        if !is_over && now.duration_since(self.told) >= PROGRESS {
            self.told = now;
            write(&mut out, Control::Progress { time, lost: recording.lost() });
        }
        if is_over {
            recording.stop();
        }
        if let Some(batch) = recording.take(BATCH) {
            self.events += batch.events.len() as u64;
            tell(batch, recording, &mut self.places, &mut out);
        } else if is_over {
            write(&mut out, Control::End { time, events: self.events, lost: recording.lost() });
            self.recording = None;
        }
        if out.is_empty() { Next::Nothing } else { Next::Lines(out) }
    }
}

fn tell(batch: Batch, recording: &Recording, places: &mut HashSet<(usize, u16)>, out: &mut Vec<u8>) {
    let Batch { worker, events } = batch;
    for event in events {
        if let Some(xsk) = socket(&event)
            && places.insert((worker, xsk))
            && let Some((interface, queue)) = recording.queue(worker, xsk)
        {
            write(out, Control::Place { worker, xsk, interface, queue });
        }
        write_line(out, &Line::Recorded(Recorded { worker, event }));
    }
}

/// The AF_XDP socket that an event names.
fn socket(event: &Event) -> Option<u16> {
    let way = match &event.hop {
        Hop::Taken { way, .. } | Hop::Burst { way, .. } => Some(*way),
        Hop::Request { datagram, .. } => datagram.way,
        _ => None,
    };
    way.and_then(|way| match way {
        Channel::Xsk(index) => Some(index),
        Channel::Kernel | Channel::Worker | Channel::Tcp | Channel::Simulated => None,
    })
}

fn write(out: &mut Vec<u8>, control: Control) {
    write_line(out, &Line::Control(control));
}

fn write_line(out: &mut Vec<u8>, line: &Line) {
    let before = out.len();
    // Nothing in a line fails to be JSON, and memory takes all.
    if serde_json::to_writer(&mut *out, line).is_err() {
        out.truncate(before);
    } else {
        out.push(b'\n');
    }
}
