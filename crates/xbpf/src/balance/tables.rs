//! Flow tables that outlive their process: pinned in the BPF file system, with names that say whose numbers they hold.
//!
//! ```text
//!   expressway/expressway_lb-NAMESPACE-tables/    flocked by the process while it lives
//!   ├── flows  probation  fragments               the program's maps
//!   └── names                                     the holder of each number of a service and of a node; pinned last
//! ```
//!
//! A process that ends in order leaves none of it. One that is killed leaves all of it, and the program on its interfaces.
//! The next one takes the tables over if they are laid out as its own; else it makes new ones and says why.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::BalanceOptions;
use super::node::words;
use crate::attachment::Keep;
use crate::bpffs::{BpfFs, Lock};
use crate::error::Error;
use crate::role::Role;
use crate::skeleton::balance::types::{
    balance_flow, balance_flow_key, balance_fragment, balance_limit, balance_newcomer,
};
use crate::sys;

/// Whose a number is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceName {
    /// Of a service, or of a node of it.
    pub service: String,
    /// The node's address; `None` for the service itself.
    pub node: Option<IpAddr>,
    /// The number.
    pub number: u32,
    /// Which of the number's holders it is.
    pub generation: u32,
}

/// `struct` of a name: generation, family (0 for a service), length, address, service.
const NAME_BYTES: usize = 256;
const ADDRESS: usize = 6;
const SERVICE: usize = ADDRESS + 16;
/// The key of the entry whose generation is the layout's number.
const LAYOUT: u32 = u32::MAX;
/// Node numbers stand behind those of services.
const FIRST_NODE: u32 = balance_limit::BALANCE_SERVICES.0;
const NAMES: u32 = FIRST_NODE + balance_limit::BALANCE_NODES.0 + 1;

impl BalanceName {
    /// The longest name of a service, in bytes.
    pub const LONGEST: usize = NAME_BYTES - SERVICE;

    fn key(&self) -> [u8; 4] {
        let first = if self.node.is_some() { FIRST_NODE } else { 0 };
        (first + self.number).to_ne_bytes()
    }

    fn bytes(&self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        let length = self.service.len().min(Self::LONGEST);
        bytes[..4].copy_from_slice(&self.generation.to_ne_bytes());
        bytes[5] = length as u8;
        if let Some(node) = self.node {
            bytes[4] = super::node::family(node);
            bytes[ADDRESS..SERVICE].copy_from_slice(&words(node));
        }
        bytes[SERVICE..SERVICE + length].copy_from_slice(&self.service.as_bytes()[..length]);
        bytes
    }

    /// `None` for what no process of ours has written.
    fn from_bytes(key: &[u8], bytes: &[u8]) -> Option<Self> {
        let key = u32::from_ne_bytes(key.try_into().ok()?);
        let bytes: &[u8; NAME_BYTES] = bytes.try_into().ok()?;
        let generation = u32::from_ne_bytes(bytes[..4].try_into().ok()?);
        let address: [u8; 16] = bytes[ADDRESS..SERVICE].try_into().ok()?;
        let node = match bytes[4] {
            0 => None,
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(&address[12..]).ok()?)),
            6 => Some(IpAddr::from(address)),
            _ => return None,
        };
        let service = bytes[SERVICE..].get(..usize::from(bytes[5]))?;
        let number = key.checked_sub(if node.is_some() { FIRST_NODE } else { 0 })?;
        let limit = if node.is_some() { balance_limit::BALANCE_NODES.0 } else { FIRST_NODE };
        let service = String::from_utf8(service.to_vec()).ok()?;
        (number < limit).then_some(Self { service, node, number, generation })
    }
}

/// What a map has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    kind: MapType,
    key: usize,
    value: usize,
    entries: u32,
}

fn shapes(options: &BalanceOptions) -> [Shape; 4] {
    let flow = size_of::<balance_flow_key>();
    // An LRU list of each CPU gets as many entries as the others (kernel/bpf/hashtab.c, htab_map_alloc).
    let cpus = libbpf_rs::num_possible_cpus().map_or(1, |cpus| cpus.max(1) as u32);
    let shape = |name, kind, key, value, entries: u32| {
        let whole = if kind == MapType::LruHash { entries.next_multiple_of(cpus) } else { entries };
        Shape { name, kind, key, value, entries: whole }
    };
    [
        shape("flows", MapType::LruHash, flow, size_of::<balance_flow>(), options.flows),
        shape("probation", MapType::LruHash, flow, size_of::<balance_newcomer>(), options.probation),
        shape(
            "fragments",
            MapType::LruHash,
            size_of::<balance_fragment>(),
            size_of::<balance_flow>(),
            FRAGMENTS,
        ),
        shape("names", MapType::Hash, 4, NAME_BYTES, NAMES),
    ]
}

