//! Attaching the program to an interface by a bpf_link, and what may prevent it.
//!
//! A link belongs to a file descriptor: when the last one is closed, by drop or because the process ends for
//! any reason, the kernel detaches the program. Nothing is pinned unless [`Keep::Pinned`] asks for it. A link of our own
//! excludes every other program from the interface. Where a libxdp dispatcher exists or is requested, the program becomes
//! one of its components instead, which is pinned: see [`crate::dispatcher`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::libbpf_sys::{XDP_FLAGS_DRV_MODE, XDP_FLAGS_HW_MODE, XDP_FLAGS_SKB_MODE};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};

use crate::bpffs::{BpfFs, Lock};
use crate::dispatcher::{self, Membership};
use crate::error::{CAPABILITIES, Error, ForeignProgram, Holder, Interface};
use crate::link::Link;
use crate::role::Role;
use crate::sys;

/// Where on the receive path the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachMode {
    /// In the driver, before a socket buffer exists. Needs a driver with XDP.
    Native,
    /// In the stack, on socket buffers (`XDP_FLAGS_SKB_MODE`): any interface, at about the cost of the
    /// stack's own receive path. Super-packets that offloads built arrive whole: turn `gro` and, on
    /// veth, the peer's `tx-udp-segmentation` off.
    Generic,
    /// In the device (`XDP_FLAGS_HW_MODE`). Needs a driver that offloads programs, and a program loaded for that
    /// device ([`crate::Options::offload`]).
    Offload,
}

impl AttachMode {
    /// `native`, `generic` or `offload`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offload => "offload",
        }
    }

    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
            Self::Offload => XDP_FLAGS_HW_MODE,
        }
    }
}

/// What to do about an XDP program that is already on the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Existing {
    /// Fail with its name.
    #[default]
    Refuse,
    /// Replace it if it was set through netlink. One held by a bpf_link cannot be replaced and is still an error.
    Replace,
}

/// What becomes of the program when its process is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// It ends with the process.
    #[default]
    Process,
    /// It stays and goes on, and the next attach of that program takes its place, with no packet
    /// between the two. Needs a BPF file system.
    Pinned,
}

/// The program on an interface; dropping this detaches it.
#[derive(Debug)]
pub struct Attachment {
    hold: Hold,
    interface: Interface,
    mode: AttachMode,
    /// By which its pins are named, if it may have any.
    role: Option<Role>,
}

/// What keeps the program attached.
#[derive(Debug)]
enum Hold {
    /// A link of our own, which ends with the process.
    Link(Link),
    /// A link with a name in the BPF file system, which keeps it when the process is killed.
    Pinned { link: Link, _pin: Pin },
    /// A slot of a dispatcher. A process that is killed leaves it to the next one.
    Slot(Membership),
}

impl Attachment {
    /// The interface, as it was when attached.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What the program is to others; `None` beside them.
    pub fn role(&self) -> Option<Role> {
        self.role
    }

    /// The requested mode, which is also the obtained one: the kernel never falls back by itself.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// The bpf_link; `None` beside other programs. A duplicate keeps the program on the interface when this
    /// process dies; dropping the attachment takes the program off all the same.
    pub fn link(&self) -> Option<BorrowedFd<'_>> {
        match &self.hold {
            Hold::Link(link) | Hold::Pinned { link, .. } => Some(link.as_fd()),
            Hold::Slot(_) => None,
        }
    }

    /// Puts another program in the place of this one, with no packet between the two. False beside other programs, where
    /// the other one has to join first.
    ///
    /// # Errors
    /// [`Error::Attach`]; then nothing has changed.
    pub fn replace(&self, program: BorrowedFd<'_>) -> Result<bool, Error> {
        let Some(link) = self.link() else { return Ok(false) };
        sys::link_update(link, program).map(|()| true).map_err(|source| Error::Attach {
            interface: self.interface.clone(),
            mode: self.mode.name(),
            source,
        })
    }

    /// Whether the program is still on the interface. False once the interface is gone or a privileged process
    /// has detached the link by force; attach again then.
    ///
    /// # Errors
    /// [`Error::Query`] if the kernel cannot be asked.
    pub fn is_attached(&self) -> Result<bool, Error> {
        let link = match &self.hold {
            Hold::Link(link) | Hold::Pinned { link, .. } => link,
            Hold::Slot(membership) => {
                return match membership.is_attached() {
                    Err(Error::NoInterface { .. }) => Ok(false),
                    result => result,
                };
            }
        };
        match sys::link_interface(link.as_fd()) {
            Ok(index) => Ok(index == self.interface.index),
            Err(source) => {
                Err(Error::Query { interface: self.interface.clone(), action: "bpf_link state", source })
            }
        }
    }
}

