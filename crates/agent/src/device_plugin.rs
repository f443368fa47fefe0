//! Client of the AF_XDP device plugin for Kubernetes, protocol 0.1: one text per datagram over a SOCK_SEQPACKET unix
//! socket, which the plugin mounts into a pod.
//!
//! ```text
//!   pod                                       plugin
//!   /connect,POD                       ────▶  /host_ok, or /host_nak: no pod of that name has these devices
//!   /version                           ────▶  0.1
//!   /xsk_map_fd,DEVICE                 ────▶  /fd_ack with the XSKMAP of the program that it loaded, or /fd_nak
//!   /config_busy_poll,TIMEOUT,BUDGET,  ────▶  /config_busy_poll_ack, or /config_busy_poll_nak
//!     with an AF_XDP socket
//!   /fin                               ────▶  /fin_ack
//! ```
//!
//! Texts have up to 64 bytes; the plugin answers anything else with `/nak` or `/error`. It attaches a program that
//! redirects every packet of a queue, and moves the interface into the pod's network namespace. The pod binds the
//! AF_XDP sockets itself. For that it needs CAP_NET_RAW, and nothing else on kernels that allow map updates by
//! descriptor (Linux 5.19, with any `unprivileged_bpf_disabled`).
//!
//! Source: the plugin's own constants and server (intel/afxdp-plugins-for-kubernetes, `constants`,
//! `internal/udsserver`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};

/// The version spoken.
pub const VERSION: &str = "0.1";
/// Bytes of the longest text.
const MAX_TEXT: usize = 64;
/// Time limit for an answer: the plugin asks the kubelet which pod this is.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time limit for the answer to the final message.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why the device plugin did not provide what was requested. Every message names its socket.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The socket did not answer.
    #[error("device plugin {}: {action}: {source}", path.display())]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// What was tried.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The plugin refused, or its answer is not part of the protocol.
    #[error("device plugin {}: {request}: answered {answer:?}{advice}", path.display())]
    Answer {
        /// Path of the socket.
        path: PathBuf,
        /// The request.
        request: String,
        /// The answer.
        answer: String,
        /// What to do, after a separator.
        advice: &'static str,
    },
}

/// A connection to the device plugin, which accepts only one.
#[derive(Debug)]
pub struct DevicePlugin {
    socket: OwnedFd,
    path: PathBuf,
}

impl DevicePlugin {
    /// Connects, names this pod, and checks the version.
    ///
    /// # Errors
    /// [`PluginError`].
    pub fn connect(path: &Path, pod: &str) -> Result<Self, PluginError> {
        let failed = |source: Errno| PluginError::Io {
            path: path.to_owned(),
            action: "connect".to_owned(),
            source: source.into(),
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        for direction in [Timeout::Send, Timeout::Recv] {
            sockopt::set_socket_timeout(&socket, direction, Some(PATIENCE)).map_err(failed)?;
        }
        connect(&socket, &address).map_err(failed)?;
        let plugin = Self { socket, path: path.to_owned() };
        plugin.expect(
            &format!("/connect,{pod}"),
            None,
            "/host_ok",
            "; the pod's name must equal its host name, and the pod must request this plugin's devices",
        )?;
        plugin.expect("/version", None, VERSION, "; only version 0.1 is supported")?;
        Ok(plugin)
    }

    /// The XSKMAP of the program on `device`: key is the receive queue.
    ///
    /// # Errors
    /// [`PluginError`].
    pub fn xsk_map(&self, device: &str) -> Result<OwnedFd, PluginError> {
        let request = format!("/xsk_map_fd,{device}");
        let fd = self.expect(&request, None, "/fd_ack", "; this device is not allocated to the pod")?;
        fd.ok_or_else(|| self.answer(&request, "/fd_ack", " without a descriptor"))
    }

    /// Has the plugin set SO_PREFER_BUSY_POLL, SO_BUSY_POLL and SO_BUSY_POLL_BUDGET of an AF_XDP socket, which
    /// take CAP_NET_ADMIN. `timeout` in microseconds, `budget` in packets.
    ///
    /// # Errors
    /// [`PluginError`].
    pub fn busy_poll(&self, socket: BorrowedFd<'_>, timeout: u32, budget: u32) -> Result<(), PluginError> {
        let request = format!("/config_busy_poll,{timeout},{budget}");
        let advice = "; busy polling for AF_XDP needs Linux 5.11 or newer on the node";
        self.expect(&request, Some(socket), "/config_busy_poll_ack", advice).map(|_| ())
    }

    fn expect(
        &self,
        request: &str,
        fd: Option<BorrowedFd<'_>>,
        wanted: &str,
        advice: &'static str,
    ) -> Result<Option<OwnedFd>, PluginError> {
        let failed = |source| PluginError::Io { path: self.path.clone(), action: request.to_owned(), source };
        let (answer, fd) = self.ask(request, fd).map_err(failed)?;
        if answer == wanted { Ok(fd) } else { Err(self.answer(request, &answer, advice)) }
    }

    fn answer(&self, request: &str, answer: &str, advice: &'static str) -> PluginError {
        let (request, answer) = (request.to_owned(), answer.to_owned());
        PluginError::Answer { path: self.path.clone(), request, answer, advice }
    }

    fn ask(&self, request: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<(String, Option<OwnedFd>)> {
        if request.len() > MAX_TEXT {
            let what = format!("longer than the protocol's maximum of {MAX_TEXT} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let parts = [io::IoSlice::new(request.as_bytes())];
        rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
        let mut text = [0; MAX_TEXT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(&mut text)];
        let received = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let length = received.bytes;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed by the plugin"));
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "answer exceeds the protocol's maximum length",
            ));
        }
        let answer = std::str::from_utf8(&text[..length])
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "answer is not valid UTF-8"))?;
        Ok((answer.trim_end_matches('\0').to_owned(), fds.pop()))
    }
}

