//! The baseline programs: drop, pass, count, touch, tx, redirect.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::attachment::{self, AttachMode, Attachment, Existing};
use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::skeleton::baseline::BaselineSkelBuilder;
use crate::skeleton::baseline::types::baseline_stats;
use crate::sys;

/// What a baseline program does with every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Counts and drops it unread.
    Drop,
    /// Passes it to the stack, uncounted.
    Pass,
    /// Counts it and passes it to the stack.
    Count,
    /// Counts it, reads its Ethernet header and drops it.
    Touch,
    /// Counts it, swaps its MACs and sends it back out of the interface (`XDP_TX`).
    Tx,
    /// Counts it, swaps its MACs and sends it out of another interface, by a DEVMAP.
    Redirect,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Drop, Self::Pass, Self::Count, Self::Touch, Self::Tx, Self::Redirect];

    /// The word for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Count => "count",
            Self::Touch => "touch",
            Self::Tx => "tx",
            Self::Redirect => "redirect",
        }
    }

    /// Whether the program counts packets.
    pub fn counts(self) -> bool {
        self != Self::Pass
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|action| action.name() == text)
            .ok_or_else(|| format!("`{text}` is not one of {}", names()))
    }
}

/// What one CPU counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaselineCounts {
    /// Packets that the program saw; none for [`Action::Pass`].
    pub packets: u64,
    /// Of those, packets without a whole Ethernet header, which were dropped.
    pub short_frames: u64,
    /// Redirected or returned packets that the device accepted. With [`Action::Tx`] not every driver reports them.
    pub sent: u64,
    /// Packets that it refused: its ring was full, or it is down.
    pub refused: u64,
}

const _: () = assert!(size_of::<baseline_stats>() == 4 * size_of::<u64>());

impl BaselineCounts {
    /// Parses one CPU's value of `stats_map`; `None` if it does not have the size of the struct.
    fn from_value(value: &[u8]) -> Option<Self> {
        let (words, rest) = value.as_chunks::<8>();
        let [packets, short_frames, sent, refused] = <[[u8; 8]; 4]>::try_from(words).ok()?;
        let word = u64::from_ne_bytes;
        rest.is_empty().then(|| Self {
            packets: word(packets),
            short_frames: word(short_frames),
            sent: word(sent),
            refused: word(refused),
        })
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            short_frames: self.short_frames.saturating_sub(earlier.short_frames),
            sent: self.sent.saturating_sub(earlier.sent),
            refused: self.refused.saturating_sub(earlier.refused),
        }
    }
}

impl std::ops::Add for BaselineCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            short_frames: self.short_frames + other.short_frames,
            sent: self.sent + other.sent,
            refused: self.refused + other.refused,
        }
    }
}

/// A loaded baseline program.
pub struct Baseline {
    program: OwnedFd,
    stats: MapHandle,
    /// Counts the outcome of transmitted packets.
    _observer: Option<libbpf_rs::Link>,
}

