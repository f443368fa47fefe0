//! The socket to a re-request server: the receiver's thread sends requests, a separate thread receives replies.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_sequence::{RerequestConfig, RerequestStats, Rerequester};
use rustix::net::SendFlags;

use super::Arbiter;
use crate::receive::Poster;

/// How often the thread looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pause between socket errors, so that none of them occupies a core.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of the largest reply.
const LARGEST: usize = 65_535;

/// Asks a MoldUDP64 re-request server for what an arbiter waits for.
pub struct RerequestClient {
    rerequester: Rerequester,
    socket: Arc<UdpSocket>,
    server: SocketAddr,
    unsent: u64,
}

impl RerequestClient {
    /// A socket that takes replies from `server` alone. Sends nothing yet.
    ///
    /// # Errors
    /// When there is no route to the server, or no descriptor is left.
    pub fn connect(server: SocketAddr, config: RerequestConfig) -> io::Result<Self> {
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(local)?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { rerequester: Rerequester::new(config), socket: Arc::new(socket), server, unsent: 0 })
    }

    /// Starts the thread that passes replies to the receiver, until the returned value is dropped.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn listen(&self, poster: Poster) -> io::Result<Replies> {
        let ended = Arc::new(AtomicBool::new(false));
        let dropped = Arc::new(AtomicU64::new(0));
        let (socket, until, count) = (Arc::clone(&self.socket), Arc::clone(&ended), Arc::clone(&dropped));
        let receive = move || {
            let mut buffer = vec![0; LARGEST];
            while !until.load(Ordering::Relaxed) {
                match socket.recv(&mut buffer) {
                    Ok(length) if poster.post(buffer[..length].into()) => {}
                    Ok(_) => {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // ECONNREFUSED, where no server listens: requests time out and are counted.
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        };
        let thread = std::thread::Builder::new().name("expressway-rereq".into()).spawn(receive)?;
        Ok(Replies { ended, dropped, thread: Some(thread) })
    }

    /// Sends the requests that are due.
    pub(super) fn send(&mut self, now: Instant, arbiter: &Arbiter) {
        while let Some(request) = self.rerequester.poll_request(now, arbiter) {
            // Not sent is as good as lost on the way: it is made again.
            if rustix::net::send(&self.socket, &request.to_bytes(), SendFlags::DONTWAIT).is_err() {
                self.unsent += 1;
            }
        }
    }

    pub(super) fn rerequester(&self) -> &Rerequester {
        &self.rerequester
    }

    pub(super) fn rerequester_mut(&mut self) -> &mut Rerequester {
        &mut self.rerequester
    }

    /// What became of requests.
    pub fn stats(&self) -> RerequestStats {
        self.rerequester.stats()
    }

    /// Requests that the kernel did not send, or for which it knew already that nobody listens there.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// The server.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// The thread that receives replies; ended on drop.
pub struct Replies {
    ended: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Replies {
    /// Replies that the receiver had no room for, or that came after its end.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, it has ended as well.
            let _ = thread.join();
        }
    }
}
