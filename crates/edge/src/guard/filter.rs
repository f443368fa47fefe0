//! The running filter: loaded, attached to interfaces, changed, read.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use expressway_xbpf::{AttachMode, Error as XdpError, Guard, GuardRuleCount, GuardSamples};

use super::capture::RuleNames;
use super::config::Config;
use super::learn::{self, Attack, Learner, Unsaved};
use super::status::{InterfaceStatus, ReasonStatus, RuleStatus, SamplingStatus, Status};
use super::tcp;
use crate::interfaces::{self, Interfaces};

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
    /// The file of learned sources.
    #[error(transparent)]
    Learned(#[from] expressway_settings::ConfigError),
    /// The kernel is set to something else.
    #[error("{0}")]
    Kernel(String),
    /// What only a start reads.
    #[error("`{0}` has changed: restart to apply it")]
    Restart(&'static str),
}

/// The filter on its interfaces. Dropping it takes it off.
pub struct Filter {
    interfaces: Interfaces,
    guard: Guard,
    config: Config,
    names: RuleNames,
    learner: Option<Learner>,
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
    pub fn start(mut config: Config) -> Result<Self, Error> {
        tcp::check(&mut config.options.syn).map_or(Ok(()), |wrong| Err(Error::Kernel(wrong)))?;
        let guard = Guard::load(config.options.clone(), None)?;
        let learner = learner(&guard, &config, None)?;
        let interfaces = Interfaces::open(&config.interfaces, config.attach, &guard)?;
        let names = RuleNames::default();
        names.insert(guard.generation(), &config.rules);
        Ok(Self { interfaces, guard, config, names, learner, before: HashMap::new(), held: (0, 0) })
    }

    /// Puts another configuration in the place of this one.
    ///
    /// # Errors
    /// [`Error`]; then the earlier one stays, or is put back. [`Error::Partly`] if not even that.
    pub fn change(&mut self, mut config: Config) -> Result<(), Error> {
        tcp::check(&mut config.options.syn).map_or(Ok(()), |wrong| Err(Error::Kernel(wrong)))?;
        if config.attach != self.config.attach {
            return Err(Error::Restart("mode`, `replace`, `pin` or `chain"));
        }
        if config.admin != self.config.admin {
            return Err(Error::Restart("admin"));
        }
        // Bans by order go on as those of rules do.
        let mut config = config;
        config.options.keep_bans |= !self.guard.banned(1).is_empty();
        let guard = Guard::load(config.options.clone(), Some(&self.guard))?;
        self.names.insert(guard.generation(), &config.rules);
        let earlier = self.learner.as_ref().map(|learner| (learner, &self.guard));
        let learner = learner(&guard, &config, earlier)?;
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
        (self.guard, self.config, self.learner) = (guard, config, learner);
        Ok(())
    }

    /// Follows interfaces that come and go, and removes what has ended. To be called about once a second.
    pub fn upkeep(&mut self) {
        self.interfaces.upkeep(&self.guard);
        self.held = self.guard.expire();
        if let Some(learner) = &mut self.learner {
            learner.upkeep(&self.guard);
        }
    }

    /// Learned sources that are to be written, to be told [`Filter::saved`] of: when it is time, or at the end.
    pub fn unsaved(&mut self, at_end: bool) -> Option<Unsaved> {
        self.learner.as_mut()?.due(&self.guard, at_end)
    }

    /// What came of writing them.
    pub fn saved(&mut self, result: std::io::Result<()>) {
        if let Some(learner) = &mut self.learner {
            learner.saved(result);
        }
    }

    /// Bans sources for that long from now on: IPv4 addresses, and the /64 of IPv6 addresses. How many found room.
    ///
    /// # Errors
    /// [`Error`] if no ban can apply; then there is none more.
    pub fn ban(&mut self, sources: &[IpAddr], time: Duration) -> Result<usize, Error> {
        if !self.config.options.applies_bans() {
            let mut config = self.config.clone();
            config.options.keep_bans = true;
            self.change(config)?;
        }
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(sources.iter().filter(|source| self.guard.ban(**source, time).is_ok()).count())
    }

    /// Ends the bans of sources. How many there were.
    pub fn unban(&mut self, sources: &[IpAddr]) -> usize {
        sources.iter().filter(|source| self.guard.unban(**source)).count()
    }

    /// Bans with the time that is left of them, up to `most`.
    pub fn bans(&self, most: usize) -> Vec<(IpAddr, Duration)> {
        let bans = self.guard.bans(most).into_iter();
        bans.map(|(source, left)| (source, Duration::from_nanos(left))).collect()
    }

    /// Takes proofs by somebody else that sources have their addresses. How many found room; `None` if nothing is learned.
    pub fn learn(&mut self, sources: &[IpAddr]) -> Option<usize> {
        self.learner.as_ref()?;
        Some(sources.iter().filter(|source| self.guard.learn(**source).is_ok()).count())
    }

    /// Says whether there is an attack, in place of the configuration. Whether there is one now; `None` if nothing is
    /// learned.
    pub fn set_attack(&mut self, attack: Attack) -> Option<bool> {
        Some(self.learner.as_mut()?.order(attack, &self.guard))
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The buffers that samples come in, of at least `octets` a CPU; they outlive changes of the configuration. One reader
    /// at a time has them.
    ///
    /// # Errors
    /// [`Error::Xdp`] if the kernel has none.
    pub fn samples(&self, octets: usize) -> Result<GuardSamples, Error> {
        Ok(self.guard.samples(octets)?)
    }

    /// The names of rules that samples have the numbers of, also of those that come later.
    pub fn rule_names(&self) -> RuleNames {
        self.names.clone()
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
        let quic = self.guard.quic_counts()?;
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
            verdict: reason.verdict(),
            reason: reason.name(),
            packets: count.packets,
            bytes: count.bytes,
        });
        let interfaces = self.interfaces.all();
        let sampling = match &self.config.capture {
            Some(_) => self.guard.sampling_counts()?,
            None => Vec::new(),
        };
        let sampling = sampling.into_iter().map(|(reason, count)| SamplingStatus {
            reason: reason.name(),
            taken: count.taken,
            limited: count.limited,
            lost: count.lost,
        });
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
            sampling: sampling.collect(),
            lists: Vec::new(),
            learn: self.learner.as_ref().map(|learner| learner.status(&self.guard)).transpose()?,
            capture: None,
            unknown_ids: quic.unknown_ids,
            tokens: quic.tokens,
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

/// Learns sources for this filter, if the configuration says so.
fn learner(
    guard: &Guard,
    config: &Config,
    earlier: Option<(&Learner, &Guard)>,
) -> Result<Option<Learner>, Error> {
    let Some(settings) = &config.learn else { return Ok(None) };
    if earlier.is_none() {
        let known = learn::read(settings, guard)?;
        let kept = guard.remember(&known)?;
        tracing::info!(file = %settings.file.display(), sources = kept, "learned sources read");
    }
    Ok(Some(Learner::start(guard, settings, earlier)?))
}
