//! The programs that copy packets to user space: loaded with a filter, attached, their records read.
//!
//! `bpf/capture.bpf.c` describes what they do. The object is opened once for each hook, because each may be missing
//! from a kernel by itself; all share the maps of the first. Everything is held by descriptors of this process, so its
//! end, for any reason, detaches the programs.

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::btf::types::Func;
use libbpf_rs::btf::{Btf, BtfType, TypeId};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut};

use crate::attachment;
use crate::capture_record;
use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::rings::PerfRings;
use crate::skeleton::CAPTURE_OBJECT;
use crate::skeleton::capture_types::{capture_counts, capture_limit, rodata};
use crate::sys;
use crate::xdp_drops::DropTables;

/// An eBPF instruction that goes on with the next: what the place of the filter is filled with.
const NOTHING: [u8; 8] = [5, 0, 0, 0, 0, 0, 0, 0];

/// A filter as the kernel runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// eBPF instructions. r1 is the packet's beginning, r2 how many octets of it lie there, r3 how many it has. They end by
    /// `exit`, with r0 0 for no, 1 for yes, 2 if it cannot be told from those octets; r6 to r9 are not used.
    pub code: Vec<[u8; 8]>,
    /// How many octets it looks at.
    pub needed: u32,
}

impl CaptureFilter {
    /// The octets of a packet that lie there at most.
    pub const HEAD: usize = capture_limit::CAPTURE_HEAD.0 as usize;
    /// The instructions that have room.
    pub const ROOM: usize = capture_limit::CAPTURE_FILTER_ROOM.0 as usize - 4;
}

/// What is fixed when the programs are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSettings {
    /// Octets of a packet that are captured.
    pub snaplen: u32,
    /// Which packets; `None` is all.
    pub filter: Option<CaptureFilter>,
    /// XDP: a record of the packet at entry.
    pub at_entry: bool,
    /// XDP: a record of the packet at exit.
    pub at_exit: bool,
    /// XDP: a record of the verdict; with `at_entry` alone.
    pub verdicts: bool,
}

/// A place in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureHook {
    /// A redirect to an AF_XDP socket, native.
    XskRedirect,
    /// The same in generic mode.
    XskRedirectGeneric,
    /// Any redirect, native: what programs redirect that are not captured at, and what fails.
    Redirect,
    /// The same in generic mode.
    RedirectGeneric,
    /// An XDP program is put on an interface.
    Placed,
    /// An XDP program is loaded.
    Loaded,
    /// What XDP programs redirect to interfaces, as it leaves there, native.
    Forward,
    /// The same in generic mode.
    ForwardGeneric,
    /// Transmission by AF_XDP in copy mode, and by packet sockets that bypass the queueing discipline.
    Direct,
    /// Transmission by AF_XDP in zero-copy mode.
    ZeroCopy,
    /// The kernel receives.
    Receive,
    /// The kernel transmits.
    Transmit,
    /// The kernel drops.
    Drop,
}

impl CaptureHook {
    /// What it is called in the kernel.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XskRedirect => "fexit of __xsk_map_redirect",
            Self::XskRedirectGeneric => "fexit of xsk_generic_rcv",
            Self::Redirect => "fexit of xdp_do_redirect",
            Self::RedirectGeneric => "fexit of xdp_do_generic_redirect",
            Self::Placed => "fentry of bpf_prog_change_xdp",
            Self::Loaded => "fentry of perf_event_bpf_event",
            Self::Forward => "fentry of bq_xmit_all",
            Self::ForwardGeneric => "fentry of generic_xdp_tx",
            Self::Direct => "fentry of __dev_direct_xmit",
            Self::ZeroCopy => "fexit of xsk_tx_peek_desc",
            Self::Receive => "tracepoint netif_receive_skb",
            Self::Transmit => "tracepoint net_dev_start_xmit",
            Self::Drop => "tracepoint kfree_skb",
        }
    }

    /// Sets of programs, the first of which that the kernel takes is attached.
    const fn programs(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::XskRedirect => &[&["capture_xsk_native"]],
            Self::XskRedirectGeneric => &[&["capture_xsk_generic"]],
            Self::Redirect => &[&["capture_redirecting_native", "capture_redirect_native"]],
            Self::RedirectGeneric => &[&["capture_redirecting_generic", "capture_redirect_generic"]],
            Self::Placed => &[&["capture_placed"]],
            Self::Loaded => &[&["capture_loaded"]],
            Self::Forward => &[&["capture_forwarded", "capture_forward", "capture_flushed", "capture_live"]],
            Self::ForwardGeneric => {
                &[&["capture_forward_generic", "capture_forwarding", "capture_forwarding_ends"]]
            }
            Self::Direct => &[&["capture_direct", "capture_direct_exit"]],
            Self::ZeroCopy => &[&["capture_peek", "capture_batch_entry", "capture_batch"]],
            Self::Receive => &[&["capture_receive"]],
            Self::Transmit => &[&["capture_transmit"]],
            Self::Drop => &[&["capture_drop"], &["capture_drop_older"]],
        }
    }
}

