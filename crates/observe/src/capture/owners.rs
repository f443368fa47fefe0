//! The owners of sockets: from the inode that the kernel's hooks record to the process that has it open.
//!
//! Each record contains the inode, so no list of AF_XDP sockets is needed (sock_diag, a module that many kernels lack),
//! and this works for sockets of every family. Only sockets that were asked for are remembered. /proc is searched in
//! parts, so that a host with very many descriptors causes no long pauses.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, ReadDir};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Sockets remembered; all are forgotten when there are more.
const SOCKETS: usize = 65_536;

/// Sockets that are looked for at once; others wait.
const WANTED: usize = 4096;

/// Descriptors that one part looks at: some 20 ms.
const PART: usize = 16_384;

/// Between two looks through /proc.
const PAUSE: Duration = Duration::from_secs(1);

/// Looking may take one part in this of the time.
const SHARE: u32 = 20;

/// Ancestors of a process that are asked for a socket.
const ANCESTORS: usize = 16;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Its identifier in this PID namespace.
    pub(super) id: u32,
    /// Its name.
    pub(super) name: String,
}

/// Which process has which socket.
#[derive(Debug)]
pub(super) struct Sockets {
    proc: PathBuf,
    part: usize,
    owners: HashMap<u64, Owner>,
    wanted: HashSet<u64>,
    scan: Option<Scan>,
    /// When /proc may be looked at again.
    next: Option<Instant>,
}

/// A look through /proc that is under way.
#[derive(Debug)]
struct Scan {
    /// Those that are still to be looked at.
    processes: Vec<u32>,
    /// The one that is looked at, and what is left of its descriptors.
    current: Option<(u32, ReadDir)>,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            part: PART,
            owners: HashMap::new(),
            wanted: HashSet::new(),
            scan: None,
            next: None,
        }
    }
}

impl Sockets {
    /// The process that has the socket with this inode open; if there are several, one that no other of them has started. Looks it up in /proc, at most once a
    /// second; a process that has ended since remains known.
    pub(super) fn owner(&mut self, inode: u64) -> Option<&Owner> {
        if inode == 0 {
            return None;
        }
        if !self.owners.contains_key(&inode) {
            let now = Instant::now();
            if self.wanted.len() < WANTED {
                self.wanted.insert(inode);
            }
            if self.next.is_some_and(|next| now < next) {
                return None;
            }
            let is_through = self.look();
            let after = now.elapsed() * SHARE;
            self.next = Some(Instant::now() + if is_through { after.max(PAUSE) } else { after });
        }
        self.owners.get(&inode)
    }

    /// Reads descriptors of processes, and goes on where it ended last. True at the end. What goes away while it is read is
    /// left out.
    fn look(&mut self) -> bool {
        if self.owners.len() + self.wanted.len() > SOCKETS {
            self.owners.clear();
        }
        let mut scan =
            self.scan.take().unwrap_or_else(|| Scan { processes: self.processes(), current: None });
        let mut left = self.part;
        while !self.wanted.is_empty() {
            let Some((id, descriptors)) = &mut scan.current else {
                let Some(id) = scan.processes.pop() else { break };
                let folder = self.proc.join(id.to_string()).join("fd");
                scan.current = fs::read_dir(folder).ok().map(|descriptors| (id, descriptors));
                continue;
            };
            if left == 0 {
                self.scan = Some(scan);
                return false;
            }
            left -= 1;
            let id = *id;
            match descriptors.next() {
                None => scan.current = None,
                Some(Err(_)) => {}
                Some(Ok(descriptor)) => {
                    let inode = inode_at(&descriptor.path());
                    if let Some(inode) = inode.filter(|inode| self.wanted.remove(inode)) {
                        let owner = self.process(self.first_holder(id, &descriptor.file_name(), inode));
                        self.owners.insert(inode, owner);
                    }
                }
            }
        }
        // Who is not found is looked for when asked for once more.
        self.wanted.clear();
        true
    }

