//! A body that is compressed as it is read, a slice at a time.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};

use bytes::Bytes;
use http::HeaderMap;

use super::Workshop;
use super::encoder::Encoder;
use crate::files::{Encoding, Task};
use crate::memory::{Charge, Reservation};
use crate::{BodyError, Exchange, Upstream};
use expressway_metrics::count;

/// Octets that are compressed by one job: a millisecond or two of a reader thread.
const SLICE: usize = 32 << 10;

/// Chunks of a slice.
const CHUNKS: usize = 64;

/// A response of which a reader thread compresses one slice after another.
pub(crate) struct Stream {
    source: Box<Exchange>,
    workshop: Workshop,
    bench: Arc<Mutex<Bench>>,
    task: Task,
    /// What may leave.
    ready: Bytes,
    /// Something was compressed and may be held back.
    is_held_back: bool,
    /// Nothing is held back while the source waits. A file waits for the disk only.
    flushes: bool,
    end: Option<Result<(), BodyError>>,
    reservation: Option<Reservation>,
    /// What is ready at the end, as long as it waits.
    rest_charge: Option<Charge>,
}

/// What jobs work on; while there is none, the exchange's.
struct Bench {
    coding: (Encoding, u8),
    encoder: Option<Encoder>,
    input: Vec<Bytes>,
    then: Then,
    output: io::Result<Vec<u8>>,
}

/// What is done behind the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Flush,
    Finish,
}

impl Bench {
    /// A job. Making a compressor takes long too.
    fn work(&mut self) {
        self.output = self.compress();
    }

    fn compress(&mut self) -> io::Result<Vec<u8>> {
        let mut encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => Encoder::new(self.coding.0, self.coding.1)?,
        };
        for octets in &self.input {
            encoder.write(octets)?;
        }
        match self.then {
            Then::Nothing => {}
            Then::Flush => encoder.flush()?,
            Then::Finish => return encoder.finish(),
        }
        let output = encoder.take();
        self.encoder = Some(encoder);
        Ok(output)
    }
}

impl Stream {
    /// Compresses what `source` gives, whose head was taken. The source comes back if there is no room for a compressor.
    pub(crate) fn new(
        source: Box<Exchange>,
        coding: (Encoding, u8),
        workshop: &Workshop,
    ) -> Result<Self, Box<Exchange>> {
        let counters = &workshop.store.compress_counters;
        let footprint = Encoder::footprint(coding.0, coding.1) + SLICE;
        let Some(reservation) =
            Reservation::take(workshop.store.memory(), workshop.account.as_ref(), footprint)
        else {
            count(&counters.compressions_refused);
            return Err(source);
        };
        count(&counters.responses_compressed);
        let (input, then) = (Vec::new(), Then::Nothing);
        let bench = Bench { coding, encoder: None, input, then, output: Ok(Vec::new()) };
        Ok(Self {
            flushes: !source.is_file(),
            source,
            workshop: workshop.clone(),
            bench: Arc::new(Mutex::new(bench)),
            task: Task::default(),
            ready: Bytes::new(),
            is_held_back: false,
            end: None,
            reservation: Some(reservation),
            rest_charge: None,
        })
    }

    pub(crate) fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            if !self.ready.is_empty() {
                let octets = self.ready.split_to(self.ready.len().min(max));
                if self.ready.is_empty() {
                    self.rest_charge = None;
                }
                return Poll::Ready(Some(Ok(match &self.workshop.account {
                    None => octets,
                    Some(account) => account.own(octets),
                })));
            }
            if self.task.is_under_way() {
                ready!(self.poll_task());
                self.collect();
                continue;
            }
            match &self.end {
                Some(Ok(())) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.clone()))),
                None => {}
            }
            if self.gather() {
                // It never is done at once.
                ready!(self.poll_task());
            } else if self.end.is_none() {
                return Poll::Pending;
            }
        }
    }

    /// Takes a slice from the source. False if there is nothing to do now.
    fn gather(&mut self) -> bool {
        let mut bench = lock(&self.bench);
        let mut gathered = 0;
        bench.then = Then::Nothing;
        while gathered < SLICE && bench.input.len() < CHUNKS {
            match self.source.poll_body(SLICE - gathered) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(octets))) => {
                    gathered += octets.len();
                    bench.input.push(octets);
                }
                Poll::Ready(None) => {
                    bench.then = Then::Finish;
                    return true;
                }
                Poll::Ready(Some(Err(error))) => {
                    drop(bench);
                    self.fail(error);
                    return false;
                }
            }
        }
        if gathered == 0 && self.flushes && self.is_held_back {
            bench.then = Then::Flush;
            return true;
        }
        gathered > 0
    }

    fn poll_task(&mut self) -> Poll<()> {
        let bench = &self.bench;
        let work = || {
            let bench = Arc::clone(bench);
            move || lock(&bench).work()
        };
        let Workshop { store, wake, account } = &self.workshop;
        let is_done = ready!(self.task.poll(store, account.as_ref(), wake, work));
        if !is_done {
            self.fail(BodyError::Stopped);
        }
        Poll::Ready(())
    }

    /// Takes what a job has made, and lets go of what it was made of.
    fn collect(&mut self) {
        let mut bench = lock(&self.bench);
        bench.input.clear();
        let output = std::mem::replace(&mut bench.output, Ok(Vec::new()));
        let then = bench.then;
        drop(bench);
        match output {
            Ok(_) if self.end.is_some() => {}
            Ok(octets) => {
                self.ready = octets.into();
                self.is_held_back = then == Then::Nothing;
                if then == Then::Finish {
                    self.end = Some(Ok(()));
                    self.reservation = None;
                    // The compressor's reservation no longer stands for it.
                    let account = self.workshop.account.as_ref();
                    self.rest_charge = account.map(|account| account.charge_request(self.ready.len()));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "compressing a response failed");
                self.fail(BodyError::Stopped);
            }
        }
    }

    fn fail(&mut self, error: BodyError) {
        self.end = Some(Err(error));
        let mut bench = lock(&self.bench);
        bench.input.clear();
        bench.encoder = None;
        drop(bench);
        self.reservation = None;
    }

    /// Octets still to come: known at the end only.
    pub(crate) fn remaining(&self) -> Option<u64> {
        match self.end {
            Some(Ok(())) => self.source.remaining().map(|_| self.ready.len() as u64),
            Some(Err(_)) | None => None,
        }
    }

    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.source.take_trailers()
    }

    pub(crate) fn cache(&self) -> &'static str {
        self.source.cache()
    }

    pub(crate) fn upstream(&self) -> Option<Upstream> {
        self.source.upstream()
    }

    pub(crate) fn rest(&mut self) {
        self.source.rest();
    }

    pub(crate) fn release(&mut self) {
        self.source.release();
    }
}

/// A job that panicked leaves no compressor behind.
fn lock(bench: &Mutex<Bench>) -> MutexGuard<'_, Bench> {
    bench.lock().unwrap_or_else(PoisonError::into_inner)
}
