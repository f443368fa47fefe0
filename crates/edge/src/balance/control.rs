//! [`Balancer`]: the program, and what keeps its maps true.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use expressway_netio::route::RouteError;
use expressway_xbpf::{
    AttachMode, Attachment, Balance, BalanceListener, BalanceMethod, BalanceNode, BalanceOptions,
    BalanceProtocol, BalanceState, BalanceTraffic, Existing, Keep,
};

use crate::interfaces::{self, Interfaces, Manner, Program};

use super::config::{Affinity, Config, Method, Node, Protocol, Route, Scheduler, Service};
use super::health::{Checker, Target};
use super::maglev::{self, Share};
use super::slots::{Slot, Slots};
use super::status::{NodeStatus, ServiceStatus, Status};
use super::ways::Ways;

/// How often flows are counted for `least-connections`: a look at each entry of the table.
const COUNT: Duration = Duration::from_secs(2);
/// How often interfaces are looked after.
const UPKEEP: Duration = Duration::from_secs(1);
/// What one flow adds to the load of a node with weight 1.
const STEP: u32 = 1000;

/// Why a balancer cannot do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the program or its maps.
    #[error(transparent)]
    Program(#[from] expressway_xbpf::Error),
    /// Of rtnetlink.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// No thread.
    #[error("health checks: {0}")]
    Checks(#[source] io::Error),
    /// Of interfaces.
    #[error(transparent)]
    Interfaces(#[from] interfaces::Error),
    /// None was named, and none could be found.
    #[error("no interface has an address of a service or leads to a node: name one in `interfaces`")]
    NoInterfaces,
    /// All numbers are held.
    #[error("{0}: more nodes than there is room for; reload again once old ones are gone")]
    Full(String),
    /// What only a start reads.
    #[error("`{0}` has changed: restart for that")]
    Restart(&'static str),
    /// What an order names is not there.
    #[error("no node {node} in service `{service}`")]
    NoNode {
        /// As the order names it.
        service: String,
        /// As the order names it.
        node: IpAddr,
    },
}

/// A node with its number.
#[derive(Clone)]
struct Member {
    node: Node,
    slot: Slot,
    /// By an order; until the next one, or until the node leaves the file.
    drained: bool,
    /// What the slot had counted when the node got it.
    before: BalanceTraffic,
    /// As last written.
    written: Option<BalanceNode>,
    /// The program has added to its load since, or may have.
    stale: bool,
    flows: u32,
    ring: u32,
}

/// A service with its number.
#[derive(Clone)]
struct Active {
    service: Service,
    slot: Slot,
    before: BalanceTraffic,
    members: Vec<Member>,
    /// What the ring was made of: weights by slot.
    ring: Vec<(u32, u32)>,
    /// Made at all; an empty ring is one.
    has_ring: bool,
}

/// A running balancer. Dropping it takes the program off its interfaces.
pub struct Balancer {
    program: Balance,
    ways: Ways,
    checker: Checker,
    config: Config,
    active: Vec<Active>,
    service_slots: Slots<String>,
    node_slots: Slots<(String, IpAddr)>,
    /// `None` until the program is complete.
    interfaces: Option<Interfaces>,
    existing: Existing,
    counted: Option<Instant>,
    kept: Instant,
}

impl Balancer {
    /// Loads the program, applies the configuration and then attaches the program.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(config: Config, existing: Existing) -> Result<Self, Error> {
        let options = BalanceOptions { flows: config.flows, probation: config.probation, seed: config.seed };
        let mut balancer = Self {
            program: Balance::load(&options)?,
            ways: Ways::start()?,
            checker: Checker::start().map_err(Error::Checks)?,
            config: config.clone(),
            active: Vec::new(),
            service_slots: Slots::new(Balance::SERVICES),
            node_slots: Slots::new(Balance::NODES),
            interfaces: None,
            existing,
            counted: None,
            kept: Instant::now(),
        };
        balancer.apply(config)?;
        Ok(balancer)
    }

    /// Makes a configuration that of the program, while packets flow. Flows stay with nodes that stay.
    ///
    /// # Errors
    /// [`Error::Restart`] and [`Error::Full`] change nothing. With others, what was done until then stays done, and the next
    /// call completes it.
    pub fn apply(&mut self, config: Config) -> Result<(), Error> {
        if let Some(key) = self.config.fixed_change(&config) {
            return Err(Error::Restart(key));
        }
        match config.services.iter().map(|service| self.take(service)).collect::<Result<Vec<Active>, _>>() {
            Ok(active) => {
                self.stop_listening(&config)?;
                self.active = active;
            }
            Err(error) => {
                self.release();
                return Err(error);
            }
        }
        self.config = config;
        self.check();
        self.refresh(true)?;
        // Before rings go: what is listened at may have been another service's.
        self.listen()?;
        // Rings without the nodes that are gone come before the slots of these are given away.
        let (services, nodes) = self.release();
        for slot in services {
            forget_service(&self.program, slot.number)?;
        }
        for slot in nodes {
            self.program.set_node(slot.number, &absent(slot))?;
        }
        self.attach()
    }

    /// Frees the numbers of services and nodes that are no longer there, and tells which.
    fn release(&mut self) -> (Vec<Slot>, Vec<Slot>) {
        let name = |active: &Active| active.service.name.clone();
        let services: HashSet<String> = self.active.iter().map(name).collect();
        let of = |active: &Active| {
            active.members.iter().map(|member| (name(active), member.node.address)).collect()
        };
        let nodes: HashSet<(String, IpAddr)> = self.active.iter().flat_map::<Vec<_>, _>(of).collect();
        let services = self.service_slots.release(|key| services.contains(key));
        let nodes = self.node_slots.release(|key| nodes.contains(key));
        (
            services.into_iter().map(|(_, slot)| slot).collect(),
            nodes.into_iter().map(|(_, slot)| slot).collect(),
        )
    }

    /// Does what time brings: health, neighbours, counts, interfaces. Call it several times a second.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn tick(&mut self) -> Result<(), Error> {
        let least = |active: &Active| active.service.scheduler == Scheduler::LeastConnections;
        if self.active.iter().any(least) && self.counted.is_none_or(|at| at.elapsed() >= COUNT) {
            self.count()?;
            self.counted = Some(Instant::now());
        }
        self.refresh(false)?;
        if let Some(interfaces) = &mut self.interfaces
            && self.kept.elapsed() >= UPKEEP
        {
            interfaces.upkeep(&self.program);
            self.kept = Instant::now();
        }
        Ok(())
    }

    /// Drains a node, or gives it new flows again.
    ///
    /// # Errors
    /// [`Error::NoNode`], or of the program.
    pub fn drain(&mut self, service: &str, node: IpAddr, drain: bool) -> Result<(), Error> {
        let member = self
            .active
            .iter_mut()
            .filter(|active| active.service.name == service)
            .flat_map(|active| &mut active.members)
            .find(|member| member.node.address == node);
        let Some(member) = member else {
            return Err(Error::NoNode { service: service.to_owned(), node });
        };
        member.drained = drain;
        self.refresh(false)
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Interfaces with the program, and how it is attached.
    pub fn interfaces(&self) -> Vec<(String, AttachMode)> {
        let attached = self.interfaces.iter().flat_map(Interfaces::attached);
        attached.map(|(name, mode)| (name.to_owned(), mode)).collect()
    }

    /// `Ok` if every service has a node that is up, and the program is attached.
    ///
    /// # Errors
    /// What is wrong, in a sentence.
    pub fn health(&self) -> Result<(), String> {
        let mut all = self.interfaces.iter().flat_map(Interfaces::all);
        if let Some((name, _)) = all.find(|(_, mode)| mode.is_none()) {
            return Err(format!("interface {name} is gone, or its program was detached by someone else"));
        }
        match self.active.iter().find(|active| active.ring.is_empty()) {
            Some(active) => Err(format!("service `{}`: no node is up", active.service.name)),
            None => Ok(()),
        }
    }

    /// Everything that can be told; counts the flows of each node.
    ///
    /// # Errors
    /// Of the program.
    pub fn status(&mut self) -> Result<Status, Error> {
        self.count()?;
        let interfaces = self.interfaces().into_iter().map(|(name, mode)| (name, mode.name())).collect();
        let services =
            self.active.iter().map(|active| self.service_status(active)).collect::<Result<_, _>>()?;
        Ok(Status { interfaces, packets: self.program.counters()?, services })
    }

    fn service_status(&self, active: &Active) -> Result<ServiceStatus, Error> {
        let nodes = active.members.iter().map(|member| {
            let written = member.written.as_ref();
            let link = written.and_then(|node| self.ways.snapshot().link(node.ifindex));
            let state = match written.map(|node| node.state) {
                Some(BalanceState::Up) => "up",
                Some(BalanceState::Draining) => "draining",
                _ => "down",
            };
            Ok(NodeStatus {
                address: member.node.address,
                state,
                weight: member.node.weight,
                method: member.node.method.to_string(),
                ring: member.ring,
                interface: link.map(|link| link.name.clone()),
                problem: self.checker.health(member.slot.number).and_then(|health| health.problem),
                flows: member.flows,
                traffic: since(self.program.node_traffic(member.slot.number)?, member.before),
            })
        });
        Ok(ServiceStatus {
            name: active.service.name.clone(),
            listen: active.service.listen.clone(),
            protocol: active.service.protocol.to_string(),
            traffic: since(self.program.service_traffic(active.slot.number)?, active.before),
            nodes: nodes.collect::<Result<_, Error>>()?,
        })
    }

    /// Gives a service and its nodes their numbers; what is known of it stays.
    fn take(&mut self, service: &Service) -> Result<Active, Error> {
        let known = self.active.iter().find(|active| active.service.name == service.name).cloned();
        let full = || Error::Full(service.name.clone());
        let slot = self.service_slots.hold(&service.name).ok_or_else(full)?;
        let (before, ring, has_ring, mut old) = match known {
            Some(known) => (known.before, known.ring, known.has_ring, known.members),
            None => (self.program.service_traffic(slot.number)?, Vec::new(), false, Vec::new()),
        };
        let mut members = Vec::new();
        for node in &service.nodes {
            let slot = self.node_slots.hold(&(service.name.clone(), node.address)).ok_or_else(full)?;
            let known = old.iter().position(|member| member.slot == slot).map(|index| old.swap_remove(index));
            let member = match known {
                Some(member) => Member { node: node.clone(), ..member },
                None => Member {
                    node: node.clone(),
                    slot,
                    drained: false,
                    before: self.program.node_traffic(slot.number)?,
                    written: None,
                    stale: false,
                    flows: 0,
                    ring: 0,
                },
            };
            members.push(member);
        }
        Ok(Active { service: service.clone(), slot, before, members, ring, has_ring })
    }

    /// Asks nodes as the configuration says.
    fn check(&mut self) {
        let mut targets = HashMap::new();
        for active in &self.active {
            let Some(check) = &active.service.check else { continue };
            for member in &active.members {
                let port = check.port.unwrap_or(active.service.listen[0].port());
                let address = SocketAddr::new(member.node.address, port);
                let target = Target { address, check: check.clone() };
                targets.insert(member.slot.number, (target, member.slot.generation));
            }
        }
        self.checker.set(targets);
    }

    /// Counts the established flows of each node.
    fn count(&mut self) -> Result<(), Error> {
        let idle = self.active.iter().map(|active| (active.slot.number, active.service.idle)).collect();
        let flows = self.program.flows_by_node(&idle)?;
        for active in &mut self.active {
            for member in &mut active.members {
                let key = (member.slot.number, member.slot.generation);
                member.flows = flows.get(&key).copied().unwrap_or(0);
                member.stale = active.service.scheduler == Scheduler::LeastConnections;
            }
        }
        Ok(())
    }

    /// Writes nodes and rings that have changed. A ring comes between the nodes that it gains and those that it loses.
    fn refresh(&mut self, ids: bool) -> Result<(), Error> {
        for index in 0..self.active.len() {
            let nodes = self.nodes(index);
            let active = &mut self.active[index];
            let up = |node: &BalanceNode| node.state == BalanceState::Up;
            for (member, node) in active.members.iter_mut().zip(&nodes) {
                if up(node) || member.written.is_none() {
                    write(&self.program, member, node)?;
                }
            }
            let pairs = active.members.iter().zip(&nodes).filter(|(_, node)| up(node));
            let ring: Vec<(u32, u32)> =
                pairs.map(|(member, _)| (member.slot.number, member.node.weight)).collect();
            if ring != active.ring || !active.has_ring {
                set_ring(&self.program, active, &ring)?;
                active.ring = ring;
                active.has_ring = true;
            }
            for (member, node) in active.members.iter_mut().zip(&nodes) {
                write(&self.program, member, node)?;
            }
            if ids {
                publish_ids(&self.program, &self.active[index])?;
            }
        }
        Ok(())
    }

    /// What the program should know of the nodes of a service.
    fn nodes(&mut self, index: usize) -> Vec<BalanceNode> {
        let mut nodes = Vec::new();
        for place in 0..self.active[index].members.len() {
            let least = self.active[index].service.scheduler == Scheduler::LeastConnections;
            let member = &self.active[index].members[place];
            let (address, last) = (member.node.address, member.written);
            let way = self.ways.to(address);
            let member = &self.active[index].members[place];
            let up = self.checker.health(member.slot.number).is_none_or(|health| health.up);
            let state = match up {
                false => BalanceState::Down,
                true if member.drained || member.node.drain || member.node.weight == 0 => {
                    BalanceState::Draining
                }
                true => BalanceState::Up,
            };
            let step = if least { STEP / member.node.weight.max(1) } else { 0 };
            let mut node = BalanceNode {
                generation: member.slot.generation,
                method: match member.node.method {
                    Method::L2 => BalanceMethod::L2,
                    Method::Ipip => BalanceMethod::Ipip,
                    Method::Gue => BalanceMethod::Gue,
                },
                state,
                step: step.max(u32::from(least)),
                load: member.flows.saturating_mul(step),
                ..absent(member.slot)
            };
            node.address = address;
            // What is resolved no longer is used as long as there is nothing else.
            match (way, last) {
                (Some(way), _) => {
                    node.source = way.source;
                    node.ifindex = way.ifindex;
                    node.destination_mac = way.destination_mac;
                    node.source_mac = way.source_mac;
                    node.mtu = way.mtu;
                }
                (None, Some(last)) if last.address == address => {
                    let load = node.load;
                    node = BalanceNode {
                        generation: node.generation,
                        method: node.method,
                        state,
                        step: node.step,
                        load,
                        ..last
                    };
                }
                _ => {}
            }
            nodes.push(node);
        }
        nodes
    }

    fn stop_listening(&mut self, config: &Config) -> Result<(), Error> {
        let wanted: HashSet<(SocketAddr, Protocol)> = listeners(config.services.iter());
        for (address, protocol) in listeners(self.active.iter().map(|active| &active.service)) {
            if !wanted.contains(&(address, protocol)) {
                self.program.remove_listener(address, of(protocol))?;
            }
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<(), Error> {
        for active in &self.active {
            let service = &active.service;
            let listener = BalanceListener {
                service: active.slot.number,
                quic_lb: service.route == Route::QuicLb,
                affinity: service.affinity == Affinity::Source,
                least_connections: service.scheduler == Scheduler::LeastConnections,
                idle: service.idle,
            };
            for address in &service.listen {
                self.program.set_listener(*address, of(service.protocol), &listener)?;
            }
        }
        Ok(())
    }

    /// The interfaces that packets arrive by: those named, or those with a service's address, or those that lead to nodes.
    fn wanted_interfaces(&mut self) -> BTreeSet<String> {
        if !self.config.interfaces.is_empty() {
            return self.config.interfaces.iter().cloned().collect();
        }
        let snapshot = self.ways.snapshot();
        let listen = self.config.services.iter().flat_map(|service| &service.listen);
        let own: BTreeSet<String> = listen
            .filter_map(|address| snapshot.interface_of(address.ip()))
            .filter(|link| link.name != "lo")
            .map(|link| link.name.clone())
            .collect();
        if !own.is_empty() {
            return own;
        }
        let nodes = self.active.iter().flat_map(|active| &active.members);
        let indexes = nodes.filter_map(|member| member.written.map(|node| node.ifindex));
        indexes.filter_map(|index| snapshot.link(index)).map(|link| link.name.clone()).collect()
    }

    /// Puts the program where it should be.
    fn attach(&mut self) -> Result<(), Error> {
        let wanted: Vec<String> = self.wanted_interfaces().into_iter().collect();
        if wanted.is_empty() {
            return Err(Error::NoInterfaces);
        }
        match &mut self.interfaces {
            Some(interfaces) => interfaces.change(&wanted, &self.program)?,
            None => {
                let manner = Manner {
                    mode: self.config.mode,
                    existing: self.existing,
                    keep: if self.config.pin { Keep::Pinned } else { Keep::Process },
                    chain: self.config.chain,
                };
                self.interfaces = Some(Interfaces::open(&wanted, manner, &self.program)?);
            }
        }
        Ok(())
    }
}

impl Program for Balance {
    fn attach(
        &self,
        ifindex: u32,
        mode: AttachMode,
        existing: Existing,
        keep: Keep,
    ) -> Result<Attachment, expressway_xbpf::Error> {
        Balance::attach(self, ifindex, mode, existing, keep)
    }

    fn join(&self, ifindex: u32, mode: AttachMode) -> Result<Attachment, expressway_xbpf::Error> {
        Balance::join(self, ifindex, mode)
    }

    fn program(&self) -> BorrowedFd<'_> {
        Balance::program(self)
    }
}

/// What a free slot says.
fn absent(slot: Slot) -> BalanceNode {
    BalanceNode {
        address: Ipv4Addr::UNSPECIFIED.into(),
        source: Ipv4Addr::UNSPECIFIED.into(),
        ifindex: 0,
        destination_mac: [0; 6],
        source_mac: [0; 6],
        generation: slot.generation,
        mtu: 1500,
        load: 0,
        step: 0,
        method: BalanceMethod::L2,
        state: BalanceState::Absent,
    }
}

fn write(program: &Balance, member: &mut Member, node: &BalanceNode) -> Result<(), Error> {
    if member.written.as_ref() == Some(node) && !member.stale {
        return Ok(());
    }
    program.set_node(member.slot.number, node)?;
    member.written = Some(*node);
    member.stale = false;
    Ok(())
}

/// Leaves nothing of a service in the program but its counters.
fn forget_service(program: &Balance, service: u32) -> Result<(), Error> {
    program.set_ring(service, &[])?;
    for config in 0..Balance::QUIC_CONFIGS {
        program.set_quic(service, config, None)?;
    }
    for (config, id) in program.server_ids(service)? {
        program.remove_server_id(service, config, &id)?;
    }
    Ok(())
}

fn set_ring(program: &Balance, active: &mut Active, weights: &[(u32, u32)]) -> Result<(), Error> {
    let names: Vec<String> = active.members.iter().map(|member| member.node.address.to_string()).collect();
    let weight = |member: &Member| {
        weights.iter().find(|(slot, _)| *slot == member.slot.number).map_or(0, |(_, weight)| *weight)
    };
    let shares: Vec<Share<'_>> = names
        .iter()
        .zip(&active.members)
        .map(|(name, member)| Share { name, weight: weight(member) })
        .collect();
    let ring = maglev::ring(&shares, Balance::RING as usize);
    for (index, member) in (0u32..).zip(&mut active.members) {
        member.ring = ring.iter().filter(|entry| **entry == index).count() as u32;
    }
    let slots: Vec<u32> = ring.iter().map(|index| active.members[*index as usize].slot.number).collect();
    Ok(program.set_ring(active.slot.number, &slots)?)
}

/// Writes the server IDs of a service.
fn publish_ids(program: &Balance, active: &Active) -> Result<(), Error> {
    let service = active.slot.number;
    let by_id = active.service.route == Route::QuicLb;
    let wanted = |config: u8| by_id && active.service.quic_configs.contains(&config);
    let mut ids = HashMap::new();
    for config in (0..Balance::QUIC_CONFIGS).filter(|config| wanted(*config)) {
        for member in &active.members {
            ids.insert((config, member.node.server_id.clone()), member.slot.number);
        }
    }
    for (config, id) in program.server_ids(service)? {
        if !ids.contains_key(&(config, id.clone())) {
            program.remove_server_id(service, config, &id)?;
        }
    }
    for ((config, id), slot) in ids {
        program.set_server_id(service, config, &id, slot)?;
    }
    let length = active.members.first().map(|member| member.node.server_id.len() as u8);
    for config in 0..Balance::QUIC_CONFIGS {
        program.set_quic(service, config, length.filter(|_| wanted(config)))?;
    }
    Ok(())
}

fn of(protocol: Protocol) -> BalanceProtocol {
    match protocol {
        Protocol::Tcp => BalanceProtocol::Tcp,
        Protocol::Udp => BalanceProtocol::Udp,
    }
}

fn listeners<'a>(services: impl Iterator<Item = &'a Service>) -> HashSet<(SocketAddr, Protocol)> {
    services.flat_map(|service| service.listen.iter().map(|address| (*address, service.protocol))).collect()
}

fn since(now: BalanceTraffic, before: BalanceTraffic) -> BalanceTraffic {
    BalanceTraffic {
        packets: now.packets.saturating_sub(before.packets),
        bytes: now.bytes.saturating_sub(before.bytes),
        flows: now.flows.saturating_sub(before.flows),
        established: now.established.saturating_sub(before.established),
        by_id: now.by_id.saturating_sub(before.by_id),
        dropped: now.dropped.saturating_sub(before.dropped),
    }
}
