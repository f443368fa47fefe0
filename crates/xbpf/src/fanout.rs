//! The programs that forward a feed in the kernel: loaded, attached, given their sockets, read.
//!
//! `bpf/fanout.bpf.c` describes what they do. Sockets are created elsewhere and are values of maps here. Everything is
//! held by descriptors of this process, so its end, for any reason, detaches the programs.

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use crate::attachment;
use crate::error::{CAPABILITIES, Error};
use crate::link::Link;
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::skeleton::FanoutSkelBuilder;
use crate::skeleton::fanout_types::{fanout_counter, fanout_event, fanout_event_kind, fanout_subscriber};
use crate::sys;

/// Connections beyond the subscribers: not accepted yet, or about to be refused.
const BACKLOG: u32 = 4096;

/// Events taken at a time.
const EVENTS: usize = 1000;

/// Turning a unicast feed into multicast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The feed's destination.
    pub destination: SocketAddr,
    /// The multicast group, of the same family, that replaces it.
    pub group: IpAddr,
    /// The only sources allowed; empty: all.
    pub sources: Vec<IpAddr>,
}

/// What is fixed when the programs are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FanoutOptions {
    /// Bytes of the length in front of each datagram: 0, 2 or 4.
    pub prefix: u32,
    /// Bytes that a connection may be behind before it is given nothing more.
    pub max_lag: u64,
    /// Time that a datagram may wait for a connection before it is given nothing more.
    pub max_age: Duration,
    /// Datagrams that may wait for a connection before it is given nothing more.
    pub max_queue: u32,
    /// Subscribers at once, at least 1.
    pub subscribers: u32,
    /// Ports of the listeners, at most 256.
    pub ports: Vec<u16>,
    /// `SO_NETNS_COOKIE` of the listeners.
    pub netns: u64,
    /// For a unicast feed.
    pub turn: Option<Turn>,
}

/// A subscriber's state in the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FanoutRecord {
    /// Datagrams given to its connection.
    pub datagrams: u64,
    /// Bytes given to its connection, lengths and gap markers included.
    pub bytes: u64,
    /// Datagrams that it was not given.
    pub skipped: u64,
    /// Gap markers that it was sent.
    pub gaps: u64,
    /// Datagrams that waited for its socket when the last one came.
    pub queue: u32,
    /// It is given nothing until its socket has taken everything.
    pub slow: bool,
}

/// Events of the programs. `connection` is the cookie of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanoutEvent {
    /// A connection to a listener was made.
    Connected {
        /// The socket's cookie.
        connection: u64,
    },
    /// Such a connection has changed its TCP state.
    State {
        /// The socket's cookie.
        connection: u64,
        /// The new state, as in `include/net/tcp_states.h`.
        state: u32,
    },
    /// A subscriber has fallen behind: it is given nothing until its socket has taken everything.
    Slow {
        /// The socket's cookie.
        connection: u64,
        /// Behind in time, and not in bytes or datagrams.
        by_age: bool,
    },
}

impl FanoutEvent {
    fn from_bytes(data: &[u8]) -> Option<Self> {
        let connection = word(data, offset_of!(fanout_event, connection))?;
        let kind = fanout_event_kind(half(data, offset_of!(fanout_event, kind))?);
        let state = half(data, offset_of!(fanout_event, state))?;
        match kind {
            fanout_event_kind::FANOUT_CONNECTED => Some(Self::Connected { connection }),
            fanout_event_kind::FANOUT_STATE => Some(Self::State { connection, state }),
            fanout_event_kind::FANOUT_SLOW => {
                Some(Self::Slow { connection, by_age: state == fanout_counter::FANOUT_SKIPPED_AGE.0 })
            }
            _ => None,
        }
    }
}

