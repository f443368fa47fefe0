//! Who forwards: this process or the kernel.

use std::io::ErrorKind;
use std::path::Path;

use expressway_bench::{BenchError, RawRun, fanout_verdict};
use expressway_dataplane::IoMode;
use expressway_netio::route::RouteMirror;

use crate::args::{Fanout as Arguments, FanoutMode};
use crate::fail::Failure;

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// This process.
    User,
    /// BPF programs.
    Kernel,
}

impl Mode {
    /// The word for ready lines and statistics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }

    /// That of a running fan-out.
    pub(super) fn of(in_kernel: bool) -> Self {
        if in_kernel { Self::Kernel } else { Self::User }
    }
}

/// Who is to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) mode: Mode,
    /// It was asked for: where it cannot be had, that is an error. What `auto` chose steps down.
    pub(super) asked: bool,
}

/// Where the measurements of this machine are looked for.
const MEASURED: &str = "/var/lib/expressway/fanout/raw.jsonl";

/// What was asked for; `auto` says why it chose.
///
/// The cost of a delivery is the send and the ACKs that it causes, wherever it is made. The kernel's way makes one for
/// each datagram and subscriber, and a clone and a UDP receive besides; this process makes one for all that has come since
/// the last. What the kernel's way saves is waking a process, once a datagram: that shows with one subscriber, and is lost
/// among the sends of eight. Which is cheaper thus depends on how many will subscribe and how the feed comes, which nothing
/// at start can measure. So `auto` goes by what `expressway bench` has measured on this machine, for as many subscribers
/// as may come, and without that by the above: `user`.
///
/// # Errors
/// When the file that was named cannot be read.
pub(super) fn choose(arguments: &Arguments) -> Result<Choice, Failure> {
    let choice = |mode| Choice { mode, asked: arguments.mode != FanoutMode::Auto };
    match arguments.mode {
        FanoutMode::User => Ok(choice(Mode::User)),
        FanoutMode::Kernel => Ok(choice(Mode::Kernel)),
        FanoutMode::Auto => auto(arguments).map(choice),
    }
}

fn auto(arguments: &Arguments) -> Result<Mode, Failure> {
    if arguments.agent.is_some() || arguments.io != IoMode::Udp {
        tracing::info!("mode user: required by --agent and --io");
        return Ok(Mode::User);
    }
    let file = arguments.measured.as_deref().unwrap_or(Path::new(MEASURED));
    let raw = match RawRun::read(&[file]) {
        Ok(raw) => raw,
        Err(error) if arguments.measured.is_some() => {
            return Err(Failure::usage(format!("--measured {error}")));
        }
        Err(BenchError::Io(_, error)) if error.kind() == ErrorKind::NotFound => {
            tracing::info!(
                "mode user: no measurements for this machine; it sends a batch of datagrams in one call, the kernel \
                 mode one at a time; `expressway bench fanout-even fanout-bursts --out /var/lib/expressway/fanout` \
                 measures both for `auto` to choose from"
            );
            return Ok(Mode::User);
        }
        Err(error) => {
            tracing::warn!(%error, "mode user: cannot read the measurements");
            return Ok(Mode::User);
        }
    };
    let verdict = fanout_verdict(&raw, arguments.max_subscribers as u64);
    let mode = if verdict.kernel { Mode::Kernel } else { Mode::User };
    tracing::info!(
        subscribers = arguments.max_subscribers,
        file = %file.display(),
        "mode {}: {}",
        mode.name(),
        verdict.reason
    );
    Ok(mode)
}

/// The interface that the kernel takes the feed at: the one named, or for a unicast feed the one that has the address.
pub(super) fn interface(arguments: &Arguments) -> Result<Option<String>, Failure> {
    let address = arguments.udp.ip();
    if arguments.interface.is_some() || address.is_multicast() || address.is_unspecified() {
        return Ok(arguments.interface.clone());
    }
    let mirror = RouteMirror::start().map_err(Failure::run_time)?;
    Ok(mirror.snapshot().interface_of(address).map(|link| link.name.clone()))
}
