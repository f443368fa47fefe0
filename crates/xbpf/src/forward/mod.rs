//! The router's programs: loaded, told of interfaces and feeds, attached, read.
//!
//! `bpf/forward.bpf.c` describes what they do. A [`Forward`] holds no policy: which interfaces, what receivers stand
//! behind which device, and whose addresses are local, is told from above and may change while packets flow. Each
//! change is in an order in which every packet in between is either forwarded rightly or left to the kernel.

mod counters;
mod feed;
mod interface;

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

pub use counters::{EgressCounts, ForwardCounter, ForwardCounts, TrafficCounts, Verdict};
pub use feed::{Feed, Receiver};
pub use interface::{ForwardInterface, SourceCheck, Tag};

use crate::attachment::{self, AttachMode, Attachment, Existing, Keep};
use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::role::Role;
use crate::skeleton::forward::ForwardSkelBuilder;
use crate::skeleton::forward::types::forward_limit;
use crate::{dispatcher, sys};

/// The most interfaces; a [`ForwardInterface::slot`] is from 1 to this.
pub const INTERFACES: u32 = forward_limit::FORWARD_PORTS.0;
/// The most feeds; a [`Feed::slot`] is below.
pub const FEEDS: u32 = forward_limit::FORWARD_FEEDS.0;
/// The most receivers of all feeds together; a [`Receiver::slot`] is below.
pub const RECEIVERS: u32 = forward_limit::FORWARD_TARGETS.0;

/// The loaded programs with their maps. Dropping it does not end an [`Attachment`].
#[derive(Debug)]
pub struct Forward {
    program: OwnedFd,
    copy: OwnedFd,
    maps: Maps,
    /// Count what devices made of redirected frames; `None` where the kernel refuses it.
    observers: Option<[libbpf_rs::Link; 2]>,
    /// Interfaces, by what their frames look like.
    ports: HashMap<Vec<u8>, ForwardInterface>,
    locals: HashSet<Ipv4Addr>,
    feeds: feed::Feeds,
    /// There are or were feeds: copies may be under way.
    has_copies: bool,
}

#[derive(Debug)]
struct Maps {
    ports: MapHandle,
    devices: MapHandle,
    outputs: MapHandle,
    locals: MapHandle,
    stats: MapHandle,
    feeds: MapHandle,
    feed_stats: MapHandle,
    plans: MapHandle,
    sequence: MapHandle,
    targets: MapHandle,
    target_stats: MapHandle,
    turns: MapHandle,
    egress: MapHandle,
}

impl Forward {
    /// Loads the programs for interfaces of the calling thread's network namespace, unattached and knowing none.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Load`].
    pub fn load() -> Result<Self, Error> {
        match Self::load_with(true) {
            // Tracing takes BTF of the kernel, and is refused by some security policies.
            Err(error) if !matches!(error, Error::NotPermitted { .. }) => {
                tracing::debug!(%error, "without the count of frames that devices refuse");
                Self::load_with(false)
            }
            result => result,
        }
    }

