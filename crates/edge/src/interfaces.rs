//! One XDP program on several interfaces, which may come and go.
//!
//! At start, every interface must exist and accept the program, because a misspelt name would protect nothing. After
//! that, [`Interfaces::upkeep`] gives the program to interfaces that disappear and return. An interface from which
//! someone detached the program by force is left alone, because that was deliberate.
//!
//! If an interface has a libxdp dispatcher, the program becomes one of its components, with the priority of its
//! [`Role`](expressway_xbpf::Role); otherwise it has its own link.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use expressway_netio::xsk::interface_index;
use expressway_settings::named;
use expressway_xbpf::{
    AttachMode, Attachment, Balance, Error as XdpError, Existing, Guard, Keep, Redirect, forward,
    release_orphans,
};

/// A loaded program that can be put on interfaces.
pub trait Program {
    /// Puts it on an interface by a link of its own.
    ///
    /// # Errors
    /// Those of [`expressway_xbpf::Redirect::attach`].
    fn attach(
        &self,
        ifindex: u32,
        mode: AttachMode,
        existing: Existing,
        keep: Keep,
    ) -> Result<Attachment, XdpError>;

    /// Puts it beside others on an interface, by a libxdp dispatcher.
    ///
    /// # Errors
    /// Those of [`expressway_xbpf::Redirect::join`].
    fn join(&self, ifindex: u32, mode: AttachMode) -> Result<Attachment, XdpError>;

    /// Its descriptor, for [`Attachment::replace`].
    fn program(&self) -> BorrowedFd<'_>;
}

/// The programs that have methods of these names.
macro_rules! programs {
    ($($program:ty),*) => {
        $(impl Program for $program {
            fn attach(
                &self,
                ifindex: u32,
                mode: AttachMode,
                existing: Existing,
                keep: Keep,
            ) -> Result<Attachment, XdpError> {
                Self::attach(self, ifindex, mode, existing, keep)
            }

            fn join(&self, ifindex: u32, mode: AttachMode) -> Result<Attachment, XdpError> {
                Self::join(self, ifindex, mode)
            }

            fn program(&self) -> BorrowedFd<'_> {
                Self::program(self)
            }
        })*
    };
}

programs!(Balance, forward::Forward, Guard);

/// Where on the receive path the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, or in the stack where the driver has no XDP.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the stack.
    Generic,
}

impl Mode {
    const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("native", Self::Native), ("generic", Self::Generic)];
}

named!(Mode);

/// How a program is put on interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Where it runs.
    pub mode: Mode,
    /// What is done about another program.
    pub existing: Existing,
    /// What becomes of it when this process is killed.
    pub keep: Keep,
    /// Beside others by a libxdp dispatcher, even where none is yet.
    pub chain: bool,
}

/// Why a program is not on an interface.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no interface of that name.
    #[error("interface {0}: no such interface in this network namespace; see `ip link`")]
    Missing(String),
    /// It does not take the program.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A component of a dispatcher cannot be pinned by itself.
    #[error(
        "interface {0}: `pin` and `chain` exclude each other: a dispatcher's programs end with their process"
    )]
    PinnedChain(String),
}

#[derive(Debug)]
struct Attached {
    index: u32,
    /// `None` once somebody took the program off.
    attachment: Option<Attachment>,
}

/// The interfaces that a program is on. Dropping this takes it off all of them.
#[derive(Debug)]
pub struct Interfaces {
    attach: AttachOptions,
    /// By name; `None` while there is no such interface, or it does not take the program.
    attached: BTreeMap<String, Option<Attached>>,
}

impl Interfaces {
    /// Puts the program on all of `names`, or on none. What killed processes left of it pinned on others is taken off.
    ///
    /// # Errors
    /// [`Error`] of the first that does not take it.
    pub fn open(names: &[String], attach: AttachOptions, program: &dyn Program) -> Result<Self, Error> {
        let mut interfaces = Self { attach, attached: BTreeMap::new() };
        interfaces.change(names, program)?;
        interfaces.release();
        Ok(interfaces)
    }

