//! Several XDP programs on one interface, by libxdp's dispatcher (xdp-tools, `lib/libxdp/protocol.org`,
//! versions 2 and 3).
//!
//! The program on the interface is a dispatcher; the actual programs are its components, each replacing one
//! of its functions. Changing the components means a new dispatcher with all of them attached, swapped for
//! the old one by the kernel's compare-and-exchange; if somebody else was faster, everything starts over.
//! Components are pinned, so they outlive the process: one whose process was killed is recognised by the lock
//! that is no longer held ([`crate::bpffs`]) and left out at the next change.
//!
//! A dispatcher keeps its version for life: a newer libxdp refuses to change an older one, and an older
//! libxdp cannot read a newer one. Ours are created with version 2, which all of them can at least list.
//!
//! Our dispatcher is our own source, written to the protocol, so that libxdp's tools can list it, add to it
//! and remove from it; the tests use `xdp-loader` as the peer. Changes are made under libxdp's lock. Each
//! component of ours has a directory on which its process holds a lock: if it can be locked, the component is
//! an orphan. The kernel releases such a lock however the process ended, and no process ID can be mistaken
//! for another.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::btf::{Btf, types::Func};
use libbpf_rs::libbpf_sys::BPF_F_XDP_HAS_FRAGS;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramAttachType, ProgramType};

use crate::bpffs::{self, BpfFs, Lock};
use crate::error::{Error, Interface};
use crate::role::Role;
use crate::skeleton::{dispatcher as v2, dispatcher_v3 as v3};
use crate::{attachment, sys};

/// Name of dispatcher programs.
const NAME: &str = "xdp_dispatcher";
/// `DISPATCHER_MAGIC`, `DISPATCHER_SLOTS`, `DISPATCHER_NEXT` of dispatcher_shared.h.
const MAGIC: u8 = 236;
const SLOTS: usize = 10;
const NEXT: u32 = 31;
/// `XDP_PASS` as a bit: packets that we pass go on to the next program.
const CHAIN: u32 = 1 << libbpf_rs::libbpf_sys::XDP_PASS | 1 << NEXT;
/// Attempts before giving up if others keep changing the dispatcher.
const TRIES: u32 = 16;

/// The protocol's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V2 = 2,
    V3 = 3,
}

/// A program in a slot.
#[derive(Debug)]
struct Component {
    program: OwnedFd,
    id: u32,
    name: String,
    priority: u32,
    chain: u32,
    flags: u32,
}

/// A dispatcher as it is on an interface.
#[derive(Debug)]
struct Chain {
    dispatcher: OwnedFd,
    id: u32,
    version: Version,
    mode: u32,
    components: Vec<Component>,
}

/// A dispatcher that has been loaded with its components attached, but is on no interface yet.
struct Built {
    dispatcher: OwnedFd,
    id: u32,
    links: Vec<OwnedFd>,
}

/// Our component of an interface's dispatcher.
#[derive(Debug)]
pub(crate) struct Membership {
    interface: Interface,
    bpffs: BpfFs,
    program: u32,
    /// Marks the component as owned.
    _owner: Lock,
}

/// Whether the program on the interface is a dispatcher.
pub(crate) fn is_present(interface: &Interface) -> Result<bool, Error> {
    let Some(attached) = attachment::query(interface)? else { return Ok(false) };
    let program = open_program(attached.program);
    let name = program.and_then(|program| sys::program_name(program.as_fd()));
    Ok(name.is_ok_and(|name| name == NAME))
}

/// Makes a program that is not loaded yet the extension that replaces a function of a dispatcher.
pub(crate) fn make_extension(
    program: &mut libbpf_rs::OpenProgramMut<'_>,
    dispatcher: BorrowedFd<'_>,
    function: &str,
) -> libbpf_rs::Result<()> {
    program.set_prog_type(ProgramType::Ext);
    // Extensions have none, which is 0, which bears this name.
    program.set_attach_type(ProgramAttachType::CgroupInetIngress);
    program.set_attach_target(dispatcher.as_raw_fd(), Some(function.to_owned()))
}