impl Baseline {
    /// Loads the program of `action` for the interface `from`; `to` is the other one of [`Action::Redirect`]. Both
    /// are of the caller's network namespace.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Load`], [`Error::NoInterface`] if `to` is none.
    pub fn load(action: Action, from: u32, to: Option<u32>) -> Result<Self, Error> {
        forward_libbpf_messages();
        let load = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
                Error::NotPermitted { action: "loading the XDP program".to_owned(), needed: CAPABILITIES }
            }
            _ => Error::Load { source },
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = BaselineSkelBuilder::default().open(&mut storage).map_err(load)?;
        if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
            knobs.from_ifindex = from;
            knobs.to_ifindex = to.unwrap_or(0);
        }
        let programs = &mut open.progs;
        programs.baseline_drop.set_autoload(action == Action::Drop);
        programs.baseline_pass.set_autoload(action == Action::Pass);
        programs.baseline_count.set_autoload(action == Action::Count);
        programs.baseline_touch.set_autoload(action == Action::Touch);
        programs.baseline_tx.set_autoload(action == Action::Tx);
        programs.baseline_redir.set_autoload(action == Action::Redirect);
        programs.baseline_sent.set_autoload(action == Action::Redirect);
        programs.baseline_back.set_autoload(action == Action::Tx);
        let loaded = open.load().map_err(load)?;
        let program = match action {
            Action::Drop => &loaded.progs.baseline_drop,
            Action::Pass => &loaded.progs.baseline_pass,
            Action::Count => &loaded.progs.baseline_count,
            Action::Touch => &loaded.progs.baseline_touch,
            Action::Tx => &loaded.progs.baseline_tx,
            Action::Redirect => &loaded.progs.baseline_redir,
        };
        let program = program.as_fd().try_clone_to_owned().map_err(|source| Error::Descriptor { source })?;
        if let Some(to) = to {
            let enter = loaded.maps.devices_map.update(&0u32.to_ne_bytes(), &to.to_ne_bytes(), MapFlags::ANY);
            enter.map_err(|source| match source.kind() {
                libbpf_rs::ErrorKind::InvalidInput => {
                    Error::NoInterface { interface: attachment::interface(to) }
                }
                _ => Error::Map { map: "devices_map", source },
            })?;
        }
        let observer = match action {
            Action::Redirect => Some(loaded.progs.baseline_sent.attach()),
            Action::Tx => Some(loaded.progs.baseline_back.attach()),
            _ => None,
        };
        Ok(Self {
            program,
            stats: MapHandle::try_from(&loaded.maps.stats_map).map_err(load)?,
            _observer: observer.transpose().map_err(load)?,
        })
    }

    /// Puts the program in the place of one that is attached, with no packet between the two.
    ///
    /// # Errors
    /// [`Error::Attach`]; then nothing has changed.
    pub fn replace(&self, attachment: &Attachment) -> Result<(), Error> {
        attachment.replace(self.program.as_fd()).map(drop)
    }

    /// Attaches the program to the interface `ifindex`; as [`crate::Redirect::attach`].
    ///
    /// # Errors
    /// Those of [`crate::Redirect::attach`].
    pub fn attach(&self, ifindex: u32, mode: AttachMode, existing: Existing) -> Result<Attachment, Error> {
        attachment::attach(self.program.as_fd(), ifindex, mode, existing)
    }

    /// What each possible CPU has counted since load, by its number.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn by_cpu(&self) -> Result<Vec<BaselineCounts>, Error> {
        const MAP: &str = "stats_map";
        let values = self
            .stats
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: MAP, source })?
            .ok_or(Error::Layout { map: MAP })?;
        let values = values.iter().map(|value| BaselineCounts::from_value(value));
        values.collect::<Option<_>>().ok_or(Error::Layout { map: MAP })
    }

    /// Runs the program `repeat` times on `frame` by BPF_PROG_TEST_RUN. No packet moves, but the counters change.
    ///
    /// # Errors
    /// [`Error::TestRun`]; the kernel wants at least 14 bytes.
    pub fn prog_test_run(&self, frame: &[u8], repeat: u32) -> Result<BaselineRun, Error> {
        let input = sys::TestRunInput { frame, repeat, ..Default::default() };
        BaselineRun::of(self.program.as_fd(), &input)
    }
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaselineRun {
    /// What the program returned: `XDP_DROP` is 1, `XDP_PASS` 2, `XDP_TX` 3, `XDP_REDIRECT` 4
    /// (`enum xdp_action` of `linux/bpf.h`).
    pub verdict: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run; the kernel measures in whole nanoseconds over all repetitions.
    pub duration: Duration,
}

impl BaselineRun {
    /// Runs a program.
    pub(crate) fn of(program: BorrowedFd<'_>, input: &sys::TestRunInput<'_>) -> Result<Self, Error> {
        let output = sys::test_run(program, input)
            .map_err(|source| Error::TestRun { length: input.frame.len(), source })?;
        let duration = Duration::from_nanos(output.nanoseconds.into());
        Ok(Self { verdict: output.verdict, frame: output.frame, duration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_their_names() {
        for action in Action::ALL {
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        assert!("flood".parse::<Action>().unwrap_err().contains("drop, pass, count, touch, tx, redirect"));
    }

    #[test]
    fn values_of_another_size_are_refused() {
        let value: Vec<u8> = [1u64, 2, 3, 4].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let counts = BaselineCounts { packets: 1, short_frames: 2, sent: 3, refused: 4 };
        assert_eq!(BaselineCounts::from_value(&value), Some(counts));
        assert_eq!(BaselineCounts::from_value(&value[..31]), None);
        assert_eq!(BaselineCounts::from_value(&[value, vec![0; 8]].concat()), None);
        assert_eq!((counts + counts).since(counts), counts);
    }
}
