//! Sockets that another process binds: by the same measure as one's own, over memory that is known to be free again
//! only when it is.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use expressway_netio::route::{NetlinkSource, OwnNamespace};
use expressway_netio::xsk::{
    BindMode, BoundXsk, OpenError, RemoteBinder, XskBinding, XskConfig, bind_for, is_released, umem_len,
};
use expressway_xbpf::{Options, Redirect};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals};

use crate::common::netns::{NEAR_DEVICE, Pair, is_privileged};

/// Makes sockets as another process would, and keeps their memory.
struct Elsewhere {
    redirect: Redirect,
    memories: Arc<Mutex<Vec<OwnedFd>>>,
}

impl RemoteBinder for Elsewhere {
    fn bind(&mut self, config: &XskConfig, memory: BorrowedFd<'_>) -> Result<BoundXsk, OpenError> {
        self.memories.lock().unwrap().push(memory.try_clone_to_owned().unwrap());
        bind_for(config, memory, self.redirect.xsk_map())
    }

    fn namespace(&self) -> &dyn NetlinkSource {
        &OwnNamespace
    }
}

fn redirect() -> Redirect {
    Redirect::load(&Options::default()).unwrap()
}

fn small(mode: BindMode) -> XskConfig {
    XskConfig { mode, rx_ring: 64, tx_ring: 64, ..XskConfig::new(NEAR_DEVICE, 0) }
}

#[test]
fn frames_are_chosen_by_the_mtu_whoever_binds() {
    if !is_privileged() {
        return;
    }
    for mtu in [1280, 1500, 1780, 3050, 3051, 3400] {
        let pair = Pair::new(mtu, 1);
        for mode in [BindMode::Auto, BindMode::Copy] {
            let own = pair.near.enter(|| {
                let redirect = redirect();
                let binding = XskBinding::open(small(mode), redirect.xsk_map()).unwrap();
                binding.report().multi_buffer
            });
            let memories = Arc::new(Mutex::new(Vec::new()));
            let source = Elsewhere { redirect: redirect(), memories: memories.clone() };
            let other = pair.near.enter(|| {
                let binding = XskBinding::open_from(small(mode), Box::new(source)).unwrap();
                binding.report().multi_buffer
            });
            assert_eq!(other, own, "MTU {mtu}, {mode}");
            // The same as the frames of 2048 bytes that were asked for, where they do.
            let bytes = rustix::fs::fstat(&memories.lock().unwrap()[0]).unwrap().st_size as u64;
            let enlarged = mode == BindMode::Auto && (1003..=3050).contains(&mtu);
            assert_eq!(bytes, umem_len(&small(mode)) * if enlarged { 2 } else { 1 }, "MTU {mtu}, {mode}");
        }
    }
}

#[test]
fn frames_that_do_not_fit_the_mtu_are_not_bound() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let memory = memfd(umem_len(&small(BindMode::Auto)));
    let redirect = redirect();
    let error = pair.near.enter(|| bind_for(&small(BindMode::Auto), memory.as_fd(), redirect.xsk_map()));
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "AF_XDP frame_size = 2048: must be 4096 for the interface's current MTU");
}

/// Memory of a stranger's making.
fn memfd(bytes: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let memory = memfd_create(c"test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, bytes).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    memory
}

#[test]
fn memory_is_free_when_no_socket_has_it() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let (config, redirect) = (small(BindMode::Copy), redirect());
    let bytes = umem_len(&config);
    let memory = memfd(bytes);
    let bound = pair.near.enter(|| bind_for(&config, memory.as_fd(), redirect.xsk_map())).unwrap();
    assert!(!is_released(memory.as_fd()), "the socket has it");
    // Whatever its owner tries: pages that are out of the file are pinned all the same.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&memory, punch, 0, bytes), Err(rustix::io::Errno::PERM));
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let reopened = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(fallocate(&reopened, punch, 0, bytes).is_err());
    assert!(!fcntl_get_seals(&memory).unwrap().contains(SealFlags::WRITE));
    drop(bound);
    // The kernel lets go of it later than the close returns.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_released(memory.as_fd()) {
        assert!(Instant::now() < deadline, "never free");
    }
}

#[test]
fn memory_that_would_not_tell_is_refused() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let (config, redirect) = (small(BindMode::Copy), redirect());
    let bytes = umem_len(&config);
    let sealed = |seals| {
        let memory = memfd(bytes);
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory
    };
    let plain: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for (memory, part) in [
        (sealed(SealFlags::SEAL), "cannot be sealed"),
        (sealed(SealFlags::FUTURE_WRITE), "Operation not permitted"),
        (memfd(bytes - 4096), "smaller than the requested frames"),
        (plain, "not a memfd"),
    ] {
        let error = pair.near.enter(|| bind_for(&config, memory.as_fd(), redirect.xsk_map())).unwrap_err();
        assert!(error.to_string().contains(part), "{error} has no `{part}`");
    }
}