/// Puts a program of that role beside others on `ifindex`, as a component of a dispatcher. `load` makes it of the dispatcher and
/// the name of the function to replace; see [`crate::Redirect::join`].
pub(crate) fn join<T>(
    role: Role,
    ifindex: u32,
    mode: AttachMode,
    load: impl Fn(BorrowedFd<'_>, &str) -> Result<(OwnedFd, T), Error>,
) -> Result<(T, Attachment), Error> {
    let interface = interface(ifindex);
    let (loaded, membership) = dispatcher::join(&interface, mode.flags(), role, load)?;
    Ok((loaded, Attachment { hold: Hold::Slot(membership), interface, mode, role: None }))
}

/// Attaches `program` to `ifindex`; see [`crate::Redirect::attach`].
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    ifindex: u32,
    mode: AttachMode,
    existing: Existing,
) -> Result<Attachment, Error> {
    let interface = interface(ifindex);
    if dispatcher::is_present(&interface)? {
        // The leftover of a killed process of ours is not a foreign program.
        dispatcher::recover(&interface)?;
    }
    if let Some(attached) = query(&interface)? {
        clear(&interface, attached, existing)?;
    }
    match sys::link_create(program, ifindex, mode.flags()) {
        Ok(link) => {
            tracing::debug!(%interface, mode = mode.name(), "XDP program attached");
            Ok(Attachment { hold: Hold::Link(link), interface, mode, role: None })
        }
        Err(error) => Err(refusal(interface, mode.flags(), error)),
    }
}

/// The name of a link in the BPF file system, which is this process's; dropped, it is gone.
#[derive(Debug)]
struct Pin {
    bpffs: BpfFs,
    owned: String,
    _owner: Lock,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let link = self.bpffs.link(&self.owned);
        if let Err(error) = std::fs::remove_file(&link)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %link.display(), %error, "cannot remove the pin of the XDP program");
        }
        self.bpffs.disown(&self.owned);
    }
}

/// Takes off the programs of a role that killed processes left pinned on interfaces of the calling thread's network
/// namespace. Call it once those that are wanted are attached: pins of processes that live, this one included, are
/// locked and stay.
pub fn release_orphans(role: Role) {
    let (Ok(bpffs), Ok(namespace)) = (BpfFs::open(), sys::network_namespace()) else { return };
    for owned in bpffs.links(&format!("{}-{namespace:x}-", role.name)) {
        // Without its lock it is somebody's.
        let Ok(owner) = bpffs.own(&owned) else { continue };
        tracing::warn!(pin = %bpffs.link(&owned).display(), "XDP program of an earlier process taken off");
        drop(Pin { bpffs: bpffs.clone(), owned, _owner: owner });
    }
}

/// Attaches `program` of that role, and takes the place of one that a killed process left pinned, in this or another mode.
///
/// # Errors
/// Those of [`crate::Redirect::attach`], [`Error::Pin`].
pub(crate) fn attach_as(
    role: Role,
    program: BorrowedFd<'_>,
    ifindex: u32,
    mode: AttachMode,
    existing: Existing,
    keep: Keep,
) -> Result<Attachment, Error> {
    let attachment = attach_over(role, program, ifindex, mode, existing, keep)?;
    Ok(Attachment { role: Some(role), ..attachment })
}

