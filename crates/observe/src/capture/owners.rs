//! Whose socket it is: from the inode that the kernel's hooks give to the process that has it open.
//!
//! The inode comes with each record, so that no list of AF_XDP sockets (sock_diag, a module that many kernels lack) has to
//! be asked, and sockets of every family are known alike.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Sockets remembered; all are forgotten when there are more.
const SOCKETS: usize = 65_536;

/// Between two looks at /proc.
const PAUSE: Duration = Duration::from_secs(1);

/// A look at /proc may take one part in this of the time.
const SHARE: u32 = 20;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Its identifier in this PID namespace.
    pub(super) id: u32,
    /// Its name.
    pub(super) name: String,
}

/// Which process has which socket.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    owners: HashMap<u64, Owner>,
    /// When /proc may be looked at again.
    next: Option<Instant>,
}

impl Sockets {
    /// The process that has the socket with this inode open: the first, if there are several. Looks it up in /proc, at most
    /// once a second; a process that has ended since remains known.
    pub(super) fn owner(&mut self, inode: u64) -> Option<&Owner> {
        if inode == 0 {
            return None;
        }
        if !self.owners.contains_key(&inode) {
            let now = Instant::now();
            if self.next.is_some_and(|next| now < next) {
                return None;
            }
            self.look();
            let took = now.elapsed();
            self.next = Some(Instant::now() + PAUSE.max(took * SHARE));
        }
        self.owners.get(&inode)
    }

    /// Reads the descriptors of every process. What goes away while it is read is left out.
    fn look(&mut self) {
        if self.owners.len() >= SOCKETS {
            self.owners.clear();
        }
        let Ok(processes) = fs::read_dir("/proc") else { return };
        for process in processes.flatten() {
            let name = process.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
            let mut owner = None;
            for descriptor in descriptors.flatten() {
                let Ok(link) = fs::read_link(descriptor.path()) else { continue };
                let Some(inode) = link.to_str().and_then(inode_of) else { continue };
                if self.owners.len() >= SOCKETS {
                    return;
                }
                let owner = owner.get_or_insert_with(|| {
                    let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                    Owner { id, name: name.trim_end().to_owned() }
                });
                self.owners.entry(inode).or_insert_with(|| owner.clone());
            }
        }
    }
}

/// The inode of `socket:[123]`.
fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_socket_of_this_process_is_its_own() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode = inode_of(link.to_str().unwrap()).unwrap();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.owner(inode).unwrap().id, std::process::id());
        assert_eq!(sockets.owner(0), None);
        assert_eq!(sockets.owner(u64::MAX), None);
    }

    #[test]
    fn links_that_are_no_sockets_have_no_inode() {
        assert_eq!(inode_of("socket:[17]"), Some(17));
        for other in ["pipe:[17]", "socket:[]", "socket:[17", "/dev/null", "socket:[-1]"] {
            assert_eq!(inode_of(other), None);
        }
    }
}