    /// All of them, the newest last.
    fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        let mut processes: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        processes.sort_unstable();
        processes
    }

    /// The first of a process and its ancestors in a row that have a socket under the same number. A process that starts another has its
    /// sockets in that one too, until the other program runs.
    fn first_holder(&self, mut id: u32, descriptor: &OsStr, inode: u64) -> u32 {
        for _ in 0..ANCESTORS {
            let Some(parent) = self.parent(id) else { break };
            if inode_at(&self.proc.join(parent.to_string()).join("fd").join(descriptor)) != Some(inode) {
                break;
            }
            id = parent;
        }
        id
    }

    /// Of proc_pid_stat(5): behind the name, which may contain anything, state and parent.
    fn parent(&self, id: u32) -> Option<u32> {
        let stat = fs::read_to_string(self.proc.join(id.to_string()).join("stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    }

    fn process(&self, id: u32) -> Owner {
        let name = fs::read_to_string(self.proc.join(id.to_string()).join("comm")).unwrap_or_default();
        Owner { id, name: name.trim_end().to_owned() }
    }
}

/// The inode of a socket that a link in `/proc/…/fd` leads to.
fn inode_at(link: &Path) -> Option<u64> {
    inode_of(fs::read_link(link).ok()?.to_str()?)
}

/// The inode of `socket:[123]`.
fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_socket_of_this_process_is_its_own() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode = inode_of(link.to_str().unwrap()).unwrap();
        let mut sockets = Sockets { part: usize::MAX, ..Sockets::default() };
        assert_eq!(sockets.owner(inode).unwrap().id, std::process::id());
        assert_eq!(sockets.owner(0), None);
        assert_eq!(sockets.owner(u64::MAX), None);
    }

    #[test]
    fn many_descriptors_are_looked_at_in_parts_and_only_what_is_wanted_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        for process in 1..=3u64 {
            let descriptors = folder.path().join(process.to_string()).join("fd");
            fs::create_dir_all(&descriptors).unwrap();
            fs::write(folder.path().join(process.to_string()).join("comm"), format!("name{process}\n"))
                .unwrap();
            for number in 0..100 {
                symlink(
                    format!("socket:[{}]", process * 1000 + number),
                    descriptors.join(number.to_string()),
                )
                .unwrap();
            }
        }
        let mut sockets = Sockets { proc: folder.path().to_owned(), part: 64, ..Sockets::default() };
        // In the oldest process, so that it comes last.
        let mut parts = 0;
        let owner = loop {
            parts += 1;
            sockets.next = None;
            if let Some(owner) = sockets.owner(1042) {
                break owner.clone();
            }
        };
        assert_eq!(owner, Owner { id: 1, name: "name1".to_owned() });
        assert!((4..=5).contains(&parts), "{parts}");
        assert_eq!(sockets.owners.len(), 1);
        // One that nobody has is looked for to the end, and then no more until it is asked for.
        sockets.next = None;
        sockets.owner(5);
        while sockets.scan.is_some() {
            assert!(!sockets.look() || sockets.scan.is_none());
        }
        assert!(sockets.wanted.is_empty() && sockets.owner(5).is_none());
    }

    #[test]
    fn who_starts_another_program_has_its_sockets_and_not_the_other() {
        let folder = tempfile::tempdir().unwrap();
        // Process 30 was started by 20, and that by 10, which has another socket under the number.
        for (process, parent, inode) in [(10, 1, 5), (20, 10, 42), (30, 20, 42)] {
            let process = folder.path().join(process.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::write(process.join("stat"), format!("1 (a) b) S {parent} 0 0\n")).unwrap();
            symlink(format!("socket:[{inode}]"), process.join("fd/3")).unwrap();
        }
        let mut sockets = Sockets { proc: folder.path().to_owned(), ..Sockets::default() };
        assert_eq!(sockets.owner(42).unwrap().id, 20);
        // One that is its own ancestor, as no kernel has it, is looked at and left.
        fs::write(folder.path().join("20/stat"), "1 (a) S 30 0 0\n").unwrap();
        let mut sockets = Sockets { proc: folder.path().to_owned(), ..Sockets::default() };
        assert!(sockets.owner(42).is_some());
    }

    #[test]
    fn links_that_are_no_sockets_have_no_inode() {
        assert_eq!(inode_of("socket:[17]"), Some(17));
        for other in ["pipe:[17]", "socket:[]", "socket:[17", "/dev/null", "socket:[-1]"] {
            assert_eq!(inode_of(other), None);
        }
    }
}