fn word(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

fn half(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// What became of datagrams and events; see `enum fanout_counter` in `bpf/include/fanout_shared.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is documented in the header")]
pub struct FanoutCounts {
    pub given: u64,
    pub skipped_bytes: u64,
    pub skipped_queue: u64,
    pub skipped_age: u64,
    pub skipped_catching_up: u64,
    pub skipped_state: u64,
    pub skipped_memory: u64,
    pub dropped_empty: u64,
    pub dropped_unknown: u64,
    pub turned: u64,
    pub dropped_source: u64,
    pub dropped_private: u64,
    pub passed: u64,
    pub dropped_rewrite: u64,
    pub events_lost: u64,
}

impl FanoutCounts {
    fn add_cpu(&mut self, value: &[u8]) -> Option<()> {
        let add = |cell: &mut u64, counter: fanout_counter| {
            *cell += word(value, counter.0 as usize * 8)?;
            Some(())
        };
        add(&mut self.given, fanout_counter::FANOUT_GIVEN)?;
        add(&mut self.skipped_bytes, fanout_counter::FANOUT_SKIPPED_BYTES)?;
        add(&mut self.skipped_queue, fanout_counter::FANOUT_SKIPPED_QUEUE)?;
        add(&mut self.skipped_age, fanout_counter::FANOUT_SKIPPED_AGE)?;
        add(&mut self.skipped_catching_up, fanout_counter::FANOUT_SKIPPED_CATCHING_UP)?;
        add(&mut self.skipped_state, fanout_counter::FANOUT_SKIPPED_STATE)?;
        add(&mut self.skipped_memory, fanout_counter::FANOUT_SKIPPED_MEMORY)?;
        add(&mut self.dropped_empty, fanout_counter::FANOUT_DROPPED_EMPTY)?;
        add(&mut self.dropped_unknown, fanout_counter::FANOUT_DROPPED_UNKNOWN)?;
        add(&mut self.turned, fanout_counter::FANOUT_TURNED)?;
        add(&mut self.dropped_source, fanout_counter::FANOUT_DROPPED_SOURCE)?;
        add(&mut self.dropped_private, fanout_counter::FANOUT_DROPPED_PRIVATE)?;
        add(&mut self.passed, fanout_counter::FANOUT_PASSED)?;
        add(&mut self.dropped_rewrite, fanout_counter::FANOUT_DROPPED_REWRITE)?;
        add(&mut self.events_lost, fanout_counter::FANOUT_EVENTS_LOST)
    }
}

/// The loaded programs with their maps; dropping them ends forwarding.
pub struct FanoutPrograms {
    feeds: MapHandle,
    connections: MapHandle,
    subscribers: MapHandle,
    stats: MapHandle,
    sockops: OwnedFd,
    events: Events,
    turn: Option<OwnedFd>,
    /// What keeps programs attached to the feed's interface and the cgroup.
    turn_link: Option<Link>,
    cgroup_link: Option<Link>,
}

struct Events {
    map: MapHandle,
    ring: RingBuffer<'static>,
    seen: Receiver<FanoutEvent>,
}

impl fmt::Debug for FanoutPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanoutPrograms").field("turn_link", &self.turn_link).finish_non_exhaustive()
    }
}

fn address(address: IpAddr) -> [u32; 4] {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let (words, _) = octets.as_chunks::<4>();
    [0, 1, 2, 3].map(|at| u32::from_ne_bytes(words[at]))
}

impl FanoutPrograms {
    /// Loads the programs. Only that of the UDP sockets is attached, and there are none yet.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::FanoutLoad`], [`Error::Map`].
    pub fn load(options: &FanoutOptions) -> Result<Self, Error> {
        Self::load_failing(options, false, false)
    }

