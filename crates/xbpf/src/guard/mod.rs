//! The filter's program: loaded with lists and rules, attached, read. `bpf/guard.bpf.c` says what it does.
//!
//! Its tables are written while it is on no interface and never again, apart from buckets, bans and counters. A change is
//! another [`Guard`], put in the place of the first by [`Attachment::replace`]: each packet sees the one or the other
//! whole, and a table that cannot be made leaves everything as it was.

mod bans;
mod counters;
mod fill;
mod learning;
mod quic;
mod retry;
mod samples;
mod syn;
mod tables;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

pub use counters::{GuardCount, GuardReason, GuardRuleCount};
pub use learning::{GuardLearned, GuardLearner, GuardLearning, GuardLearningCount};
pub use quic::{GuardKey, GuardQuic, GuardQuicCount, GuardUnknown};
pub use retry::GuardRetry;
pub use samples::{GuardSample, GuardSamples, GuardSampling, GuardSamplingCount};
pub use syn::GuardSyn;
pub use tables::{
    GuardAddressSets, GuardClassifier, GuardLimit, GuardPayloadSets, GuardPer, GuardPrefix, GuardProbe,
    GuardRate, GuardRule, GuardSet, GuardValueSets,
};

use crate::attachment::{self, AttachMode, Attachment, Existing, Keep};
use crate::baseline::BaselineRun;
use crate::dispatcher;
use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::role::Role;
use crate::skeleton::guard::types::guard_limit;
use crate::skeleton::guard::{GuardSkelBuilder, OpenGuardMaps};
use crate::sys;
use tables::Block4;

/// Elements of one batch: 64 KiB to 1 MiB of keys and values.
const BATCH: usize = 8192;
/// Elements that one call of the kernel reads when tables are walked.
const SWEEP: u32 = 4096;
/// Bytes that an answer may be longer than what it answers: a segment size, behind a SYN without options.
const ROOM: u32 = 8;
/// Buckets of a rule for what finds no room for its own.
const SHARED: usize = guard_limit::GUARD_SHARED.0 as usize;

/// What is fixed when the program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// Count what would be dropped, and pass it.
    pub dry_run: bool,
    /// Drop packets whose headers cannot be.
    pub drop_malformed: bool,
    /// Drop all fragments.
    pub drop_fragments: bool,
    /// Drop what no rule matches.
    pub drop_default: bool,
    /// Servers of QUIC behind the filter.
    pub quic: GuardQuic,
    /// Listeners whose SYNs are answered.
    pub syn: GuardSyn,
    /// Sources that always pass.
    pub allow: Vec<GuardPrefix>,
    /// Sources that never do, unless they are allowed. Costs 4 MiB, and about 80 bytes for each that is longer than a
    /// /24, or IPv6.
    pub block: Vec<GuardPrefix>,
    /// The rules.
    pub classifier: GuardClassifier,
    /// Buckets of limits at a time, at least 1. About 100 bytes each, at once.
    pub buckets: u32,
    /// Bans at a time, at least 1. About 80 bytes each, at once.
    pub bans: u32,
    /// Bans apply though no rule makes any: there are some by order.
    pub keep_bans: bool,
    /// Samples of what is dropped, for [`Guard::samples`].
    pub sampling: Option<GuardSampling>,
    /// Sources that are learned, and preferred in an attack.
    pub learning: Option<GuardLearning>,
}

impl Default for GuardOptions {
    /// Drops what cannot be and nothing else.
    fn default() -> Self {
        Self {
            dry_run: false,
            drop_malformed: true,
            drop_fragments: false,
            drop_default: false,
            quic: GuardQuic::default(),
            syn: GuardSyn::default(),
            allow: Vec::new(),
            block: Vec::new(),
            classifier: GuardClassifier::default(),
            buckets: 65_536,
            bans: 65_536,
            keep_bans: false,
            sampling: None,
            learning: None,
        }
    }
}

impl GuardOptions {
    /// Whether bans apply.
    pub fn applies_bans(&self) -> bool {
        self.keep_bans
            || self
                .classifier
                .rules
                .iter()
                .any(|rule| matches!(rule, GuardRule::Limit(limit) if limit.ban > 0))
    }
}

/// The maps, as a struct of handles: taken from a loaded skeleton, or put into one that is not loaded yet.
macro_rules! maps {
    ($($name:ident),+ $(,)?) => {
        struct Maps { $($name: MapHandle,)+ }

        macro_rules! take_maps {
            ($loaded:expr) => { Maps { $($name: MapHandle::try_from(&$loaded.maps.$name)?,)+ } };
        }

        impl Maps {
            /// Has the skeleton use these.
            fn share(&self, open: &mut OpenGuardMaps<'_>) -> libbpf_rs::Result<()> {
                $(open.$name.reuse_fd(self.$name.as_fd())?;)+
                Ok(())
            }
        }
    };
}