fn attach_over(
    role: Role,
    program: BorrowedFd<'_>,
    ifindex: u32,
    mode: AttachMode,
    existing: Existing,
    keep: Keep,
) -> Result<Attachment, Error> {
    let interface = interface(ifindex);
    let failed = |source| Error::Pin { interface: interface.clone(), source };
    let bpffs = match BpfFs::open() {
        Ok(bpffs) => bpffs,
        Err(_) if keep == Keep::Process => return attach(program, ifindex, mode, existing),
        Err(error) => return Err(failed(error)),
    };
    let namespace = sys::network_namespace().map_err(failed)?;
    let owned = format!("{}-{namespace:x}-{ifindex}", role.name);
    let path = bpffs.link(&owned);
    // Without a name there is nothing to take over, and a directory only if one is wanted.
    if keep == Keep::Process && !path.exists() {
        return attach(program, ifindex, mode, existing);
    }
    let owner = bpffs.own(&owned).map_err(failed)?;
    let pin = Pin { bpffs, owned, _owner: owner };
    let left = match sys::pinned(&path) {
        Ok(link) => successor(&interface, link.into(), program, mode),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let attachment = match left {
        Some(link) => Attachment { hold: Hold::Link(link), interface: interface.clone(), mode, role: None },
        None => {
            let _ = std::fs::remove_file(&path);
            attach(program, ifindex, mode, existing)?
        }
    };
    let Attachment { hold: Hold::Link(link), .. } = attachment else { return Ok(attachment) };
    if keep == Keep::Process {
        return Ok(Attachment { hold: Hold::Link(link), interface, mode, role: None });
    }
    if !path.exists() {
        sys::pin(link.as_fd(), &path).map_err(failed)?;
    }
    Ok(Attachment { hold: Hold::Pinned { link, _pin: pin }, interface, mode, role: None })
}

/// The link that a killed process left, now with `program`; `None` if it is of no use, in which case it is detached.
fn successor(interface: &Interface, link: Link, program: BorrowedFd<'_>, mode: AttachMode) -> Option<Link> {
    let here = sys::link_interface(link.as_fd()).is_ok_and(|index| index == interface.index);
    let same = query(interface).is_ok_and(|now| now.is_some_and(|now| now.mode == mode.flags()));
    if !here || !same {
        return None;
    }
    match sys::link_update(link.as_fd(), program) {
        Ok(()) => {
            tracing::info!(%interface, "XDP program of an earlier process replaced");
            Some(link)
        }
        Err(error) => {
            tracing::warn!(%interface, %error, "XDP program of an earlier process not replaced; detaching it");
            None
        }
    }
}

/// The XDP program on an interface, whoever attached it, with its mode; `None` without one. If programs run in
/// several modes at once, the kernel reports the native one.
///
/// # Errors
/// [`Error::NoInterface`], [`Error::Query`].
pub fn attached(ifindex: u32) -> Result<Option<(ForeignProgram, AttachMode)>, Error> {
    let interface = interface(ifindex);
    Ok(query(&interface)?.map(|attached| {
        let mode = match attached.mode {
            XDP_FLAGS_SKB_MODE => AttachMode::Generic,
            XDP_FLAGS_HW_MODE => AttachMode::Offload,
            _ => AttachMode::Native,
        };
        (foreign(&interface, attached), mode)
    }))
}

/// Detaches what may be detached, or returns what prevents attaching.
fn clear(interface: &Interface, attached: sys::Attached, existing: Existing) -> Result<(), Error> {
    let foreign = foreign(interface, attached);
    let in_the_way = |program| Error::Foreign { interface: interface.clone(), program };
    if existing == Existing::Refuse || matches!(foreign.holder, Holder::Link(_)) {
        return Err(in_the_way(foreign));
    }
    let query = |source: io::Error| Error::Query {
        interface: interface.clone(),
        action: "detaching the existing XDP program",
        source,
    };
    let program = match libbpf_rs::Program::fd_from_id(foreign.id) {
        Ok(program) => program,
        // It has gone by itself since the query.
        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
            let action = format!("{interface}: replacing XDP {foreign}");
            return Err(Error::NotPermitted { action, needed: "CAP_SYS_ADMIN" });
        }
        Err(error) => return Err(query(io::Error::other(error))),
    };
    match sys::detach(interface.index, attached.mode, program.as_fd()) {
        Ok(()) => {
            tracing::warn!(%interface, program = %foreign, "existing XDP program replaced");
            Ok(())
        }
        // Held by a link after all (`Holder::Unknown`), or changed since the query.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(in_the_way(foreign)),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            Err(Error::Busy { interface: interface.clone() })
        }
        Err(error) => Err(query(error)),
    }
}

