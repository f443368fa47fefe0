//! The filter as it runs: loaded, put on interfaces, changed, read.

use std::collections::HashMap;

use expressway_xbpf::{AttachMode, Attachment, Error as XdpError, Existing, Guard, GuardRuleCount, Keep};

use super::config::Config;
use super::status::{InterfaceStatus, ReasonStatus, RuleStatus, Status};
use crate::interfaces::{self, Interfaces, Program};

impl Program for Guard {
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

    fn program(&self) -> std::os::fd::BorrowedFd<'_> {
        Self::program(self)
    }
}

/// Why the filter does not start, or does not take a change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program or its tables.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// An interface.
    #[error(transparent)]
    Interface(#[from] interfaces::Error),
    /// Neither it nor the earlier program is on all interfaces.
    #[error("{0}; configuration only partly applied; fix the error and reload")]
    Partly(interfaces::Error),
    /// What only a start reads.
    #[error("`{0}` has changed: restart for that")]
    Restart(&'static str),
}

/// The filter on its interfaces. Dropping it takes it off.
pub struct Filter {
    interfaces: Interfaces,
    guard: Guard,
    config: Config,
    /// What rules did before the last change, by name.
    before: HashMap<String, GuardRuleCount>,
    /// Buckets and bans, when last swept.
    held: (usize, usize),
}

impl Filter {
    /// Loads the program and puts it on the interfaces.
    ///
    /// # Errors
    /// [`Error`]; then it is on none.
    pub fn start(config: Config) -> Result<Self, Error> {
        let guard = Guard::load(config.options.clone(), None)?;
        let interfaces = Interfaces::open(&config.interfaces, config.manner, &guard)?;
        Ok(Self { interfaces, guard, config, before: HashMap::new(), held: (0, 0) })
    }

    /// Puts another configuration in the place of this one.
    ///
    /// # Errors
    /// [`Error`]; then the earlier one stays, or is put back. [`Error::Partly`] if not even that.
    pub fn change(&mut self, config: Config) -> Result<(), Error> {
        if config.manner != self.config.manner {
            return Err(Error::Restart("mode`, `replace`, `pin` or `chain"));
        }
        if config.admin != self.config.admin {
            return Err(Error::Restart("admin"));
        }
        let guard = Guard::load(config.options.clone(), Some(&self.guard))?;
        // Interfaces come and go last: those that stay are never without a program, and what fails can be taken back.
        let put = self.interfaces.replace(&guard);
        if let Err(error) = put.and_then(|()| self.interfaces.change(&config.interfaces, &guard)) {
            return Err(match self.interfaces.replace(&self.guard) {
                Ok(()) => error.into(),
                Err(_) => Error::Partly(error),
            });
        }
        for (name, count) in self.config.rules.iter().zip(self.guard.rule_counts()?) {
            *self.before.entry(name.clone()).or_default() += count;
        }
        // Names that are gone do not come to more and more.
        self.before.retain(|name, _| config.rules.contains(name));
        (self.guard, self.config) = (guard, config);
        Ok(())
    }

    /// Follows interfaces that come and go, and removes what has ended. To be called about once a second.
    pub fn upkeep(&mut self) {
        self.interfaces.upkeep(&self.guard);
        self.held = self.guard.expire();
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The interfaces that have the program.
    pub fn interfaces(&self) -> &Interfaces {
        &self.interfaces
    }

    /// What it did.
    ///
    /// # Errors
    /// [`Error::Xdp`] if the kernel cannot be asked.
    pub fn status(&self) -> Result<Status, Error> {
        let [bucket_overflows, ban_overflows] = self.guard.overflows()?;
        let rules = self.config.rules.iter().zip(self.guard.rule_counts()?).map(|(name, mut count)| {
            count += self.before.get(name).copied().unwrap_or_default();
            RuleStatus {
                rule: name.clone(),
                packets: count.matched.packets,
                bytes: count.matched.bytes,
                dropped_packets: count.dropped.packets,
                dropped_bytes: count.dropped.bytes,
            }
        });
        let reasons = self.guard.counts()?.into_iter().map(|(reason, count)| ReasonStatus {
            verdict: if reason.drops() { "drop" } else { "pass" },
            reason: reason.name(),
            packets: count.packets,
            bytes: count.bytes,
        });
        let interfaces = self.interfaces.all();
        Ok(Status {
            dry_run: self.config.options.dry_run,
            interfaces: interfaces
                .map(|(name, mode)| InterfaceStatus {
                    interface: name.to_owned(),
                    mode: mode.map(AttachMode::name),
                })
                .collect(),
            reasons: reasons.collect(),
            rules: rules.collect(),
            allowed: self.config.options.allow.len(),
            blocked: self.config.options.block.len(),
            buckets: self.held.0,
            bans: self.held.1,
            bucket_overflows,
            ban_overflows,
        })
    }

    /// `Ok` if the program is on all interfaces.
    ///
    /// # Errors
    /// The name of one that it is not on.
    pub fn health(&self) -> Result<(), String> {
        match self.interfaces.all().find(|(_, mode)| mode.is_none()) {
            Some((name, _)) => Err(format!("interface {name}: the filter is not on it")),
            None => Ok(()),
        }
    }
}
