//! The balancing program: loaded, given its services, nodes and rings, attached, read.
//!
//! `bpf/balance.bpf.c` describes what it does with packets. Which nodes a ring names, which state a node has and how it is
//! reached is decided above; every change here is one write that packets see as a whole.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::attachment::{self, AttachMode, Attachment, Existing, Keep};
use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::role::Role;
use crate::skeleton::balance::BalanceSkelBuilder;
use crate::skeleton::balance::types::{
    balance_flow, balance_flow_key, balance_limit, balance_newcomer, balance_server_id, rodata,
};
use crate::{dispatcher, sys};

mod counters;
mod listener;
mod node;
mod quic;
mod tables;
mod traffic;

pub use counters::{BalanceCounter, BalanceCounts};
pub use listener::{BalanceListener, BalanceProtocol};
pub use node::{BalanceMethod, BalanceNode, BalanceState};
pub use quic::BalanceQuic;
pub use tables::BalanceName;
pub use traffic::BalanceTraffic;

use listener::listener_key;
use tables::{Pins, Search};

/// What is fixed when the program is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceOptions {
    /// Established flows that are remembered, at least 1 for each CPU. Costs about 90 bytes each, at once.
    pub flows: u32,
    /// Flows that are not established yet, likewise.
    pub probation: u32,
    /// Mixed into the hash of flows: the same on all balancers of an address.
    pub seed: u64,
}

impl Default for BalanceOptions {
    /// A million flows, and 65,536 that may become so.
    fn default() -> Self {
        Self { flows: 1 << 20, probation: 1 << 16, seed: 0 }
    }
}

const _: () = {
    assert!(size_of::<balance_flow_key>() == 20 && size_of::<balance_flow>() == 16);
    assert!(size_of::<balance_newcomer>() == 20 && size_of::<balance_server_id>() == 20);
};

/// What a test run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceRun {
    /// What the program returned (`enum xdp_action` of `linux/bpf.h`).
    pub verdict: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run; the kernel measures in whole nanoseconds over all repetitions.
    pub duration: Duration,
}

/// The loaded balancing program with its maps. Dropping it does not end an [`Attachment`].
///
/// Maps may be read and changed while traffic flows.
#[derive(Debug)]
pub struct Balance {
    program: OwnedFd,
    seed: u64,
    listeners: MapHandle,
    rings: MapHandle,
    nodes: MapHandle,
    flows: MapHandle,
    probation: MapHandle,
    fragments: MapHandle,
    quic: MapHandle,
    server_ids: MapHandle,
    stats: MapHandle,
    service_stats: MapHandle,
    node_stats: MapHandle,
    /// Of tables that outlive the process.
    pins: Option<Pins>,
}

/// Flows read in one system call.
const FLOW_BATCH: u32 = 4096;

impl Balance {
    /// Services at once.
    pub const SERVICES: u32 = balance_limit::BALANCE_SERVICES.0;
    /// Nodes of all services at once.
    pub const NODES: u32 = balance_limit::BALANCE_NODES.0;
    /// Entries of a ring.
    pub const RING: u32 = balance_limit::BALANCE_RING.0;
    /// The longest server ID in a QUIC connection ID, in bytes.
    pub const SERVER_ID: usize = balance_limit::BALANCE_SERVER_ID.0 as usize;
    /// Configurations of QUIC connection IDs, by their rotation codepoint from 0.
    pub const QUIC_CONFIGS: u8 = balance_limit::BALANCE_QUIC_UNROUTABLE.0 as u8;
    /// Bytes that the longest outer header adds to a packet.
    pub const OVERHEAD: u32 = 48;

    /// Loads the program and makes its maps, unattached and without services.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; [`Error::Load`] if the kernel is older
    /// than 5.18.
    pub fn load(options: &BalanceOptions) -> Result<Self, Error> {
        Self::load_over(options, Search::none()).map(|(balance, _)| balance)
    }