impl Drop for DevicePlugin {
    /// Says goodbye; the plugin closes its end.
    fn drop(&mut self) {
        let patience = sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(FAREWELL));
        if patience.is_ok()
            && let Err(error) = self.expect("/fin", None, "/fin_ack", "")
        {
            tracing::debug!(%error, "the device plugin did not acknowledge the disconnect");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{accept, bind, listen, recv, send};

    use super::*;

    /// A plugin that gives these answers, whatever it is asked, and returns the requests.
    fn plugin(answers: &[&str]) -> (tempfile::TempDir, PathBuf, std::thread::JoinHandle<Vec<String>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("afxdp.sock");
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let thread = std::thread::spawn(move || {
            let socket = accept(&listener).unwrap();
            let mut asked = Vec::new();
            for answer in answers {
                let mut text = [0; 128];
                let (length, _) = recv(&socket, &mut text[..], RecvFlags::empty()).unwrap();
                asked.push(String::from_utf8_lossy(&text[..length]).into_owned());
                send(&socket, answer.as_bytes(), SendFlags::NOSIGNAL).unwrap();
            }
            asked
        });
        (folder, path, thread)
    }

    #[test]
    fn the_conversation_is_the_protocols() {
        let (_folder, path, thread) = plugin(&["/host_ok", "0.1", "/config_busy_poll_ack", "/fin_ack"]);
        let plugin = DevicePlugin::connect(&path, "pod-1").unwrap();
        let (socket, _other) = rustix::pipe::pipe().unwrap();
        plugin.busy_poll(std::os::fd::AsFd::as_fd(&socket), 20, 64).unwrap();
        drop(plugin);
        let asked = thread.join().unwrap();
        assert_eq!(asked, ["/connect,pod-1", "/version", "/config_busy_poll,20,64", "/fin"]);
    }

    #[test]
    fn every_no_is_named() {
        for (answers, parts) in [
            (&["/host_nak"][..], &["/connect,pod", "host name"][..]),
            (&["/host_ok", "0.2"], &["/version", "0.2"]),
            (&["/error"], &["/error"]),
            (&[], &["/connect,pod"]),
        ] {
            let (_folder, path, thread) = plugin(answers);
            let message = DevicePlugin::connect(&path, "pod").unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            assert!(message.contains("afxdp.sock"), "{message}");
            drop(thread);
        }
        let (_folder, path, thread) =
            plugin(&["/host_ok", "0.1", "/fd_nak", "/fd_ack", "/config_busy_poll_nak"]);
        let plugin = DevicePlugin::connect(&path, "pod").unwrap();
        assert!(plugin.xsk_map("eth9").unwrap_err().to_string().contains("not allocated to the pod"));
        assert!(plugin.xsk_map("eth9").unwrap_err().to_string().contains("without a descriptor"));
        let (socket, _other) = rustix::pipe::pipe().unwrap();
        assert!(plugin.busy_poll(std::os::fd::AsFd::as_fd(&socket), 1, 1).is_err());
        drop(thread);
        assert!(plugin.xsk_map(&"x".repeat(60)).unwrap_err().to_string().contains("64 bytes"));
        let nowhere = DevicePlugin::connect(Path::new("/nonexistent/afxdp.sock"), "pod").unwrap_err();
        assert!(nowhere.to_string().contains("/nonexistent/afxdp.sock: connect"), "{nowhere}");
    }
}
