//! Which processes hold which sockets, from `/proc`.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use super::{Holder, Socket};

/// How long an answer is good for; a new socket is looked for at once, but not more often.
const GOOD_FOR: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// What `/proc` said last of sockets that were asked for.
#[derive(Debug, Default)]
pub(super) struct Holders {
    known: HashMap<u64, Vec<Holder>>,
    read: Option<Instant>,
}

impl Holders {
    /// Says of each socket who holds it.
    pub(super) fn fill(&mut self, sockets: &mut [Socket]) {
        let age = self.read.map(|read| read.elapsed());
        let missing = sockets.iter().any(|socket| !self.known.contains_key(&socket.inode));
        if age.is_none_or(|age| age > GOOD_FOR || missing && age > PAUSE) {
            let wanted: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
            self.known = if wanted.is_empty() { HashMap::new() } else { holders(&wanted) };
            self.read = Some(Instant::now());
        }
        for socket in sockets {
            socket.holders = self.known.get(&socket.inode).cloned().unwrap_or_default();
        }
    }
}

/// Processes that this one may not look into are left out.
fn holders(wanted: &BTreeSet<u64>) -> HashMap<u64, Vec<Holder>> {
    let mut found: HashMap<u64, Vec<Holder>> = HashMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes: Vec<u32> =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    processes.sort_unstable();
    for process in processes {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let inodes: BTreeSet<u64> = descriptors
            .filter_map(|entry| inode(fs::read_link(entry.path()).ok()?.to_str()?))
            .filter(|inode| wanted.contains(inode))
            .collect();
        if inodes.is_empty() {
            continue;
        }
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        for inode in inodes {
            found.entry(inode).or_default().push(Holder { process, name: name.trim_end().to_owned() });
        }
    }
    found
}

/// `socket:[4711]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_socket_of_ours_is_ours() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode = inode(link.to_str().unwrap()).unwrap();
        let holders = holders(&BTreeSet::from([inode]));
        assert!(holders[&inode].iter().any(|holder| holder.process == std::process::id()));
        assert_eq!(super::inode("anon_inode:[eventpoll]"), None);
    }
}
