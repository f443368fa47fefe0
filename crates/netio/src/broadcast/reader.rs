//! A reader: copies each record that another process broadcasts out whole.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::layout::{self, Hello};
use super::memory::{Control, RingMemory};
use super::ring::{Found, Reader, Record};
use crate::readers::{Connection, ReaderError};
use crate::sys::view::View;

/// A record as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The record. Its bytes are the reader's own copy.
    pub record: Record<'a>,
    /// Its number in the ring, from 0.
    pub sequence: u64,
    /// Records in front of it that the reader was too slow for.
    pub lost: u64,
}

/// A connection to a [`super::Broadcast`].
///
/// ```no_run
/// use expressway_netio::broadcast::BroadcastReader;
///
/// # fn main() -> Result<(), expressway_netio::broadcast::ReaderError> {
/// let mut reader = BroadcastReader::connect("/run/feed/ring.sock")?;
/// loop {
///     reader.receive(64, |one| println!("{} {} bytes", one.record.number, one.record.data.len()))?;
///     reader.wait(None)?;
/// }
/// # }
/// ```
pub struct BroadcastReader {
    ring: Reader<RingMemory<View>>,
    control: Control,
    connection: Connection,
    lost: u64,
}

impl BroadcastReader {
    /// Connects to the writer that listens at `path`. It begins with the record that is published next.
    ///
    /// # Errors
    /// [`ReaderError`] says whether nobody listens, the writer refuses, or speaks another version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ReaderError> {
        let (connection, (message, descriptors)) = Connection::dial(path.as_ref(), Hello::SIZE)?;
        let hello = Hello::from_bytes(&message).map_err(|version| match version {
            Some(version) => connection.foreign(format!("version {version}, expected {}", layout::VERSION)),
            None => connection.foreign("unexpected first message"),
        })?;
        match hello.status {
            layout::ACCEPTED => {}
            layout::TOO_MANY_READERS => {
                return Err(connection.refused("too many readers"));
            }
            _ => return Err(connection.refused("it could not allocate memory for this reader; see its log")),
        }
        let [Some(ring), Some(control)] = descriptors else {
            return Err(connection.foreign("no descriptors received"));
        };
        if !hello.is_sound() {
            return Err(connection.foreign("invalid ring size"));
        }
        // At most `MAX_CAPACITY`.
        let capacity = hello.capacity as usize;
        let ring = RingMemory::map(ring.as_fd(), capacity).map_err(connection.failed("mapping the ring"))?;
        let control = Control::map(control.as_fd()).map_err(connection.failed("mapping control memory"))?;
        let ring = Reader::new(ring, (hello.position, hello.sequence), hello.largest as usize);
        Ok(Self { ring, control, connection, lost: 0 })
    }

    /// Hands up to `limit` records to `handle`, oldest first. No system call. Returns how many.
    ///
    /// # Errors
    /// [`ReaderError::Gone`] if the writer wrote what cannot be.
    pub fn receive<F: FnMut(Received<'_>)>(
        &mut self,
        limit: usize,
        mut handle: F,
    ) -> Result<usize, ReaderError> {
        let mut records = 0;
        while records < limit {
            match self.ring.next() {
                Found::Nothing => break,
                Found::Record { record, sequence, lost } => {
                    self.lost += lost;
                    handle(Received { record, sequence, lost });
                }
                Found::Corrupt => return Err(self.connection.gone()),
            }
            records += 1;
        }
        self.control.position().store(self.ring.position(), Ordering::Relaxed);
        Ok(records)
    }

    /// Sleeps until records wait or `timeout` is over (`None`: for ever). True if records wait.
    ///
    /// # Errors
    /// [`ReaderError::Gone`] when the writer closed the connection and nothing waits any more.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ReaderError> {
        let waiting = self.ring.want_wakeup(self.control.asleep(), true);
        let outcome = if waiting { Ok(()) } else { self.connection.sleep(timeout) };
        let waiting = self.ring.want_wakeup(self.control.asleep(), false);
        if waiting { Ok(true) } else { outcome.map(|()| false) }
    }

    /// Records that this reader was too slow for.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl AsFd for BroadcastReader {
    /// The connection. It is readable after [`BroadcastReader::wait`] has asked for a wake-up, and at the end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
