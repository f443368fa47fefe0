//! What a process and the one that succeeds it say to each other, over a SOCK_SEQPACKET socketpair in the form of the agent's channel.
//!
//! The older one begins with a [`Handover`], behind which come the descriptors, in messages of their own. The two trust each other as far as the
//! same file of the same owner deserves: everything is checked for what it has to be all the same, because they may be of two versions.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use expressway_agent::channel::{Channel, ChannelError, MAX_FDS};
use expressway_gateway::quic::cid::CheckKeys;
use serde::{Deserialize, Serialize};

/// Version of all that is said here.
const VERSION: u32 = 1;

/// Descriptors that are taken at most: 256 workers with 64 addresses would be more than the kernel lets a process have by default.
const MOST_FDS: usize = 16_384;

/// Processes before the newest that may have connections at once.
pub(crate) const MOST_OLDER: usize = 7;

/// What the next process gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handover {
    version: u32,
    /// The number of the next process.
    pub(crate) generation: u64,
    /// Addresses of the UDP sockets, and workers with one each.
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) workers: usize,
    /// Listeners over TCP and unix sockets, each with as many sockets as workers.
    pub(crate) tcp: Vec<String>,
    pub(crate) tcp_workers: usize,
    /// Where the admin listener is.
    pub(crate) admin: Option<String>,
    /// There is a socket that holds the server's place among others.
    pub(crate) has_place: bool,
    /// The processes before the next one, each with a socket that takes datagrams there.
    pub(crate) older: Vec<Elder>,
}

/// A process that has connections still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Elder {
    pub(crate) generation: u64,
    pub(crate) pid: u32,
    /// Of its connection IDs.
    keys: (Hidden, Option<Hidden>),
}

/// A key, which is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hidden([u8; 16]);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hidden(..)")
    }
}

impl Elder {
    pub(crate) fn new(generation: u64, pid: u32, keys: &CheckKeys) -> Self {
        let (current, former) = keys.bytes();
        Self { generation, pid, keys: (Hidden(current), former.map(Hidden)) }
    }

    pub(crate) fn keys(&self) -> CheckKeys {
        CheckKeys::new(&self.keys.0.0, self.keys.1.as_ref().map(|key| &key.0))
    }
}

/// The descriptors of a [`Handover`], in the order in which they are sent.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    /// By worker.
    pub(crate) udp: Vec<Vec<OwnedFd>>,
    /// By listener.
    pub(crate) tcp: Vec<Vec<OwnedFd>>,
    pub(crate) admin: Option<OwnedFd>,
    pub(crate) place: Option<OwnedFd>,
    /// By process.
    pub(crate) older: Vec<OwnedFd>,
}

/// From the older process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    Handover(Handover),
    /// So many descriptors.
    Descriptors(usize),
    /// The step may be taken.
    Go,
}

/// From the next process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// The configuration is right, and files can be read. It wants the cache's disk store.
    Prepared,
    /// It wants the interfaces.
    Built,
    /// It wants what is received.
    Opened,
    /// It serves.
    Ready,
    /// It ends.
    Failed(String),
}

impl Step {
    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Built => "built",
            Self::Opened => "opened",
            Self::Ready => "ready",
            Self::Failed(_) => "failing",
        }
    }
}

impl Handover {
    pub(crate) fn new(generation: u64, listen: Vec<SocketAddr>, workers: usize) -> Self {
        Self {
            version: VERSION,
            generation,
            listen,
            workers,
            tcp: Vec::new(),
            tcp_workers: 0,
            admin: None,
            has_place: false,
            older: Vec::new(),
        }
    }

    /// How many descriptors it comes with, if that is a number that may be.
    fn descriptors(&self) -> Option<usize> {
        // Also where there is nothing to have workers for.
        if self.workers.max(self.tcp_workers) > MOST_FDS {
            return None;
        }
        let udp = self.workers.checked_mul(self.listen.len())?;
        let tcp = self.tcp_workers.checked_mul(self.tcp.len())?;
        let single = usize::from(self.admin.is_some()) + usize::from(self.has_place) + self.older.len();
        udp.checked_add(tcp)?.checked_add(single).filter(|all| *all <= MOST_FDS)
    }

    /// Sends it with its descriptors.
    pub(crate) fn send(self, channel: &Channel, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        channel.send(0, &Word::Handover(self), &[])?;
        for some in descriptors.chunks(MAX_FDS) {
            channel.send(0, &Word::Descriptors(some.len()), some)?;
        }
        Ok(())
    }