/// Adds a component to the interface's dispatcher, creating it if there is none. `load` gets the dispatcher and
/// the name of the function to replace.
pub(crate) fn join<T>(
    interface: &Interface,
    mode: u32,
    role: Role,
    load: impl Fn(BorrowedFd<'_>, &str) -> Result<(OwnedFd, T), Error>,
) -> Result<(T, Membership), Error> {
    let bpffs = BpfFs::open().map_err(|source| failed(interface, "the BPF file system", source))?;
    let mut ours: Option<(OwnedFd, T, Membership)> = None;
    for _ in 0..TRIES {
        let _lock = bpffs.lock().map_err(|source| failed(interface, "libxdp's lock", source))?;
        let old = read(interface, &bpffs)?;
        let mut components = match &old {
            Some(old) if old.mode != mode => {
                let source =
                    io::Error::other("it is attached in the other mode (native or generic): use that mode");
                return Err(failed(interface, "the existing one", source));
            }
            Some(old) => old.living(&bpffs)?,
            None => Vec::new(),
        };
        if components.len() == SLOTS {
            let source = io::Error::other(format!("all {SLOTS} slots of the dispatcher are taken"));
            return Err(failed(interface, "adding an XDP program", source));
        }
        let Role { name, priority } = role;
        let before = |other: &Component| (other.priority, other.name.as_str()) <= (priority, name);
        let slot = components.iter().take_while(|other| before(other)).count();
        let component = |program: &OwnedFd, id| {
            Ok(Component {
                program: clone(program)?,
                id,
                name: name.to_owned(),
                priority,
                chain: CHAIN,
                flags: BPF_F_XDP_HAS_FRAGS,
            })
        };
        // The dispatcher has to be there before the component can be loaded against it.
        let frags = components.iter().all(|other| other.flags & BPF_F_XDP_HAS_FRAGS != 0);
        let mut plan: Vec<[u32; 3]> =
            components.iter().map(|other| [other.priority, other.chain, other.flags]).collect();
        plan.insert(slot, [priority, CHAIN, BPF_F_XDP_HAS_FRAGS]);
        let version = old.as_ref().map_or(Version::V2, |old| old.version);
        let (dispatcher, id) = load_dispatcher(interface, version, &plan, frags)?;
        if ours.is_none() {
            let (program, value) = load(dispatcher.as_fd(), &function(slot))?;
            let info = sys::program_info(program.as_fd());
            let info = info.map_err(|source| failed(interface, "our component", source))?;
            let owner = bpffs
                .own(&info.id.to_string())
                .map_err(|source| failed(interface, "our own lock", source))?;
            let membership = Membership {
                interface: interface.clone(),
                bpffs: bpffs.clone(),
                program: info.id,
                _owner: owner,
            };
            ours = Some((program, value, membership));
        }
        let Some((program, value, membership)) = ours.take() else { break };
        components.insert(slot, component(&program, membership.program)?);
        let links = link(interface, dispatcher.as_fd(), id, &components)?;
        let built = Built { dispatcher, id, links };
        if install(interface, &bpffs, mode, old.as_ref(), &built, &components)? {
            return Ok((value, membership));
        }
        ours = Some((program, value, membership));
    }
    Err(Error::Busy { interface: interface.clone() })
}

/// Removes the components of killed processes, and with the last one the dispatcher. Does nothing without a
/// dispatcher or a BPF file system.
pub(crate) fn recover(interface: &Interface) -> Result<(), Error> {
    let Ok(bpffs) = BpfFs::open() else { return Ok(()) };
    remove(interface, &bpffs, None)
}

/// Removes `program` and orphans from the interface's dispatcher.
fn remove(interface: &Interface, bpffs: &BpfFs, program: Option<u32>) -> Result<(), Error> {
    for _ in 0..TRIES {
        let _lock = bpffs.lock().map_err(|source| failed(interface, "libxdp's lock", source))?;
        let Some(old) = read(interface, bpffs)? else { return Ok(()) };
        let mut left = old.living(bpffs)?;
        left.retain(|component| Some(component.id) != program);
        if left.len() == old.components.len() {
            return Ok(());
        }
        if left.is_empty() {
            match sys::detach(interface.index, old.mode, old.dispatcher.as_fd()) {
                Ok(()) => bpffs::unpin(&bpffs.dispatcher(interface.index, old.id)),
                Err(error) if is_race(&error) => continue,
                Err(source) => return Err(failed(interface, "detaching the dispatcher", source)),
            }
            return Ok(());
        }
        let frags = left.iter().all(|other| other.flags & BPF_F_XDP_HAS_FRAGS != 0);
        let plan: Vec<[u32; 3]> =
            left.iter().map(|other| [other.priority, other.chain, other.flags]).collect();
        let (dispatcher, id) = load_dispatcher(interface, old.version, &plan, frags)?;
        let links = link(interface, dispatcher.as_fd(), id, &left)?;
        let built = Built { dispatcher, id, links };
        if install(interface, bpffs, old.mode, Some(&old), &built, &left)? {
            return Ok(());
        }
    }
    Err(Error::Busy { interface: interface.clone() })
}

impl Membership {
    /// Whether our component is still on the interface.
    pub(crate) fn is_attached(&self) -> Result<bool, Error> {
        let Some(attached) = attachment::query(&self.interface)? else { return Ok(false) };
        let directory = self.bpffs.dispatcher(self.interface.index, attached.program);
        Ok(pinned(&directory).contains(&self.program))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let Self { interface, bpffs, program, .. } = self;
        match remove(interface, bpffs, Some(*program)) {
            // The device has gone and its dispatcher with it; the pins stay behind.
            Err(Error::NoInterface { .. }) => {
                for directory in bpffs.dispatchers(interface.index) {
                    if pinned(&directory).contains(program) {
                        bpffs::unpin(&directory);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%interface, %error, "cannot remove our XDP program from the dispatcher")
            }
            Ok(()) => {}
        }
        bpffs.disown(&program.to_string());
    }
}

impl Chain {
    /// Its components, without those of killed processes.
    fn living(&self, bpffs: &BpfFs) -> Result<Vec<Component>, Error> {
        let mut living = Vec::new();
        for component in &self.components {
            if Role::is_ours(&component.name) && bpffs.is_orphan(&component.id.to_string()) {
                tracing::warn!(
                    program = component.id,
                    "removing the XDP program of a process that was killed"
                );
                continue;
            }
            living.push(Component {
                program: clone(&component.program)?,
                name: component.name.clone(),
                ..*component
            });
        }
        Ok(living)
    }
}

/// The dispatcher on an interface; `None` without a program.
fn read(interface: &Interface, bpffs: &BpfFs) -> Result<Option<Chain>, Error> {
    let Some(attached) = attachment::query(interface)? else { return Ok(None) };
    let wrong = |source| failed(interface, "the existing one", source);
    let dispatcher = open_program(attached.program).map_err(wrong)?;
    let info = sys::program_info(dispatcher.as_fd()).map_err(wrong)?;
    if info.name != NAME {
        let program = attachment::foreign(interface, attached);
        return Err(Error::Foreign { interface: interface.clone(), program });
    }
    let [map] = info.maps[..] else {
        return Err(wrong(io::Error::other("it does not have exactly one map")));
    };
    let config = config(map).map_err(wrong)?;
    let directory = bpffs.dispatcher(interface.index, attached.program);
    let mut components = Vec::new();
    for (slot, [priority, chain, flags]) in config.slots.into_iter().enumerate() {
        let [path, _] = bpffs::pins(&directory, slot);
        let program = sys::pinned(&path)
            .map_err(|error| wrong(io::Error::new(error.kind(), format!("{}: {error}", path.display()))))?;
        let info = sys::program_info(program.as_fd()).map_err(wrong)?;
        components.push(Component { program, id: info.id, name: info.name, priority, chain, flags });
    }
    let (id, version, mode) = (attached.program, config.version, attached.mode);
    Ok(Some(Chain { dispatcher, id, version, mode, components }))
}

/// The configuration in a dispatcher's map.
fn config(map: u32) -> io::Result<Config> {
    let map = MapHandle::from_map_id(map).map_err(io::Error::other)?;
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?;
    Config::of(&value.unwrap_or_default()).map_err(io::Error::other)
}

/// A dispatcher's configuration.
#[derive(Debug, PartialEq, Eq)]
struct Config {
    version: Version,
    /// Priority, chain and flags of each slot in use.
    slots: Vec<[u32; 3]>,
}

impl Config {
    /// Reads a `struct xdp_dispatcher_config` of either version.
    fn of(value: &[u8]) -> Result<Self, String> {
        const LENGTH: [usize; 2] =
            [size_of::<v2::types::xdp_dispatcher_config>(), size_of::<v3::types::xdp_dispatcher_config>()];
        let version = match value {
            [MAGIC, 2, ..] if value.len() == LENGTH[0] => Version::V2,
            [MAGIC, 3, ..] if value.len() == LENGTH[1] => Version::V3,
            [MAGIC, version, ..] => {
                let length = value.len();
                return Err(format!(
                    "unsupported version {version} ({length} bytes); versions 2 and 3 are supported"
                ));
            }
            _ => return Err("its configuration is not libxdp's version 2 or 3".into()),
        };
        // The last member, behind what both have.
        if version == Version::V3 && value[LENGTH[0]] != 0 {
            return Err("its programs are device-bound and ours is not".into());
        }
        let word = |at: usize| u32::from_ne_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        let slot = |slot: usize| {
            let [chain, priority, flags] = [0, 1, 2].map(|array| word(4 + 4 * (array * SLOTS + slot)));
            [priority, chain, flags]
        };
        Ok(Self { version, slots: (0..usize::from(value[2]).min(SLOTS)).map(slot).collect() })
    }
}

/// Loads a dispatcher for slots of (priority, chain, flags).
fn load_dispatcher(
    interface: &Interface,
    version: Version,
    plan: &[[u32; 3]],
    frags: bool,
) -> Result<(OwnedFd, u32), Error> {
    let load =
        |source: libbpf_rs::Error| failed(interface, "loading the dispatcher", io::Error::other(source));
    /// The skeletons are different types with the same use.
    macro_rules! loaded {
        ($builder:expr) => {{
            let mut storage = MaybeUninit::uninit();
            let mut open = $builder.open(&mut storage).map_err(load)?;
            if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
                let conf = &mut rodata.conf;
                (conf.magic, conf.dispatcher_version) = (MAGIC, version as u8);
                conf.num_progs_enabled = plan.len() as u8;
                conf.is_xdp_frags = frags.into();
                for (slot, [priority, chain, flags]) in plan.iter().enumerate() {
                    conf.run_prios[slot] = *priority;
                    conf.chain_call_actions[slot] = *chain;
                    conf.program_flags[slot] = *flags;
                }
            }
            if frags {
                open.progs.xdp_dispatcher.set_flags(BPF_F_XDP_HAS_FRAGS);
            }
            let loaded = open.load().map_err(load)?;
            loaded.progs.xdp_dispatcher.as_fd().try_clone_to_owned()
        }};
    }
    let program = match version {
        Version::V2 => loaded!(v2::DispatcherSkelBuilder::default()),
        Version::V3 => loaded!(v3::DispatcherV3SkelBuilder::default()),
    };
    let program = program.map_err(|source| Error::Descriptor { source })?;
    let info = sys::program_info(program.as_fd());
    let id = info.map_err(|source| failed(interface, "the new dispatcher", source))?.id;
    Ok((program, id))
}

/// Attaches each component to its slot of a new dispatcher.
fn link(
    interface: &Interface,
    dispatcher: BorrowedFd<'_>,
    id: u32,
    components: &[Component],
) -> Result<Vec<OwnedFd>, Error> {
    let attaching = |source| failed(interface, "attaching to the new dispatcher", source);
    let btf = Btf::from_prog_id(id).map_err(|source| attaching(io::Error::other(source)))?;
    let mut links = Vec::new();
    for (slot, component) in components.iter().enumerate() {
        let target = btf.type_by_name::<Func<'_>>(&function(slot)).map(|function| function.type_id());
        let target = target.ok_or_else(|| attaching(io::Error::other("a slot has no BTF")))?;
        let link = sys::extend(component.program.as_fd(), dispatcher, target.into());
        links.push(link.map_err(|error| {
            attaching(io::Error::new(error.kind(), format!("program {} ({error})", component.name)))
        })?);
    }
    Ok(links)
}

/// Pins the new dispatcher and swaps it for `old`. False if the program on the interface has changed meanwhile.
fn install(
    interface: &Interface,
    bpffs: &BpfFs,
    mode: u32,
    old: Option<&Chain>,
    built: &Built,
    components: &[Component],
) -> Result<bool, Error> {
    let directory = bpffs.dispatcher(interface.index, built.id);
    let pairs = components.iter().zip(&built.links);
    bpffs::pin(&directory, pairs.map(|(component, link)| [component.program.as_fd(), link.as_fd()]))
        .map_err(|source| failed(interface, "pinning", source))?;
    let expected = old.map(|old| old.dispatcher.as_fd());
    match sys::attach(interface.index, mode, built.dispatcher.as_fd(), expected) {
        Ok(()) => {
            if let Some(old) = old {
                bpffs::unpin(&bpffs.dispatcher(interface.index, old.id));
            }
            Ok(true)
        }
        Err(error) => {
            bpffs::unpin(&directory);
            if is_race(&error) { Ok(false) } else { Err(attachment::refusal(interface.clone(), mode, error)) }
        }
    }
}

/// Whether the program on the interface was not the expected one (`dev_xdp_attach` in net/core/dev.c).
fn is_race(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EBUSY | libc::ENOENT))
}

