//! The redirect program: loaded, given its pairs and sockets, attached, read.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, PrintLevel};
use rustix::thread::CapabilitySet;

use crate::attachment::{self, AttachMode, Attachment, Existing};
use crate::counters::{Counters, Verdict};
use crate::error::{CAPABILITIES, Error};
use crate::role::Role;
use crate::skeleton::RedirectSkelBuilder;
use crate::skeleton::redirect_hints::RedirectHintsSkelBuilder;
use crate::skeleton::redirect_stamps::RedirectStampsSkelBuilder;
use crate::skeleton::redirect_switch::{RedirectSwitchSkel, RedirectSwitchSkelBuilder};
use crate::{dispatcher, pair, sys};

/// What is fixed when the program is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Receive queues that can have a socket, at least 1. A queue from here on passes everything. Costs
    /// 8 bytes each.
    pub queues: u32,
    /// The most (address, port) pairs at a time, at least 1. Costs about 80 bytes each, at once.
    pub pairs: u32,
    /// The interface's MAC. When given, frames to any other MAC, multicast ones included, pass: what a
    /// switch floods belongs to the station it is addressed to. Should the MAC change, everything passes.
    pub local_mac: Option<[u8; 6]>,
    /// Describe packets by what this device knows of them: RX time stamp, hash, VLAN tag. The program is then
    /// bound to that interface of the calling thread's network namespace and runs in native mode only.
    pub hints: Option<u32>,
    /// Describe packets by the time at which the program ran, and nothing else: where `hints` cannot be had. Linux
    /// 6.1.
    pub stamps: bool,
    /// Index of the device that the program and its maps are loaded into, for [`AttachMode::Offload`].
    pub offload: Option<u32>,
}

impl Default for Options {
    /// 256 queues (more than common NICs have), 1024 pairs, any MAC.
    fn default() -> Self {
        Self { queues: 256, pairs: 1024, local_mac: None, hints: None, stamps: false, offload: None }
    }
}

/// The loaded redirect program with its maps. Dropping it does not end an [`Attachment`].
///
/// Maps may be read and changed from any thread while traffic flows.
#[derive(Debug)]
pub struct Redirect {
    program: OwnedFd,
    pairs: MapHandle,
    sockets: MapHandle,
    stats: MapHandle,
    cookie: Option<u32>,
    /// The map with `struct redirect_switch`, of a program that describes packets on demand.
    switch: Option<OwnedFd>,
}

/// `BPF_F_XDP_HAS_FRAGS` and `BPF_F_XDP_DEV_BOUND_ONLY` (`include/uapi/linux/bpf.h`).
const FRAGMENTS: u32 = 1 << 5;
const DEVICE_BOUND: u32 = 1 << 6;

/// Sizes the maps of an open skeleton and sets its knobs. Both programs have the same, in types of their own.
macro_rules! size {
    ($open:ident, $options:ident, $load:ident) => {
        $open.maps.pairs_map.set_max_entries($options.pairs).map_err($load)?;
        $open.maps.xsks_map.set_max_entries($options.queues).map_err($load)?;
        if let (Some(mac), Some(knobs)) = ($options.local_mac, $open.maps.rodata_data.as_deref_mut()) {
            knobs.check_mac = true;
            knobs.local_mac = mac;
        }
    };
}

/// Takes the descriptors out of a loaded skeleton.
macro_rules! taken {
    ($loaded:expr, $cookie:expr, $load:ident) => {
        taken!($loaded, $cookie, |_| None, $load)
    };
    ($loaded:expr, $cookie:expr, $switch:expr, $load:ident) => {{
        let loaded = $loaded;
        let switch: Option<io::Result<OwnedFd>> = $switch(&loaded);
        let program = loaded.progs.expressway_udp.as_fd().try_clone_to_owned();
        Ok(Self {
            program: program.map_err(|source| Error::Descriptor { source })?,
            pairs: MapHandle::try_from(&loaded.maps.pairs_map).map_err($load)?,
            sockets: MapHandle::try_from(&loaded.maps.xsks_map).map_err($load)?,
            stats: MapHandle::try_from(&loaded.maps.stats_map).map_err($load)?,
            cookie: $cookie,
            switch: switch.transpose().map_err(|source| Error::Descriptor { source })?,
        })
    }};
}