    fn load_with(observe: bool) -> Result<Self, Error> {
        forward_libbpf_messages();
        let mut storage = MaybeUninit::uninit();
        let mut open = ForwardSkelBuilder::default().open(&mut storage).map_err(refused)?;
        if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
            knobs.namespace_inode = namespace_inode();
        }
        open.progs.forward_sent.set_autoload(observe);
        open.progs.forward_refused.set_autoload(observe);
        let mut loaded = open.load().map_err(refused)?;
        let devices =
            MapHandle::try_from(&loaded.maps.devices_map).and_then(|map| map.info()).map_err(refused)?;
        if let Some(shared) = loaded.maps.bss_data.as_deref_mut() {
            shared.devices_id = devices.info.id;
        }
        let observers = match observe {
            true => Some([
                loaded.progs.forward_sent.attach().map_err(refused)?,
                loaded.progs.forward_refused.attach().map_err(refused)?,
            ]),
            false => None,
        };
        let map = |map: &libbpf_rs::MapMut<'_>| MapHandle::try_from(map).map_err(refused);
        let maps = Maps {
            ports: map(&loaded.maps.ports_map)?,
            devices: map(&loaded.maps.devices_map)?,
            outputs: map(&loaded.maps.outputs_map)?,
            locals: map(&loaded.maps.locals_map)?,
            stats: map(&loaded.maps.stats_map)?,
            feeds: map(&loaded.maps.feeds_map)?,
            feed_stats: map(&loaded.maps.feed_stats_map)?,
            plans: map(&loaded.maps.plans_map)?,
            sequence: map(&loaded.maps.sequence_map)?,
            targets: map(&loaded.maps.targets_map)?,
            target_stats: map(&loaded.maps.target_stats_map)?,
            turns: map(&loaded.maps.turns_map)?,
            egress: map(&loaded.maps.egress_stats_map)?,
        };
        Ok(Self {
            program: descriptor(loaded.progs.expressway_fwd.as_fd())?,
            copy: descriptor(loaded.progs.forward_copy.as_fd())?,
            maps,
            observers,
            ports: HashMap::new(),
            locals: HashSet::new(),
            feeds: feed::Feeds::default(),
            has_copies: false,
        })
    }

    /// The router once more with the same maps, as the extension that replaces a function of a dispatcher.
    fn load_extension(&self, dispatcher: BorrowedFd<'_>, function: &str) -> Result<OwnedFd, Error> {
        let mut storage = MaybeUninit::uninit();
        let mut open = ForwardSkelBuilder::default().open(&mut storage).map_err(refused)?;
        open.progs.forward_sent.set_autoload(false);
        open.progs.forward_refused.set_autoload(false);
        open.progs.forward_copy.set_autoload(false);
        dispatcher::make_extension(&mut open.progs.expressway_fwd, dispatcher, function).map_err(refused)?;
        let Maps { ports, devices, outputs, locals, stats, feeds, feed_stats, .. } = &self.maps;
        let Maps { plans, sequence, targets, target_stats, turns, egress, .. } = &self.maps;
        let maps = &mut open.maps;
        for (map, shared) in [
            (&mut maps.ports_map, ports),
            (&mut maps.devices_map, devices),
            (&mut maps.outputs_map, outputs),
            (&mut maps.locals_map, locals),
            (&mut maps.stats_map, stats),
            (&mut maps.feeds_map, feeds),
            (&mut maps.feed_stats_map, feed_stats),
            (&mut maps.plans_map, plans),
            (&mut maps.sequence_map, sequence),
            (&mut maps.targets_map, targets),
            (&mut maps.target_stats_map, target_stats),
            (&mut maps.turns_map, turns),
            (&mut maps.egress_stats_map, egress),
        ] {
            map.reuse_fd(shared.as_fd()).map_err(refused)?;
        }
        let loaded = open.load().map_err(|source| match source.kind() {
            // With every privilege: a security policy, which is not the program's fault.
            ErrorKind::PermissionDenied if is_privileged() => Error::NoExtensions,
            _ => refused(source),
        })?;
        descriptor(loaded.progs.expressway_fwd.as_fd())
    }

    /// Attaches the router to the interface `ifindex`; as [`crate::Redirect::attach`]. With [`Keep::Pinned`] it takes the
    /// place of one that a killed process left, with no packet between the two.
    ///
    /// # Errors
    /// Those of [`crate::Redirect::attach`], [`Error::Pin`].
    pub fn attach(
        &self,
        ifindex: u32,
        mode: AttachMode,
        existing: Existing,
        keep: Keep,
    ) -> Result<Attachment, Error> {
        attachment::attach_as(Role::FORWARD, self.program.as_fd(), ifindex, mode, existing, keep)
    }

    /// Puts the router beside others on the interface `ifindex`; as [`crate::Redirect::join`].
    ///
    /// # Errors
    /// Those of [`crate::Redirect::join`].
    pub fn join(&self, ifindex: u32, mode: AttachMode) -> Result<Attachment, Error> {
        let load =
            |dispatcher: BorrowedFd<'_>, function: &str| Ok((self.load_extension(dispatcher, function)?, ()));
        attachment::join(Role::FORWARD, ifindex, mode, load).map(|((), attachment)| attachment)
    }

    /// The XDP program, for `bpf(2)` calls of one's own.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Whether [`Forward::egress`] counts.
    pub fn counts_egress(&self) -> bool {
        self.observers.is_some()
    }

    /// Makes `ports` the interfaces that packets are forwarded between, in place of those before. Packets of unchanged
    /// interfaces are forwarded throughout.
    ///
    /// # Errors
    /// [`Error::Map`]; then some are changed.
    pub fn set_interfaces(&mut self, ports: &[ForwardInterface]) -> Result<(), Error> {
        let wanted: HashMap<Vec<u8>, &ForwardInterface> =
            ports.iter().map(|port| (port.key().to_vec(), port)).collect();
        let gone: Vec<Vec<u8>> = self
            .ports
            .iter()
            .filter(|(key, old)| wanted.get(*key).is_none_or(|new| new.interface != old.interface))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.remove_port(&key)?;
        }
        let begins = !self.has_copies && ports.iter().any(|port| port.replicates);
        self.has_copies |= begins;
        // Where packets may go before where they come from.
        for port in ports.iter().filter(|port| begins || self.ports.get(&port.key()[..]) != Some(*port)) {
            self.put_egress(port)?;
        }
        for (key, port) in wanted {
            if self.ports.get(&key) != Some(port) {
                update(&self.maps.ports, "ports_map", &key, &port.value())?;
                self.ports.insert(key, port.clone());
            }
        }
        Ok(())
    }

    fn put_egress(&self, port: &ForwardInterface) -> Result<(), Error> {
        let interface = port.interface.to_ne_bytes();
        if !port.sends {
            remove(&self.maps.devices, "devices_map", &interface)?;
            return remove(&self.maps.outputs, "outputs_map", &interface);
        }
        let device = port.device.to_ne_bytes();
        let cpus =
            libbpf_rs::num_possible_cpus().map_err(|source| Error::Map { map: "turns_map", source })?;
        for (map, name) in [(&self.maps.turns, "turns_map"), (&self.maps.egress, "egress_stats_map")] {
            let value = vec![vec![0; map.value_size() as usize]; cpus];
            match map.update_percpu(&device, &value, MapFlags::NO_EXIST) {
                Err(source) if source.kind() != ErrorKind::AlreadyExists => {
                    return Err(Error::Map { map: name, source });
                }
                _ => {}
            }
        }
        update(&self.maps.outputs, "outputs_map", &interface, &port.output())?;
        update(&self.maps.devices, "devices_map", &interface, &self.device_value(port))
    }

    /// `struct bpf_devmap_val`: where feeds are or were, every bulk of a device goes through the program that addresses
    /// copies.
    fn device_value(&self, port: &ForwardInterface) -> [u8; 8] {
        let program = if self.has_copies { self.copy.as_raw_fd() } else { 0 };
        device_value(port.device, program)
    }

    fn remove_port(&mut self, key: &[u8]) -> Result<(), Error> {
        remove(&self.maps.ports, "ports_map", key)?;
        let Some(port) = self.ports.remove(key) else { return Ok(()) };
        let interface = port.interface.to_ne_bytes();
        remove(&self.maps.devices, "devices_map", &interface)?;
        remove(&self.maps.outputs, "outputs_map", &interface)?;
        if self.ports.values().any(|other| other.device == port.device) {
            return Ok(());
        }
        let device = port.device.to_ne_bytes();
        remove(&self.maps.turns, "turns_map", &device)?;
        remove(&self.maps.egress, "egress_stats_map", &device)
    }

    /// Makes `addresses` those of this host, from which no packet may come.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_locals(&mut self, addresses: &HashSet<Ipv4Addr>) -> Result<(), Error> {
        for address in addresses.difference(&self.locals) {
            update(&self.maps.locals, "locals_map", &address.octets(), &[1])?;
        }
        for address in self.locals.difference(addresses) {
            remove(&self.maps.locals, "locals_map", &address.octets())?;
        }
        self.locals.clone_from(addresses);
        Ok(())
    }

    /// Makes `feeds` those that are replicated, in place of those before. No datagram of a feed that stays is lost or
    /// given to anyone twice. Interfaces must say [`ForwardInterface::replicates`] before.
    ///
    /// # Errors
    /// [`Error::Map`]; then some are changed.
    pub fn set_feeds(&mut self, feeds: &[Feed]) -> Result<(), Error> {
        self.feeds.set(&self.maps, self.copy.as_fd(), feeds)
    }

    /// What became of the packets that came by the interface of a slot; slot 0 is those of no interface.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn counts(&self, slot: u32) -> Result<ForwardCounts, Error> {
        counters::read(&self.maps.stats, "stats_map", slot)
    }

    /// What came of a feed.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn feed(&self, slot: u32) -> Result<TrafficCounts, Error> {
        counters::read(&self.maps.feed_stats, "feed_stats_map", slot)
    }

    /// What a receiver was sent, before the device was given it.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn receiver(&self, slot: u32) -> Result<TrafficCounts, Error> {
        counters::read(&self.maps.target_stats, "target_stats_map", slot)
    }

    /// What a device made of the frames that it was given by any XDP program; `None` for one that is not a port's.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn egress(&self, device: u32) -> Result<Option<EgressCounts>, Error> {
        counters::read_hash(&self.maps.egress, "egress_stats_map", device)
    }

    /// Runs the router `repeat` times on `frame`, as if received on the interface `ifindex` of the calling thread's
    /// namespace, by BPF_PROG_TEST_RUN. No packet moves; the counters count. `linear` puts the bytes from there on
    /// into fragments, on Linux 6.18.
    ///
    /// # Errors
    /// [`Error::TestRun`].
    pub fn prog_test_run(
        &self,
        frame: &[u8],
        ifindex: u32,
        linear: Option<u32>,
        repeat: u32,
    ) -> Result<ForwardRun, Error> {
        let input = sys::TestRunInput { frame, linear, ifindex, room: ROOM, repeat, ..Default::default() };
        self.test_run(&input)
    }

    /// As [`Forward::prog_test_run`] once, on a frame in front of which there is no room for tags. Linux 6.9, whose metadata
    /// may be as long as that takes.
    ///
    /// # Errors
    /// [`Error::TestRun`], with EINVAL on older kernels.
    pub fn prog_test_run_without_room(&self, frame: &[u8], ifindex: u32) -> Result<ForwardRun, Error> {
        let metadata = sys::ALL_ROOM;
        let input =
            sys::TestRunInput { frame, ifindex, room: ROOM, metadata, repeat: 1, ..Default::default() };
        self.test_run(&input)
    }

    fn test_run(&self, input: &sys::TestRunInput<'_>) -> Result<ForwardRun, Error> {
        let output = sys::test_run(self.program.as_fd(), input)
            .map_err(|source| Error::TestRun { length: input.frame.len(), source })?;
        let duration = Duration::from_nanos(output.nanoseconds.into());
        Ok(ForwardRun { action: output.verdict, frame: output.frame, duration })
    }
}

