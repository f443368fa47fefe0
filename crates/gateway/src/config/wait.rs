//! `[io] wait` and its tuning: how a worker waits for packets.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use expressway_netio::Wait;
use expressway_netio::netdev::NapiSettings;
use expressway_netio::wait::{BusyPoll, Spin};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::Io;

/// `[io] wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Sleep until the device interrupts.
    #[default]
    Interrupt,
    /// Poll the device for a while before sleeping.
    BusyPoll,
    /// Never sleep.
    Spin,
}

impl Waiting {
    /// All strategies by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("interrupt", Self::Interrupt), ("busy-poll", Self::BusyPoll), ("spin", Self::Spin)];
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, value)| value == self).map_or("?", |(name, _)| name))
    }
}

impl FromStr for Waiting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| format!("`{text}` is not one of interrupt, busy-poll, spin"))
    }
}

impl<'de> Deserialize<'de> for Waiting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A short time: `"50us"`, `"2ms"`, `"1s"`. A unit is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl FromStr for Moment {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a time, such as \"50us\""))?;
        let microseconds: u64 = match text[digits.len()..].trim() {
            "us" => 1,
            "ms" => 1000,
            "s" => 1_000_000,
            other => return Err(format!("`{other}` is not a unit of time: use us, ms or s")),
        };
        let total = number.checked_mul(microseconds).ok_or_else(|| format!("`{text}` is too long"))?;
        Ok(Self(Duration::from_micros(total)))
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// `[io.napi]`: settings of the interface's NAPI contexts, put back at the end.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Napi {
    /// Empty polls before the interrupt is armed again.
    pub defer_hard_irqs: Spanned<u32>,
    /// Time between polls while the interrupt is off.
    pub gro_flush_timeout: Spanned<Moment>,
    /// How long a worker that has packets may keep the interrupt off; absent: not at all.
    pub irq_suspend_timeout: Option<Spanned<Moment>>,
}

impl Io {
    /// With RX rings of that many entries.
    pub fn with_receive_ring(self, entries: u32) -> Self {
        Self { frames: Some(Spanned::new(0..0, entries.saturating_mul(2))), ..self }
    }

    /// The worker's strategy.
    pub fn wait(&self) -> Wait {
        match self.wait {
            Waiting::Interrupt => Wait::Interrupt,
            Waiting::BusyPoll => {
                let default = BusyPoll::default();
                Wait::BusyPoll(BusyPoll {
                    time: self.busy_poll.as_ref().map_or(default.time, |time| time.get_ref().0),
                    budget: self.busy_poll_budget.as_ref().map_or(default.budget, |one| *one.get_ref()),
                })
            }
            Waiting::Spin => {
                let interval = self.spin_kernel.as_ref().map(|time| time.get_ref().0);
                Wait::Spin(interval.map_or_else(Spin::default, |kernel_interval| Spin { kernel_interval }))
            }
        }
    }

    /// What the NAPI contexts are to be set to.
    pub fn napi(&self) -> Option<NapiSettings> {
        self.napi.as_ref().map(|napi| NapiSettings {
            defer_hard_irqs: *napi.defer_hard_irqs.get_ref(),
            gro_flush_timeout: napi.gro_flush_timeout.get_ref().0,
            irq_suspend_timeout: napi
                .irq_suspend_timeout
                .as_ref()
                .map_or(Duration::ZERO, |time| time.get_ref().0),
        })
    }

    /// The first value that makes no sense: where it stands, and what to give.
    pub(super) fn check_wait(&self) -> Result<(), (Range<usize>, String)> {
        let short = |time: &Spanned<Moment>, low: u64, high: Duration, range: &str| {
            let fits = (Duration::from_micros(low)..=high).contains(&time.get_ref().0);
            if fits { Ok(()) } else { Err((time.span(), format!("give a time between {range}"))) }
        };
        let only = |span: Option<Range<usize>>, strategy: Waiting| match span {
            Some(span) if self.wait != strategy => {
                Err((span, format!("only allowed with wait = \"{strategy}\"")))
            }
            _ => Ok(()),
        };
        only(self.busy_poll.as_ref().map(Spanned::span), Waiting::BusyPoll)?;
        only(self.busy_poll_budget.as_ref().map(Spanned::span), Waiting::BusyPoll)?;
        only(self.spin_kernel.as_ref().map(Spanned::span), Waiting::Spin)?;
        if let Some(time) = &self.busy_poll {
            short(time, 1, Duration::from_millis(10), "\"1us\" and \"10ms\"")?;
        }
        if let Some(time) = &self.spin_kernel {
            short(time, 1, Duration::from_millis(10), "\"1us\" and \"10ms\"")?;
        }
        if let Some(budget) = &self.busy_poll_budget
            && !(8..=64).contains(budget.get_ref())
        {
            return Err((budget.span(), "give 8 to 64: the packet budget of one device poll".into()));
        }
        let Some(napi) = &self.napi else { return Ok(()) };
        only(Some(napi.defer_hard_irqs.span()), Waiting::BusyPoll)?;
        if !(1..=10_000).contains(napi.defer_hard_irqs.get_ref()) {
            return Err((napi.defer_hard_irqs.span(), "give 1 to 10000 polls".into()));
        }
        short(&napi.gro_flush_timeout, 1, Duration::from_millis(10), "\"1us\" and \"10ms\"")?;
        if let Some(time) = &napi.irq_suspend_timeout {
            short(time, 1, Duration::from_secs(1), "\"1us\" and \"1s\"")?;
            if time.get_ref() < napi.gro_flush_timeout.get_ref() {
                return Err((
                    time.span(),
                    "must be greater than gro_flush_timeout, which it overrides".into(),
                ));
            }
        }
        Ok(())
    }
}