/// As in the program.
const FRAGMENTS: u32 = 1 << 13;

/// Tables that a killed process left.
pub(super) struct Left {
    pub(super) flows: MapHandle,
    pub(super) probation: MapHandle,
    pub(super) fragments: MapHandle,
    names: MapHandle,
}

impl Left {
    /// `Err` says why they are of no use.
    fn open(directory: &PinDirectory, options: &BalanceOptions) -> Result<Self, String> {
        let mut maps = Vec::new();
        for shape in shapes(options) {
            let map = MapHandle::from_pinned_path(directory.path(shape.name))
                .map_err(|error| format!("{}: {error}", shape.name))?;
            let is = Shape {
                name: shape.name,
                kind: map.map_type(),
                key: map.key_size() as usize,
                value: map.value_size() as usize,
                entries: map.max_entries(),
            };
            if is != shape {
                let sizes = |shape: &Shape| {
                    format!("{} entries of {}+{} bytes", shape.entries, shape.key, shape.value)
                };
                return Err(format!("{}: {}, not {}", shape.name, sizes(&is), sizes(&shape)));
            }
            maps.push(map);
        }
        let Ok([flows, probation, fragments, names]) = <[MapHandle; 4]>::try_from(maps) else {
            return Err("some of them are missing".to_owned());
        };
        let layout = names.lookup(&LAYOUT.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let layout = layout.and_then(|value| value.first_chunk::<4>().copied()).map(u32::from_ne_bytes);
        if layout != Some(balance_limit::BALANCE_LAYOUT.0) {
            return Err("another version's layout".to_owned());
        }
        Ok(Self { flows, probation, fragments, names })
    }
}

/// The directory in a BPF file system where this process's tables are pinned.
#[derive(Debug)]
struct PinDirectory {
    bpffs: BpfFs,
    owned: String,
    _owner: Lock,
}

impl PinDirectory {
    fn path(&self, name: &str) -> PathBuf {
        self.bpffs.owned(&self.owned).join(name)
    }

    fn clear(&self) {
        for name in ["names", "flows", "probation", "fragments"] {
            let path = self.path(name);
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove the pin of a flow table");
            }
        }
    }
}

/// Pins of this process. Dropped, they are gone, unless it has only looked at those that a killed process left.
#[derive(Debug)]
pub(super) struct Pins {
    directory: PinDirectory,
    names: MapHandle,
    is_left: bool,
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        self.directory.clear();
        self.directory.bpffs.disown(&self.directory.owned);
    }
}

/// What was found where tables are pinned.
pub(super) struct Search {
    directory: Option<PinDirectory>,
    pub(super) left: Option<Left>,
}

impl Search {
    /// Without looking.
    pub(super) fn none() -> Self {
        Self { directory: None, left: None }
    }

    /// Looks for tables that a killed process left in the calling thread's network namespace.
    pub(super) fn new(options: &BalanceOptions, keep: Keep) -> Result<Self, Error> {
        let failed = |source| Error::PinTables { source };
        let bpffs = match BpfFs::open() {
            Ok(bpffs) => bpffs,
            Err(_) if keep == Keep::Process => return Ok(Self::none()),
            Err(error) => return Err(failed(error)),
        };
        let namespace = sys::network_namespace().map_err(failed)?;
        let owned = format!("{}-{namespace:x}-tables", Role::BALANCE.name);
        let is_there = bpffs.owned(&owned).exists();
        if keep == Keep::Process && !is_there {
            return Ok(Self::none());
        }
        let owner = match bpffs.own(&owned) {
            Ok(owner) => owner,
            Err(error) => {
                // Another balancer of this network namespace, on other interfaces.
                if keep == Keep::Pinned {
                    tracing::warn!(%error, "flow tables end with this process: pinned ones are another's");
                }
                return Ok(Self::none());
            }
        };
        let directory = PinDirectory { bpffs, owned, _owner: owner };
        let left = match Left::open(&directory, options) {
            Ok(left) => Some(left),
            Err(why) if directory.path("flows").exists() => {
                tracing::warn!(
                    "flow tables of an earlier process not taken over, so flows start over: {why}"
                );
                None
            }
            Err(_) => None,
        };
        Ok(Self { directory: Some(directory), left })
    }