    /// As [`Balance::load`], with the flow tables that a killed process of this network namespace left pinned, if they are of
    /// the same layout and sizes. Returns the names that it left with them: flows hold numbers, which have to be the same
    /// nodes' as before. With [`Keep::Pinned`] the tables of this process outlive it if it is killed. Until
    /// [`Balance::adopt`] those that were left stay for another start.
    ///
    /// # Errors
    /// Those of [`Balance::load`]; [`Error::PinTables`].
    pub fn load_kept(options: &BalanceOptions, keep: Keep) -> Result<(Self, Vec<BalanceName>), Error> {
        let (mut balance, search) = Self::load_over(options, Search::new(options, keep)?)?;
        let tables = [balance.flows.as_fd(), balance.probation.as_fd(), balance.fragments.as_fd()];
        let (pins, names) = search.finish(keep, tables)?;
        balance.pins = pins;
        Ok((balance, names))
    }

    /// Takes tables that a killed process left for this process's own: call it once the program is in the place of that
    /// one's. `keep` is that of [`Balance::load_kept`].
    pub fn adopt(&mut self, keep: Keep) {
        if let Some(pins) = &mut self.pins {
            pins.adopt();
        }
        if keep == Keep::Process {
            self.pins = None;
        }
    }

    /// Notes beside tables that outlive the process whose a number is. Nothing where they do not.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remember(&self, name: &BalanceName) -> Result<(), Error> {
        self.pins.as_ref().map_or(Ok(()), |pins| pins.remember(name))
    }

    /// Notes that it is nobody's.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn forget(&self, name: &BalanceName) -> Result<(), Error> {
        self.pins.as_ref().map_or(Ok(()), |pins| pins.forget(name))
    }

    fn load_over(options: &BalanceOptions, search: Search) -> Result<(Self, Search), Error> {
        forward_libbpf_messages();
        let mut storage = MaybeUninit::uninit();
        let mut open = BalanceSkelBuilder::default().open(&mut storage).map_err(load_error)?;
        open.maps.flows_map.set_max_entries(options.flows).map_err(load_error)?;
        open.maps.probation_map.set_max_entries(options.probation).map_err(load_error)?;
        if let Some(left) = &search.left {
            open.maps.flows_map.reuse_fd(left.flows.as_fd()).map_err(load_error)?;
            open.maps.probation_map.reuse_fd(left.probation.as_fd()).map_err(load_error)?;
            open.maps.fragments_map.reuse_fd(left.fragments.as_fd()).map_err(load_error)?;
        }
        if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
            set_knobs(knobs, options.seed);
        }
        let loaded = open.load().map_err(load_error)?;
        let program = loaded.progs.expressway_lb.as_fd().try_clone_to_owned();
        let maps = &loaded.maps;
        let balance = Self {
            program: program.map_err(|source| Error::Descriptor { source })?,
            seed: options.seed,
            listeners: MapHandle::try_from(&maps.listeners_map).map_err(load_error)?,
            rings: MapHandle::try_from(&maps.rings_map).map_err(load_error)?,
            nodes: MapHandle::try_from(&maps.nodes_map).map_err(load_error)?,
            flows: MapHandle::try_from(&maps.flows_map).map_err(load_error)?,
            probation: MapHandle::try_from(&maps.probation_map).map_err(load_error)?,
            fragments: MapHandle::try_from(&maps.fragments_map).map_err(load_error)?,
            quic: MapHandle::try_from(&maps.quic_map).map_err(load_error)?,
            server_ids: MapHandle::try_from(&maps.server_ids_map).map_err(load_error)?,
            stats: MapHandle::try_from(&maps.stats_map).map_err(load_error)?,
            service_stats: MapHandle::try_from(&maps.service_stats_map).map_err(load_error)?,
            node_stats: MapHandle::try_from(&maps.node_stats_map).map_err(load_error)?,
            pins: None,
        };
        Ok((balance, search))
    }

    /// Attaches the program to the interface `ifindex` by a link; as [`crate::Redirect::attach`]. One that a killed process
    /// left pinned is replaced.
    ///
    /// # Errors
    /// Those of [`crate::Redirect::attach`], and [`Error::Pin`].
    pub fn attach(
        &self,
        ifindex: u32,
        mode: AttachMode,
        existing: Existing,
        keep: Keep,
    ) -> Result<Attachment, Error> {
        attachment::attach_as(Role::BALANCE, self.program.as_fd(), ifindex, mode, existing, keep)
    }

    /// Loads the program once more, on the same maps, and puts it beside others on the interface `ifindex`; as
    /// [`crate::Redirect::join`].
    ///
    /// # Errors
    /// Those of [`crate::Redirect::join`].
    pub fn join(&self, ifindex: u32, mode: AttachMode) -> Result<Attachment, Error> {
        let load =
            |dispatcher: BorrowedFd<'_>, function: &str| Ok((self.load_component(dispatcher, function)?, ()));
        attachment::join(Role::BALANCE, ifindex, mode, load).map(|((), attachment)| attachment)
    }

    fn load_component(&self, dispatcher: BorrowedFd<'_>, function: &str) -> Result<OwnedFd, Error> {
        let load = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if is_privileged() => Error::NoExtensions,
            _ => load_error(source),
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = BalanceSkelBuilder::default().open(&mut storage).map_err(load)?;
        let maps = &mut open.maps;
        for (map, ours) in [
            (&mut maps.listeners_map, &self.listeners),
            (&mut maps.rings_map, &self.rings),
            (&mut maps.nodes_map, &self.nodes),
            (&mut maps.flows_map, &self.flows),
            (&mut maps.probation_map, &self.probation),
            (&mut maps.fragments_map, &self.fragments),
            (&mut maps.quic_map, &self.quic),
            (&mut maps.server_ids_map, &self.server_ids),
            (&mut maps.stats_map, &self.stats),
            (&mut maps.service_stats_map, &self.service_stats),
            (&mut maps.node_stats_map, &self.node_stats),
        ] {
            map.reuse_fd(ours.as_fd()).map_err(load)?;
        }
        if let Some(knobs) = maps.rodata_data.as_deref_mut() {
            set_knobs(knobs, self.seed);
        }
        dispatcher::make_extension(&mut open.progs.expressway_lb, dispatcher, function).map_err(load)?;
        let loaded = open.load().map_err(load)?;
        let program = loaded.progs.expressway_lb.as_fd().try_clone_to_owned();
        program.map_err(|source| Error::Descriptor { source })
    }

    /// The program, for `bpf(2)` calls of one's own.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Takes what is for `address` from the next packet on, or changes how.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_listener(
        &self,
        address: SocketAddr,
        protocol: BalanceProtocol,
        listener: &BalanceListener,
    ) -> Result<(), Error> {
        self.listeners
            .update(&listener_key(address, protocol), &listener.bytes(), MapFlags::ANY)
            .map_err(fault("listeners_map"))
    }

    /// Leaves what is for `address` to the kernel from the next packet on.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remove_listener(&self, address: SocketAddr, protocol: BalanceProtocol) -> Result<(), Error> {
        absent_is_fine(self.listeners.delete(&listener_key(address, protocol)), "listeners_map")
    }

    /// Puts a node into a slot, below [`Balance::NODES`].
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_node(&self, slot: u32, node: &BalanceNode) -> Result<(), Error> {
        self.nodes.update(&slot.to_ne_bytes(), &node.bytes(), MapFlags::ANY).map_err(fault("nodes_map"))
    }

    /// Replaces the ring of a service at once: [`Balance::RING`] slots, or none if no node is up.
    ///
    /// # Errors
    /// [`Error::Map`]; [`Error::Layout`] for a ring of another length.
    pub fn set_ring(&self, service: u32, ring: &[u32]) -> Result<(), Error> {
        const MAP: &str = "rings_map";
        if ring.is_empty() {
            return absent_is_fine(self.rings.delete(&service.to_ne_bytes()), MAP);
        }
        if ring.len() != Self::RING as usize {
            return Err(Error::Layout { map: MAP });
        }
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let inner = MapHandle::create(MapType::Array, Some("balance_ring"), 4, 4, Self::RING, &options)
            .map_err(fault(MAP))?;
        let keys: Vec<u8> = (0..Self::RING).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = ring.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        inner.update_batch(&keys, &values, Self::RING, MapFlags::ANY, MapFlags::ANY).map_err(fault(MAP))?;
        let descriptor = inner.as_fd().as_raw_fd().to_ne_bytes();
        self.rings.update(&service.to_ne_bytes(), &descriptor, MapFlags::ANY).map_err(fault(MAP))
    }

    /// Says how the connection IDs of a service with the rotation codepoint `config`, below [`Balance::QUIC_CONFIGS`], are
    /// read; `None` if they are not routable.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_quic(&self, service: u32, config: u8, quic: Option<&BalanceQuic>) -> Result<(), Error> {
        const MAP: &str = "quic_map";
        let index = service * balance_limit::BALANCE_QUIC_CONFIGS.0 + u32::from(config);
        match quic {
            Some(quic) => {
                self.quic.update(&index.to_ne_bytes(), &quic.bytes(), MapFlags::ANY).map_err(fault(MAP))
            }
            None => absent_is_fine(self.quic.delete(&index.to_ne_bytes()), MAP),
        }
    }

    /// Sends connection IDs with this server ID to the node in `slot`.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_server_id(&self, service: u32, config: u8, id: &[u8], slot: u32) -> Result<(), Error> {
        self.server_ids
            .update(&server_id_key(service, config, id), &slot.to_ne_bytes(), MapFlags::ANY)
            .map_err(fault("server_ids_map"))
    }

    /// The configurations and server IDs of a service.
    ///
    /// # Errors
    /// [`Error::Layout`].
    pub fn server_ids(&self, service: u32) -> Result<Vec<(u8, Vec<u8>)>, Error> {
        let mut found = Vec::new();
        for key in self.server_ids.keys() {
            let key = <[u8; 20]>::try_from(key).map_err(|_| Error::Layout { map: "server_ids_map" })?;
            let length = usize::from(key[19]).min(Self::SERVER_ID);
            if u32::from(u16::from_ne_bytes([key[16], key[17]])) == service {
                found.push((key[18], key[..length].to_vec()));
            }
        }
        Ok(found)
    }

    /// Forgets a server ID.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remove_server_id(&self, service: u32, config: u8, id: &[u8]) -> Result<(), Error> {
        absent_is_fine(self.server_ids.delete(&server_id_key(service, config, id)), "server_ids_map")
    }

    /// What became of the packets since load, summed over CPUs and interfaces.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn counters(&self) -> Result<BalanceCounts, Error> {
        per_cpu(&self.stats, "stats_map", 0, BalanceCounts::from_cpus)
    }

    /// What a service was sent.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn service_traffic(&self, service: u32) -> Result<BalanceTraffic, Error> {
        per_cpu(&self.service_stats, "service_stats_map", service, BalanceTraffic::from_cpus)
    }

    /// What the nodes in a slot were sent; it goes on counting when the slot gets another.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn node_traffic(&self, slot: u32) -> Result<BalanceTraffic, Error> {
        per_cpu(&self.node_stats, "node_stats_map", slot, BalanceTraffic::from_cpus)
    }

    /// Established flows by slot and generation of their nodes. Those count that were not closed and had a packet within
    /// the time that `idle` says for their service; none of a service for which it says nothing.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn flows_by_node(&self, idle: &HashMap<u32, Duration>) -> Result<HashMap<(u32, u32), u32>, Error> {
        let mut flows = HashMap::new();
        let now = monotonic_seconds();
        let entries =
            self.flows.lookup_batch(FLOW_BATCH, MapFlags::ANY, MapFlags::ANY).map_err(fault("flows_map"))?;
        for (key, value) in entries {
            let (words, _) = value.as_chunks::<4>();
            let ([slot, generation, seen, flags], [.., low, high]) = (words, key.as_slice()) else {
                continue;
            };
            let Some(idle) = idle.get(&u16::from_ne_bytes([*low, *high]).into()) else { continue };
            let closed = u16::from_ne_bytes([flags[2], flags[3]]) != 0;
            let quiet = now.saturating_sub(u32::from_ne_bytes(*seen));
            if closed || u64::from(quiet) > idle.as_secs() {
                continue;
            }
            *flows.entry((u32::from_ne_bytes(*slot), u32::from_ne_bytes(*generation))).or_default() += 1;
        }
        Ok(flows)
    }

    /// Flows remembered: established ones, and those that may become so.
    pub fn flow_counts(&self) -> (usize, usize) {
        (self.flows.keys().count(), self.probation.keys().count())
    }

    /// Runs the program `repeat` times on `frame` by BPF_PROG_TEST_RUN, as if received on the loopback interface. No
    /// packet moves, but maps change.
    ///
    /// # Errors
    /// [`Error::TestRun`]; the kernel wants at least 14 bytes.
    pub fn prog_test_run(&self, frame: &[u8], repeat: u32) -> Result<BalanceRun, Error> {
        self.test_run(frame, None, 0, repeat)
    }

    /// As [`Balance::prog_test_run`] once, on a multi-buffer frame of which only the first `linear` bytes are in the
    /// linear part. Linux 6.18.
    ///
    /// # Errors
    /// [`Error::TestRun`], with EINVAL on older kernels or for less than 14 linear bytes.
    pub fn prog_test_run_split(&self, frame: &[u8], linear: u32) -> Result<BalanceRun, Error> {
        self.test_run(frame, Some(linear), 0, 1)
    }

    /// As [`Balance::prog_test_run`] once, on a frame in front of which there is no room for headers. Linux 6.9, whose metadata
    /// may be as long as that takes.
    ///
    /// # Errors
    /// [`Error::TestRun`], with EINVAL on older kernels.
    pub fn prog_test_run_without_room(&self, frame: &[u8]) -> Result<BalanceRun, Error> {
        self.test_run(frame, None, sys::ALL_ROOM, 1)
    }

    fn test_run(
        &self,
        frame: &[u8],
        linear: Option<u32>,
        metadata: u32,
        repeat: u32,
    ) -> Result<BalanceRun, Error> {
        /// The program may put two headers of IPv6 and some in front.
        const ROOM: u32 = 128;
        let input = sys::TestRunInput { frame, linear, room: ROOM, metadata, repeat, ..Default::default() };
        let output = sys::test_run(self.program.as_fd(), &input)
            .map_err(|source| Error::TestRun { length: frame.len(), source })?;
        let duration = Duration::from_nanos(output.nanoseconds.into());
        Ok(BalanceRun { verdict: output.verdict, frame: output.frame, duration })
    }
}