/// The XDP program of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpProgram {
    /// Kernel-wide id.
    pub id: u32,
    /// It runs on socket buffers.
    pub generic: bool,
}

/// The XDP program on the interface `ifindex`, if any.
///
/// # Errors
/// [`Error::NoInterface`], [`Error::Query`].
pub fn xdp_program(ifindex: u32) -> Result<Option<XdpProgram>, Error> {
    let interface = || attachment::interface(ifindex);
    match sys::query(ifindex) {
        Ok(attached) => Ok(attached.map(|attached| XdpProgram {
            id: attached.program,
            generic: attached.mode == libbpf_rs::libbpf_sys::XDP_FLAGS_SKB_MODE,
        })),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            Err(Error::NoInterface { interface: interface() })
        }
        Err(source) => Err(Error::Query { interface: interface(), action: "its XDP program", source }),
    }
}

/// What became of the packets of an interface; see `struct capture_counts` in `bpf/include/capture_shared.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is documented in the header")]
pub struct CaptureCounts {
    pub seen: u64,
    pub matched: u64,
    pub lost: u64,
}

/// Keeps the programs of a hook attached.
pub struct CaptureLink {
    _links: Vec<Link>,
    programs: Vec<OwnedFd>,
    /// Of an XDP program, by its id: what tells why it drops. No descriptor of it is kept, for the program is somebody else's.
    drops: Option<(DropTables, u32)>,
}

impl fmt::Debug for CaptureLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureLink").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl CaptureLink {
    /// How often the kernel did not run the programs, because they ran on the same CPU already.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.programs.iter().filter_map(|program| sys::misses(program.as_fd()).ok()).sum()
    }

    /// Looks once more for what tells why the XDP program drops: a dispatcher that has only just been loaded has no components.
    pub fn find_reasons(&self) {
        if let Some((tables, program)) = &self.drops
            && let Ok(program) = libbpf_rs::Program::fd_from_id(*program)
        {
            tables.follow(program.as_fd());
        }
    }
}

/// The programs, ready to be attached, and their maps.
pub struct CapturePrograms {
    image: Vec<u8>,
    settings: CaptureSettings,
    netns: u64,
    pid_namespace: u32,
    /// Every map but the settings, by name.
    maps: Vec<(String, MapHandle)>,
}

impl fmt::Debug for CapturePrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturePrograms").field("settings", &self.settings).finish_non_exhaustive()
    }
}

const EVENTS: &str = "events_map";
const COUNTS: &str = "counts_map";

impl CapturePrograms {
    /// The most interfaces that are shown.
    pub const TARGETS: usize = capture_limit::CAPTURE_TARGETS.0 as usize;
    /// The most octets of a packet.
    pub const SNAPLEN: u32 = capture_limit::CAPTURE_MAX.0;

