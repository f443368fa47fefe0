//! All WebRTC sessions of the process, for the HTTP workers. Their number is limited, and each has an unguessable
//! URL.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expressway_web::Wake;
use str0m::IceCreds;

use super::addresses::{Addresses, Claims};
use super::answer::{Agreed, Role};
use super::crypto::random;

/// The unguessable part of a session's URL.
pub type Name = [u8; 16];

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Unique in this process.
    pub number: u64,
    /// Its room, by index.
    pub room: usize,
    /// Whether it publishes or receives.
    pub role: Role,
    /// Names its ICE session (RFC 9725, section 4.3).
    pub tag: Arc<str>,
}

/// How many sessions there may be at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub sessions: usize,
    /// That publish.
    pub publishers: usize,
    /// Of one address.
    pub of_address: usize,
    /// Of one address, that publish.
    pub publishers_of_address: usize,
}

/// Which of them is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// See [`Limits::sessions`].
    Sessions,
    /// See [`Limits::publishers`].
    Publishers,
    /// See [`Limits::of_address`].
    Address,
    /// See [`Limits::publishers_of_address`].
    AddressPublishers,
}

/// The sessions of a process.
#[derive(Debug)]
pub struct SessionTable {
    limits: Limits,
    numbers: AtomicU64,
    sessions: Mutex<Sessions>,
    claims: Arc<Claims>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_name: HashMap<Name, Entry>,
    publishers: usize,
    /// Sessions, and among them publishers, of each address that has some.
    of_address: HashMap<IpAddr, (usize, usize)>,
}

/// Who counts as one: an IPv4 address, or an IPv6 network of 64 bits, in which a host has as many addresses as it likes.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

impl SessionTable {
    /// A table of so many sessions at a time.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            numbers: AtomicU64::new(0),
            sessions: Mutex::default(),
            claims: Arc::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session of whoever is at `source`.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn admit(self: &Arc<Self>, room: usize, role: Role, source: IpAddr) -> Result<Registration, Limit> {
        let mut sessions = self.lock();
        let (source, publishes) = (network(source), usize::from(role == Role::Publish));
        let (all, publishers) = sessions.of_address.get(&source).copied().unwrap_or_default();
        let limits = &self.limits;
        let reached = [
            (sessions.by_name.len() >= limits.sessions, Limit::Sessions),
            (sessions.publishers + publishes > limits.publishers, Limit::Publishers),
            (all >= limits.of_address, Limit::Address),
            (publishers + publishes > limits.publishers_of_address, Limit::AddressPublishers),
        ];
        if let Some((_, limit)) = reached.into_iter().find(|(is_reached, _)| *is_reached) {
            return Err(limit);
        }
        sessions.of_address.insert(source, (all + 1, publishers + publishes));
        sessions.publishers += publishes;
        let (name, number) = (random(), self.numbers.fetch_add(1, Ordering::Relaxed));
        sessions.by_name.insert(name, Entry { number, room, role, tag: Arc::default() });
        Ok(Registration { table: Arc::clone(self), name, number, source })
    }

    /// The session of that name.
    pub fn find(&self, name: &Name) -> Option<Entry> {
        self.lock().by_name.get(name).cloned()
    }

