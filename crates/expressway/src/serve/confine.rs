//! Confining the server once it has given up privilege: Landlock for files, seccomp for system calls. Both are
//! settings that threads inherit, so this comes before the first thread.
//!
//! A kernel without Landlock serves all the same, and the log says so. A system call that is not on the list kills
//! the process by SIGSYS, and the kernel's audit log names its number (`type=1326 … syscall=N`); with
//! `seccomp = "log"` it is only logged there.
//!
//! Without privileges the process is confined before its first thread: Landlock to the directories that the
//! configuration names, seccomp to a list of calls without execve, bpf or ptrace. Directories rather than files,
//! because certificates and logs are replaced by renaming. The Kubernetes device plugin has its own protocol, which
//! hands out the XSKMAP of the plugin's program; sockets are then made in this process, which takes CAP_NET_RAW in the
//! pod.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use expressway_settings::admin::Address;
use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::config::{Config, Seccomp};
use crate::fail::Failure;

/// The newest rights that are asked for; older kernels enforce what they know.
const LANDLOCK: ABI = ABI::V5;

/// What a running server calls: memory and threads, its descriptors and sockets, files to read and logs to append
/// to.
/// No program is started, no file renamed or removed, nothing attached or mounted.
const CALLS: &[libc::c_long] = &[
    // Memory, threads, time.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_membarrier,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_prctl,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    // Descriptors and waiting.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    // Sockets.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    // Files.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    // The folder of qlog files.
    libc::SYS_mkdirat,
    libc::SYS_getcwd,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
];

/// What the disk store of the cache calls: its space is taken beforehand, its list of purges replaced by renaming.
const DISK_CALLS: &[libc::c_long] = &[
    libc::SYS_flock,
    libc::SYS_fallocate,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
];

/// Calls that only older machines have; the C library prefers them there.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_access,
    libc::SYS_mkdir,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_arch_prctl,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[libc::c_long] = &[];

/// For files that are replaced or removed while the server runs: those of ACME, the admin listener's socket.
#[cfg(target_arch = "x86_64")]
const REPLACING_CALLS: &[libc::c_long] =
    &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlink, libc::SYS_unlinkat];
#[cfg(not(target_arch = "x86_64"))]
const REPLACING_CALLS: &[libc::c_long] = &[libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlinkat];

/// What the C library reads to look up the name of ACME's authority, and the TLS library to trust it.
const RESOLVER: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/run/systemd/resolve",
    "/etc/ssl",
    "/etc/pki/tls",
    "/etc/pki/ca-trust",
    "/usr/share/ca-certificates",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/etc/ld.so.cache",
];

/// What was obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// Files are confined to those that the configuration names.
    pub(crate) landlock: bool,
    /// System calls are.
    pub(crate) seccomp: bool,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on| if on { "on" } else { "off" };
        write!(f, "landlock {}, seccomp {}", word(self.landlock), word(self.seccomp))
    }
}

/// Confines this process to what the configuration names.
pub(crate) fn confine(config: &Config) -> Result<Confinement, Failure> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Failure::run_time(format!("no_new_privs: {errno}")))?;
    let landlock = config.server.landlock && landlock(config)?;
    let seccomp = match config.server.seccomp {
        Seccomp::Off => false,
        Seccomp::Log => filter(SeccompAction::Log, config)?,
        Seccomp::Enforce => filter(SeccompAction::KillProcess, config)?,
    };
    let confinement = Confinement { landlock, seccomp };
    tracing::info!("confined: {confinement}");
    Ok(confinement)
}

/// Folders rather than files, because files are replaced by renaming and read again by a reload.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The folder of a file, and of what it leads to if it is a link: links that are replaced by others to the same folder can be followed.
fn folders(path: &Path) -> Vec<PathBuf> {
    let target = std::fs::canonicalize(path).ok().map(|target| folder(&target));
    std::iter::once(folder(path)).chain(target).collect()
}

/// What the C library's resolver and BoringSSL read when an origin takes them. A reload that brings the first such
/// origin takes a restart to work.
fn origins(config: &Config) -> Vec<PathBuf> {
    let mut read: Vec<_> =
        config.origins.iter().flat_map(|o| o.get_ref().files()).map(|f| folder(f.get_ref())).collect();
    let options = config.origins().unwrap_or_default();
    let servers = || options.iter().flat_map(|origin| &origin.servers);
    if servers().any(|server| server.endpoint.is_named()) {
        // resolv.conf is replaced by renaming, and may be a link; NSS modules are libraries.
        let resolver = [
            "/etc",
            "/run/systemd/resolve",
            "/run/resolvconf",
            "/run/NetworkManager",
            "/lib",
            "/lib64",
            "/usr/lib",
            "/usr/lib64",
        ];
        read.extend(resolver.map(PathBuf::from));
    }
    if servers().any(|server| server.endpoint.tls) {
        // BoringSSL's default paths, and where what lies there points to.
        let authorities = [
            "/etc/ssl",
            "/etc/pki",
            "/etc/ca-certificates",
            "/usr/share/ca-certificates",
            "/usr/local/share/ca-certificates",
        ];
        read.extend(authorities.map(PathBuf::from));
    }
    read
}

/// The path of the admin listener's socket, if it is a unix socket.
fn admin_socket(config: &Config) -> Option<&Path> {
    match config.admin.as_ref()?.listen.get_ref() {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) => None,
    }
}