    /// Makes the maps. Nothing is attached yet. Packets are those of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Capture`], [`Error::FilterLength`], [`Error::Observe`].
    pub fn open(settings: CaptureSettings) -> Result<Self, Error> {
        forward_libbpf_messages();
        if !is_privileged() {
            return Err(Error::NotPermitted { action: "capturing".to_owned(), needed: CAPABILITIES });
        }
        let image = image(settings.filter.as_ref())?;
        let place =
            |what: &str, source: io::Error| Error::Observe { what: what.to_owned(), source: source.into() };
        let mut programs = Self {
            image,
            settings,
            netns: sys::network_namespace().map_err(|source| place("SO_NETNS_COOKIE", source))?,
            pid_namespace: pid_namespace().map_err(|source| place("PID namespace", source))?,
            maps: Vec::new(),
        };
        let failed = |source| Error::Capture { hook: "maps", source };
        let object = programs.object(&[], None).and_then(OpenObject::load).map_err(failed)?;
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            if !name.ends_with(".rodata") {
                programs.maps.push((name, MapHandle::try_from(&map).map_err(failed)?));
            }
        }
        Ok(programs)
    }

    /// The object with only these programs, on `target` if they are for an XDP program.
    fn object(
        &self,
        wanted: &[&str],
        target: Option<(&OwnedFd, &str)>,
    ) -> Result<OpenObject, libbpf_rs::Error> {
        let mut open = ObjectBuilder::default().open_memory(&self.image)?;
        for mut program in open.progs_mut() {
            let is_wanted = wanted.iter().any(|name| program.name() == *name);
            program.set_autoload(is_wanted);
            if let (true, Some((fd, function))) = (is_wanted, target) {
                program.set_attach_target(fd.as_raw_fd(), Some(function.to_owned()))?;
            }
        }
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.ends_with(".rodata") {
                if let Some(value) = map.initial_value_mut() {
                    self.set(value);
                }
            } else if target.is_some() && [DropTables::TABLES, DropTables::SEEN].contains(&&*name) {
                // Each program's own.
            } else if let Some((_, shared)) = self.maps.iter().find(|(known, _)| *known == name) {
                map.reuse_fd(shared.as_fd())?;
            }
        }
        Ok(open)
    }

    fn set(&self, value: &mut [u8]) {
        let mut put = |at: usize, octets: &[u8]| {
            if let Some(place) = value.get_mut(at..at + octets.len()) {
                place.copy_from_slice(octets);
            }
        };
        let settings = &self.settings;
        let needed = settings.filter.as_ref().map_or(0, |filter| filter.needed);
        put(offset_of!(rodata, netns), &self.netns.to_ne_bytes());
        put(offset_of!(rodata, pid_namespace), &self.pid_namespace.to_ne_bytes());
        put(offset_of!(rodata, snaplen), &settings.snaplen.min(Self::SNAPLEN).to_ne_bytes());
        put(offset_of!(rodata, filtered), &[u8::from(settings.filter.is_some())]);
        put(offset_of!(rodata, needed), &needed.min(CaptureFilter::HEAD as u32).to_ne_bytes());
        put(offset_of!(rodata, at_entry), &[u8::from(settings.at_entry)]);
        put(offset_of!(rodata, at_exit), &[u8::from(settings.at_exit)]);
        put(offset_of!(rodata, verdicts), &[u8::from(settings.verdicts)]);
    }

    /// Attaches to a hook of the kernel.
    ///
    /// # Errors
    /// [`Error::Capture`].
    pub fn attach(&self, hook: CaptureHook) -> Result<CaptureLink, Error> {
        let mut last = None;
        for programs in hook.programs() {
            match self.object(programs, None).and_then(OpenObject::load).and_then(|object| link(&object)) {
                Ok(link) => return Ok(link),
                Err(error) => last = last.or(Some(error)),
            }
        }
        let source = last.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound).into());
        Err(Error::Capture { hook: hook.name(), source })
    }

    /// Attaches to an XDP program, whoever loaded it and wherever it runs.
    ///
    /// # Errors
    /// [`Error::Capture`]: the program is gone, or has no BTF.
    pub fn attach_xdp(&self, program: XdpProgram) -> Result<CaptureLink, Error> {
        let failed = |source| Error::Capture { hook: "fentry of the XDP program", source };
        let fd = libbpf_rs::Program::fd_from_id(program.id).map_err(failed)?;
        let without = || {
            let text = format!("program {} was loaded without BTF", program.id);
            failed(io::Error::new(io::ErrorKind::Unsupported, text).into())
        };
        let types = sys::program_function(fd.as_fd()).map_err(|error| failed(error.into()))?;
        let (_, function) = types.ok_or_else(without)?;
        let btf = Btf::from_prog_id(program.id).map_err(failed)?;
        let name = btf.type_by_id::<BtfType<'_>>(TypeId::from(function)).and_then(|found| {
            let function = Func::try_from(found).ok()?;
            Some(function.name()?.to_string_lossy().into_owned())
        });
        let name = name.ok_or_else(without)?;
        let mut wanted = vec!["capture_exit"];
        if self.settings.at_entry {
            wanted.push("capture_entry");
        }
        let object = self.object(&wanted, Some((&fd, &name))).and_then(OpenObject::load).map_err(failed)?;
        let map = |name: &str| {
            let found = object.maps().find(|map| map.name() == name);
            let none = || io::Error::new(io::ErrorKind::NotFound, name.to_owned()).into();
            found.ok_or_else(none).and_then(|map| MapHandle::try_from(&map))
        };
        let tables = map(DropTables::TABLES).and_then(|tables| Ok((tables, map(DropTables::SEEN)?)));
        let (tables, seen) = tables.map_err(failed)?;
        let tables = DropTables::new(tables, seen);
        tables.follow(fd.as_fd());
        let mut made = link(&object).map_err(failed)?;
        made.drops = Some((tables, program.id));
        Ok(made)
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<&MapHandle, Error> {
        let found = self.maps.iter().find(|(known, _)| known == name);
        found.map(|(_, map)| map).ok_or(Error::Layout { map: name })
    }

    /// What was counted in `slot`, over all CPUs.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn counts(&self, slot: u32) -> Result<CaptureCounts, Error> {
        let cpus = self
            .map(COUNTS)?
            .lookup_percpu(&slot.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: COUNTS, source })?;
        let mut counts = CaptureCounts::default();
        for cpu in cpus.iter().flatten() {
            let at = |at: usize| capture_record::u64_at(cpu, at).ok_or(Error::Layout { map: COUNTS });
            counts.seen += at(offset_of!(capture_counts, seen))?;
            counts.matched += at(offset_of!(capture_counts, matched))?;
            counts.lost += at(offset_of!(capture_counts, lost))?;
        }
        Ok(counts)
    }

    /// The buffers that records come in, of at least `octets` a CPU.
    ///
    /// # Errors
    /// [`Error::Buffers`].
    pub fn rings(&self, octets: usize) -> Result<PerfRings, Error> {
        PerfRings::open(self.map(EVENTS)?.as_fd(), octets)
    }

    /// The filter by itself, to be tried on packets.
    ///
    /// # Errors
    /// [`Error::Capture`], [`Error::Descriptor`].
    pub fn filter_trial(&self) -> Result<FilterTrial, Error> {
        let failed = |source| Error::Capture { hook: "filter", source };
        let object = self.object(&["capture_try"], None).and_then(OpenObject::load).map_err(failed)?;
        let program = object.progs().find(|program| program.autoload());
        let program = program.ok_or(Error::Layout { map: "capture_try" })?;
        let program = program.as_fd().try_clone_to_owned();
        program.map(FilterTrial).map_err(|source| Error::Descriptor { source })
    }
}