/// What the kernel's answer to BPF_LINK_CREATE means (`dev_xdp_attach` in net/core/dev.c, and drivers).
pub(crate) fn refusal(interface: Interface, mode: u32, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::NotPermitted {
            action: format!("{interface}: attaching the XDP program"),
            needed: CAPABILITIES,
        },
        Some(libc::ENODEV) => Error::NoInterface { interface },
        // Another program was attached between query and attach.
        Some(libc::EBUSY | libc::EEXIST) => match query(&interface) {
            Ok(Some(attached)) => {
                let program = foreign(&interface, attached);
                Error::Foreign { interface, program }
            }
            Ok(None) => Error::Busy { interface },
            Err(error) => error,
        },
        Some(libc::EOPNOTSUPP | libc::EINVAL) if mode == XDP_FLAGS_HW_MODE => Error::NoOffload { interface },
        Some(libc::EOPNOTSUPP) if mode == XDP_FLAGS_DRV_MODE => Error::NoNativeXdp { interface },
        Some(libc::ENOSPC) => Error::TooFewQueues { interface },
        Some(libc::ERANGE) => Error::MtuTooLarge { interface },
        _ => Error::Attach {
            interface,
            mode: match mode {
                XDP_FLAGS_DRV_MODE => "native",
                XDP_FLAGS_HW_MODE => "offload",
                _ => "generic",
            },
            source,
        },
    }
}

pub(crate) fn query(interface: &Interface) -> Result<Option<sys::Attached>, Error> {
    sys::query(interface.index).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => Error::NoInterface { interface: interface.clone() },
        _ => Error::Query { interface: interface.clone(), action: "query of the XDP program", source },
    })
}

/// Name and holder of a program, as far as this process may see them.
pub(crate) fn foreign(interface: &Interface, attached: sys::Attached) -> ForeignProgram {
    let name = libbpf_rs::Program::fd_from_id(attached.program)
        .ok()
        .and_then(|program| sys::program_name(program.as_fd()).ok())
        .unwrap_or_default();
    let link = LinkInfoIter::default().find(|link| {
        link.prog_id == attached.program
            && matches!(&link.info, LinkTypeInfo::Xdp(xdp) if xdp.ifindex == interface.index)
    });
    let holder = match link {
        Some(link) => Holder::Link(link.id),
        None if sys::links_visible() => Holder::Netlink,
        None => Holder::Unknown,
    };
    ForeignProgram { id: attached.program, name, holder }
}

/// The name of the interface with this index in this network namespace; `None`: there is no such interface (any more).
#[must_use]
pub fn interface_name(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| netdevice::index_to_name(&socket, index))
        .ok()
}

/// The interface, for messages: without a name, the index has to do.
pub(crate) fn interface(index: u32) -> Interface {
    Interface { index, name: interface_name(index).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(mode: AttachMode, errno: i32) -> String {
        let interface = Interface { index: 7, name: "eth7".to_owned() };
        refusal(interface, mode.flags(), io::Error::from_raw_os_error(errno)).to_string()
    }

    #[test]
    fn refusals_name_the_interface_and_the_remedy() {
        for (errno, remedy) in [
            (libc::EPERM, "CAP_NET_ADMIN"),
            (libc::ENODEV, "no such interface"),
            (libc::EOPNOTSUPP, "--io generic"),
            (libc::ENOSPC, "ethtool -L"),
            (libc::ERANGE, "lower it"),
            (libc::ENOMEM, "in native mode: Cannot allocate memory"),
        ] {
            let message = refused(AttachMode::Native, errno);
            assert!(message.contains("eth7") && message.contains(remedy), "{message}");
        }
    }

    #[test]
    fn generic_mode_is_not_told_to_use_generic_mode() {
        assert!(refused(AttachMode::Generic, libc::EOPNOTSUPP).contains("in generic mode"));
    }
}