    /// Pins the tables that are in use from now on, if they should outlive the process. Returns the names that a killed
    /// process left.
    pub(super) fn finish(
        self,
        keep: Keep,
        tables: [BorrowedFd<'_>; 3],
    ) -> Result<(Option<Pins>, Vec<BalanceName>), Error> {
        let Some(directory) = self.directory else { return Ok((None, Vec::new())) };
        if let Some(left) = self.left {
            let names = read(&left.names)?;
            tracing::info!(names = names.len(), "flow tables of an earlier process taken over");
            return Ok((Some(Pins { directory, names: left.names, is_left: true }), names));
        }
        directory.clear();
        if keep == Keep::Process {
            directory.bpffs.disown(&directory.owned);
            return Ok((None, Vec::new()));
        }
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let fault = |source| Error::Map { map: "names", source };
        let names =
            MapHandle::create(MapType::Hash, Some("balance_names"), 4, NAME_BYTES as u32, NAMES, &options)
                .map_err(fault)?;
        let mut layout = [0; NAME_BYTES];
        layout[..4].copy_from_slice(&balance_limit::BALANCE_LAYOUT.0.to_ne_bytes());
        names.update(&LAYOUT.to_ne_bytes(), &layout, MapFlags::ANY).map_err(fault)?;
        let pins = Pins { directory, names, is_left: false };
        let [flows, probation, fragments] = tables;
        let all = [flows, probation, fragments, pins.names.as_fd()];
        for (name, map) in ["flows", "probation", "fragments", "names"].into_iter().zip(all) {
            sys::pin(map, &pins.directory.path(name)).map_err(|source| Error::PinTables { source })?;
        }
        Ok((Some(pins), Vec::new()))
    }
}

impl Pins {
    /// What a killed process left is this one's from now on.
    pub(super) fn adopt(&mut self) {
        self.is_left = false;
    }

    /// Notes whose a number is.
    pub(super) fn remember(&self, name: &BalanceName) -> Result<(), Error> {
        let update = self.names.update(&name.key(), &name.bytes(), MapFlags::ANY);
        update.map_err(|source| Error::Map { map: "names", source })
    }

    /// Notes that it is nobody's.
    pub(super) fn forget(&self, name: &BalanceName) -> Result<(), Error> {
        super::absent_is_fine(self.names.delete(&name.key()), "names")
    }
}

fn read(names: &MapHandle) -> Result<Vec<BalanceName>, Error> {
    let mut found = Vec::new();
    for key in names.keys() {
        let value = names.lookup(&key, MapFlags::ANY);
        let value = value.map_err(|source| Error::Map { map: "names", source })?;
        found.extend(value.and_then(|value| BalanceName::from_bytes(&key, &value)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let service = BalanceName { service: "video".to_owned(), node: None, number: 255, generation: 3 };
        let four = BalanceName { node: Some([192, 0, 2, 1].into()), number: 0, ..service.clone() };
        let six = BalanceName { node: Some([0x20; 16].into()), number: 4095, ..service.clone() };
        let long = BalanceName { service: "x".repeat(BalanceName::LONGEST), ..four.clone() };
        for name in [service, four, six, long] {
            assert_eq!(BalanceName::from_bytes(&name.key(), &name.bytes()), Some(name));
        }
    }

    #[test]
    fn what_is_no_name_is_none() {
        let name = BalanceName { service: "video".to_owned(), node: None, number: 0, generation: 3 };
        assert_eq!(BalanceName::from_bytes(&LAYOUT.to_ne_bytes(), &name.bytes()), None);
        assert_eq!(BalanceName::from_bytes(&name.key(), &name.bytes()[1..]), None);
        let mut family = name.bytes();
        family[4] = 4;
        assert_eq!(
            BalanceName::from_bytes(&name.key(), &family),
            None,
            "a node's number below those of nodes"
        );
        let mut text = name.bytes();
        text[SERVICE] = 0xff;
        assert_eq!(BalanceName::from_bytes(&name.key(), &text), None);
        let mut length = name.bytes();
        length[5] = 255;
        assert_eq!(BalanceName::from_bytes(&name.key(), &length), None);
    }
}