/// A filter in the kernel that sees no traffic.
#[derive(Debug)]
pub struct FilterTrial(OwnedFd);

impl FilterTrial {
    /// What the filter says of a packet, of at least 14 octets: see [`CaptureFilter::code`].
    ///
    /// # Errors
    /// [`Error::TestRun`].
    pub fn run(&self, packet: &[u8]) -> Result<u32, Error> {
        let input = sys::TestRunInput { frame: packet, repeat: 1, ..Default::default() };
        let run = sys::test_run(self.0.as_fd(), &input);
        run.map(|run| run.verdict).map_err(|source| Error::TestRun { length: packet.len(), source })
    }
}

fn link(object: &Object) -> Result<CaptureLink, libbpf_rs::Error> {
    let mut made = CaptureLink { _links: Vec::new(), programs: Vec::new(), drops: None };
    // Exits before entries: what enters is seen to leave.
    let is_entry = |name: &std::ffi::OsStr| name == "capture_entry";
    for entries in [false, true] {
        let wanted = |program: &ProgramMut<'_>| program.autoload() && is_entry(program.name()) == entries;
        for program in object.progs_mut().filter(wanted) {
            made.programs.push(program.as_fd().try_clone_to_owned()?);
            made._links.push(program.attach()?);
        }
    }
    Ok(made)
}

/// The inode of the PID namespace of this process.
fn pid_namespace() -> io::Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata("/proc/self/ns/pid")?.ino();
    u32::try_from(inode).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The object with the filter in its place.
fn image(filter: Option<&CaptureFilter>) -> Result<Vec<u8>, Error> {
    const YES: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let code = filter.map_or(&YES[..], |filter| &filter.code);
    let room = capture_limit::CAPTURE_FILTER_ROOM.0 as usize;
    let wrong = Error::FilterLength { length: code.len(), room: CaptureFilter::ROOM };
    if code.len() > CaptureFilter::ROOM {
        return Err(wrong);
    }
    // r0 = 0; if r0 != 0, which it never is, to what is left of the empty instructions: the verifier removes them at once,
    // because nothing gets there. Without a packet: no.
    let past = (code.len() as i16 + 2).to_le_bytes();
    let mut patch = vec![
        [0xb7, 0, 0, 0, 0, 0, 0, 0],
        [0x55, 0, past[0], past[1], 0, 0, 0, 0],
        [0x55, 1, 1, 0, 0, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    patch.extend_from_slice(code);
    let mut image = CAPTURE_OBJECT.to_vec();
    // Code lies at a multiple of eight octets in an object.
    let (instructions, _) = image.as_chunks_mut::<8>();
    let empty: Vec<usize> = instructions
        .iter()
        .enumerate()
        .filter_map(|(at, instruction)| (*instruction == NOTHING).then_some(at))
        .collect();
    let first =
        empty.iter().zip(empty.iter().skip(room - 1)).find(|(first, last)| *last - *first == room - 1);
    let Some((first, _)) = first else { return Err(wrong) };
    for (place, instruction) in instructions[*first..].iter_mut().zip(patch) {
        *place = instruction;
    }
    Ok(image)
}
