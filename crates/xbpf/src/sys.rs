//! The bpf(2) and netlink calls that libbpf-rs has no safe form of: links with a mode, detaching
//! exactly one program, names by file descriptor, test runs on split frames.
//!
//! Each function is one call into libbpf with its arguments checked by type and its result turned into
//! an [`io::Result`]; nothing is kept between calls.
#![allow(unsafe_code, reason = "calls into libbpf's C interface")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use libbpf_rs::libbpf_sys as ffi;

use crate::link::Link;

/// libbpf 1.x returns `-errno`, or a value that is not negative.
fn result(code: i32) -> io::Result<i32> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(code) }
}

/// Interface indices are positive `int`s in the kernel; anything else names no interface.
fn index(ifindex: u32) -> io::Result<i32> {
    i32::try_from(ifindex)
        .ok()
        .filter(|index| *index > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// BPF_LINK_CREATE of an XDP program; `flags` choose the mode (`XDP_FLAGS_DRV_MODE`, `_SKB_MODE`).
pub(crate) fn link_create(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<Link> {
    let options = ffi::bpf_link_create_opts {
        sz: size_of::<ffi::bpf_link_create_opts>() as ffi::size_t,
        flags,
        ..Default::default()
    };
    link(program, index(ifindex)?, ffi::BPF_XDP, &options)
}

/// BPF_LINK_CREATE of a tc program at the ingress of an interface, behind those that are there (tcx, Linux 6.6).
pub(crate) fn link_tcx_ingress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Link> {
    link(program, index(ifindex)?, ffi::BPF_TCX_INGRESS, &no_options())
}

/// BPF_LINK_CREATE of a sockops program for a cgroup, beside those that are there.
pub(crate) fn link_sockops(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<Link> {
    link(program, cgroup.as_raw_fd(), ffi::BPF_CGROUP_SOCK_OPS, &no_options())
}

fn no_options() -> ffi::bpf_link_create_opts {
    ffi::bpf_link_create_opts {
        sz: size_of::<ffi::bpf_link_create_opts>() as ffi::size_t,
        ..Default::default()
    }
}

fn link(
    program: BorrowedFd<'_>,
    target: i32,
    kind: ffi::bpf_attach_type,
    options: &ffi::bpf_link_create_opts,
) -> io::Result<Link> {
    // SAFETY: `program` is open for the call, `options` is a whole struct that names its size, and a target that is
    // no descriptor or index is an error.
    let fd = result(unsafe { ffi::bpf_link_create(program.as_raw_fd(), target, kind, options) })?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// BPF_LINK_DETACH: takes the program off now, however many descriptors refer to the link.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `link` is open for the call.
    result(unsafe { ffi::bpf_link_detach(link.as_raw_fd()) }).map(drop)
}

/// BPF_LINK_UPDATE: the link's program from now on, with no packet between the two.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both are open for the call; the options may be absent.
    let code = unsafe { ffi::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
    result(code).map(drop)
}

/// Puts `program` on `ifindex` by netlink, in place of `expected`, or where there is none. EEXIST or EBUSY when
/// there is another one.
pub(crate) fn attach(
    ifindex: u32,
    flags: u32,
    program: BorrowedFd<'_>,
    expected: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let options = ffi::bpf_xdp_attach_opts {
        sz: size_of::<ffi::bpf_xdp_attach_opts>() as ffi::size_t,
        old_prog_fd: expected.map_or(0, |expected| expected.as_raw_fd()),
        ..Default::default()
    };
    let flags = if expected.is_some() { flags } else { flags | ffi::XDP_FLAGS_UPDATE_IF_NOEXIST };
    // SAFETY: both programs are open for the call and `options` is a whole struct that names its size.
    result(unsafe { ffi::bpf_xdp_attach(index(ifindex)?, program.as_raw_fd(), flags, &options) }).map(drop)
}

/// BPF_LINK_CREATE of an extension: `program` takes the place of the function whose BTF id is `function`.
pub(crate) fn extend(program: BorrowedFd<'_>, target: BorrowedFd<'_>, function: u32) -> io::Result<OwnedFd> {
    let options = ffi::bpf_link_create_opts {
        sz: size_of::<ffi::bpf_link_create_opts>() as ffi::size_t,
        target_btf_id: function,
        ..Default::default()
    };
    // SAFETY: both programs are open for the call and `options` is a whole struct that names its size. An
    // extension's attach type is 0.
    let code = unsafe { ffi::bpf_link_create(program.as_raw_fd(), target.as_raw_fd(), 0, &options) };
    let fd = result(code)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// BPF_OBJ_PIN: a name for a program or link in the BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_string(path)?;
    // SAFETY: `object` is open for the call and `path` ends by a zero.
    result(unsafe { ffi::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// BPF_OBJ_GET: the object of a name.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = path_string(path)?;
    // SAFETY: `path` ends by a zero.
    let fd = result(unsafe { ffi::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn path_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Takes off the program that netlink put on `ifindex`, if it still is `program`.
pub(crate) fn detach(ifindex: u32, flags: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let options = ffi::bpf_xdp_attach_opts {
        sz: size_of::<ffi::bpf_xdp_attach_opts>() as ffi::size_t,
        old_prog_fd: program.as_raw_fd(),
        ..Default::default()
    };
    // SAFETY: `program` is open for the call and `options` is a whole struct that names its size.
    result(unsafe { ffi::bpf_xdp_detach(index(ifindex)?, flags, &options) }).map(drop)
}

/// The XDP program on an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    /// Kernel-wide program id.
    pub(crate) program: u32,
    /// The `XDP_FLAGS_*_MODE` it runs in.
    pub(crate) mode: u32,
}

/// Asks netlink for the XDP program on `ifindex`.
pub(crate) fn query(ifindex: u32) -> io::Result<Option<Attached>> {
    let mut options = ffi::bpf_xdp_query_opts {
        sz: size_of::<ffi::bpf_xdp_query_opts>() as ffi::size_t,
        ..Default::default()
    };
    // SAFETY: `options` is a whole struct that names its size, and is ours to be written to.
    result(unsafe { ffi::bpf_xdp_query(index(ifindex)?, 0, &mut options) })?;
    let by_mode = [
        (options.drv_prog_id, ffi::XDP_FLAGS_DRV_MODE),
        (options.skb_prog_id, ffi::XDP_FLAGS_SKB_MODE),
        (options.hw_prog_id, ffi::XDP_FLAGS_HW_MODE),
    ];
    Ok(by_mode.into_iter().find(|(id, _)| *id != 0).map(|(program, mode)| Attached { program, mode }))
}

/// What the kernel knows of a program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramInfo {
    /// Kernel-wide id.
    pub(crate) id: u32,
    /// Name as loaded, at most 15 characters.
    pub(crate) name: String,
    /// Ids of the maps that it uses.
    pub(crate) maps: Vec<u32>,
}

/// Asks the kernel about a program.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    // MAX_USED_MAPS of kernel/bpf/verifier.c.
    let mut maps = [0u32; 64];
    let mut info = ffi::bpf_prog_info {
        nr_map_ids: maps.len() as u32,
        map_ids: maps.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut size = size_of::<ffi::bpf_prog_info>() as u32;
    // SAFETY: `info` is ours and `size` bytes long; the one array that it asks for is `maps`, with its length.
    result(unsafe { ffi::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut size) })?;
    // SAFETY: the kernel ends the name by a zero within its 16 bytes (BPF_OBJ_NAME_LEN).
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    let count = maps.len().min(info.nr_map_ids as usize);
    Ok(ProgramInfo { id: info.id, name: name.to_string_lossy().into_owned(), maps: maps[..count].to_vec() })
}

/// How often the kernel did not run a tracing program, because it was running on that CPU already.
pub(crate) fn misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = ffi::bpf_prog_info::default();
    let mut size = size_of::<ffi::bpf_prog_info>() as u32;
    // SAFETY: `info` is ours, zeroed (so it asks for no arrays), and `size` bytes long.
    result(unsafe { ffi::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut size) })?;
    Ok(info.recursion_misses)
}

/// What the kernel calls the network namespace of the calling thread (`SO_NETNS_COOKIE`, Linux 5.14).
pub(crate) fn network_namespace() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    /// `asm-generic/socket.h`; libc has no constant for it.
    const SO_NETNS_COOKIE: i32 = 71;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, and `length` is the true size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Name of the program behind `program`.
pub(crate) fn program_name(program: BorrowedFd<'_>) -> io::Result<String> {
    program_info(program).map(|info| info.name)
}

/// The BTF of a program and the type of its first function in it; `None` without BTF.
pub(crate) fn program_function(program: BorrowedFd<'_>) -> io::Result<Option<(u32, u32)>> {
    let mut function = ffi::bpf_func_info::default();
    let mut info = ffi::bpf_prog_info {
        nr_func_info: 1,
        func_info_rec_size: size_of::<ffi::bpf_func_info>() as u32,
        func_info: (&raw mut function) as u64,
        ..Default::default()
    };
    let mut size = size_of::<ffi::bpf_prog_info>() as u32;
    // SAFETY: `info` is ours, `size` bytes long, and has room for one record at an address that is ours too.
    result(unsafe { ffi::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &mut size) })?;
    Ok((info.btf_id != 0 && info.nr_func_info > 0).then_some((info.btf_id, function.type_id)))
}

/// The values of an array map, one behind the other: `count` of `size` bytes at most.
pub(crate) fn array_values(map: BorrowedFd<'_>, size: usize, count: u32) -> io::Result<Vec<u8>> {
    let mut values = vec![0u8; size * count as usize];
    let mut keys = vec![0u32; count as usize];
    let (mut done, mut next) = (count, 0u32);
    let options = ffi::bpf_map_batch_opts {
        sz: size_of::<ffi::bpf_map_batch_opts>() as ffi::size_t,
        ..Default::default()
    };
    // SAFETY: `map` is open for the call; keys and values have room for `done` elements of the map's sizes, and the next
    // key for one.
    let code = unsafe {
        ffi::bpf_map_lookup_batch(
            map.as_raw_fd(),
            std::ptr::null_mut(),
            (&raw mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &mut done,
            &options,
        )
    };
    match result(code) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        // ENOENT: that was the last one.
        _ => {
            values.truncate(size * done.min(count) as usize);
            Ok(values)
        }
    }
}

/// The interface that an XDP or tcx link is on; 0 once the interface has gone.
pub(crate) fn link_interface(link: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = ffi::bpf_link_info::default();
    let mut size = size_of::<ffi::bpf_link_info>() as u32;
    // SAFETY: `info` is ours, zeroed (so it asks for no strings), and `size` bytes long.
    result(unsafe { ffi::bpf_obj_get_info_by_fd(link.as_raw_fd(), (&raw mut info).cast(), &mut size) })?;
    match info.type_ {
        // SAFETY: the type says that the kernel filled the union's `xdp` member.
        ffi::BPF_LINK_TYPE_XDP => Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex }),
        // SAFETY: likewise its `tcx` member.
        ffi::BPF_LINK_TYPE_TCX => Ok(unsafe { info.__bindgen_anon_1.tcx.ifindex }),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

/// Whether this process may walk the links of the system (CAP_SYS_ADMIN).
pub(crate) fn links_visible() -> bool {
    let mut next = 0;
    // SAFETY: `next` is ours to be written to.
    let code = unsafe { ffi::bpf_link_get_next_id(0, &mut next) };
    result(code).is_ok_and(|_| true) || code == -libc::ENOENT
}

/// Programs of tracing links to a program: those that have taken the place of one of its functions, as a dispatcher's components
/// do, and those that trace it. At most so many links of the system are looked at.
pub(crate) fn programs_at(program: u32, links: usize) -> io::Result<Vec<u32>> {
    let (mut found, mut id) = (Vec::new(), 0);
    for _ in 0..links {
        // SAFETY: `id` is ours to be read and written.
        match result(unsafe { ffi::bpf_link_get_next_id(id, &mut id) }) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(error),
        }
        // SAFETY: no pointer is passed.
        let descriptor = match result(unsafe { ffi::bpf_link_get_fd_by_id(id) }) {
            // SAFETY: it is new, and nobody else's.
            Ok(descriptor) => unsafe { OwnedFd::from_raw_fd(descriptor) },
            // One that has gone, or is only just being made.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => continue,
            Err(error) => return Err(error),
        };
        let mut info = ffi::bpf_link_info::default();
        let mut size = size_of::<ffi::bpf_link_info>() as u32;
        let (to, info_at) = (descriptor.as_raw_fd(), (&raw mut info).cast());
        // SAFETY: `info` is ours, zeroed (so it asks for no strings), and `size` bytes long.
        result(unsafe { ffi::bpf_obj_get_info_by_fd(to, info_at, &mut size) })?;
        // SAFETY: any type of link fills a union of integers, which is zeroed beyond that.
        let target = unsafe { info.__bindgen_anon_1.tracing.target_obj_id };
        if info.type_ == ffi::BPF_LINK_TYPE_TRACING && target == program {
            found.push(info.prog_id);
        }
    }
    Ok(found)
}

/// What a test run is given beyond the frame.
#[derive(Default)]
pub(crate) struct TestRunInput<'a> {
    /// The frame from its Ethernet header on.
    pub(crate) frame: &'a [u8],
    /// Bytes of it in the linear part; the rest lies in fragments.
    pub(crate) linear: Option<u32>,
    /// Interface of the calling thread's namespace that it is received on; 0 for none.
    pub(crate) ifindex: u32,
    /// Bytes that the program may put in front.
    pub(crate) room: u32,
    /// Bytes of metadata in front of the frame, which take the place that there is for headers. Not in what comes back.
    pub(crate) metadata: u32,
    /// Times to run.
    pub(crate) repeat: u32,
}

/// What a test run gave back: return value, the frame afterwards, mean nanoseconds a run.
pub(crate) struct TestRunOutput {
    pub(crate) verdict: u32,
    pub(crate) frame: Vec<u8>,
    pub(crate) nanoseconds: u32,
}

/// The most metadata: a test run has 256 bytes in front of a frame (`XDP_PACKET_HEADROOM`), 40 of which `struct xdp_frame` takes, so
/// no program can put a header in front then (`bpf_xdp_adjust_head` in net/core/filter.c).
pub(crate) const ALL_ROOM: u32 = 216;

/// BPF_PROG_TEST_RUN of an XDP program.
pub(crate) fn test_run(program: BorrowedFd<'_>, input: &TestRunInput<'_>) -> io::Result<TestRunOutput> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let metadata = input.metadata;
    let data = [&vec![0; metadata as usize], input.frame].concat();
    let length = u32::try_from(data.len()).map_err(invalid)?;
    let repeat = i32::try_from(input.repeat).map_err(invalid)?;
    let mut out = vec![0; data.len() + input.room as usize];
    let context = (input.linear.is_some() || input.ifindex != 0 || metadata != 0).then(|| ffi::xdp_md {
        data: metadata,
        data_end: input.linear.map_or(length, |linear| metadata + linear),
        ingress_ifindex: input.ifindex,
        ..Default::default()
    });
    let mut options = ffi::bpf_test_run_opts {
        sz: size_of::<ffi::bpf_test_run_opts>() as ffi::size_t,
        data_in: data.as_ptr().cast(),
        data_size_in: length,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: length + input.room,
        repeat,
        ..Default::default()
    };
    if let Some(context) = &context {
        options.ctx_in = (&raw const *context).cast();
        options.ctx_size_in = size_of::<ffi::xdp_md>() as u32;
    }
    // SAFETY: the pointers in `options` come from `data`, `out` and `context`, which outlive the
    // call, with their lengths beside them; the kernel writes to `out` and `options` only.
    result(unsafe { ffi::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    out.truncate(options.data_size_out as usize);
    out.drain(..out.len().min(metadata as usize));
    Ok(TestRunOutput { verdict: options.retval, frame: out, nanoseconds: options.duration })
}

/// Moves the calling thread into a new network namespace. CAP_SYS_ADMIN.
pub(crate) fn leave_network_namespace() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET takes nothing apart that other threads share: no memory, no descriptors, no file system
    // state.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?)
}

/// `BPF_F_TEST_XDP_LIVE_FRAMES` (`include/uapi/linux/bpf.h`, Linux 5.18).
const LIVE_FRAMES: u32 = 1 << 1;

/// BPF_PROG_TEST_RUN with live frames: runs an XDP program `repeat` times on pages that hold `frame` at first and
/// that the kernel really drops, passes or redirects, as if `ifindex` had received them. `batch` at a time go to
/// the device.
pub(crate) fn live_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ifindex: u32,
    repeat: u32,
    batch: u32,
) -> io::Result<()> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let length = u32::try_from(frame.len()).map_err(invalid)?;
    let context = ffi::xdp_md { data_end: length, ingress_ifindex: ifindex, ..Default::default() };
    let mut options = ffi::bpf_test_run_opts {
        sz: size_of::<ffi::bpf_test_run_opts>() as ffi::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: length,
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of::<ffi::xdp_md>() as u32,
        repeat: i32::try_from(repeat).map_err(invalid)?,
        flags: LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: the pointers in `options` come from `frame` and `context`, which outlive the call, with their lengths
    // beside them; the kernel only reads from them.
    result(unsafe { ffi::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) }).map(drop)
}