    /// Puts the program on those of `names` that do not have it and, if all take it, takes it off the others.
    ///
    /// # Errors
    /// [`Error`] of the first that does not take it; then nothing has changed.
    pub fn change(&mut self, names: &[String], program: &dyn Program) -> Result<(), Error> {
        let mut added = Vec::new();
        for name in names.iter().filter(|name| !self.attached.contains_key(*name)) {
            added.push((name.clone(), Some(self.put(name, program)?)));
        }
        self.attached.retain(|name, _| names.contains(name));
        self.attached.extend(added);
        Ok(())
    }

    /// Takes the program off interfaces that it was pinned on by processes that have ended.
    pub fn release(&self) {
        let attachments = self.attached.values().flatten().filter_map(|place| place.attachment.as_ref());
        if let Some(role) = attachments.filter_map(Attachment::role).next() {
            release_orphans(role);
        }
    }

    /// Puts the program in the place of the one that is on these interfaces. Beside others it joins before that one leaves.
    ///
    /// # Errors
    /// [`Error`] of the first that does not take it; those before it have it.
    pub fn replace(&mut self, program: &dyn Program) -> Result<(), Error> {
        for place in self.attached.values_mut().flatten() {
            let Some(attachment) = &place.attachment else { continue };
            if !attachment.replace(program.program())? {
                place.attachment = Some(program.join(place.index, attachment.mode())?);
            }
        }
        Ok(())
    }

    /// Follows interfaces that went and came. To be called about once a second.
    pub fn upkeep(&mut self, program: &dyn Program) {
        let names: Vec<String> = self.attached.keys().cloned().collect();
        for name in names {
            let index = interface_index(&name).ok();
            let Some(slot) = self.attached.get_mut(&name) else { continue };
            if let Some(place) = slot {
                if index == Some(place.index) {
                    if place.attachment.as_ref().is_some_and(|one| matches!(one.is_attached(), Ok(false))) {
                        tracing::warn!(
                            interface = name,
                            "XDP program detached by someone else: not reattaching it"
                        );
                        place.attachment = None;
                    }
                    continue;
                }
                tracing::warn!(interface = name, "interface is gone");
                *slot = None;
            }
            if index.is_none() {
                continue;
            }
            match self.put(&name, program) {
                Ok(place) => {
                    tracing::info!(interface = name, "interface is back; XDP program attached");
                    self.attached.insert(name, Some(place));
                }
                Err(error) => tracing::debug!(interface = name, %error, "not attached yet"),
            }
        }
    }

    /// Those that have the program, with where it runs.
    pub fn attached(&self) -> impl Iterator<Item = (&str, AttachMode)> {
        self.attached
            .iter()
            .filter_map(|(name, place)| Some((name.as_str(), place.as_ref()?.attachment.as_ref()?.mode())))
    }

    /// All of them, with where the program runs; `None` where it does not.
    pub fn all(&self) -> impl Iterator<Item = (&str, Option<AttachMode>)> {
        self.attached.iter().map(|(name, place)| {
            (name.as_str(), place.as_ref().and_then(|place| Some(place.attachment.as_ref()?.mode())))
        })
    }

    fn put(&self, name: &str, program: &dyn Program) -> Result<Attached, Error> {
        let index = interface_index(name).map_err(|_| Error::Missing(name.to_owned()))?;
        let attach = self.attach;
        // What killed processes of ours left there is no reason to join.
        Redirect::recover(index)?;
        let chain = attach.chain || Redirect::is_dispatched(index)?;
        if chain && attach.keep == Keep::Pinned {
            return Err(Error::PinnedChain(name.to_owned()));
        }
        let put = |mode| match chain {
            true => program.join(index, mode),
            false => program.attach(index, mode, attach.existing, attach.keep),
        };
        let attachment = match attach.mode {
            Mode::Native => put(AttachMode::Native)?,
            Mode::Generic => put(AttachMode::Generic)?,
            Mode::Auto => match put(AttachMode::Native) {
                Err(XdpError::NoNativeXdp { .. }) => put(AttachMode::Generic)?,
                result => result?,
            },
        };
        Ok(Attached { index, attachment: Some(attachment) })
    }
}