fn landlock(config: &Config) -> Result<bool, Failure> {
    let failed = |error: &dyn fmt::Display| Failure::run_time(format!("[server] landlock: {error}"));
    let mut read = vec![folder(config.file())];
    read.extend(config.tls_paths().iter().map(|path| folder(path.get_ref())));
    let balancing = config.quic.load_balancing.as_ref().and_then(|one| one.get_ref().key_file.as_ref());
    read.extend(balancing.map(|file| folder(file.get_ref())));
    read.extend(config.sites.iter().filter_map(|site| site.root.as_ref()).map(|root| root.get_ref().clone()));
    read.extend(config.sites.iter().flat_map(|site| site.token_keys()).map(|keys| folder(keys.get_ref())));
    read.extend(config.server.guard_keys.iter().map(|keys| folder(keys.get_ref())));
    let shared = config.keys.iter().flat_map(|keys| [&keys.file, &keys.signer]);
    read.extend(shared.flat_map(|file| folders(file.get_ref())));
    let tokens = config.admin.iter().filter_map(|admin| admin.token_file.as_ref());
    read.extend(tokens.map(|tokens| folder(tokens.get_ref())));
    read.extend(origins(config));
    if config.io.device_plugin.is_some() {
        // NUMA node and cores of the NIC, which are looked up by this process.
        read.push(PathBuf::from("/sys/devices"));
    }
    let logs = [&config.tls.keylog, &config.log.access].into_iter().flatten();
    let mut write: Vec<PathBuf> =
        logs.filter(|path| path.as_os_str() != "-").map(|path| folder(path)).collect();
    if config.acme.is_some() {
        read.extend(RESOLVER.iter().map(PathBuf::from));
    }
    write.extend(config.quic.qlog.iter().map(|folder| folder.get_ref().clone()));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules(read, AccessFs::ReadFile | AccessFs::ReadDir)))
        .and_then(|rules| {
            let append = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::MakeReg;
            rules.add_rules(path_beneath_rules(write, append))
        })
        .and_then(|rules| {
            // Files are replaced by renaming; what a process left that was killed meanwhile is overwritten.
            let replace = AccessFs::ReadFile
                | AccessFs::WriteFile
                | AccessFs::MakeReg
                | AccessFs::RemoveFile
                | AccessFs::Truncate;
            let folders = config.acme.iter().map(|acme| &acme.directory);
            rules.add_rules(path_beneath_rules(folders, replace))
        })
        .and_then(|rules| {
            // The list of purges is replaced by renaming.
            let replace = AccessFs::ReadFile
                | AccessFs::ReadDir
                | AccessFs::WriteFile
                | AccessFs::MakeReg
                | AccessFs::RemoveFile
                | AccessFs::Truncate;
            rules.add_rules(path_beneath_rules(config.cache.disk.iter().map(|disk| disk.get_ref()), replace))
        })
        .and_then(|rules| {
            // Its name goes with it.
            rules.add_rules(path_beneath_rules(admin_socket(config).map(folder), AccessFs::RemoveFile))
        })
        .and_then(|rules| rules.restrict_self())
        .map_err(|error| failed(&error))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        tracing::warn!("this kernel does not support Landlock: file access is not confined");
    }
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn filter(otherwise: SeccompAction, config: &Config) -> Result<bool, Failure> {
    let failed = |error: &dyn fmt::Display| {
        Failure::run_time(format!("[server] seccomp: {error}; set seccomp = \"off\" to run without it"))
    };
    let mut calls: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        CALLS.iter().chain(OLD_CALLS).map(|call| (*call, Vec::new())).collect();
    if config.cache.disk.is_some() {
        calls.extend(DISK_CALLS.iter().map(|call| (*call, Vec::new())));
    }
    if config.io.device_plugin.is_some() {
        // Sockets go into the plugin's map by this process.
        calls.insert(libc::SYS_bpf, Vec::new());
    }
    if config.acme.is_some() || admin_socket(config).is_some() {
        calls.extend(REPLACING_CALLS.iter().map(|call| (*call, Vec::new())));
    }
    let architecture = std::env::consts::ARCH.try_into().map_err(|error| failed(&error))?;
    let filter = SeccompFilter::new(calls, otherwise, SeccompAction::Allow, architecture)
        .map_err(|error| failed(&error))?;
    let program: BpfProgram = filter.try_into().map_err(|error: seccompiler::BackendError| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_stands_twice_and_none_starts_programs() {
        let mut calls: Vec<_> = CALLS.iter().chain(OLD_CALLS).collect();
        calls.sort_unstable();
        let before = calls.len();
        calls.dedup();
        assert_eq!(calls.len(), before);
        for forbidden in
            [libc::SYS_execve, libc::SYS_ptrace, libc::SYS_bpf, libc::SYS_mount, libc::SYS_setuid]
        {
            assert!(!calls.contains(&&forbidden));
        }
    }

    #[test]
    fn a_link_to_another_folder_may_be_followed() {
        let place = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(|name| place.path().canonicalize().unwrap().join(name));
        for path in [&here, &there] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(there.join("shared.keys"), "").unwrap();
        let link = here.join("link");
        std::os::unix::fs::symlink("../there/shared.keys", &link).unwrap();
        assert_eq!(folders(&link), [here.clone(), there]);
        assert_eq!(folders(&here.join("none")), [here]);
    }

    #[test]
    fn a_file_without_a_folder_lies_in_this_one() {
        assert_eq!(folder(Path::new("expressway.toml")), Path::new("."));
        assert_eq!(folder(Path::new("/etc/expressway/cert.pem")), Path::new("/etc/expressway"));
    }
}
