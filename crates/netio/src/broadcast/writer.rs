//! The writer: a ring, and the socket to which its readers connect.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use rustix::event::{Timespec, epoll};

use super::layout::{self, Hello};
use super::memory::{Control, RingMemory};
use super::ring::{Record, Writer, size_of_record};
use crate::readers::{Arrival, Listener, Liveness, ReaderAccessError, greet, liveness, wake};
use crate::stats::counters;
use crate::sys::mapping::Mapping;

/// The largest ring, in bytes.
pub(super) const MAX_CAPACITY: u64 = 1 << 34;
/// The smallest.
const MIN_CAPACITY: usize = 1 << 12;
/// The most readers: each costs the writer a load a batch.
const MAX_READERS: u32 = 256;
/// Readers let in or refused at a time: each costs the writer some 50 µs, and whoever goes on connecting would hold it up.
const ARRIVALS: usize = 4;
/// Marks the listening socket among the events; readers are below it.
const LISTENER: u64 = u64::MAX;

/// What readers are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastConfig {
    /// Path of the unix socket (SOCK_SEQPACKET) that readers connect to. A socket that a dead process left
    /// there is replaced.
    pub path: PathBuf,
    /// Permissions of the socket: who may connect may read every record.
    pub mode: u32,
    /// Readers at a time, 1 to 256.
    pub readers: u32,
    /// Bytes of records that are kept, a power of two from 4 KiB to 16 GiB: how far a reader may fall behind.
    pub capacity: usize,
    /// Longest record, in bytes: at most a quarter of the capacity less 32.
    pub largest: usize,
    /// Ask for huge pages.
    pub huge_pages: bool,
}

impl BroadcastConfig {
    /// Sixteen readers of the same user, 16 MiB, records of up to 65,535 bytes.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mode: 0o600,
            readers: 16,
            capacity: 1 << 24,
            largest: 65_535,
            huge_pages: false,
        }
    }

    fn validate(&self) -> Result<(), ReaderAccessError> {
        let complain =
            |field, value: usize, must| Err(ReaderAccessError::Config { field, value: value as u64, must });
        if !(1..=MAX_READERS).contains(&self.readers) {
            return complain("readers", self.readers as usize, "must be 1 to 256");
        }
        let possible = MIN_CAPACITY as u64..=MAX_CAPACITY;
        if !self.capacity.is_power_of_two() || !possible.contains(&(self.capacity as u64)) {
            return complain("capacity", self.capacity, "must be a power of two from 4096 to 17179869184");
        }
        // With four or more records in the ring a reader that keeps up is never overtaken by one batch of one.
        if self.largest > self.capacity || size_of_record(self.largest) > self.capacity / 4 {
            return complain("largest", self.largest, "must be at most a quarter of the capacity less 32");
        }
        Ok(())
    }
}

counters! {
    /// What a ring was given, and its readers.
    pub struct BroadcastStats {
        /// Records written.
        pub records: u64,
        /// Bytes of their data.
        pub bytes: u64,
        /// Records that were not written because they are longer than the longest.
        pub dropped_long: u64,
        /// Wake-ups of readers.
        pub wakeups: u64,
        /// Readers admitted.
        pub readers_accepted: u64,
        /// Readers refused: too many, no memory for their control, or no descriptor.
        pub readers_refused: u64,
        /// Readers that left or died.
        pub readers_gone: u64,
        /// Readers dismissed because they sent a message.
        pub readers_dismissed: u64,
    }
}

/// How far a reader is behind, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderLag {
    /// Which one: readers are numbered as they come.
    pub reader: u64,
    /// Bytes that were published and that it has not read; more than the capacity means that it will lose some.
    pub bytes: u64,
}

/// One reader that is connected.
struct Member {
    number: u64,
    connection: OwnedFd,
    control: Control,
}

/// A ring that other processes read.
///
/// ```no_run
/// use expressway_netio::broadcast::{Broadcast, BroadcastConfig, Record};
///
/// # fn main() -> Result<(), expressway_netio::broadcast::ReaderAccessError> {
/// let mut ring = Broadcast::new(BroadcastConfig::new("/run/feed/ring.sock"))?;
/// # let batch: Vec<Vec<u8>> = Vec::new();
/// loop {
///     for data in &batch {
///         ring.push(&Record { data, ..Record::default() });
///     }
///     ring.publish();
///     // When the socket is readable, or now and then.
///     ring.attend();
/// }
/// # }
/// ```
pub struct Broadcast {
    writer: Writer<RingMemory<Mapping>>,
    file: OwnedFd,
    listener: Listener,
    events: OwnedFd,
    members: Vec<Member>,
    config: BroadcastConfig,
    stats: BroadcastStats,
}