maps!(
    allow4_map,
    allow6_map,
    block4_map,
    hosts4_map,
    block_long4_map,
    block6_map,
    source4_map,
    source6_map,
    destination4_map,
    destination6_map,
    source_port_map,
    destination_port_map,
    length_map,
    source_port_set_map,
    destination_port_set_map,
    length_set_map,
    protocol_map,
    flags_map,
    payload_map,
    payload_any_map,
    payload_found_map,
    rule_map,
    quic_port_map,
    quic_stats_map,
    retry_map,
    clock_map,
    scratch_map,
    tcp_port_map,
    stray_map,
    bucket_map,
    shared_map,
    ban_map,
    stats_map,
    rule_stats_map,
    full_map,
    samples_map,
    sampling_map,
    sample_rate_map,
    learned_map,
    attack_map,
    learning_map,
);

/// The loaded filter. Dropping it does not end an [`Attachment`].
pub struct Guard {
    program: OwnedFd,
    maps: Maps,
    options: GuardOptions,
    block4: Option<Block4>,
    seed: u64,
    generation: u32,
}

impl Guard {
    /// Loads the program with its tables, on no interface. With `earlier`, counters and samples go on; so do bans if their
    /// table has the same size, and buckets if the rules and the size of theirs are the same.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Load`], [`Error::Map`].
    pub fn load(options: GuardOptions, earlier: Option<&Self>) -> Result<Self, Error> {
        let block4 = options.block.iter().any(|prefix| prefix.address.is_ipv4());
        let block4 = block4.then(|| Block4::of(&options.block));
        // Unguessable by who sends packets: each `RandomState` has keys of its own. The hash goes with the buckets.
        let heir = earlier.filter(|earlier| earlier.has_buckets_for(&options));
        let seed = heir.map_or_else(|| RandomState::new().build_hasher().finish(), |earlier| earlier.seed);
        let generation = earlier.map_or(0, |earlier| earlier.generation.wrapping_add(1));
        let (program, maps) = load(
            &options,
            block4.as_ref(),
            (seed, generation),
            |open| match earlier {
                Some(earlier) => earlier.inherit(&options, open),
                None => Ok(()),
            },
            None,
        )?;
        let mut guard = Self { program, maps, options, block4, seed, generation };
        guard.fill()?;
        if heir.is_none() {
            guard.fill_shared()?;
        }
        // It is in the map.
        guard.block4 = guard.block4.take().map(|block| Block4 { networks: Vec::new(), ..block });
        Ok(guard)
    }

    /// Has another program go on with what this one has learnt.
    fn inherit(&self, options: &GuardOptions, open: &mut OpenGuardMaps<'_>) -> libbpf_rs::Result<()> {
        open.stats_map.reuse_fd(self.maps.stats_map.as_fd())?;
        open.full_map.reuse_fd(self.maps.full_map.as_fd())?;
        open.quic_stats_map.reuse_fd(self.maps.quic_stats_map.as_fd())?;
        open.samples_map.reuse_fd(self.maps.samples_map.as_fd())?;
        open.sampling_map.reuse_fd(self.maps.sampling_map.as_fd())?;
        open.sample_rate_map.reuse_fd(self.maps.sample_rate_map.as_fd())?;
        open.attack_map.reuse_fd(self.maps.attack_map.as_fd())?;
        open.learning_map.reuse_fd(self.maps.learning_map.as_fd())?;
        if self.has_sources_for(options.learning.as_ref()) {
            open.learned_map.reuse_fd(self.maps.learned_map.as_fd())?;
        }
        if options.applies_bans() && self.options.applies_bans() && options.bans == self.options.bans {
            open.ban_map.reuse_fd(self.maps.ban_map.as_fd())?;
        }
        if self.has_buckets_for(options) {
            open.bucket_map.reuse_fd(self.maps.bucket_map.as_fd())?;
            open.shared_map.reuse_fd(self.maps.shared_map.as_fd())?;
        }
        Ok(())
    }

    /// Whether the buckets of this one mean the same to a program with `options`.
    fn has_buckets_for(&self, options: &GuardOptions) -> bool {
        options.classifier.rules == self.options.classifier.rules && options.buckets == self.options.buckets
    }