impl Redirect {
    /// Loads the program and makes its maps, unattached and without pairs.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (the verifier allows packet
    /// access at computed offsets only with the last one); [`Error::Load`] if the kernel is older
    /// than 5.18, lacks AF_XDP, or won't have an option.
    pub fn load(options: &Options) -> Result<Self, Error> {
        Self::load_for(options, None)
    }

    /// Loads the program so that it describes packets as well as can be had here, and attaches it: bound to the
    /// interface, else stamping by itself, else plainly. [`Redirect::cookie`] tells which it is not.
    ///
    /// # Errors
    /// Those of [`Redirect::load`] and [`Redirect::attach`] of the plain program.
    pub fn describe(
        options: &Options,
        ifindex: u32,
        mode: AttachMode,
        existing: Existing,
    ) -> Result<(Self, Attachment), Error> {
        let put = |options: &Options| {
            let redirect = Self::load(options)?;
            let attachment = redirect.attach(ifindex, mode, existing)?;
            Ok((redirect, attachment))
        };
        let bound = Options { hints: Some(ifindex), ..*options };
        let stamping = Options { stamps: true, ..*options };
        for options in
            [Some(bound).filter(|_| mode == AttachMode::Native), Some(stamping)].into_iter().flatten()
        {
            match put(&options) {
                Ok(done) => return Ok(done),
                Err(error) => tracing::debug!(%error, ?options, "the program cannot describe packets so"),
            }
        }
        put(options)
    }

    /// Whether the program on the interface `ifindex` is a libxdp dispatcher, which [`Redirect::join`] joins.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Query`].
    pub fn is_dispatched(ifindex: u32) -> Result<bool, Error> {
        dispatcher::is_present(&attachment::interface(ifindex))
    }

    /// Takes what killed processes of ours left in the dispatcher of the interface `ifindex` out, and the
    /// dispatcher off with the last of them.
    ///
    /// # Errors
    /// [`Error::Dispatcher`], [`Error::Busy`] and those of [`Redirect::attach`].
    pub fn recover(ifindex: u32) -> Result<(), Error> {
        match Self::is_dispatched(ifindex)? {
            true => dispatcher::recover(&attachment::interface(ifindex)),
            false => Ok(()),
        }
    }

