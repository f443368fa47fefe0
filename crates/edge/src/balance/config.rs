//! The configuration file of a balancer: TOML, strict, and checked before anything is opened.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_keys::{Document, Section};
use expressway_settings::{ConfigError, SourceFile, Span, admin, named};
use expressway_xbpf::{Balance, BalanceName};
use serde::Deserialize;
use toml::Spanned;

use crate::interfaces::Mode;

mod check;
mod keys;
mod quic;

pub use check::{Check, CheckKind};
pub(super) use keys::configs as shared_configs;
pub use quic::QuicConfig;

use check::RawCheck;
use quic::RawQuic;

/// The greatest weight: finer shares than a ring has entries for would be lost.
pub(super) const WEIGHT: u32 = 1000;
/// Nodes of one service: the ring has a hundred entries for each.
const NODES: usize = Balance::RING as usize / 100;

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP, and so QUIC.
    Udp,
}

impl Protocol {
    const NAMES: [(&'static str, Self); 2] = [("tcp", Self::Tcp), ("udp", Self::Udp)];
}
named!(Protocol);

/// What a packet is routed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Its flow.
    #[default]
    Hash,
    /// Its QUIC connection ID, else its flow.
    QuicLb,
}

impl Route {
    const NAMES: [(&'static str, Self); 2] = [("hash", Self::Hash), ("quic-lb", Self::QuicLb)];
}
named!(Route);

/// What makes a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Addresses and ports.
    #[default]
    None,
    /// The source address alone.
    Source,
}

impl Affinity {
    const NAMES: [(&'static str, Self); 2] = [("none", Self::None), ("source", Self::Source)];
}
named!(Affinity);

/// Which node a new flow goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// The ring's, by weight.
    #[default]
    Maglev,
    /// Of two of the ring's, the one with the fewer flows for its weight.
    LeastConnections,
}

impl Scheduler {
    const NAMES: [(&'static str, Self); 2] =
        [("maglev", Self::Maglev), ("least-connections", Self::LeastConnections)];
}
named!(Scheduler);

/// How a node is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// By its MAC address.
    #[default]
    L2,
    /// IP in IP.
    Ipip,
    /// Generic UDP encapsulation.
    Gue,
}

impl Method {
    const NAMES: [(&'static str, Self); 3] = [("l2", Self::L2), ("ipip", Self::Ipip), ("gue", Self::Gue)];
}
named!(Method);

/// `[[service.node]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its address, not the service's.
    pub address: IpAddr,
    /// Its part of new flows, by the sum of all weights.
    pub weight: u32,
    /// How it is reached.
    pub method: Method,
    /// Gets no new flows.
    pub drain: bool,
    /// In QUIC connection IDs that it issues.
    pub server_id: Vec<u8>,
}

/// `[[service]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// For people, metrics and orders; unique.
    pub name: String,
    /// Where it is reached.
    pub listen: Vec<SocketAddr>,
    /// Its protocol.
    pub protocol: Protocol,
    /// What packets are routed by.
    pub route: Route,
    /// What makes a flow.
    pub affinity: Affinity,
    /// Which node new flows get.
    pub scheduler: Scheduler,
    /// Time without a packet after which a flow is over.
    pub idle: Duration,
    /// Time in which a node that comes or returns is given its weight; 0 at once.
    pub slow_start: Duration,
    /// How the QUIC connection IDs that nodes issue are read, by rotation codepoint.
    pub quic: Vec<QuicConfig>,
    /// `quic` is that of the shared keys, and follows them.
    pub shared_keys: bool,
    /// How nodes are asked whether they serve.
    pub check: Option<Check>,
    /// At least one.
    pub nodes: Vec<Node>,
}

/// A whole configuration, defaults filled in.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interfaces that packets arrive by; empty: those that have a service's address, or else lead to its nodes.
    pub interfaces: Vec<String>,
    /// How the program is attached.
    pub mode: Mode,
    /// The program stays when this process is killed, and the next start takes over.
    pub pin: bool,
    /// Beside others by a libxdp dispatcher, even where none is yet.
    pub chain: bool,
    /// Established flows that are remembered.
    pub flows: u32,
    /// Flows that are remembered before they are established.
    pub probation: u32,
    /// Mixed into the hash of flows.
    pub seed: u64,
    /// The admin listener.
    pub admin: Option<admin::Section>,
    /// Keys that nodes and balancers share.
    pub keys: Option<Section>,
    /// At least one.
    pub services: Vec<Service>,
    /// The file's text, for `/config`.
    pub text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    interfaces: Vec<Spanned<String>>,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    pin: bool,
    #[serde(default)]
    chain: bool,
    flows: Option<Spanned<u32>>,
    probation: Option<Spanned<u32>>,
    #[serde(default)]
    seed: u64,
    admin: Option<admin::Section>,
    keys: Option<Section>,
    #[serde(default)]
    service: Vec<RawService>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Listen {
    One(SocketAddr),
    Many(Vec<SocketAddr>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawService {
    name: Option<Spanned<String>>,
    listen: Spanned<Listen>,
    protocol: Protocol,
    route: Option<Spanned<Route>>,
    #[serde(default)]
    affinity: Affinity,
    #[serde(default)]
    scheduler: Scheduler,
    idle: Option<Spanned<Span>>,
    slow_start: Option<Span>,
    shared_keys: Option<Spanned<bool>>,
    quic_configs: Option<Spanned<Vec<u8>>>,
    #[serde(default)]
    quic_lb: Vec<RawQuic>,
    check: Option<RawCheck>,
    #[serde(default)]
    node: Vec<RawNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    address: Spanned<IpAddr>,
    weight: Option<Spanned<u32>>,
    #[serde(default)]
    method: Method,
    #[serde(default)]
    drain: bool,
    server_id: Option<Spanned<String>>,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(SourceFile::read(file)?)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn parse(source: SourceFile) -> Result<Self, ConfigError> {
        let mut raw: Raw = source.parse()?;
        if raw.service.is_empty() {
            return Err(SourceFile::whole(&source.file, "no [[service]]: add one"));
        }
        // Half of the slots, so that a reload may rename all services.
        if raw.service.len() > Balance::SERVICES as usize / 2 {
            let problem = format!("more than {} services", Balance::SERVICES / 2);
            return Err(SourceFile::whole(&source.file, problem));
        }
        let entries = |value: Option<Spanned<u32>>, default: u32| match value {
            Some(value) if !(1024..=1 << 26).contains(value.get_ref()) => {
                Err(source.at(value.span(), "must be from 1024 to 67108864"))
            }
            value => Ok(value.map_or(default, Spanned::into_inner)),
        };
        let document = raw.keys.as_mut().map(|section| keys::check(&source, section)).transpose()?;
        let config = Self {
            interfaces: raw.interfaces.into_iter().map(Spanned::into_inner).collect(),
            mode: raw.mode,
            pin: raw.pin,
            chain: raw.chain,
            flows: entries(raw.flows, 1 << 20)?,
            probation: entries(raw.probation, 1 << 16)?,
            seed: raw.seed,
            admin: source.admin(raw.admin)?,
            keys: raw.keys,
            services: services(&source, raw.service, document.as_ref())?,
            text: source.text.clone(),
        };
        let nodes: usize = config.services.iter().map(|service| service.nodes.len()).sum();
        // Half of the slots, so that a reload may replace all nodes.
        if nodes > Balance::NODES as usize / 2 {
            let problem = format!("more than {} nodes in all", Balance::NODES / 2);
            return Err(SourceFile::whole(&source.file, problem));
        }
        Ok(config)
    }

    /// The first key that differs in `wanted` and that only a start reads.
    pub fn fixed_change(&self, wanted: &Self) -> Option<&'static str> {
        let changes = [
            ("mode", self.mode != wanted.mode),
            ("pin", self.pin != wanted.pin),
            ("chain", self.chain != wanted.chain),
            ("flows", self.flows != wanted.flows),
            ("probation", self.probation != wanted.probation),
            ("seed", self.seed != wanted.seed),
            ("[admin]", self.admin != wanted.admin),
        ];
        changes.iter().find(|(_, changed)| *changed).map(|(key, _)| *key)
    }
}

fn services(
    source: &SourceFile,
    raw: Vec<RawService>,
    document: Option<&Document>,
) -> Result<Vec<Service>, ConfigError> {
    let mut reached = HashSet::new();
    let mut names = HashSet::new();
    let mut services = Vec::new();
    for raw in raw {
        let span = raw.listen.span();
        let name_span = raw.name.as_ref().map_or(span.clone(), Spanned::span);
        let service = service(source, raw, document)?;
        for address in &service.listen {
            if !reached.insert((*address, service.protocol)) {
                return Err(source.at(span, format!("{address} is already used by another service")));
            }
        }
        if !names.insert(service.name.clone()) {
            return Err(source.at(name_span, format!("another service is called `{}`", service.name)));
        }
        services.push(service);
    }
    if reached.len() > 1024 {
        return Err(SourceFile::whole(&source.file, "more than 1024 listen addresses in all"));
    }
    Ok(services)
}

fn service(
    source: &SourceFile,
    raw: RawService,
    document: Option<&Document>,
) -> Result<Service, ConfigError> {
    let span = raw.listen.span();
    let listen = match raw.listen.into_inner() {
        Listen::One(address) => vec![address],
        Listen::Many(addresses) => addresses,
    };
    let problem = match listen.first() {
        None => Some("no address"),
        _ if listen.iter().any(|address| address.port() == 0) => Some("the port must not be 0"),
        _ if listen.iter().any(|address| address.ip().is_unspecified() || address.ip().is_multicast()) => {
            Some("name the service's own address: a balancer takes no others")
        }
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(source.at(span, problem));
    }
    let route = match raw.route {
        Some(route) if *route.get_ref() == Route::QuicLb && raw.protocol != Protocol::Udp => {
            return Err(source.at(route.span(), "QUIC is UDP: set protocol = \"udp\""));
        }
        route => route.map_or_else(Route::default, Spanned::into_inner),
    };
    if let Some(table) = raw.quic_lb.first().filter(|_| route != Route::QuicLb) {
        return Err(source.at(table.span(), "requires route = \"quic-lb\""));
    }
    let second = Duration::from_secs(1);
    let idle = match raw.idle {
        Some(idle) if idle.get_ref().0 < second => return Err(source.at(idle.span(), "must be 1s or more")),
        Some(idle) => idle.into_inner().0,
        // RFC 4787 asks NATs for two minutes, RFC 5382 for two hours and four minutes.
        None if raw.protocol == Protocol::Udp => 120 * second,
        None => 7440 * second,
    };
    let name = match raw.name {
        Some(name) if name.get_ref().len() > BalanceName::LONGEST => {
            return Err(source.at(name.span(), format!("must have {} bytes at most", BalanceName::LONGEST)));
        }
        name => name.map_or_else(|| format!("{}/{}", listen[0], raw.protocol), Spanned::into_inner),
    };
    let nodes = nodes(source, &span, raw.node)?;
    let server_id = nodes.first().map_or(0, |node| node.server_id.len());
    let shared = raw.shared_keys.filter(|shared| *shared.get_ref());
    let quic = match &shared {
        Some(shared) => {
            let span = shared.span();
            let has_others = raw.quic_configs.is_some() || !raw.quic_lb.is_empty();
            keys::of_service(document, route, has_others, server_id)
                .map_err(|problem| source.at(span, problem))?
        }
        None => quic::configs(source, raw.quic_configs, raw.quic_lb, server_id)?,
    };
    Ok(Service {
        quic,
        shared_keys: shared.is_some(),
        name,
        protocol: raw.protocol,
        route,
        affinity: raw.affinity,
        scheduler: raw.scheduler,
        idle,
        slow_start: raw.slow_start.map_or(Duration::ZERO, |span| span.0),
        check: raw.check.map(|check| check::check(source, check)).transpose()?,
        nodes,
        listen,
    })
}

fn nodes(
    source: &SourceFile,
    service: &std::ops::Range<usize>,
    raw: Vec<RawNode>,
) -> Result<Vec<Node>, ConfigError> {
    if raw.is_empty() {
        return Err(source.at(service.clone(), "the service has no [[service.node]]: add one"));
    }
    if raw.len() > NODES {
        return Err(source.at(service.clone(), format!("the service has more than {NODES} nodes")));
    }
    let mut nodes: Vec<Node> = Vec::new();
    for raw in raw {
        let span = raw.address.span();
        let address = raw.address.into_inner();
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return Err(source.at(span, format!("{address} cannot be a node's address")));
        }
        if nodes.iter().any(|node| node.address == address) {
            return Err(source.at(span, format!("{address} is listed twice")));
        }
        let weight = match raw.weight {
            Some(weight) if *weight.get_ref() > WEIGHT => {
                return Err(source.at(weight.span(), format!("must be {WEIGHT} or less")));
            }
            weight => weight.map_or(1, Spanned::into_inner),
        };
        let (id_span, server_id) = match raw.server_id {
            Some(text) => {
                let bytes = HEX.decode(text.get_ref().as_bytes()).ok();
                let bytes = bytes.filter(|id| (1..=Balance::SERVER_ID).contains(&id.len()));
                let bytes =
                    bytes.ok_or_else(|| source.at(text.span(), "must be 1 to 15 bytes in hexadecimal"))?;
                (text.span(), bytes)
            }
            None => (span, last_bytes(address)),
        };
        if let Some(other) = nodes.first().filter(|node| node.server_id.len() != server_id.len()) {
            let problem = format!("must have {} bytes, like the server IDs before it", other.server_id.len());
            return Err(source.at(id_span, problem));
        }
        if nodes.iter().any(|node| node.server_id == server_id) {
            return Err(source.at(id_span, "another node has the same server ID: set server_id"));
        }
        nodes.push(Node { address, weight, method: raw.method, drain: raw.drain, server_id });
    }
    Ok(nodes)
}

/// What identifies a node for which no server ID is given.
fn last_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets()[12..].to_vec(),
    }
}

#[cfg(test)]
mod tests;
