//! The running router: keeps the program's maps in line with the configuration and the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use expressway_netio::route::{Resolver, RouteMirror};
use expressway_xbpf::forward::{
    FEEDS, Feed, Forward, ForwardCounts, ForwardInterface, INTERFACES, RECEIVERS, Receiver, TrafficCounts,
};
use expressway_xbpf::{AttachMode, Existing, Keep, Role, release_orphans};

use crate::interfaces::{self, AttachOptions, Interfaces};

use super::config::{Config, Replicate, To};
use super::interface::{self, Senders, Unfit};
use super::receivers::{self, Memberships, Probes, Unreached};
use super::slots::Slots;
use super::statistics::{FeedReport, InterfaceReport, ReceiverReport, Statistics};

/// How often everything is looked at, changes heard of or not.
const INTERVAL: Duration = Duration::from_secs(1);
/// Why feeds that arrive at an interface are not copied.
const GENERIC: &str = "XDP runs in generic mode, where copies would share their bytes: feeds that arrive here are not \
                       copied";

/// Why the router cannot run as configured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An interface cannot be forwarded by.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// An interface does not take the program.
    #[error(transparent)]
    Interface(#[from] interfaces::Error),
    /// The kernel refuses the program.
    #[error(transparent)]
    Program(#[from] expressway_xbpf::Error),
    /// The kernel's tables cannot be read.
    #[error(transparent)]
    Routes(#[from] expressway_netio::route::RouteError),
}

/// Forwards between the interfaces of a configuration until it is dropped.
pub struct Router {
    config: Config,
    forward: Forward,
    mirror: RouteMirror,
    resolver: Resolver,
    senders: Senders,
    devices: Interfaces,
    /// The devices below the configured interfaces, those that are gone included.
    device_names: BTreeMap<String, String>,
    ports: BTreeMap<String, ForwardInterface>,
    unfit: HashMap<String, Unfit>,
    port_slots: Slots<String, ForwardCounts>,
    feed_slots: Slots<SocketAddr, TrafficCounts>,
    receiver_slots: Slots<(SocketAddr, To), TrafficCounts>,
    feeds: Vec<Feed>,
    unreached: HashMap<(SocketAddr, SocketAddr), Unreached>,
    memberships: Memberships,
    probes: Probes,
    generation: u64,
    looked: Option<Instant>,
    warned: HashSet<String>,
}

impl Router {
    /// Loads the program and puts it on every interface of `config`.
    ///
    /// # Errors
    /// An interface that is not there or cannot be forwarded by, a foreign XDP program on one, no privilege.
    pub fn start(config: Config, existing: Existing) -> Result<Self, Error> {
        let mirror = RouteMirror::start_without_routes()?;
        let resolver = mirror.resolver()?;
        let forward = Forward::load()?;
        let keep = if config.pin { Keep::Pinned } else { Keep::Process };
        let attach = AttachOptions { mode: config.mode, existing, keep, chain: config.chain };
        let mut router = Self {
            devices: Interfaces::open(&[], attach, &forward)?,
            config,
            forward,
            mirror,
            resolver,
            senders: Senders::open(),
            device_names: BTreeMap::new(),
            ports: BTreeMap::new(),
            unfit: HashMap::new(),
            port_slots: Slots::new(1, INTERFACES + 1),
            feed_slots: Slots::new(0, FEEDS),
            receiver_slots: Slots::new(0, RECEIVERS),
            feeds: Vec::new(),
            unreached: HashMap::new(),
            memberships: Memberships::default(),
            probes: Probes::default(),
            generation: 0,
            looked: None,
            warned: HashSet::new(),
        };
        router.check(&router.config)?;
        // The maps are filled first, so that where an earlier process left its program, this one takes over whole.
        router.update(Instant::now())?;
        router.devices.change(&router.device_list(), &router.forward)?;
        router.update(Instant::now())?;
        release_orphans(Role::FORWARD);
        Ok(router)
    }

    /// Takes over another configuration while packets flow. An error leaves everything as it was. `mode`, `chain`, `pin`
    /// and the admin listener stay those of the start.
    ///
    /// # Errors
    /// An interface that is not there, cannot be forwarded by, or does not take the program.
    pub fn reload(&mut self, config: Config) -> Result<(), Error> {
        let found = self.check(&config)?;
        let list: Vec<String> = found.values().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        // Those that have gone keep the program until nothing is forwarded by them.
        let both: Vec<String> =
            list.iter().cloned().chain(self.device_list()).collect::<BTreeSet<_>>().into_iter().collect();
        self.devices.change(&both, &self.forward)?;
        self.config = config;
        self.warned.clear();
        self.update(Instant::now())?;
        self.device_names = found;
        Ok(self.devices.change(&list, &self.forward)?)
    }

    /// The devices below the interfaces of `config`.
    fn check(&self, config: &Config) -> Result<BTreeMap<String, String>, Error> {
        let snapshot = self.mirror.snapshot();
        let mut devices = BTreeMap::new();
        for name in &config.interfaces {
            let port = interface::find(&snapshot, name)?;
            let device = snapshot.link(port.device).map_or(name, |link| &link.name);
            devices.insert(name.clone(), device.clone());
        }
        Ok(devices)
    }

    fn device_list(&self) -> Vec<String> {
        self.device_names.values().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Brings maps and attachments up to date. Call it several times a second: it does nothing while nothing changes.
    ///
    /// # Errors
    /// The kernel refuses a map or, at start, the program.
    pub fn turn(&mut self, now: Instant) -> Result<(), Error> {
        let generation = self.mirror.generation();
        let is_due = self.looked.is_none_or(|at| now.duration_since(at) >= INTERVAL);
        if generation == self.generation && !is_due {
            return Ok(());
        }
        self.generation = generation;
        self.looked = Some(now);
        self.devices.upkeep(&self.forward);
        self.update(now)?;
        let list = self.device_list();
        // A VLAN may have moved to another device.
        if let Err(error) = self.devices.change(&list, &self.forward) {
            self.warn_once(&error.to_string());
        }
        Ok(())
    }

    /// Brings the maps up to date.
    fn update(&mut self, now: Instant) -> Result<(), Error> {
        self.probes.begin(now);
        let ports = self.find_ports()?;
        self.set_interfaces(ports)?;
        self.set_locals()?;
        self.set_feeds(now)?;
        self.confirm_neighbours(now);
        self.warn();
        Ok(())
    }

    fn find_ports(&mut self) -> Result<BTreeMap<String, ForwardInterface>, Error> {
        let snapshot = self.mirror.snapshot();
        let wanted: HashSet<&String> = self.config.interfaces.iter().collect();
        self.port_slots.retain(|name| wanted.contains(name));
        self.unfit.retain(|name, _| wanted.contains(name));
        self.device_names.retain(|name, _| wanted.contains(name));
        let mut ports = BTreeMap::new();
        for name in &self.config.interfaces {
            let forward = &self.forward;
            // There are as many as a configuration may name.
            let slot = self.port_slots.hold(name, |slot| forward.counts(slot))?.unwrap_or(0);
            match interface::find(&snapshot, name) {
                Ok(port) => {
                    self.unfit.remove(name);
                    let device = snapshot.link(port.device).map_or(name, |link| &link.name);
                    let replicates = !self.config.replicate.is_empty()
                        && self.mode(device, port.device) == Some(AttachMode::Native);
                    self.device_names.insert(name.clone(), device.clone());
                    ports.insert(name.clone(), ForwardInterface { slot, replicates, ..port });
                }
                Err(unfit) => drop(self.unfit.insert(name.clone(), unfit)),
            }
        }
        Ok(ports)
    }

    /// Where the program runs on a device, or where an earlier process left one.
    fn mode(&self, name: &str, index: u32) -> Option<AttachMode> {
        let ours = self.devices.attached().find(|(device, _)| *device == name).map(|(_, mode)| mode);
        ours.or_else(|| expressway_xbpf::attached(index).ok().flatten().map(|(_, mode)| mode))
    }

    /// What stands against feeds that may come by an interface.
    fn feed_problem(&self, name: &str) -> Option<&'static str> {
        let port = self.ports.get(name)?;
        let is_expected = |feed: &Replicate| {
            feed.interfaces.is_empty() || feed.interfaces.iter().any(|interface| interface == name)
        };
        let device = self.device_names.get(name)?;
        let is_generic = self.mode(device, port.device) == Some(AttachMode::Generic);
        (is_generic && self.config.replicate.iter().any(is_expected)).then_some(GENERIC)
    }

    fn set_interfaces(&mut self, mut ports: BTreeMap<String, ForwardInterface>) -> Result<(), Error> {
        let mut modes = self.devices.attached().map(|(_, mode)| mode).peekable();
        let all_generic = modes.peek().is_some() && modes.all(|mode| mode == AttachMode::Generic);
        ports.values_mut().for_each(|port| self.senders.fill(port, all_generic));
        let list: Vec<ForwardInterface> = ports.values().cloned().collect();
        self.forward.set_interfaces(&list)?;
        self.ports = ports;
        Ok(())
    }

    /// The IPv4 addresses of this host, from which no packet may come.
    fn set_locals(&mut self) -> Result<(), Error> {
        let snapshot = self.mirror.snapshot();
        let addresses = snapshot.links().iter().flat_map(|link| snapshot.addresses(link.index));
        let locals = addresses.filter_map(|address| match address.address {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        });
        Ok(self.forward.set_locals(&locals.collect())?)
    }

    fn set_feeds(&mut self, now: Instant) -> Result<(), Error> {
        let config = std::mem::take(&mut self.config.replicate);
        let feeds = self.resolve_feeds(&config, now);
        self.config.replicate = config;
        let feeds = feeds?;
        self.forward.set_feeds(&feeds)?;
        self.feeds = feeds;
        Ok(())
    }

    fn resolve_feeds(&mut self, config: &[Replicate], now: Instant) -> Result<Vec<Feed>, Error> {
        self.feed_slots.retain(|listen| config.iter().any(|feed| feed.listen == *listen));
        let wanted: HashSet<(SocketAddr, To)> =
            config.iter().flat_map(|feed| feed.to.iter().map(|to| (feed.listen, *to))).collect();
        self.receiver_slots.retain(|key| wanted.contains(key));
        self.unreached.clear();
        let mut feeds = Vec::new();
        let mut groups = Vec::new();
        for feed in config {
            let chosen = |name: &String| feed.interfaces.is_empty() || feed.interfaces.contains(name);
            let from: Vec<&ForwardInterface> = self
                .ports
                .iter()
                .filter(|(name, port)| port.replicates && chosen(name))
                .map(|(_, port)| port)
                .collect();
            let ports = from.iter().map(|port| port.slot).collect();
            if feed.listen.ip().is_multicast() {
                groups.extend(from.iter().map(|port| (feed.listen.ip(), port.interface)));
            }
            let forward = &self.forward;
            // There are as many as a configuration may name.
            let slot = self.feed_slots.hold(&feed.listen, |slot| forward.feed(slot))?.unwrap_or(0);
            let receivers = self.resolve_receivers(feed, now)?;
            feeds.push(Feed { listen: feed.listen, slot, ports, receivers });
        }
        for (group, interface, error) in self.memberships.set(&groups) {
            self.warn_once(&format!("{group}: cannot be joined on interface {interface}: {error}"));
        }
        Ok(feeds)
    }

    fn resolve_receivers(&mut self, feed: &Replicate, now: Instant) -> Result<Vec<Receiver>, Error> {
        let mut receivers = Vec::new();
        for to in &feed.to {
            let Self { resolver, probes, ports, forward, .. } = self;
            let sends = |path: &expressway_netio::route::Path| {
                ports.values().any(|port| port.interface == path.egress && port.sends)
            };
            match receivers::resolve(resolver, probes, to, sends, now) {
                Ok(receiver) => {
                    let key = (feed.listen, *to);
                    let slot = self.receiver_slots.hold(&key, |slot| forward.receiver(slot))?.unwrap_or(0);
                    receivers.push(Receiver { slot, hop_limit: feed.hop_limit, ..receiver });
                }
                Err(unreached) => drop(self.unreached.insert((feed.listen, to.address), unreached)),
            }
        }
        Ok(receivers)
    }

    /// Has the kernel confirm neighbours that it would otherwise forget or go on believing in.
    fn confirm_neighbours(&mut self, now: Instant) {
        let snapshot = self.mirror.snapshot();
        let interfaces: HashSet<u32> = self.ports.values().map(|port| port.interface).collect();
        for (interface, address, neighbour) in snapshot.neighbours() {
            if neighbour.stale && interfaces.contains(&interface) {
                self.probes.probe(&mut self.resolver, interface, address, now);
            }
        }
    }

    /// Says once what an operator should know.
    fn warn(&mut self) {
        let mut said = Vec::new();
        for (name, unfit) in &self.unfit {
            said.push(format!("{unfit}; {name} is not used for forwarding until that changes"));
        }
        for (name, port) in &self.ports {
            if let Some(problem) = self.feed_problem(name) {
                said.push(format!("{name}: {problem}"));
            }
            if !port.sends {
                said.push(format!(
                    "{name}: not known to send frames that XDP redirects, so packets to it take the kernel's path; on veth, \
                     turn on `gro` at its peer; otherwise see the driver's documentation (Linux before 6.3 does not tell)"
                ));
            }
            for family in interface::forwarding_off(name) {
                let key =
                    if family == "IPv4" { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
                said.push(format!("{name}: the kernel does not forward {family}: `sysctl -w {key}=1`"));
            }
        }
        if interface::hash_is_beyond() {
            said.push(
                "net.ipv4 or net.ipv6.fib_multipath_hash_policy is 2 or 3: flows may take a different \
                 next hop than the kernel would choose"
                    .to_owned(),
            );
        }
        said.iter().for_each(|text| self.warn_once(text));
    }

    fn warn_once(&mut self, text: &str) {
        // Bounded: texts are made of configured names.
        if self.warned.len() < 4096 && self.warned.insert(text.to_owned()) {
            tracing::warn!("{text}");
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Devices that the program is to be on, with where it runs; `None` where it does not.
    pub fn devices(&self) -> impl Iterator<Item = (&str, Option<AttachMode>)> {
        self.devices.all()
    }

    /// What was counted since start.
    ///
    /// # Errors
    /// The kernel refuses to read a map.
    pub fn statistics(&self) -> Result<Statistics, expressway_xbpf::Error> {
        let mut interfaces = Vec::new();
        for name in &self.config.interfaces {
            interfaces.push(self.interface_report(name)?);
        }
        let feeds =
            self.config.replicate.iter().map(|feed| self.feed_report(feed)).collect::<Result<_, _>>()?;
        Ok(Statistics::new(interfaces, self.forward.counts(0)?, feeds))
    }

    fn interface_report(&self, name: &str) -> Result<InterfaceReport, expressway_xbpf::Error> {
        let counts = match self.port_slots.find(&name.to_owned()) {
            Some((slot, before)) => self.forward.counts(slot)?.since(&before),
            None => ForwardCounts::default(),
        };
        let port = self.ports.get(name);
        let device = self.device_names.get(name);
        let attached = device.and_then(|device| self.devices.attached().find(|(name, _)| name == device));
        Ok(InterfaceReport {
            name: name.to_owned(),
            device: device.filter(|_| port.is_some()).cloned(),
            attach: attached.map(|(_, mode)| mode.name()),
            sends: port.is_some_and(|port| port.sends),
            problem: match self.unfit.get(name) {
                Some(unfit) => Some(unfit.problem.clone()),
                None => self.feed_problem(name).map(str::to_owned),
            },
            counts,
            egress: match port {
                Some(port) if self.forward.counts_egress() => self.forward.egress(port.device)?,
                _ => None,
            },
        })
    }

    fn feed_report(&self, feed: &Replicate) -> Result<FeedReport, expressway_xbpf::Error> {
        let since = |now: TrafficCounts, before: TrafficCounts| TrafficCounts {
            packets: now.packets.saturating_sub(before.packets),
            bytes: now.bytes.saturating_sub(before.bytes),
        };
        let counts = match self.feed_slots.find(&feed.listen) {
            Some((slot, before)) => since(self.forward.feed(slot)?, before),
            None => TrafficCounts::default(),
        };
        let receiver = |to: &To| {
            let counts = match self.receiver_slots.find(&(feed.listen, *to)) {
                Some((slot, before)) => since(self.forward.receiver(slot)?, before),
                None => TrafficCounts::default(),
            };
            let problem = self.unreached.get(&(feed.listen, to.address)).map(|unreached| match unreached {
                Unreached::NoRoute => "no route".to_owned(),
                Unreached::NoNeighbour => "its next hop does not answer".to_owned(),
                Unreached::OtherEgress(index) => match self.mirror.snapshot().link(*index) {
                    Some(link) => format!("its route leaves by {}, which cannot be used", link.name),
                    None => "its route leaves by no configured interface".to_owned(),
                },
            });
            Ok(ReceiverReport { address: to.address, problem, counts })
        };
        let receivers = feed.to.iter().map(receiver).collect::<Result<_, expressway_xbpf::Error>>()?;
        Ok(FeedReport { listen: feed.listen, counts, receivers })
    }
}
