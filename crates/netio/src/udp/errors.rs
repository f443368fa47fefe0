//! What an errno of a send means for the socket, its queue and the service.

/// What to do about a failed send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Call again at once.
    Again,
    /// The socket's buffer is full: wait for room.
    Full,
    /// Perhaps the answer to an earlier datagram, reported on this call (`sock_error` in
    /// `sock_alloc_send_pskb`, with IP_RECVERR): empty the error queue and try once more.
    Stale,
    /// This datagram is refused; others may pass.
    Refused,
    /// The socket itself is unusable.
    Fatal,
}

/// Judges `errno`.
pub(super) fn judge(errno: i32) -> Verdict {
    match errno {
        libc::EINTR => Verdict::Again,
        libc::EAGAIN => Verdict::Full,
        libc::ECONNREFUSED
        | libc::EHOSTUNREACH
        | libc::ENETUNREACH
        | libc::EHOSTDOWN
        | libc::ENETDOWN
        | libc::ENONET
        | libc::EMSGSIZE
        | libc::EPROTO
        | libc::EACCES
        | libc::EOPNOTSUPP
        | libc::ENOPROTOOPT => Verdict::Stale,
        libc::EBADF | libc::ENOTSOCK | libc::EFAULT => Verdict::Fatal,
        _ => Verdict::Refused,
    }
}

/// Whether a GSO message may have been refused because it was one: no checksum offload on the device
/// (EIO before Linux 6.11), IPsec on the route (EIO), checksums turned off or a segment above the MTU
/// (EINVAL), or a kernel without GSO (EINVAL, EOPNOTSUPP). Whether it was shows when the datagrams are sent
/// one by one. EMSGSIZE speaks of the size of the segments, which that does not cure.
pub(super) fn blames_gso(errno: i32) -> bool {
    matches!(errno, libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_errno_has_its_verdict() {
        assert_eq!(judge(libc::EINTR), Verdict::Again);
        assert_eq!(judge(libc::EAGAIN), Verdict::Full);
        assert_eq!(judge(libc::ECONNREFUSED), Verdict::Stale);
        // With IP_RECVERR a queueing discipline's drop shows as ENOBUFS: the datagram is already lost.
        assert_eq!(judge(libc::ENOBUFS), Verdict::Refused);
        assert_eq!(judge(libc::EPERM), Verdict::Refused);
        assert_eq!(judge(libc::EBADF), Verdict::Fatal);
        assert!(blames_gso(libc::EIO) && blames_gso(libc::EINVAL) && !blames_gso(libc::EMSGSIZE));
    }
}