/// The first value of an array map with BPF_F_MMAPABLE, shared with the kernel.
#[derive(Debug)]
pub(crate) struct MappedValue<T> {
    value: NonNull<T>,
}

// SAFETY: the mapping belongs to this value alone, and nothing of it is bound to a thread.
unsafe impl<T: Send> Send for MappedValue<T> {}

impl<T: Plain> MappedValue<T> {
    /// Maps the value of `map`, which has values of `T`'s size: the skeleton's type is from that map's BTF.
    pub(crate) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel finds room touches no memory of ours.
        let address =
            unsafe { mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, map, 0) }?;
        NonNull::new(address.cast())
            .map(|value| Self { value })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// The value, while no program runs that writes to it.
    pub(crate) fn get(&mut self) -> &mut T {
        // SAFETY: the mapping is as long as `T`, page-aligned and lives as long as `self`; `Plain` says that any
        // bytes are a `T`. The one program that writes to it runs inside calls of `live_run`, to which whoever
        // holds this reference has not come.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for MappedValue<T> {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping, to which no reference is left.
        let _ = unsafe { rustix::mm::munmap(self.value.as_ptr().cast(), size_of::<T>()) };
    }
}

/// Types of which any bytes are a value.
///
/// # Safety
/// No padding that is read, no pointer, no enum, no `bool`.
pub(crate) unsafe trait Plain {}

// SAFETY: integers and arrays of them (`bpf/include/live_shared.h`).
unsafe impl Plain for crate::skeleton::live::types::live_ring {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_that_name_no_interface_are_refused_before_the_kernel() {
        for wrong in [0, 1 << 31, u32::MAX] {
            assert_eq!(query(wrong).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }
}
