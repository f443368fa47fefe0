//! What the HTTP side knows of sessions: how many there are, and which worker has them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expressway_web::Wake;

use super::answer::{Agreed, Role};
use super::crypto::random;

/// The name of a session in its URL, which nobody can guess.
pub type Name = [u8; 16];

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// It is the only one of that number in this process.
    pub number: u64,
    /// Its room, by index.
    pub room: usize,
    /// What it is for.
    pub role: Role,
}

/// All sessions of a process.
#[derive(Debug)]
pub struct Desk {
    most: usize,
    numbers: AtomicU64,
    sessions: Mutex<HashMap<Name, Entry>>,
}

impl Desk {
    /// One that admits so many at once.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, numbers: AtomicU64::new(0), sessions: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Entry>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a session; `None`: there are too many.
    pub fn admit(self: &Arc<Self>, room: usize, role: Role) -> Option<Ticket> {
        let mut sessions = self.lock();
        if sessions.len() >= self.most {
            return None;
        }
        let (name, number) = (random(), self.numbers.fetch_add(1, Ordering::Relaxed));
        sessions.insert(name, Entry { number, room, role });
        Some(Ticket { desk: Arc::clone(self), name, number })
    }

    /// The session of that name.
    pub fn find(&self, name: &Name) -> Option<Entry> {
        self.lock().get(name).copied()
    }

    /// Sessions that are there.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Nobody is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A session's place, which it gives back when this is dropped.
#[derive(Debug)]
pub struct Ticket {
    desk: Arc<Desk>,
    /// Of its URL.
    pub name: Name,
    /// See [`Entry::number`].
    pub number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk.lock().remove(&self.name);
    }
}

/// Why a room has no place for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Somebody publishes.
    Conflict,
    /// As many receive as may.
    Full,
    /// The room's worker is behind, or has ended.
    Busy,
}

/// A session for a room's worker.
#[derive(Debug)]
pub struct Join {
    /// Its room, by index.
    pub room: usize,
    /// What it is for.
    pub role: Role,
    /// What was agreed on.
    pub agreed: Agreed,
    /// Its place.
    pub ticket: Ticket,
    /// Who waits to hear.
    pub reply: Reply,
}

/// Where the worker says whether it has the session. Dropped unsaid, it says that it has not.
#[derive(Debug)]
pub struct Reply {
    said: Arc<Mutex<Option<Result<(), Refused>>>>,
    wake: Wake,
}

/// Who hears what is said there.
#[derive(Debug)]
pub struct Hearing(Arc<Mutex<Option<Result<(), Refused>>>>);

impl Reply {
    /// With its other end. `wake` is called when something was said.
    pub fn new(wake: Wake) -> (Self, Hearing) {
        let said = Arc::default();
        (Self { said: Arc::clone(&said), wake }, Hearing(said))
    }

    /// Says it.
    pub fn say(&self, what: Result<(), Refused>) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        self.wake.wake();
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.say(Err(Refused::Busy));
    }
}

impl Hearing {
    /// What was said, once something was.
    pub fn heard(&self) -> Option<Result<(), Refused>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let desk = Desk::new(2);
        let one = desk.admit(0, Role::Publish).unwrap();
        let other = desk.admit(1, Role::Play).unwrap();
        assert!(desk.admit(1, Role::Play).is_none());
        assert_eq!(desk.find(&other.name), Some(Entry { number: 1, room: 1, role: Role::Play }));
        let name = one.name;
        drop(one);
        assert_eq!((desk.find(&name), desk.len()), (None, 1));
        assert!(desk.admit(1, Role::Play).is_some());
    }

    #[test]
    fn a_worker_that_says_nothing_says_no() {
        struct Count(AtomicU64);
        impl expressway_web::Notify for Count {
            fn notify(&self, _: u64) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicU64::new(0)));
        let (reply, hearing) = Reply::new(Wake::new(Arc::clone(&count) as Arc<_>, 0));
        assert_eq!(hearing.heard(), None);
        drop(reply);
        assert_eq!((hearing.heard(), count.0.load(Ordering::Relaxed)), (Some(Err(Refused::Busy)), 1));
        let (reply, hearing) = Reply::new(Wake::new(count, 0));
        reply.say(Ok(()));
        drop(reply);
        assert_eq!(hearing.heard(), Some(Ok(())));
    }
}