/// The tags that the program may add to a frame of a test run, in bytes.
const ROOM: u32 = 8;

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRun {
    /// What the program returned (`enum xdp_action` of `linux/bpf.h`).
    pub action: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run; the kernel measures in whole nanoseconds over all repetitions.
    pub duration: Duration,
}

/// What it means that libbpf refuses a program or map.
fn refused(source: libbpf_rs::Error) -> Error {
    match source.kind() {
        ErrorKind::PermissionDenied if !is_privileged() => {
            Error::NotPermitted { action: "loading the XDP program".to_owned(), needed: CAPABILITIES }
        }
        _ => Error::Load { source },
    }
}

fn descriptor(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    fd.try_clone_to_owned().map_err(|source| Error::Descriptor { source })
}

/// The inode by which the kernel's structures name the calling thread's network namespace.
fn namespace_inode() -> u32 {
    use std::os::unix::fs::MetadataExt;
    // 0 is no namespace's: nothing is counted then.
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |metadata| metadata.ino() as u32)
}

/// A `struct bpf_devmap_val`.
fn device_value(device: u32, program: i32) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&device.to_ne_bytes());
    value[4..].copy_from_slice(&program.to_ne_bytes());
    value
}

fn update(map: &MapHandle, name: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY).map_err(|source| Error::Map { map: name, source })
}

/// Removes an entry that may have gone by itself.
fn remove(map: &MapHandle, name: &'static str, key: &[u8]) -> Result<(), Error> {
    match map.delete(key) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::Map { map: name, source }),
        _ => Ok(()),
    }
}
