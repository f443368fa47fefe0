//! Finds the session that a datagram is for, before anything in it is trusted.
//!
//! One local address serves all sessions. An ICE request names its session by the username from the answer (RFC 8445, section 7.2.2). All
//! other datagrams are assigned by their source address, once a request from there has proved the session's password. Usernames begin with
//! the worker of their session, so each worker finds the owner without shared state.

use std::collections::HashMap;
use std::net::SocketAddr;

use expressway_wire::siphash::SipKey;

use super::crypto::random;

/// Octets of the header of a STUN message, and its cookie (RFC 8489, section 5).
const HEADER: usize = 20;
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const BINDING_REQUEST: [u8; 2] = [0, 1];
/// Attributes that are looked at: a request of ICE has about six.
const ATTRIBUTES: usize = 16;
const USERNAME: u16 = 6;
/// Octets of a username at most (RFC 8489, section 14.3).
const LONGEST_USERNAME: usize = 509;

/// A datagram's kind by its first octet (RFC 7983, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind<'a> {
    /// A binding request, for the session with that ufrag (RFC 8445, section 5.3).
    Request(&'a str),
    /// DTLS, RTP or RTCP.
    Media,
    /// Anything else, and other STUN messages: none is a response, since we send no requests.
    Unknown,
}

/// Classifies a datagram.
pub fn classify(datagram: &[u8]) -> PacketKind<'_> {
    match datagram {
        [20..=63 | 128..=191, ..] => PacketKind::Media,
        [0..=3, ..] => requested(datagram).map_or(PacketKind::Unknown, PacketKind::Request),
        _ => PacketKind::Unknown,
    }
}

