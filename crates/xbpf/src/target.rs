//! The XDP program on an interface, whoever attached it, as something that tracing programs attach to.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::btf::{Btf, BtfType, TypeId};

use crate::attachment::{self, AttachMode, attached};
use crate::error::Error;
use crate::sys;

/// An XDP program that can be traced.
#[derive(Debug)]
pub struct XdpTarget {
    /// Kernel-wide program id.
    pub id: u32,
    /// Its function's whole name; the kernel keeps 15 characters of a program's.
    pub function: String,
    /// Where it runs.
    pub mode: AttachMode,
    pub(crate) program: OwnedFd,
}

impl XdpTarget {
    /// That of the interface `ifindex`; `None` without one. Where a libxdp dispatcher is, it is the dispatcher, whose
    /// verdict is the final one.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Query`], [`Error::NoTypes`] for a program without BTF.
    pub fn of(ifindex: u32) -> Result<Option<Self>, Error> {
        let Some((found, mode)) = attached(ifindex)? else { return Ok(None) };
        let no_types = || Error::NoTypes {
            interface: attachment::interface(ifindex),
            id: found.id,
            name: found.name.clone(),
        };
        let program = match libbpf_rs::Program::fd_from_id(found.id) {
            Ok(program) => program,
            // It has gone meanwhile.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::Observe { what: format!("XDP program {}", found.id), source: error });
            }
        };
        let query = |source| Error::Query {
            interface: attachment::interface(ifindex),
            action: "type information of the XDP program",
            source,
        };
        let (types, function) =
            sys::program_function(program.as_fd()).map_err(query)?.ok_or_else(no_types)?;
        let function = Btf::from_prog_id(found.id)
            .ok()
            .and_then(|types_of| {
                let found: BtfType<'_> = types_of.type_by_id(TypeId::from(function))?;
                Some(found.name()?.to_str()?.to_owned())
            })
            .ok_or_else(no_types)?;
        tracing::trace!("XDP program {} is {function} in BTF {types}", found.id);
        Ok(Some(Self { id: found.id, function, mode, program }))
    }
}
