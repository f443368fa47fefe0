//! Threads with their own descriptor table.
//!
//! A client sends descriptors of its choice with a message, and they wait in the connection even if nobody
//! reads. This has two consequences. Enough of them exhaust the process's descriptor numbers. And closing
//! the last reference to a file does what the file asks for: closing a TCP socket with SO_LINGER waits for
//! as long as its owner specified, possibly for ever.
//!
//! So each connection is closed by a thread that nobody waits for, in a table that nobody else uses. An
//! unserved connection is left to the end of that thread: the kernel does not linger when a thread ends
//! (`inet_release` in `net/ipv4/af_inet.c`, PF_EXITING).

#![allow(unsafe_code)] // A descriptor by its number.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, unshare};

/// Runs `work` on a thread that alone has `socket`, in its own descriptor table, a copy of the caller's. The
/// caller must not have another connection meanwhile: its end would not be seen before that of the thread.
///
/// # Errors
/// No thread, or no memory for the table.
pub(crate) fn spawn(
    name: &str,
    socket: OwnedFd,
    work: impl FnOnce(OwnedFd) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let number = socket.as_raw_fd();
    let (tell, told) = sync_channel::<io::Result<()>>(1);
    let (let_go, may_go) = sync_channel::<()>(1);
    let run = move || {
        if let Err(errno) = unshare(CloneFlags::CLONE_FILES) {
            let _ = tell.send(Err(errno.into()));
            return;
        }
        // SAFETY: open in this thread's table, for the caller holds it until it is told; that one's own number is in
        // another table from now on, and nothing else in this thread knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        let _ = tell.send(Ok(()));
        // The caller's copy must not be the last: whoever closes that one may have to wait.
        let _ = may_go.recv();
        work(socket);
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    told.recv().map_err(|_| io::Error::other("the thread exited during start-up"))??;
    drop(socket);
    let _ = let_go.send(());
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    use std::time::Duration;

    use super::*;
    use crate::channel::Channel;
    use crate::message::Request;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn what_a_thread_opens_is_in_its_own_table_and_goes_with_it() {
        let (ours, theirs) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let number = theirs.as_raw_fd();
        let lowest = || reader.try_clone().unwrap().as_raw_fd();
        let before = lowest();
        let (opened, all) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = spawn("test", theirs, move |socket| {
            assert_eq!(socket.as_raw_fd(), number);
            let fds: Vec<OwnedFd> = (0..500).map(|_| socket.try_clone().unwrap()).collect();
            opened.send(fds[499].as_raw_fd()).unwrap();
            let _ = ended.recv();
            std::mem::forget((socket, fds));
        })
        .unwrap();
        assert!(all.recv().unwrap() >= 500);
        // Other tests of this process open a few.
        assert!(lowest() < before + 400, "the caller's table is as it was");
        drop(writer);
        let ours = Channel::new(ours, Duration::from_secs(5)).unwrap();
        assert!(!ours.is_closed());
        end.send(()).unwrap();
        thread.join().unwrap();
        // Leaked descriptors are closed with their table; threads of other tests may have a copy for a
        // moment.
        while !ours.is_closed() {
            std::thread::yield_now();
        }
    }

    /// A TCP socket whose last close would wait for an hour.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65_536]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        (socket, peer)
    }

    #[test]
    fn a_connection_that_is_left_to_the_end_of_a_thread_holds_nobody_up() {
        let (ours, theirs) = pair();
        let (socket, _peer) = lingering();
        let client = Channel::new(ours, Duration::from_secs(5)).unwrap();
        client.send(1, &Request::Hello { client: String::new() }, &[socket.as_fd()]).unwrap();
        // From now on it is in the connection only, which nobody reads.
        drop((socket, client));
        let thread = spawn("test", theirs, std::mem::forget).unwrap();
        thread.join().unwrap();
    }
}