/// The ufrag before the colon of a binding request's username.
fn requested(datagram: &[u8]) -> Option<&str> {
    let (header, mut rest) = datagram.split_at_checked(HEADER)?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[..2] != BINDING_REQUEST || header[4..8] != COOKIE || length != rest.len() {
        return None;
    }
    for _ in 0..ATTRIBUTES {
        let (head, body) = rest.split_at_checked(4)?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let value = body.get(..length)?;
        if u16::from_be_bytes([head[0], head[1]]) == USERNAME {
            let name = std::str::from_utf8(value).ok().filter(|name| name.len() <= LONGEST_USERNAME)?;
            return name.split_once(':').map(|(own, _)| own);
        }
        rest = body.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Issues ufrags, and recognises its own. They carry a check by a key of this process, so that those that strangers make up
/// cost the worker that they come to a hash, and no other worker anything.
#[derive(Clone, Debug)]
pub struct Ufrags(SipKey);

impl Default for Ufrags {
    fn default() -> Self {
        Self(SipKey::new(&random()))
    }
}

impl Ufrags {
    /// A new one, for a session of that worker.
    pub fn issue(&self, worker: usize) -> String {
        let chance = u32::from_be_bytes(random());
        let begin = format!("{:02x}{chance:08x}", worker as u8);
        let check = self.check(&begin);
        format!("{begin}{check:08x}")
    }

    /// The worker that a ufrag was issued for; `None` of any other.
    pub fn worker(&self, ufrag: &str) -> Option<usize> {
        let (begin, check) = ufrag.split_at_checked(10).filter(|_| ufrag.len() == 18)?;
        if u32::from_str_radix(check, 16).ok()? != self.check(begin) {
            return None;
        }
        u8::from_str_radix(begin.get(..2)?, 16).ok().map(usize::from)
    }

    fn check(&self, begin: &str) -> u32 {
        self.0.hash(begin.as_bytes()) as u32
    }
}

/// Who a remote address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A session of this worker.
    Session(usize),
    /// Some session of that worker.
    Worker(usize),
}

/// The sessions that a worker knows, by username and by address. It has as many entries as there are sessions, and a few times as
/// many addresses: what strangers send adds none.
#[derive(Debug, Default)]
pub struct Demux {
    by_ufrag: HashMap<String, usize>,
    by_address: HashMap<SocketAddr, Owner>,
}

impl Demux {
    /// A session of this worker has this ufrag.
    pub fn add(&mut self, ufrag: String, session: usize) {
        self.by_ufrag.insert(ufrag, session);
    }

    /// The session of a ufrag.
    pub fn session(&self, ufrag: &str) -> Option<usize> {
        self.by_ufrag.get(ufrag).copied()
    }

    /// The owner of a remote address.
    pub fn owner(&self, remote: SocketAddr) -> Option<Owner> {
        self.by_address.get(&remote).copied()
    }

    /// Records the owner of a remote address.
    pub fn learn(&mut self, remote: SocketAddr, owner: Owner) {
        self.by_address.insert(remote, owner);
    }

    /// Removes a remote address, unless it has another owner by now.
    pub fn forget(&mut self, remote: SocketAddr, owner: Owner) {
        if self.owner(remote) == Some(owner) {
            self.by_address.remove(&remote);
        }
    }

    /// Removes a session.
    pub fn remove(&mut self, ufrag: &str) {
        self.by_ufrag.remove(ufrag);
    }

    /// Numbers of sessions and of addresses.
    pub fn len(&self) -> (usize, usize) {
        (self.by_ufrag.len(), self.by_address.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0, 1, 0, 0];
        message.extend_from_slice(&COOKIE);
        message.extend_from_slice(&[7; 12]);
        for (kind, value) in attributes {
            message.extend_from_slice(&kind.to_be_bytes());
            message.extend_from_slice(&(value.len() as u16).to_be_bytes());
            message.extend_from_slice(value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = (message.len() - HEADER) as u16;
        message[2..4].copy_from_slice(&length.to_be_bytes());
        message
    }

    #[test]
    fn a_request_names_its_session() {
        let priority = (0x24, &[0, 0, 0, 1][..]);
        let message = request(&[priority, (USERNAME, b"abcde:them"), (0x8022, b"x")]);
        assert_eq!(classify(&message), PacketKind::Request("abcde"));
        for length in 0..message.len() {
            assert!(!matches!(classify(&message[..length]), PacketKind::Request(_)), "cut to {length}");
        }
        assert_eq!(classify(&request(&[(USERNAME, b"no colon")])), PacketKind::Unknown);
        assert_eq!(classify(&request(&[(USERNAME, b"\xff:x")])), PacketKind::Unknown);
        assert_eq!(classify(&request(&[priority])), PacketKind::Unknown);
        let many = vec![priority; ATTRIBUTES];
        let late = [&many[..], &[(USERNAME, &b"abcde:them"[..])]].concat();
        assert_eq!(classify(&request(&late)), PacketKind::Unknown, "behind too many others");
        let mut answer = message.clone();
        answer[0] = 1;
        assert_eq!(classify(&answer), PacketKind::Unknown);
        let mut other = message;
        other[4] ^= 1;
        assert_eq!(classify(&other), PacketKind::Unknown, "another cookie");
    }

    #[test]
    fn other_kinds_are_told_by_their_first_octet() {
        for first in 0..=255u8 {
            let is_media = matches!(first, 20..=63 | 128..=191);
            assert_eq!(classify(&[first; 40]) == PacketKind::Media, is_media, "{first}");
        }
        assert_eq!(classify(&[]), PacketKind::Unknown);
    }

    #[test]
    fn fragments_say_their_worker_and_cannot_be_made_up() {
        let ufrags = Ufrags::default();
        let (one, other) = (ufrags.issue(63), ufrags.issue(63));
        assert_ne!(one, other);
        assert_eq!((ufrags.worker(&one), one.len()), (Some(63), 18));
        assert_eq!(Ufrags::default().worker(&one), None, "of another process");
        for wrong in
            ["", "0", "3f0123456789abcdef", "zz0123456789abcdef", "é00000000000000000", "000000000é0000000"]
        {
            assert_eq!(ufrags.worker(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_that_another_has_by_now_is_not_forgotten() {
        let (mut demux, remote) = (Demux::default(), "192.0.2.9:5000".parse().unwrap());
        demux.add("one".into(), 0);
        demux.learn(remote, Owner::Session(0));
        demux.learn(remote, Owner::Session(1));
        demux.forget(remote, Owner::Session(0));
        assert_eq!(demux.owner(remote), Some(Owner::Session(1)));
        demux.remove("one");
        assert_eq!((demux.session("one"), demux.len()), (None, (0, 1)));
    }
}
