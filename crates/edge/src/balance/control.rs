//! [`Balancer`]: the program, and the code that keeps its maps up to date.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use expressway_keys::Store;
use expressway_netio::route::RouteError;
use expressway_xbpf::{
    AttachMode, Balance, BalanceListener, BalanceName, BalanceNode, BalanceOptions, BalanceProtocol,
    BalanceState, Existing, Keep,
};

use crate::interfaces::{self, AttachOptions, Interfaces};

use super::config::{Affinity, Config, Protocol, Route, Scheduler, Service, WEIGHT};
use super::health::{Checker, Target};
use super::paths::NodePaths;
use super::slots::{Slot, Slots};

mod ids;
mod keys;
mod member;
mod report;

use member::{Active, Member, absent};

/// How often flows are counted for `least-connections`: a look at each entry of the table.
const COUNT: Duration = Duration::from_secs(2);
/// How often interfaces and shared keys are looked after.
const UPKEEP: Duration = Duration::from_secs(1);

/// Why a balancer cannot do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the program or its maps.
    #[error(transparent)]
    Program(#[from] expressway_xbpf::Error),
    /// Of rtnetlink.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// Of the shared keys, which were good when the file was read.
    #[error("shared keys: {0}")]
    Keys(String),
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
    #[error("{0}: no room for all nodes yet; reload again once old ones are gone")]
    Full(String),
    /// What only a start reads.
    #[error("`{0}` has changed: restart to apply it")]
    Restart(&'static str),
    /// What an order asks is out of range.
    #[error("weight {0}: must be {most} or less", most = WEIGHT)]
    Weight(u32),
    /// What an order names is not there.
    #[error("no node {node} in service `{service}`")]
    NoNode {
        /// As the order names it.
        service: String,
        /// As the order names it.
        node: IpAddr,
    },
}

/// A running balancer. Dropping it takes the program off its interfaces.
pub struct Balancer {
    program: Balance,
    paths: NodePaths,
    checker: Checker,
    keys: Option<Store>,
    /// The program does not have all of those yet.
    has_new_keys: bool,
    config: Config,
    active: Vec<Active>,
    service_slots: Slots<String>,
    node_slots: Slots<(String, IpAddr)>,
    /// `None` until the program is complete.
    interfaces: Option<Interfaces>,
    existing: Existing,
    counted: Option<Instant>,
    kept: Instant,
    /// The generation of links and addresses by which nodes are asked.
    checked: u64,
}

impl Balancer {
    /// Loads the program, applies the configuration and then attaches the program.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(config: Config, existing: Existing) -> Result<Self, Error> {
        let options = BalanceOptions { flows: config.flows, probation: config.probation, seed: config.seed };
        let keep = if config.pin { Keep::Pinned } else { Keep::Process };
        let (program, names) = Balance::load_kept(&options, keep)?;
        let mut balancer = Self {
            program,
            paths: NodePaths::start()?,
            checker: Checker::start().map_err(Error::Checks)?,
            keys: None,
            has_new_keys: false,
            config: config.clone(),
            active: Vec::new(),
            service_slots: Slots::new(Balance::SERVICES),
            node_slots: Slots::new(Balance::NODES),
            interfaces: None,
            existing,
            counted: None,
            kept: Instant::now(),
            checked: 0,
        };
        for name in names {
            balancer.restore(name);
        }
        balancer.apply(config)?;
        balancer.program.adopt(keep);
        Ok(balancer)
    }

    /// Has a service or node the number that flows of an earlier process have for it.
    fn restore(&mut self, name: BalanceName) {
        let slot = Slot { number: name.number, generation: name.generation };
        let held = match name.node {
            Some(node) => self.node_slots.restore((name.service.clone(), node), slot),
            None => self.service_slots.restore(name.service.clone(), slot),
        };
        if !held {
            tracing::warn!(?name, "sent two numberings: its flows start over");
        }
    }

    /// Makes a configuration that of the program, while packets flow. Flows stay with nodes that stay.
    ///
    /// # Errors
    /// [`Error::Restart`], [`Error::Keys`] and [`Error::Full`] change nothing. With others, what was done until then stays done, and the next
    /// call completes it.
    pub fn apply(&mut self, mut config: Config) -> Result<(), Error> {
        if let Some(key) = self.config.fixed_change(&config) {
            return Err(Error::Restart(key));
        }
        self.set_keys(&mut config)?;
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
        self.paths.avoid(listeners(self.config.services.iter()).into_iter().map(|(at, _)| at.ip()).collect());
        self.check();
        for name in self.active.iter().flat_map(Active::names) {
            self.program.remember(&name)?;
        }
        self.refresh(true)?;
        // Before rings go: what is listened at may have been another service's.
        self.listen()?;
        // Rings without the nodes that are gone come before the slots of these are given away.
        for name in self.release() {
            let slot = Slot { number: name.number, generation: name.generation };
            match name.node {
                Some(_) => self.program.set_node(slot.number, &absent(slot))?,
                None => ids::forget(&self.program, slot.number)?,
            }
            self.program.forget(&name)?;
        }
        self.attach()
    }

    /// Frees the numbers of services and nodes that are no longer there, and tells which.
    fn release(&mut self) -> Vec<BalanceName> {
        let there: HashSet<(String, Option<IpAddr>)> =
            self.active.iter().flat_map(Active::names).map(|name| (name.service, name.node)).collect();
        let gone = |service: String, node, slot: Slot| BalanceName {
            service,
            node,
            number: slot.number,
            generation: slot.generation,
        };
        let services = self.service_slots.release(|key| there.contains(&(key.clone(), None)));
        let nodes =
            self.node_slots.release(|(service, node)| there.contains(&(service.clone(), Some(*node))));
        let services = services.into_iter().map(|(service, slot)| gone(service, None, slot));
        let nodes = nodes.into_iter().map(|((service, node), slot)| gone(service, Some(node), slot));
        services.chain(nodes).collect()
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
        if self.kept.elapsed() < UPKEEP {
            return Ok(());
        }
        self.kept = Instant::now();
        if self.paths.snapshot().generation() != self.checked {
            self.check();
        }
        if let Some(interfaces) = &mut self.interfaces {
            interfaces.upkeep(&self.program);
        }
        self.follow_keys()
    }

    /// Drains a node, or gives it new flows again.
    ///
    /// # Errors
    /// [`Error::NoNode`], or of the program.
    pub fn drain(&mut self, service: &str, node: IpAddr, drain: bool) -> Result<(), Error> {
        self.member(service, node)?.drained = drain;
        self.refresh(false)
    }

    /// Gives a node another weight, until the file is read again.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::Weight`], or of the program.
    pub fn set_weight(&mut self, service: &str, node: IpAddr, weight: u32) -> Result<(), Error> {
        if weight > WEIGHT {
            return Err(Error::Weight(weight));
        }
        self.member(service, node)?.node.weight = weight;
        self.refresh(false)
    }

    fn member(&mut self, service: &str, node: IpAddr) -> Result<&mut Member, Error> {
        let mut services = self.active.iter_mut().filter(|active| active.service.name == service);
        let members = services.next().into_iter().flat_map(|active| &mut active.members);
        let no_node = || Error::NoNode { service: service.to_owned(), node };
        members.into_iter().find(|member| member.node.address == node).ok_or_else(no_node)
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
                None => Member::new(node.clone(), slot, self.program.node_traffic(slot.number)?),
            };
            members.push(member);
        }
        Ok(Active { service: service.clone(), slot, before, members, ring, has_ring })
    }

    /// Asks nodes as the configuration says, from addresses that are there now.
    fn check(&mut self) {
        self.checked = self.paths.snapshot().generation();
        let mut targets = HashMap::new();
        for active in &self.active {
            let Some(check) = &active.service.check else { continue };
            for member in &active.members {
                let port = check.port.unwrap_or(active.service.listen[0].port());
                let address = SocketAddr::new(member.node.address, port);
                let source = self.paths.source_of_checks(member.node.address);
                let target = Target { address, source, check: check.clone() };
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
        let now = Instant::now();
        for index in 0..self.active.len() {
            let nodes = self.nodes(index);
            let active = &mut self.active[index];
            let slow_start = active.service.slow_start;
            let up = |node: &BalanceNode| node.state == BalanceState::Up;
            for (member, node) in active.members.iter_mut().zip(&nodes) {
                let was_up = member.written.as_ref().is_some_and(up);
                // At the start all nodes are new.
                if up(node) && !was_up && !slow_start.is_zero() && self.interfaces.is_some() {
                    member.since = Some(now);
                }
                if up(node) || member.written.is_none() {
                    member.write(&self.program, node)?;
                }
            }
            let pairs = active.members.iter().zip(&nodes).filter(|(_, node)| up(node));
            let parts =
                pairs.map(|(member, _)| (member.slot.number, member.share(slow_start, now))).collect();
            active.set_ring(&self.program, parts)?;
            for (member, node) in active.members.iter_mut().zip(&nodes) {
                member.write(&self.program, node)?;
            }
            if ids {
                ids::publish(&self.program, &self.active[index])?;
            }
        }
        Ok(())
    }

    /// What the program should know of the nodes of a service.
    fn nodes(&mut self, index: usize) -> Vec<BalanceNode> {
        let Active { service, members, .. } = &mut self.active[index];
        let wanted = |member: &mut Member| {
            let up = self.checker.health(member.slot.number).is_none_or(|health| health.up);
            let path = self.paths.to(member.node.address);
            member.look_at(path.as_ref());
            member.wanted(service.scheduler, up, path)
        };
        members.iter_mut().map(wanted).collect()
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
        let snapshot = self.paths.snapshot();
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
                let attach = AttachOptions {
                    mode: self.config.mode,
                    existing: self.existing,
                    keep: if self.config.pin { Keep::Pinned } else { Keep::Process },
                    chain: self.config.chain,
                };
                self.interfaces = Some(Interfaces::open(&wanted, attach, &self.program)?);
            }
        }
        Ok(())
    }
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