    /// The ICE session of the session of that name is this one now.
    pub(super) fn set_tag(&self, name: &Name, tag: &str) {
        if let Some(entry) = self.lock().by_name.get_mut(name) {
            entry.tag = tag.into();
        }
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.lock().by_name.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Keeps a session in the table until it is dropped.
#[derive(Debug)]
pub struct Registration {
    table: Arc<SessionTable>,
    /// Of its URL.
    pub name: Name,
    /// See [`Entry::number`].
    pub number: u64,
    source: IpAddr,
}

impl Registration {
    /// The addresses of the session, of which it has none yet.
    pub(super) fn addresses(&self) -> Addresses {
        Addresses::new(Arc::clone(&self.table.claims), self.number)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut sessions = self.table.lock();
        let Some(entry) = sessions.by_name.remove(&self.name) else { return };
        let publishes = usize::from(entry.role == Role::Publish);
        sessions.publishers -= publishes;
        if let Some((all, publishers)) = sessions.of_address.get_mut(&self.source) {
            (*all, *publishers) = (*all - 1, *publishers - publishes);
            if *all == 0 {
                sessions.of_address.remove(&self.source);
            }
        }
    }
}

/// Why a room rejects a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has a publisher.
    Conflict,
    /// It has as many players as it may.
    Full,
    /// Its worker is overloaded, or has ended.
    Busy,
    /// There is no such session any more.
    Gone,
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
    /// Its entry in the table.
    pub registration: Registration,
    /// Where the result goes.
    pub reply: ReplySender,
}

/// ICE of a session begins anew.
#[derive(Debug)]
pub struct Restart {
    /// See [`Entry::number`].
    pub session: u64,
    /// Credentials of the session, and of its peer.
    pub(super) credentials: (IceCreds, IceCreds),
    /// Where the result goes.
    pub reply: ReplySender,
}

/// Sends the worker's result once. Dropped without, it sends [`Refused::Busy`].
#[derive(Debug)]
pub struct ReplySender {
    said: Arc<Mutex<Option<Result<(), Refused>>>>,
    wake: Wake,
}

/// Receives it.
#[derive(Debug)]
pub struct ReplyReceiver(Arc<Mutex<Option<Result<(), Refused>>>>);

impl ReplySender {
    /// Both ends. `wake` is called when there is a result.
    pub fn new(wake: Wake) -> (Self, ReplyReceiver) {
        let said = Arc::default();
        (Self { said: Arc::clone(&said), wake }, ReplyReceiver(said))
    }

    /// Sends the result.
    pub fn send(&self, what: Result<(), Refused>) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        self.wake.wake();
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        self.send(Err(Refused::Busy));
    }
}

impl ReplyReceiver {
    /// The result, once there is one.
    pub fn try_recv(&self) -> Option<Result<(), Refused>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { sessions: 3, publishers: 1, of_address: 2, publishers_of_address: 1 };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let table = SessionTable::new(LIMITS);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let first = table.admit(0, Role::Publish, one).unwrap();
        let second = table.admit(1, Role::Play, one).unwrap();
        assert_eq!(table.admit(1, Role::Play, one).unwrap_err(), Limit::Address);
        assert_eq!(table.admit(1, Role::Publish, other).unwrap_err(), Limit::Publishers);
        let third = table.admit(1, Role::Play, other).unwrap();
        assert_eq!(table.admit(1, Role::Play, other).unwrap_err(), Limit::Sessions);
        table.set_tag(&third.name, "tag");
        let entry = Entry { number: 2, room: 1, role: Role::Play, tag: "tag".into() };
        assert_eq!((table.find(&third.name), table.len()), (Some(entry), 3));
        let name = first.name;
        drop(first);
        assert_eq!((table.find(&name), table.len()), (None, 2));
        let fourth = table.admit(1, Role::Publish, other).unwrap();
        drop((second, third, fourth));
        let sessions = table.lock();
        assert!(sessions.by_name.is_empty() && sessions.of_address.is_empty() && sessions.publishers == 0);
    }

    #[test]
    fn an_address_is_a_network_of_64_bits() {
        let table = SessionTable::new(Limits { sessions: 100, publishers: 100, ..LIMITS });
        let admit = |text: &str, role| table.admit(0, role, address(text));
        let _kept = [
            admit("2001:db8::1", Role::Publish).unwrap(),
            admit("2001:db8:0:1::1", Role::Publish).unwrap(),
            admit("::ffff:192.0.2.1", Role::Play).unwrap(),
            admit("::ffff:192.0.2.2", Role::Play).unwrap(),
            admit("192.0.2.1", Role::Play).unwrap(),
        ];
        assert_eq!(admit("2001:db8::2", Role::Publish).unwrap_err(), Limit::AddressPublishers);
        let _other = admit("2001:db8::2", Role::Play).unwrap();
        assert_eq!(admit("2001:db8::ffff:0:0:3", Role::Play).unwrap_err(), Limit::Address);
        assert_eq!(admit("192.0.2.1", Role::Play).unwrap_err(), Limit::Address);
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
        let (reply, receiver) = ReplySender::new(Wake::new(Arc::clone(&count) as Arc<_>, 0));
        assert_eq!(receiver.try_recv(), None);
        drop(reply);
        assert_eq!((receiver.try_recv(), count.0.load(Ordering::Relaxed)), (Some(Err(Refused::Busy)), 1));
        let (reply, receiver) = ReplySender::new(Wake::new(count, 0));
        reply.send(Ok(()));
        drop(reply);
        assert_eq!(receiver.try_recv(), Some(Ok(())));
    }
}