/// The ids of the components that are pinned for a dispatcher.
fn pinned(directory: &Path) -> Vec<u32> {
    let id = |slot| {
        let [program, _] = bpffs::pins(directory, slot);
        let program = sys::pinned(&program).ok()?;
        sys::program_info(program.as_fd()).ok().map(|info| info.id)
    };
    (0..SLOTS).map_while(id).collect()
}

fn function(slot: usize) -> String {
    format!("prog{slot}")
}

fn open_program(id: u32) -> io::Result<OwnedFd> {
    libbpf_rs::Program::fd_from_id(id).map_err(io::Error::other)
}

fn clone(program: &OwnedFd) -> Result<OwnedFd, Error> {
    program.try_clone().map_err(|source| Error::Descriptor { source })
}

fn failed(interface: &Interface, what: &'static str, source: io::Error) -> Error {
    Error::Dispatcher { interface: interface.clone(), what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration of two programs, as libxdp writes it.
    fn written(version: u8) -> Vec<u8> {
        let mut value = vec![MAGIC, version, 2, 1];
        for array in [[CHAIN, 1 << NEXT], [10, 50], [BPF_F_XDP_HAS_FRAGS, 0]] {
            array.iter().for_each(|word| value.extend(word.to_ne_bytes()));
            value.extend([0; 4 * (SLOTS - 2)]);
        }
        if version >= 3 {
            // The mark, and padding.
            value.extend([0; 4]);
        }
        value
    }

    #[test]
    fn both_versions_are_read() {
        let slots = vec![[10, CHAIN, BPF_F_XDP_HAS_FRAGS], [50, 1 << NEXT, 0]];
        assert_eq!(Config::of(&written(2)), Ok(Config { version: Version::V2, slots: slots.clone() }));
        assert_eq!(Config::of(&written(3)), Ok(Config { version: Version::V3, slots }));
    }

    #[test]
    fn what_cannot_be_joined_is_named() {
        let problem = |value: &[u8]| Config::of(value).expect_err("cannot be joined");
        let mut bound = written(3);
        bound[124] = 1;
        assert!(problem(&bound).contains("device-bound"));
        assert!(problem(&written(4)).contains("version 4"));
        assert!(problem(&written(1)).contains("version 1"));
        assert!(problem(&written(3)[..124]).contains("124 bytes"), "cut short");
        assert!(problem(&[0; 124]).contains("not libxdp's"));
        assert!(problem(&[]).contains("not libxdp's"));
        let mut many = written(2);
        many[2] = 200;
        assert_eq!(Config::of(&many).map(|config| config.slots.len()), Ok(SLOTS));
    }
}
