//! The system calls for which `rustix` has no safe functions: raw socket options, `recvmmsg`, `sendmmsg`, and reading
//! the error queue. Nothing is decided here.
#![allow(unsafe_code)] // Batched messages carry pointers to buffers, and these options have no wrapper.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::control::{QueuedError, RawAddress, ReceiveControl, SendControl};

/// IP_MULTICAST_IF: multicast leaves by the interface of that index.
pub(super) fn set_multicast_interface(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let any = libc::in_addr { s_addr: 0 };
    let request = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: index as i32 };
    // SAFETY: `request` lives through the call and its true size is given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            (&raw const request).cast(),
            size_of::<libc::ip_mreqn>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SK_MEMINFO_DROPS` of `SO_MEMINFO`: datagrams that the kernel dropped at this socket, for want of room
/// in its receive buffer or a wrong checksum. Wraps at 2^32.
pub(super) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    /// Index and count of `SK_MEMINFO_*` (`linux/sock_diag.h`).
    const DROPS: usize = 8;
    let mut values = [0u32; DROPS + 1];
    let mut length = size_of::<[u32; DROPS + 1]>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, `length` is the true size of `values`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(values[DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a classic BPF program that chooses the socket of `fd`'s SO_REUSEPORT group.
pub(super) fn attach_selector(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions behind `filter`, which borrows `program` through the
    // call, and does not write to them.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: `mmsghdr` is integers and pointers, for which zero is a value (null pointers, no lengths).
    unsafe { std::mem::zeroed() }
}

const EMPTY_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Buffers for one `recvmmsg`, and its last outcome.
pub(super) struct ReceiveBatch {
    memory: Vec<u8>,
    size: usize,
    names: Vec<RawAddress>,
    controls: Vec<ReceiveControl>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers in `vectors` and `headers` are written before each system call and never read
// afterwards; everything they point to is owned by the same value.
unsafe impl Send for ReceiveBatch {}

/// One message that `recvmmsg` filled in.
pub(super) struct Message<'a> {
    pub(super) payload: &'a mut [u8],
    pub(super) control: &'a [u8],
    pub(super) remote: Option<SocketAddr>,
    pub(super) truncated: bool,
}

impl ReceiveBatch {
    /// Room for `count` messages of up to `size` bytes.
    pub(super) fn new(count: usize, size: usize) -> Self {
        Self {
            memory: vec![0; count * size],
            size,
            names: vec![RawAddress::empty(); count],
            controls: vec![ReceiveControl::empty(); count],
            vectors: vec![EMPTY_VECTOR; count],
            headers: (0..count).map(|_| empty_header()).collect(),
        }
    }

    /// Messages that one call can take.
    pub(super) fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Receives up to `count` messages without blocking. Returns their number, to be read by [`Self::message`].
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, count: usize) -> io::Result<usize> {
        let count = count.min(self.headers.len());
        let slots = self.memory.chunks_exact_mut(self.size);
        for (((slot, name), control), (vector, header)) in slots
            .zip(&mut self.names)
            .zip(&mut self.controls)
            .zip(self.vectors.iter_mut().zip(&mut self.headers))
            .take(count)
        {
            vector.iov_base = slot.as_mut_ptr().cast();
            vector.iov_len = slot.len();
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = RawAddress::CAPACITY as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut *vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = ReceiveControl::CAPACITY as _;
            header.msg_hdr.msg_flags = 0;
        }
        // SAFETY: each of the first `count` headers points to buffers of the lengths given, owned by `self`, none
        // shared between headers, all alive through the call; the timeout may be null.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Message `index` of the last successful [`Self::receive`].
    pub(super) fn message(&mut self, index: usize) -> Message<'_> {
        let header = &self.headers[index];
        let length = (header.msg_len as usize).min(self.size);
        let control = header.msg_hdr.msg_controllen.min(ReceiveControl::CAPACITY);
        let start = index * self.size;
        Message {
            payload: &mut self.memory[start..start + length],
            control: &self.controls[index].bytes[..control],
            remote: self.names[index].decode(),
            truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }
}

/// One message to send: a datagram, or several as a GSO message.
pub(super) struct Outgoing<'a> {
    pub(super) remote: &'a SocketAddr,
    /// Where to send from, unless the socket's bound address says it.
    pub(super) source: Option<&'a SocketAddr>,
    pub(super) tos: u8,
    /// Segment size when `payload` is several datagrams, else 0.
    pub(super) segment: u16,
    pub(super) payload: &'a [u8],
}

/// Headers for one `sendmmsg`.
pub(super) struct SendBatch {
    names: Vec<RawAddress>,
    controls: Vec<SendControl>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers in `vectors` and `headers` are written before each system call and never read
// afterwards.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Room for `count` messages.
    pub(super) fn new(count: usize) -> Self {
        Self {
            names: vec![RawAddress::empty(); count],
            controls: vec![SendControl::empty(); count],
            vectors: vec![EMPTY_VECTOR; count],
            headers: (0..count).map(|_| empty_header()).collect(),
        }
    }

    /// Sends the first `limit` of `messages`, as far as there is room, by one `sendmmsg`. Returns how many
    /// the kernel took; the error is that of the first.
    pub(super) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        messages: impl Iterator<Item = Outgoing<'a>>,
        limit: usize,
    ) -> io::Result<usize> {
        let slots = self.names.iter_mut().zip(&mut self.controls);
        let slots = slots.zip(self.vectors.iter_mut().zip(&mut self.headers));
        let mut filled = 0;
        for (message, ((name, control), (vector, header))) in messages.take(limit).zip(slots) {
            vector.iov_base = message.payload.as_ptr().cast_mut().cast();
            vector.iov_len = message.payload.len();
            let hdr = &mut header.msg_hdr;
            hdr.msg_namelen = name.encode(message.remote) as libc::socklen_t;
            hdr.msg_name = (&raw mut *name).cast();
            hdr.msg_iov = &raw mut *vector;
            hdr.msg_iovlen = 1;
            let v6 = message.remote.is_ipv6();
            let length = control.encode(message.source, v6, message.tos, message.segment);
            hdr.msg_controllen = length as _;
            hdr.msg_control = if length == 0 { std::ptr::null_mut() } else { (&raw mut *control).cast() };
            filled += 1;
        }
        // SAFETY: the first `filled` headers point to names, controls and vectors owned by `self` and to
        // payloads borrowed for 'a, all alive through the call; the kernel only reads what they point to
        // and writes `msg_len`.
        let count = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), filled as u32, libc::MSG_DONTWAIT as _)
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

/// Takes one entry off the socket's error queue: the destination it is about, and the error. `None` for
/// an entry of another kind (a time stamp).
pub(super) fn queued_error(fd: BorrowedFd<'_>) -> io::Result<Option<(SocketAddr, QueuedError)>> {
    let mut name = RawAddress::empty();
    let mut control = ReceiveControl::empty();
    let mut header = empty_header().msg_hdr;
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = RawAddress::CAPACITY as libc::socklen_t;
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen = ReceiveControl::CAPACITY as _;
    // SAFETY: name and control are live locals of the lengths given; no data is asked for.
    let result =
        unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let length = header.msg_controllen.min(ReceiveControl::CAPACITY);
    let error = QueuedError::decode(&control.bytes[..length]);
    Ok(name.decode().zip(error))
}