    /// Receives one with its descriptors.
    pub(crate) fn receive(channel: &Channel) -> Result<(Self, Descriptors), String> {
        let failed = |error: ChannelError| format!("previous process: {error}");
        let Word::Handover(handover) = channel.receive(0).map_err(failed)?.content else {
            return Err("the previous process did not say what it hands over".into());
        };
        if handover.version != VERSION {
            return Err(format!(
                "the previous process uses version {} of the handover protocol, this one {VERSION}: restart instead",
                handover.version
            ));
        }
        let wanted = handover.descriptors().filter(|_| handover.older.len() <= MOST_OLDER);
        let wanted = wanted.ok_or("the previous process hands over too many descriptors")?;
        let mut fds = Vec::new();
        while fds.len() < wanted {
            let received = channel.receive::<Word>(MAX_FDS).map_err(failed)?;
            if !matches!(received.content, Word::Descriptors(count) if count > 0 && count == received.fds.len())
            {
                return Err("the previous process sent no descriptors".into());
            }
            fds.extend(received.fds);
        }
        if fds.len() != wanted {
            return Err(format!("the previous process sent {} descriptors instead of {wanted}", fds.len()));
        }
        let descriptors = Descriptors::sort(&handover, fds);
        Ok((handover, descriptors))
    }
}

impl Descriptors {
    /// Of as many as the handover says.
    fn sort(handover: &Handover, fds: Vec<OwnedFd>) -> Self {
        let mut fds = fds.into_iter();
        let udp = (0..handover.workers).map(|_| fds.by_ref().take(handover.listen.len()).collect()).collect();
        let tcp = handover.tcp.iter().map(|_| fds.by_ref().take(handover.tcp_workers).collect()).collect();
        let admin = handover.admin.as_ref().and_then(|_| fds.next());
        let place = handover.has_place.then(|| fds.next()).flatten();
        Self { udp, tcp, admin, place, older: fds.collect() }
    }

    /// All of them, in order.
    pub(crate) fn in_order(&self) -> Vec<BorrowedFd<'_>> {
        let udp = self.udp.iter().flatten();
        let tcp = self.tcp.iter().flatten();
        let all = udp.chain(tcp).chain(&self.admin).chain(&self.place).chain(&self.older);
        all.map(AsFd::as_fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn channels() -> (Channel, Channel) {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let channel = |socket| Channel::new(socket, Duration::from_secs(5)).unwrap();
        (channel(one), channel(other))
    }

    /// A descriptor that is told apart from others.
    fn file(folder: &tempfile::TempDir, name: &str) -> OwnedFd {
        File::create(folder.path().join(name)).unwrap().into()
    }

    fn inode(fd: BorrowedFd<'_>) -> u64 {
        File::from(fd.try_clone_to_owned().unwrap()).metadata().unwrap().ino()
    }

    #[test]
    fn descriptors_arrive_in_their_places() {
        let folder = tempfile::tempdir().unwrap();
        let some =
            |name: &str, count: usize| (0..count).map(|n| file(&folder, &format!("{name}{n}"))).collect();
        let sent = Descriptors {
            udp: (0..50).map(|worker| some(&format!("udp{worker}-"), 2)).collect(),
            tcp: vec![some("a", 3), some("b", 3)],
            admin: Some(file(&folder, "admin")),
            place: Some(file(&folder, "place")),
            older: some("older", 1),
        };
        let listen = vec!["192.0.2.1:443".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()];
        let keys = CheckKeys::new(&[1; 16], Some(&[2; 16]));
        let handover = Handover {
            tcp: vec!["192.0.2.1:443".into(), "unix:/run/x".into()],
            tcp_workers: 3,
            admin: Some("127.0.0.1:9180".into()),
            has_place: true,
            older: vec![Elder::new(1, 4711, &keys)],
            ..Handover::new(2, listen, 50)
        };
        let (ours, theirs) = channels();
        handover.send(&ours, &sent.in_order()).unwrap();
        let (handover, received) = Handover::receive(&theirs).unwrap();
        assert_eq!((handover.generation, handover.workers, handover.older[0].keys()), (2, 50, keys));
        let inodes = |of: &Descriptors| of.in_order().into_iter().map(inode).collect::<Vec<_>>();
        assert_eq!(inodes(&received), inodes(&sent));
        assert_eq!((received.udp.len(), received.udp[49].len(), received.tcp[1].len()), (50, 2, 3));
        assert!(received.admin.is_some() && received.place.is_some() && received.older.len() == 1);
        assert!(!format!("{handover:?}").contains("1, 1, 1"), "keys are not printed");
    }

    #[test]
    fn another_version_and_what_cannot_be_are_refused() {
        let refused = |change: fn(&mut Handover)| {
            let mut handover = Handover::new(2, vec!["192.0.2.1:443".parse().unwrap()], 1);
            change(&mut handover);
            let (ours, theirs) = channels();
            handover.send(&ours, &[]).unwrap();
            drop(ours);
            Handover::receive(&theirs).unwrap_err()
        };
        assert!(refused(|handover| handover.version = 9).contains("version 9"));
        assert!(refused(|handover| handover.workers = usize::MAX).contains("too many descriptors"));
        let older = |handover: &mut Handover| {
            handover.older = vec![Elder::new(1, 1, &CheckKeys::new(&[0; 16], None)); MOST_OLDER + 1];
        };
        assert!(refused(older).contains("too many descriptors"));
        assert!(refused(|_| {}).contains("closed"), "it ended before it had sent all");
    }
}