/// Fills in what the program has as constants.
fn set_knobs(knobs: &mut rodata, seed: u64) {
    knobs.hash_seed = seed;
    (knobs.aes_columns, knobs.aes_bytes) = quic::tables();
}

fn load_error(source: libbpf_rs::Error) -> Error {
    match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
            Error::NotPermitted { action: "loading the XDP program".to_owned(), needed: CAPABILITIES }
        }
        _ => Error::Load { source },
    }
}

fn fault(map: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |source| Error::Map { map, source }
}

fn absent_is_fine(result: libbpf_rs::Result<()>, map: &'static str) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(Error::Map { map, source: error })
        }
        _ => Ok(()),
    }
}

fn per_cpu<T>(
    map: &MapHandle,
    name: &'static str,
    index: u32,
    sum: impl Fn(&[Vec<u8>]) -> Option<T>,
) -> Result<T, Error> {
    let cpus = map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY).map_err(fault(name))?;
    cpus.as_deref().and_then(sum).ok_or(Error::Layout { map: name })
}

fn server_id_key(service: u32, config: u8, id: &[u8]) -> [u8; 20] {
    let mut key = [0; 20];
    let length = id.len().min(Balance::SERVER_ID);
    key[..length].copy_from_slice(&id[..length]);
    key[16..18].copy_from_slice(&(service as u16).to_ne_bytes());
    key[18] = config;
    key[19] = length as u8;
    key
}

/// The clock of `balance_flow.seen`.
fn monotonic_seconds() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse).tv_sec as u32
}