    /// Attaches the program to the interface `ifindex`; as [`crate::Redirect::attach`]. With [`Keep::Pinned`] it goes on
    /// when this process is killed, and takes the place of one whose process was.
    ///
    /// # Errors
    /// Those of [`crate::Redirect::attach`], [`Error::Pin`].
    pub fn attach(
        &self,
        ifindex: u32,
        mode: AttachMode,
        existing: Existing,
        keep: Keep,
    ) -> Result<Attachment, Error> {
        attachment::attach_as(Role::GUARD, self.program.as_fd(), ifindex, mode, existing, keep)
    }

    /// Puts the program beside others on the interface `ifindex`; as [`crate::Redirect::join`]. It runs before ours that
    /// forward or answer.
    ///
    /// # Errors
    /// Those of [`crate::Redirect::join`].
    pub fn join(&self, ifindex: u32, mode: AttachMode) -> Result<Attachment, Error> {
        let extension = |dispatcher: BorrowedFd<'_>, function: &str| {
            let target = Some((dispatcher, function));
            let share = |open: &mut OpenGuardMaps<'_>| self.maps.share(open);
            load(&self.options, self.block4.as_ref(), (self.seed, self.generation), share, target)
                .map(|(program, _)| (program, ()))
        };
        attachment::join(Role::GUARD, ifindex, mode, extension).map(|((), attachment)| attachment)
    }

    /// The program, for [`Attachment::replace`] and `bpf(2)` calls of one's own.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Packets by reason, over all interfaces and since the first of the filters that this one succeeded.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn counts(&self) -> Result<Vec<(GuardReason, GuardCount)>, Error> {
        let count = |reason: GuardReason| {
            let [packets, bytes] = percpu(&self.maps.stats_map, "stats_map", reason as u32)?;
            Ok((reason, GuardCount { packets, bytes }))
        };
        GuardReason::ALL.into_iter().map(count).collect()
    }

    /// What each rule did since this filter was loaded.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn rule_counts(&self) -> Result<Vec<GuardRuleCount>, Error> {
        let count = |rule| {
            let [packets, bytes, dropped, dropped_bytes] =
                percpu(&self.maps.rule_stats_map, "rule_stats_map", rule)?;
            Ok(GuardRuleCount {
                matched: GuardCount { packets, bytes },
                dropped: GuardCount { packets: dropped, bytes: dropped_bytes },
            })
        };
        (0..self.options.classifier.rules.len() as u32).map(count).collect()
    }

    /// Packets that found no room for a bucket of their own, and bans that found none.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn overflows(&self) -> Result<[u64; 2], Error> {
        percpu(&self.maps.full_map, "full_map", 0)
    }

    /// Which of the filters that succeeded each other this is: samples name rules by number, and by this.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The buffers that samples come in, of at least `octets` a CPU. One reader at a time has them; filters that succeed
    /// this one use them too.
    ///
    /// # Errors
    /// [`Error::Buffers`].
    pub fn samples(&self, octets: usize) -> Result<GuardSamples, Error> {
        GuardSamples::open(self.maps.samples_map.as_fd(), octets)
    }

    /// What became of samples, by reason, since the first of the filters that this one succeeded.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn sampling_counts(&self) -> Result<Vec<(GuardReason, GuardSamplingCount)>, Error> {
        let drops = GuardReason::ALL.into_iter().filter(|reason| reason.drops());
        let count = |reason: GuardReason| {
            let [_, taken, limited, lost] = percpu(&self.maps.sampling_map, "sampling_map", reason as u32)?;
            Ok((reason, GuardSamplingCount { taken, limited, lost }))
        };
        drops.map(count).collect()
    }

    /// What it counted of QUIC, since the first of the filters that this one succeeded.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn quic_counts(&self) -> Result<GuardQuicCount, Error> {
        let [unknown_ids, tokens] = percpu(&self.maps.quic_stats_map, "quic_stats_map", 0)?;
        Ok(GuardQuicCount { unknown_ids, tokens })
    }

    /// Removes buckets that are full again and bans that have ended, and returns how many of either are left. To be called
    /// about once a second: it walks the tables, and tells the program what Unix time is.
    pub fn expire(&self) -> (usize, usize) {
        // It has been set before, and clocks run alike.
        let _ = quic::set_clock(&self.maps);
        let now = monotonic();
        let words = |value: &[u8]| -> Vec<u64> {
            value.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        let scaled = now << guard_limit::GUARD_TIME_SHIFT.0;
        let passed = |word: &u64| word.wrapping_sub(scaled).cast_signed() <= 0;
        let sweep = |map: &MapHandle, over: &dyn Fn(&[u64]) -> bool| {
            // Read whole first: a walk begins anew behind a key that was deleted.
            let entries = map.lookup_batch(SWEEP, MapFlags::ANY, MapFlags::ANY);
            let entries: Vec<(Vec<u8>, Vec<u8>)> = entries.into_iter().flatten().collect();
            let (ended, left): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|(_, value)| over(&words(value)));
            for (key, _) in ended {
                let _ = map.delete(&key);
            }
            left.len()
        };
        let buckets = sweep(&self.maps.bucket_map, &|when| when.iter().all(passed));
        let bans = sweep(&self.maps.ban_map, &|until| until.first().is_none_or(|until| *until <= now));
        (buckets, bans)
    }

    /// Runs the program `repeat` times on `frame` by BPF_PROG_TEST_RUN. No packet moves, but counters and buckets change.
    ///
    /// # Errors
    /// [`Error::TestRun`]; the kernel wants at least 14 bytes.
    pub fn prog_test_run(&self, frame: &[u8], repeat: u32) -> Result<BaselineRun, Error> {
        let input = sys::TestRunInput { frame, room: ROOM, repeat, ..Default::default() };
        BaselineRun::of(self.program.as_fd(), &input)
    }

    /// As [`Guard::prog_test_run`] once, on a multi-buffer frame of which only the first `linear` bytes are in the linear
    /// part. Linux 6.18.
    ///
    /// # Errors
    /// [`Error::TestRun`], with EINVAL on older kernels or for less than 14 linear bytes.
    pub fn prog_test_run_split(&self, frame: &[u8], linear: u32) -> Result<BaselineRun, Error> {
        let linear = Some(linear);
        let input = sys::TestRunInput { frame, linear, room: ROOM, repeat: 1, ..Default::default() };
        BaselineRun::of(self.program.as_fd(), &input)
    }
}

