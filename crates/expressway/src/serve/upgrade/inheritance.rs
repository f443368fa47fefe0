//! What a process has of the one before it, and what it says to that one until it serves.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use expressway_agent::channel::Channel;
use expressway_gateway::quic::cid::GENERATIONS;
use expressway_gateway::quic::{Generations, Older};

use super::forward::{Counts, Sender};
use super::handover::{Descriptors, Elder, Handover, Step, Word};
use crate::fail::Failure;

/// How long a word may take to be sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module. A process without one before it has an empty one, of generation 1.
pub(crate) struct Inheritance {
    channel: Option<Arc<Channel>>,
    pub(crate) generation: u64,
    handover: Option<Handover>,
    descriptors: Mutex<Descriptors>,
}

impl Inheritance {
    /// Of nobody.
    pub(crate) fn none() -> Self {
        Self { channel: None, generation: 1, handover: None, descriptors: Mutex::default() }
    }

    /// From the process at the other end of standard input.
    pub(crate) fn receive() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::usage(format!(
                "--take-over: standard input: {error}; it is for `expressway upgrade` alone"
            ))
        };
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let channel = Channel::new(socket, PATIENCE).map_err(failed)?;
        let (handover, descriptors) = Handover::receive(&channel)
            .map_err(|problem| Failure::run_time(format!("--take-over: {problem}")))?;
        Ok(Self {
            channel: Some(Arc::new(channel)),
            generation: handover.generation,
            handover: Some(handover),
            descriptors: Mutex::new(descriptors),
        })
    }

    /// There was no process before, or it has been told all.
    pub(crate) fn is_first(&self) -> bool {
        self.channel.is_none()
    }

    /// Where a failure is told.
    pub(crate) fn teller(&self) -> Teller {
        Teller(self.channel.clone())
    }

    /// Says that it has come so far, and waits until the process before has made way.
    pub(crate) fn step(&self, step: Step) -> Result<(), Failure> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let failed = |error| Failure::run_time(format!("previous process: {error}"));
        channel.send(0, &step, &[]).map_err(failed)?;
        match channel.receive::<Word>(0).map_err(failed)?.content {
            Word::Go => Ok(()),
            _ => Err(Failure::run_time("unexpected message from the previous process")),
        }
    }

    /// Says that it serves. From now on nobody listens.
    pub(crate) fn ready(&mut self) {
        if let Some(channel) = self.channel.take()
            && let Err(error) = channel.send(0, &Step::Ready, &[])
        {
            tracing::warn!("the previous process is gone: {error}");
        }
    }

    /// The UDP sockets, in the order of `listen`; none without a process before.
    pub(crate) fn udp(
        &self,
        listen: &[SocketAddr],
        workers: usize,
    ) -> Result<Option<Vec<Vec<OwnedFd>>>, Failure> {
        let Some(handover) = &self.handover else { return Ok(None) };
        let restart = |what: &str, before: &str, now: &str| {
            Failure::usage(format!(
                "[server] {what}: {now}, but the running process has {before}: restart it instead"
            ))
        };
        if handover.workers != workers {
            return Err(restart("workers", &handover.workers.to_string(), &workers.to_string()));
        }
        let places: Option<Vec<usize>> =
            listen.iter().map(|one| handover.listen.iter().position(|other| one == other)).collect();
        let places = places.filter(|places| places.len() == handover.listen.len());
        let Some(places) = places else {
            let all = |addresses: &[SocketAddr]| {
                addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
            };
            return Err(restart("listen", &all(&handover.listen), &all(listen)));
        };
        let of_workers = std::mem::take(&mut self.lock().udp);
        let in_order = |fds: Vec<OwnedFd>| {
            let mut fds: Vec<Option<OwnedFd>> = fds.into_iter().map(Some).collect();
            places.iter().filter_map(|place| fds.get_mut(*place)?.take()).collect()
        };
        Ok(Some(of_workers.into_iter().map(in_order).collect()))
    }

    /// The sockets of a listener over TCP, if the process before had it.
    pub(crate) fn tcp(&self, address: &str) -> Option<Vec<OwnedFd>> {
        let place = self.handover.as_ref()?.tcp.iter().position(|other| other == address)?;
        self.lock().tcp.get_mut(place).map(std::mem::take)
    }

    /// The admin listener's, if it is at that address.
    pub(crate) fn admin(&self, address: &str) -> Option<OwnedFd> {
        self.handover.as_ref()?.admin.as_ref().filter(|other| *other == address)?;
        self.lock().admin.take()
    }

    /// What holds the server's place among others.
    pub(crate) fn place(&self) -> Option<OwnedFd> {
        self.lock().place.take()
    }

    /// The processes before.
    pub(crate) fn elders(&self) -> Result<Vec<Living>, Failure> {
        let elders = self.handover.as_ref().map_or(&[][..], |handover| &handover.older);
        let sockets = std::mem::take(&mut self.lock().older);
        let living = |(elder, socket): (&Elder, OwnedFd)| Living {
            elder: elder.clone(),
            socket,
            counts: Arc::default(),
        };
        Ok(elders.iter().zip(sockets).map(living).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Descriptors> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process before this one, and how datagrams get there.
pub(crate) struct Living {
    pub(crate) elder: Elder,
    pub(crate) socket: OwnedFd,
    pub(crate) counts: Arc<Counts>,
}

impl Living {
    /// Whether it has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.counts.follow(&self.socket);
        self.counts.is_gone()
    }
}

/// This process's number as connection IDs have it.
pub(crate) fn tag(generation: u64) -> u8 {
    (generation % u64::from(GENERATIONS)) as u8
}

/// For the QUIC workers.
pub(crate) fn generations(own: u64, elders: &[Living]) -> Result<Generations, Failure> {
    let older = elders.iter().map(|living| {
        let socket = living.socket.try_clone()?;
        Ok(Older {
            generation: tag(living.elder.generation),
            keys: living.elder.keys(),
            forward: Box::new(Sender::new(socket, Arc::clone(&living.counts))),
        })
    });
    let older: std::io::Result<_> = older.collect();
    let older = older.map_err(|error| Failure::run_time(format!("--take-over: {error}")))?;
    Ok(Generations { own: tag(own), older })
}

/// Tells the process before why nothing comes of it.
pub(crate) struct Teller(Option<Arc<Channel>>);

impl Teller {
    pub(crate) fn failed(&self, failure: &Failure) {
        if let Some(channel) = &self.0 {
            // The message has a limit that no reason needs.
            let reason: String = failure.to_string().chars().take(2000).collect();
            // It may be gone, and then knows.
            let _ = channel.send(0, &Step::Failed(reason), &[]);
        }
    }
}
