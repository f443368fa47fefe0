//! The threads of a relay.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_dataplane::WorkerIo;
use expressway_netio::stats::{Published, StatsCell};
use expressway_netio::worker::WorkerOptions;
use expressway_netio::{IoError, Mailbox, PacketIo, Worker, mailbox};
use expressway_relay::Config;
use expressway_relay::service::{self, MESSAGES, Message, Relay, Status};
use expressway_relay::status::{DemuxCounters, RoomCounters};
use expressway_relay::webrtc::answer::Identity;

use super::moq::Moq;
use crate::fail::Failure;

/// How long an order waits for a worker that is behind.
const PATIENCE: Duration = Duration::from_secs(1);

/// Workers that run.
pub(super) struct Workers {
    threads: Vec<JoinHandle<Result<(), IoError>>>,
    mailboxes: Arc<[Mailbox<Message>]>,
    cells: Vec<Arc<StatsCell>>,
    /// By worker and room.
    refused: Vec<Vec<Arc<Published<RoomCounters>>>>,
    /// By worker, where there is WebRTC.
    demux: Vec<Arc<Published<DemuxCounters>>>,
}

impl Workers {
    /// Starts a worker for each backend. WebRTC sessions are all `identity`.
    pub(super) fn start(
        config: &Config,
        ios: Vec<WorkerIo>,
        status: &Status,
        identity: &Arc<Identity>,
        moq: Option<&Moq>,
    ) -> Result<Self, Failure> {
        let ends = ios.iter().map(|_| mailbox(MESSAGES)).collect::<Result<Vec<_>, _>>();
        let ends = ends.map_err(|error| Failure::run_time(format!("mailbox: {error}")))?;
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        let mailboxes: Arc<[_]> = mailboxes.into();
        let mut all = Self {
            threads: Vec::new(),
            mailboxes,
            cells: Vec::new(),
            refused: Vec::new(),
            demux: Vec::new(),
        };
        let (now, count) = (Instant::now(), ios.len());
        for (index, (io, inbox)) in ios.into_iter().zip(inboxes).enumerate() {
            let mut relay = Relay::new(config, index, count, Arc::clone(status), now);
            all.demux.extend(relay.set_sessions(config, Arc::clone(identity)));
            if let Some(moq) = moq {
                let mailbox = all.mailboxes[index].clone();
                relay.set_endpoint(Arc::clone(&moq.shared), mailbox).map_err(Failure::run_time)?;
            }
            all.refused.push(relay.refused());
            let options = WorkerOptions {
                index,
                timer_tokens: config.rooms.len(),
                wait: config.io.config().wait,
                ..Default::default()
            };
            let peers = Arc::clone(&all.mailboxes);
            match io {
                WorkerIo::Kernel(io) => all.spawn(Worker::new(options, now, relay, *io, inbox, peers)),
                WorkerIo::Xsk(io) => all.spawn(Worker::new(options, now, relay, *io, inbox, peers)),
            }?;
        }
        Ok(all)
    }

    fn spawn<P: PacketIo + Send + 'static>(&mut self, mut worker: Worker<Relay, P>) -> Result<(), Failure> {
        self.cells.push(worker.stats_cell());
        let name = format!("expressway-{}", self.threads.len());
        let thread = std::thread::Builder::new().name(name).spawn(move || worker.run());
        self.threads.push(thread.map_err(|error| Failure::run_time(format!("starting a worker: {error}")))?);
        Ok(())
    }

    /// Counters of each worker and its packet I/O.
    pub(super) fn cells(&self) -> Vec<Arc<StatsCell>> {
        self.cells.clone()
    }

    /// Where each worker is sent messages.
    pub(super) fn mailboxes(&self) -> Arc<[Mailbox<Message>]> {
        Arc::clone(&self.mailboxes)
    }

    /// What came to workers for WebRTC sessions and was for none.
    pub(super) fn demux(&self) -> Vec<DemuxCounters> {
        self.demux.iter().map(|published| published.load()).collect()
    }

    /// Whether a worker has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// For each room, what workers could not hand over.
    pub(super) fn refused(&self) -> Vec<u64> {
        let rooms = self.refused.first().map_or(0, Vec::len);
        (0..rooms)
            .map(|room| self.refused.iter().map(|one| one[room].load().dropped_handover).sum())
            .collect()
    }

    /// Has workers send to the receivers that have changed from now on; the name of a room whose worker does not listen.
    pub(super) fn set_outputs(&self, old: &Config, new: &Config) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut told = Vec::new();
        for (index, (before, room)) in old.rooms.iter().zip(&new.rooms).enumerate() {
            if before.outputs != room.outputs {
                let mailbox = &self.mailboxes[service::owner(index, self.mailboxes.len())];
                let (taken, awaited) = mpsc::channel();
                let message = Message::Outputs(index, room.outputs.clone(), taken);
                mailbox.send_until(message, deadline).map_err(|_| room.name.clone())?;
                told.push((&room.name, awaited));
            }
        }
        for (room, awaited) in told {
            let left = deadline.saturating_duration_since(Instant::now());
            if awaited.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                return Err(room.clone());
            }
        }
        Ok(())
    }

    /// Ends all workers, and says what went wrong with the first that failed.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        for mailbox in self.mailboxes.iter() {
            // One that has ended needs no order.
            let _ = mailbox.send_until(Message::Stop, Instant::now() + PATIENCE);
        }
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = match thread.join() {
                Ok(ended) => ended.map_err(Failure::run_time),
                Err(_) => Err(Failure::run_time("a worker panicked")),
            };
            result = result.and(ended);
        }
        result
    }
}