impl Broadcast {
    /// Makes the ring, and listens for readers.
    ///
    /// # Errors
    /// [`ReaderAccessError`] says what is wrong: a number is out of range, there is not enough memory, or the path cannot
    /// be bound.
    pub fn new(config: BroadcastConfig) -> Result<Self, ReaderAccessError> {
        config.validate()?;
        let memory = |source| ReaderAccessError::Memory { length: config.capacity as u64, source };
        let (ring, file) = RingMemory::create(config.capacity, config.huge_pages).map_err(memory)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| memory(errno.into()))?;
        let listener = Listener::open(&config.path, config.mode)?;
        epoll::add(&events, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
            .map_err(|errno| memory(errno.into()))?;
        let writer = Writer::new(ring, config.largest);
        let stats = BroadcastStats::default();
        Ok(Self { writer, file, listener, events, members: Vec::new(), config, stats })
    }

    /// Writes a record, over the oldest where the ring is full. False, and counted, if it is too long.
    #[inline]
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        if !self.writer.push(record) {
            self.stats.dropped_long += 1;
            return false;
        }
        self.stats.records += 1;
        self.stats.bytes += record.data.len() as u64;
        true
    }

    /// Shows readers what was written since the last time, and wakes those who sleep. Once a batch.
    pub fn publish(&mut self) {
        if !self.writer.publish() {
            return;
        }
        for member in &self.members {
            if Writer::<RingMemory<Mapping>>::is_asleep(member.control.asleep()) {
                wake(&member.connection);
                self.stats.wakeups += 1;
            }
        }
    }

    /// Lets in readers that have come, and forgets those that went. Does not wait. To be called when
    /// the descriptor ([`AsFd`]) is readable, or now and then.
    pub fn attend(&mut self) {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        // Failing, the descriptor stays readable.
        let count = epoll::wait(&self.events, &mut events, Some(&Timespec::default())).unwrap_or(0);
        for event in &events[..count] {
            match event.data.u64() {
                LISTENER => self.admit(),
                number => self.check(number),
            }
        }
    }

    /// Lets in some of those who wait; the descriptor stays readable for the others.
    fn admit(&mut self) {
        for _ in 0..ARRIVALS {
            match self.listener.accept() {
                Arrival::Reader(connection) => self.receive(connection),
                Arrival::Nobody => return,
                Arrival::TurnedAway => {
                    tracing::warn!("ring reader rejected: out of file descriptors (`ulimit -n`)");
                    self.stats.readers_refused += 1;
                }
            }
        }
    }

    fn receive(&mut self, connection: OwnedFd) {
        let status = if self.members.len() >= self.config.readers as usize {
            layout::TOO_MANY_READERS
        } else {
            let number = self.stats.readers_accepted;
            match self.let_in(number, connection.as_fd()) {
                Ok(control) => {
                    tracing::info!(reader = number, "ring reader connected");
                    self.members.push(Member { number, connection, control });
                    self.stats.readers_accepted += 1;
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot admit a ring reader");
                    layout::FAILED
                }
            }
        };
        self.stats.readers_refused += 1;
        // It may be gone already; then there is nobody to tell.
        let _ = greet(&connection, &Hello::refusal(status).to_bytes(), None);
    }

    fn let_in(&self, number: u64, connection: BorrowedFd<'_>) -> std::io::Result<Control> {
        let (control, file) = Control::create()?;
        let (position, sequence) = self.writer.entry();
        control.position().store(position, Ordering::Relaxed);
        // Both fit: `validate` has seen that the longest is less than the capacity, which a u32 holds a quarter of.
        let largest = self.writer.largest() as u32;
        let hello = Hello {
            status: layout::ACCEPTED,
            largest,
            capacity: self.config.capacity as u64,
            position,
            sequence,
        };
        // Watched first: of one that was greeted and is not watched, the end would go unseen.
        epoll::add(&self.events, connection, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        greet(connection, &hello.to_bytes(), Some([self.file.as_fd(), file.as_fd()]))?;
        Ok(control)
    }

    fn check(&mut self, number: u64) {
        let Some(index) = self.members.iter().position(|member| member.number == number) else { return };
        match liveness(&self.members[index].connection) {
            Liveness::Alive => return,
            Liveness::Gone => self.stats.readers_gone += 1,
            Liveness::Breach => {
                tracing::warn!(reader = number, "ring reader sent a message: disconnected");
                self.stats.readers_dismissed += 1;
            }
        }
        tracing::info!(reader = number, "ring reader disconnected");
        // Closing takes it out of the events.
        self.members.swap_remove(index);
    }

    /// How far each reader says that it is behind.
    pub fn readers(&self) -> impl Iterator<Item = ReaderLag> {
        let (tail, _) = self.writer.entry();
        self.members.iter().map(move |member| {
            let position = member.control.position().load(Ordering::Relaxed);
            ReaderLag { reader: member.number, bytes: tail.saturating_sub(position) }
        })
    }

    /// What it was given, and its readers.
    pub fn stats(&self) -> BroadcastStats {
        self.stats
    }
}

impl AsFd for Broadcast {
    /// Readable when [`Broadcast::attend`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