    /// Loads the program and puts it beside others on the interface `ifindex`, by the libxdp dispatcher that is
    /// there or a new one. What it passes, the next program gets. Needs a BPF file system at `$LIBXDP_BPFFS` or
    /// `/sys/fs/bpf`.
    ///
    /// # Errors
    /// [`Error::Foreign`] names a program that is no dispatcher, [`Error::Dispatcher`] says what is wrong with
    /// one, [`Error::NoOffload`] that none is loaded into a device; further those of [`Redirect::load`] and [`Redirect::attach`].
    pub fn join(options: &Options, ifindex: u32, mode: AttachMode) -> Result<(Self, Attachment), Error> {
        if options.offload.is_some() {
            return Err(Error::NoOffload { interface: attachment::interface(ifindex) });
        }
        let load = |dispatcher: BorrowedFd<'_>, function: &str| {
            let redirect = Self::load_for(options, Some((dispatcher, function)))?;
            let program = redirect.program.try_clone().map_err(|source| Error::Descriptor { source })?;
            Ok((program, redirect))
        };
        attachment::join(Role::REDIRECT, ifindex, mode, load)
    }

    /// As an XDP program, or as the extension that replaces a function of a dispatcher.
    fn load_for(options: &Options, target: Option<(BorrowedFd<'_>, &str)>) -> Result<Self, Error> {
        forward_libbpf_messages();
        let load = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
                Error::NotPermitted { action: "loading the XDP program".to_owned(), needed: CAPABILITIES }
            }
            // With every privilege: a security policy, which is not the program's fault.
            libbpf_rs::ErrorKind::PermissionDenied if target.is_some() => Error::NoExtensions,
            _ => match options.offload {
                Some(index) => Error::NoOffload { interface: attachment::interface(index) },
                None => Error::Load { source },
            },
        };
        let mut storage = MaybeUninit::uninit();
        // Unguessable by who sends packets: each `RandomState` has keys of its own.
        let cookie = std::hash::RandomState::new().build_hasher().finish() as u32;
        // A component of a dispatcher may not move what lies in front of packets.
        let describes = target.is_none() && options.offload.is_none();
        if let Some(ifindex) = options.hints.filter(|_| describes) {
            let mut open = RedirectHintsSkelBuilder::default().open(&mut storage).map_err(load)?;
            size!(open, options, load);
            if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
                knobs.metadata_cookie = cookie;
            }
            open.progs.expressway_udp.set_ifindex(ifindex);
            // `bpf_program__set_flags` replaces what the section's name set.
            open.progs.expressway_udp.set_flags(DEVICE_BOUND | FRAGMENTS);
            return taken!(open.load().map_err(load)?, Some(cookie), load);
        }
        if options.stamps && describes {
            let mut storage = MaybeUninit::uninit();
            let mut open = RedirectStampsSkelBuilder::default().open(&mut storage).map_err(load)?;
            size!(open, options, load);
            if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
                knobs.metadata_cookie = cookie;
            }
            return taken!(open.load().map_err(load)?, Some(cookie), load);
        }
        if describes {
            let mut storage = MaybeUninit::uninit();
            let mut open = RedirectSwitchSkelBuilder::default().open(&mut storage).map_err(load)?;
            size!(open, options, load);
            let switch = |loaded: &RedirectSwitchSkel<'_>| Some(loaded.maps.bss.as_fd().try_clone_to_owned());
            return taken!(open.load().map_err(load)?, None, switch, load);
        }
        let mut open = RedirectSkelBuilder::default().open(&mut storage).map_err(load)?;
        size!(open, options, load);
        if let Some((dispatcher, function)) = target {
            dispatcher::make_extension(&mut open.progs.expressway_udp, dispatcher, function).map_err(load)?;
        }
        if let Some(index) = options.offload {
            open.progs.expressway_udp.set_ifindex(index);
            open.maps.pairs_map.set_map_ifindex(index);
            open.maps.xsks_map.set_map_ifindex(index);
            open.maps.stats_map.set_map_ifindex(index);
        }
        taken!(open.load().map_err(load)?, None, load)
    }

    /// By which user space knows that what lies in front of a packet is this program's description of it
    /// (`struct redirect_metadata` in `bpf/include/redirect_shared.h`). `None` for the plain program.
    pub fn cookie(&self) -> Option<u32> {
        self.cookie
    }

    /// The map by which packets are stamped on demand, to be mapped into memory: `struct redirect_switch` in
    /// `bpf/include/redirect_shared.h`. Only the plain program has it, and not in a dispatcher or a device.
    pub fn switch(&self) -> Option<BorrowedFd<'_>> {
        self.switch.as_ref().map(AsFd::as_fd)
    }

    /// Attaches the program to the interface `ifindex` of the caller's network namespace by a bpf_link.
    /// The mode is the one asked for or an error; whoever wants generic after native failed asks again.
    ///
    /// # Errors
    /// [`Error::Foreign`] names a program that is already there. The others are [`Error::NoInterface`],
    /// [`Error::NoNativeXdp`], [`Error::TooFewQueues`], [`Error::MtuTooLarge`], [`Error::NotPermitted`],
    /// [`Error::Busy`], [`Error::Attach`] and [`Error::Query`].
    pub fn attach(&self, ifindex: u32, mode: AttachMode, existing: Existing) -> Result<Attachment, Error> {
        attachment::attach(self.program.as_fd(), ifindex, mode, existing)
    }

    /// Takes the datagrams to `pair` from the next packet on. Returns false if they were taken already.
    ///
    /// An IPv6 pair is the address alone: a link-local one is taken whatever interface it came by.
    ///
    /// # Errors
    /// [`Error::Wildcard`], [`Error::PairLimit`], [`Error::Map`].
    pub fn add_pair(&self, pair: SocketAddr) -> Result<bool, Error> {
        let key = pair::key(pair)?;
        match self.pairs.update(&key, &[1], MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(false),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::TooBig => {
                Err(Error::PairLimit { pair, limit: self.pairs.max_entries() })
            }
            Err(source) => Err(Error::Map { map: "pairs_map", source }),
        }
    }

    /// Leaves the datagrams to `pair` to the kernel from the next packet on. Returns false if it already
    /// did so.
    ///
    /// # Errors
    /// [`Error::Wildcard`], [`Error::Map`].
    pub fn remove_pair(&self, pair: SocketAddr) -> Result<bool, Error> {
        match self.pairs.delete(&pair::key(pair)?) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::Map { map: "pairs_map", source }),
        }
    }

    /// The pairs taken now, in no order. While another thread changes them, one may be missed or listed
    /// twice.
    pub fn pairs(&self) -> Vec<SocketAddr> {
        self.pairs.keys().filter_map(|key| pair::pair(&key)).collect()
    }

    /// The XSKMAP: key is the receive queue, value the file descriptor of its AF_XDP socket.
    pub fn xsk_map(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }

    /// The program, for `bpf(2)` calls of one's own.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// What became of the packets since load, summed over CPUs and over all interfaces attached to.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn counters(&self) -> Result<Counters, Error> {
        const MAP: &str = "stats_map";
        let cpus = self
            .stats
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: MAP, source })?;
        cpus.as_deref().and_then(Counters::from_cpus).ok_or(Error::Layout { map: MAP })
    }

    /// Runs the program `repeat` times on `frame` by BPF_PROG_TEST_RUN, as if received on queue 0. No
    /// packet moves; the counters count.
    ///
    /// # Errors
    /// [`Error::TestRun`]; the kernel wants at least 14 bytes.
    pub fn prog_test_run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, Error> {
        self.test_run(&sys::TestRunInput { frame, repeat, ..Default::default() })
    }

    /// As [`Redirect::prog_test_run`] once, on a multi-buffer frame of which only the first `linear`
    /// bytes are in the linear part. Linux 6.18.
    ///
    /// # Errors
    /// [`Error::TestRun`], with EINVAL on older kernels or for less than 14 linear bytes.
    pub fn prog_test_run_split(&self, frame: &[u8], linear: u32) -> Result<TestRun, Error> {
        let linear = Some(linear);
        self.test_run(&sys::TestRunInput { frame, linear, repeat: 1, ..Default::default() })
    }

    fn test_run(&self, input: &sys::TestRunInput<'_>) -> Result<TestRun, Error> {
        let failed = |source| Error::TestRun { length: input.frame.len(), source };
        let output = sys::test_run(self.program.as_fd(), input).map_err(failed)?;
        let verdict = match output.verdict {
            libbpf_rs::libbpf_sys::XDP_DROP => Verdict::Drop,
            libbpf_rs::libbpf_sys::XDP_PASS => Verdict::Pass,
            libbpf_rs::libbpf_sys::XDP_REDIRECT => Verdict::Redirect,
            other => {
                return Err(failed(std::io::Error::other(format!("the program returned {other}"))));
            }
        };
        let duration = Duration::from_nanos(output.nanoseconds.into());
        Ok(TestRun { verdict, frame: output.frame, duration })
    }
}

/// What a test run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// What the program returned.
    pub verdict: Verdict,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run; the kernel measures in whole nanoseconds over all repetitions.
    pub duration: Duration,
}

/// Whether the thread has what loading takes. The verifier's refusals bear the same error number as missing
/// privilege, so this tells them apart.
pub(crate) fn is_privileged() -> bool {
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
    rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective.contains(needed) || sets.effective.contains(CapabilitySet::SYS_ADMIN)
    })
}

/// libbpf prints to standard error unless told otherwise; its messages, the verifier's log among them, belong into the log, and
/// below its warnings: what fails is returned as an error that says so in a line, and what may be missing, such as a hook that a
/// kernel refuses, is no fault.
pub(crate) fn forward_libbpf_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Debug, |level, message| {
            let message = message.trim_end();
            match level {
                PrintLevel::Warn | PrintLevel::Info => tracing::debug!(target: "libbpf", "{message}"),
                PrintLevel::Debug => tracing::trace!(target: "libbpf", "{message}"),
            }
        })));
    });
}