/// Loads the program, sized and set for `options`, as an XDP program or as the extension of a dispatcher; `share` may give
/// it maps that are there.
fn load(
    options: &GuardOptions,
    block4: Option<&Block4>,
    (seed, generation): (u64, u32),
    share: impl Fn(&mut OpenGuardMaps<'_>) -> libbpf_rs::Result<()>,
    target: Option<(BorrowedFd<'_>, &str)>,
) -> Result<(OwnedFd, Maps), Error> {
    forward_libbpf_messages();
    let refused = |source: libbpf_rs::Error| match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
            Error::NotPermitted { action: "loading the XDP program".to_owned(), needed: CAPABILITIES }
        }
        libbpf_rs::ErrorKind::PermissionDenied if target.is_some() => Error::NoExtensions,
        _ => Error::Load { source },
    };
    let mut storage = MaybeUninit::uninit();
    let mut open = GuardSkelBuilder::default().open(&mut storage).map_err(refused)?;
    if let Some((dispatcher, function)) = target {
        dispatcher::make_extension(&mut open.progs.expressway_grd, dispatcher, function).map_err(refused)?;
    }
    fill::size(&mut open.maps, options, block4).map_err(refused)?;
    fill::set(&mut open.maps, options, seed);
    samples::set(&mut open.maps, options.sampling.as_ref(), generation);
    learning::set(&mut open.maps, options.learning.as_ref());
    share(&mut open.maps).map_err(refused)?;
    let loaded = open.load().map_err(refused)?;
    let program = loaded.progs.expressway_grd.as_fd().try_clone_to_owned();
    let maps = || -> libbpf_rs::Result<Maps> { Ok(take_maps!(loaded)) };
    Ok((program.map_err(|source| Error::Descriptor { source })?, maps().map_err(refused)?))
}

/// The clock of `bpf_ktime_get_ns`.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Values with their place as key, of an array.
fn numbered(values: impl Iterator<Item = Vec<u8>>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    values.enumerate().map(|(index, value)| ((index as u32).to_ne_bytes().to_vec(), value))
}

/// Writes entries in batches.
fn write(
    map: &MapHandle,
    name: &'static str,
    entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
) -> Result<(), Error> {
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let (mut keys, mut values, mut count) = (Vec::new(), Vec::new(), 0);
        for (key, value) in entries.by_ref().take(BATCH) {
            keys.extend(key);
            values.extend(value);
            count += 1;
        }
        map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
            .map_err(|source| Error::Map { map: name, source })?;
    }
    Ok(())
}

fn percpu<const N: usize>(map: &MapHandle, name: &'static str, key: u32) -> Result<[u64; N], Error> {
    let cpus = map
        .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
        .map_err(|source| Error::Map { map: name, source })?;
    cpus.as_deref().and_then(counters::sum).ok_or(Error::Layout { map: name })
}