    /// The same, as if the kernel had no memory to rewrite headers, or to put something in front of datagrams.
    ///
    /// # Errors
    /// As [`FanoutPrograms::load`].
    #[doc(hidden)]
    pub fn load_failing(options: &FanoutOptions, rewrite: bool, room: bool) -> Result<Self, Error> {
        forward_libbpf_messages();
        let load = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => Error::NotPermitted {
                action: "loading the forwarding programs".to_owned(),
                needed: CAPABILITIES,
            },
            _ => Error::FanoutLoad { source },
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = FanoutSkelBuilder::default().open(&mut storage).map_err(load)?;
        // One more for the socket that only counts.
        for map in [&mut open.maps.feeds_map, &mut open.maps.subscribers_map] {
            map.set_max_entries(options.subscribers.saturating_add(1)).map_err(load)?;
        }
        let connections = options.subscribers.saturating_add(BACKLOG);
        open.maps.connections_map.set_max_entries(connections).map_err(load)?;
        open.progs.expressway_turn.set_autoload(options.turn.is_some());
        if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
            knobs.prefix = options.prefix;
            knobs.max_lag = options.max_lag;
            knobs.max_age = u64::try_from(options.max_age.as_nanos()).unwrap_or(u64::MAX);
            knobs.max_queue = options.max_queue;
            knobs.listeners_netns = options.netns;
            (knobs.fail_rewrite, knobs.fail_room) = (rewrite, room);
            if let Some(turn) = &options.turn {
                knobs.destination = address(turn.destination.ip());
                knobs.private_group = address(turn.group);
                knobs.feed_port = turn.destination.port().to_be();
                knobs.check_source = !turn.sources.is_empty();
            }
        }
        let loaded = open.load().map_err(load)?;
        let events = MapHandle::try_from(&loaded.maps.events_map).map_err(load)?;
        for port in &options.ports {
            let result = loaded.maps.ports_map.update(&u32::from(*port).to_ne_bytes(), &[1], MapFlags::ANY);
            result.map_err(|source| Error::Map { map: "ports_map", source })?;
        }
        loaded
            .progs
            .expressway_fan
            .attach_sockmap(loaded.maps.feeds_map.as_fd().as_raw_fd())
            .map_err(load)?;
        let sockops = loaded.progs.expressway_ends.as_fd().try_clone_to_owned();
        let mut programs = Self {
            feeds: MapHandle::try_from(&loaded.maps.feeds_map).map_err(load)?,
            connections: MapHandle::try_from(&loaded.maps.connections_map).map_err(load)?,
            subscribers: MapHandle::try_from(&loaded.maps.subscribers_map).map_err(load)?,
            stats: MapHandle::try_from(&loaded.maps.stats_map).map_err(load)?,
            sockops: sockops.map_err(|source| Error::Descriptor { source })?,
            events: Events::open(events).map_err(load)?,
            turn: None,
            turn_link: None,
            cgroup_link: None,
        };
        if let Some(turn) = &options.turn {
            for source in &turn.sources {
                let key = address(*source).map(u32::to_ne_bytes);
                let result = loaded.maps.sources_map.update(key.as_flattened(), &[1], MapFlags::ANY);
                result.map_err(|source| Error::Map { map: "sources_map", source })?;
            }
            let program = loaded.progs.expressway_turn.as_fd().try_clone_to_owned();
            programs.turn = Some(program.map_err(|source| Error::Descriptor { source })?);
        }
        Ok(programs)
    }

    /// Reports connections to the listeners of processes in this cgroup (v2) as events.
    ///
    /// # Errors
    /// [`Error::FanoutAttach`].
    pub fn follow(&mut self, cgroup: BorrowedFd<'_>) -> Result<(), Error> {
        let link = sys::link_sockops(self.sockops.as_fd(), cgroup)
            .map_err(|source| Error::FanoutAttach { place: "cgroup, sockops".to_owned(), source })?;
        self.cgroup_link = Some(link);
        Ok(())
    }

    /// Rewrites the datagrams that arrive on the interface `ifindex`, which has Ethernet headers, and on no other.
    ///
    /// # Errors
    /// [`Error::FanoutAttach`]; without [`FanoutOptions::turn`] with ENOENT.
    pub fn turn(&mut self, ifindex: u32) -> Result<(), Error> {
        let failed = |source| Error::FanoutAttach {
            place: format!("{}, tcx ingress", attachment::interface(ifindex)),
            source,
        };
        let program = self.turn.as_ref().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        self.turn_link = None;
        self.turn_link = Some(sys::link_tcx_ingress(program.as_fd(), ifindex).map_err(failed)?);
        Ok(())
    }

    /// Whether datagrams are rewritten at `ifindex`: false once it is gone.
    pub fn is_turning(&self, ifindex: u32) -> bool {
        let link = self.turn_link.as_ref();
        link.is_some_and(|link| sys::link_interface(link.as_fd()).is_ok_and(|index| index == ifindex))
    }

    /// Counts what the UDP socket `feed`, with this cookie, receives, and drops it. The socket is bound and has
    /// received nothing yet.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn count(&self, feed: BorrowedFd<'_>, cookie: u64) -> Result<(), Error> {
        self.put(feed, cookie, 0)
    }

    /// Forwards what the UDP socket `feed` receives from now on to the TCP socket `connection`; both are given with their
    /// cookies. The UDP socket is bound and has received nothing yet, the connection is established.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn forward(
        &self,
        feed: (BorrowedFd<'_>, u64),
        connection: (BorrowedFd<'_>, u64),
    ) -> Result<(), Error> {
        let key = connection.1.to_ne_bytes();
        let failed = |source| Error::Map { map: "connections_map", source };
        // Where connections are followed, it was put in when it was made.
        if self.connections.lookup(&key, MapFlags::ANY).map_err(failed)?.is_none() {
            let value = i64::from(connection.0.as_raw_fd()).to_ne_bytes();
            self.connections.update(&key, &value, MapFlags::ANY).map_err(failed)?;
        }
        self.put(feed.0, feed.1, connection.1)
    }

    fn put(&self, feed: BorrowedFd<'_>, cookie: u64, connection: u64) -> Result<(), Error> {
        let mut record = [0; size_of::<fanout_subscriber>()];
        let at = offset_of!(fanout_subscriber, connection);
        record[at..at + 8].copy_from_slice(&connection.to_ne_bytes());
        let key = cookie.to_ne_bytes();
        let result = self.subscribers.update(&key, &record, MapFlags::ANY);
        result.map_err(|source| Error::Map { map: "subscribers_map", source })?;
        let result = self.feeds.update(&key, &feed.as_raw_fd().to_ne_bytes(), MapFlags::ANY);
        result.map_err(|source| Error::Map { map: "feeds_map", source })
    }

    /// Stops forwarding from the UDP socket with this cookie. What was forwarded is still delivered.
    pub fn end(&self, cookie: u64) {
        let key = cookie.to_ne_bytes();
        // A socket that was closed has gone from the map by itself.
        let _ = self.feeds.delete(&key);
        let _ = self.subscribers.delete(&key);
    }

    /// The state of the UDP socket with this cookie.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn record(&self, cookie: u64) -> Result<Option<FanoutRecord>, Error> {
        const MAP: &str = "subscribers_map";
        let value = self
            .subscribers
            .lookup(&cookie.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: MAP, source })?;
        let Some(value) = value else { return Ok(None) };
        let record = || {
            Some(FanoutRecord {
                datagrams: word(&value, offset_of!(fanout_subscriber, datagrams))?,
                bytes: word(&value, offset_of!(fanout_subscriber, bytes))?,
                skipped: word(&value, offset_of!(fanout_subscriber, skipped))?,
                gaps: word(&value, offset_of!(fanout_subscriber, gaps))?,
                queue: half(&value, offset_of!(fanout_subscriber, queue))?,
                slow: half(&value, offset_of!(fanout_subscriber, slow))? != 0,
            })
        };
        record().map(Some).ok_or(Error::Layout { map: MAP })
    }

    /// The counters, over all CPUs.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn counts(&self) -> Result<FanoutCounts, Error> {
        const MAP: &str = "stats_map";
        let cpus = self
            .stats
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: MAP, source })?;
        let mut counts = FanoutCounts::default();
        let whole = cpus.iter().flatten().try_for_each(|cpu| counts.add_cpu(cpu));
        whole.map(|()| counts).ok_or(Error::Layout { map: MAP })
    }

    /// Becomes readable when there are events.
    pub fn events_descriptor(&self) -> BorrowedFd<'_> {
        self.events.map.as_fd()
    }

    /// The events since the last call, up to a thousand; the descriptor stays readable while there are more.
    pub fn events(&self) -> impl Iterator<Item = FanoutEvent> {
        // Its result says only how many there were.
        self.events.ring.consume_raw_n(EVENTS);
        self.events.seen.try_iter()
    }
}

impl Events {
    fn open(map: MapHandle) -> Result<Self, libbpf_rs::Error> {
        let (sender, seen) = channel();
        let mut builder = RingBufferBuilder::new();
        builder.add(&map, move |data| {
            if let Some(event) = FanoutEvent::from_bytes(data) {
                // Nobody is listening: the programs are being dropped.
                let _ = sender.send(event);
            }
            0
        })?;
        let ring = builder.build()?;
        Ok(Self { map, ring, seen })
    }
}
