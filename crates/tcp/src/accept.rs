//! Accepting connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use expressway_web::LogLimit;
use rustix::io::Errno;
use tokio::net::{TcpListener, UnixListener};

use crate::connection;
use crate::listener::{Listen, Socket};
use crate::stats::{Refusal, add};
use crate::turn::in_turns;
use crate::wire::Stream;
use crate::worker::Shared;

/// How long accepting rests when the kernel has no memory or descriptors for it.
const REST: Duration = Duration::from_millis(50);

/// Whatever the sockets: what takes a descriptor succeeds and fails by turns while connections come and go.
static UNACCEPTED: LogLimit = LogLimit::new();

/// A listening socket of a worker.
pub(crate) enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// Watches a socket, in a runtime.
    pub(crate) fn open(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)?),
            Socket::Unix(socket) => Self::Unix(UnixListener::from_std(socket)?),
        })
    }

    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), SocketAddr::new(remote.ip().to_canonical(), remote.port())))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))))
            }
        }
    }
}

/// Accepts connections until the task is aborted.
pub(crate) async fn run(worker: Arc<Shared>, acceptor: Acceptor, listen: Arc<Listen>) {
    loop {
        match acceptor.accept().await {
            Ok((stream, remote)) => {
                add(&worker.stats.accepted, 1);
                let most = worker.setup.load().limits.max_connections;
                if let Some(permit) = worker.connections.enter(most) {
                    let connection =
                        connection::run(Arc::clone(&worker), permit, stream, remote, Arc::clone(&listen));
                    tokio::spawn(in_turns(Arc::clone(&worker.stats), connection));
                }
                // Let it be heard before others come and take its place.
                tokio::task::yield_now().await;
            }
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                worker.stats.refuse(Refusal::Accept);
                if let Some(suppressed) = UNACCEPTED.is_due() {
                    tracing::warn!(
                        listen = %listen.address, %error, suppressed,
                        "accept failed; raise the open file limit (RLIMIT_NOFILE)"
                    );
                }
                worker.connections.make_room();
                tokio::time::sleep(REST).await;
            }
        }
    }
}

/// An error of the connection, not of the listener (accept(2)).
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::INTR
                | Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INVAL
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::PERM
        )
    )
}
