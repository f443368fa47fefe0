//! NAPI contexts of an interface, and their settings for busy polling.

use std::io;
use std::time::Duration;

use super::genetlink::{Answer, Attribute};
use super::{NAPI_GET, NAPI_SET, Netdev};

/// Attributes of a NAPI context (`include/uapi/linux/netdev.h`).
const IFINDEX: u16 = 1;
const ID: u16 = 2;
const IRQ: u16 = 3;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;
const IRQ_SUSPEND_TIMEOUT: u16 = 7;

/// Settings of a NAPI context (`Documentation/networking/napi.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiSettings {
    /// Empty polls by `gro_flush_timeout` before the interrupt is armed again.
    pub defer_hard_irqs: u32,
    /// Time between polls while the interrupt is off and nobody busy-polls.
    pub gro_flush_timeout: Duration,
    /// How long an application that busy-polls may keep the interrupt off while it works on packets.
    pub irq_suspend_timeout: Duration,
}

/// A NAPI context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Napi {
    /// Its id, as `SO_INCOMING_NAPI_ID` has it.
    pub id: u32,
    /// Its interrupt, where the driver tells.
    pub irq: Option<u32>,
    /// Its settings; all 0 where the kernel does not tell (before 6.13).
    pub settings: NapiSettings,
}

impl Napi {
    fn read(answer: &Answer) -> Option<Self> {
        let time = |kind| Duration::from_nanos(answer.number(kind).unwrap_or(0));
        Some(Self {
            id: answer.u32(ID)?,
            irq: answer.u32(IRQ),
            settings: NapiSettings {
                defer_hard_irqs: answer.u32(DEFER_HARD_IRQS).unwrap_or(0),
                gro_flush_timeout: time(GRO_FLUSH_TIMEOUT),
                irq_suspend_timeout: time(IRQ_SUSPEND_TIMEOUT),
            },
        })
    }
}

impl Netdev {
    /// The NAPI contexts of an interface.
    ///
    /// # Errors
    /// EOPNOTSUPP before Linux 6.8; ENODEV.
    pub fn napis(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        let answers = self.socket.dump(NAPI_GET, &[Attribute::u32(IFINDEX, ifindex)])?;
        Ok(answers.iter().filter_map(Napi::read).collect())
    }

    /// One NAPI context.
    ///
    /// # Errors
    /// ENOENT when there is none of that id.
    pub fn napi(&mut self, id: u32) -> io::Result<Napi> {
        let answer = self.socket.ask(NAPI_GET, &[Attribute::u32(ID, id)])?;
        answer.as_ref().and_then(Napi::read).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Changes the settings of a NAPI context. They stay with its queue, not with this process.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; EOPNOTSUPP before Linux 6.13; ENOENT.
    pub fn set_napi(&mut self, id: u32, settings: NapiSettings) -> io::Result<()> {
        let time = |kind, value: Duration| {
            Attribute::uint(kind, u64::try_from(value.as_nanos()).unwrap_or(u64::MAX))
        };
        let request = [
            Attribute::u32(ID, id),
            Attribute::u32(DEFER_HARD_IRQS, settings.defer_hard_irqs),
            time(GRO_FLUSH_TIMEOUT, settings.gro_flush_timeout),
            time(IRQ_SUSPEND_TIMEOUT, settings.irq_suspend_timeout),
        ];
        self.socket.ask(NAPI_SET, &request).map(drop)
    }
}

/// Settings of NAPI contexts that are put back when this is dropped.
///
/// A process that is killed puts nothing back: the settings stay until something sets them again or the driver is
/// loaded anew. They cost nothing while nobody busy-polls but up to `gro_flush_timeout` of delay a poll.
#[derive(Debug)]
pub struct NapiGuard {
    netdev: Netdev,
    /// Ids with their settings before.
    before: Vec<(u32, NapiSettings)>,
}

impl NapiGuard {
    /// Applies `settings` to the NAPI contexts `ids`, all or none, in the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of [`Netdev::open`], [`Netdev::napi`] and [`Netdev::set_napi`].
    pub fn apply(ids: &[u32], settings: NapiSettings) -> io::Result<Self> {
        let mut guard = Self { netdev: Netdev::open()?, before: Vec::with_capacity(ids.len()) };
        for id in ids {
            let before = guard.netdev.napi(*id)?.settings;
            // Recorded first: what a failing call may have changed is put back too.
            guard.before.push((*id, before));
            guard.netdev.set_napi(*id, settings)?;
        }
        Ok(guard)
    }

    /// The contexts whose settings were changed.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.before.iter().map(|(id, _)| *id)
    }
}

impl Drop for NapiGuard {
    fn drop(&mut self) {
        for (napi, settings) in &self.before {
            match self.netdev.set_napi(*napi, *settings) {
                Ok(()) => {}
                // The interface is gone, and its settings with it.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => tracing::warn!(napi, %error, "cannot restore the settings of a NAPI context"),
            }
        }
    }
}
