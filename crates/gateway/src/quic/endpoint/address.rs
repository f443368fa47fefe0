//! Where a connection's packets go when the client's address changes.
//!
//! A client that migrates on purpose uses a new connection ID (RFC 9000, section 9.5), and the engine
//! migrates. A client behind a NAT that assigned another port does not know it and keeps its ID. To the
//! engine this would be a migration too, with a fresh congestion window, and data in flight to the old port
//! would be lost without its loss detection ever noticing, since each path only compares its own packet
//! numbers.
//!
//! A rebinding is therefore an *alias*: the engine keeps its path, its packets go to the new address, and datagrams
//! from there are passed to it as if they came from the address that it knows. There may be any number of successive
//! rebindings: only the client's current address and the last validated one are kept. Until the new address has
//! answered a challenge (see `probe`), at most three times as many bytes are sent there as arrived from it (RFC 9000,
//! section 9.3.1). If it does not answer, or the client is heard from the validated address, packets go to the
//! validated address again (section 9.3.2).
//!
//! The client's address is that of its newest packet by packet number, not by arrival: packets may be reordered, and an
//! attacker on the path may delay one and send it from anywhere.

use std::net::SocketAddr;

use crate::quic::cid::Cid;

/// A short header with the longest ID, a packet number, PATH_CHALLENGE and the AEAD tag: what a datagram has to have room
/// for, so that an address can be validated.
const CHALLENGE: usize = 1 + 20 + 4 + 9 + 16;

/// Bytes that may be sent for each byte received from an address that is not validated.
const AMPLIFICATION: usize = 3;

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The address that the client asked.
    pub(super) local: SocketAddr,
    /// Where the client is.
    pub(super) remote: SocketAddr,
    /// Where the engine believes it to be.
    pub(super) engine: SocketAddr,
    /// The last address that was validated.
    proven: SocketAddr,
    /// The ID that the client uses from there.
    pub(super) cid: Option<Cid>,
    /// The engine may know more than one path.
    pub(super) several: bool,
    /// Bytes that may go to `remote` before it is validated; `None` once it is.
    unproven: Option<usize>,
}

impl Address {
    pub(super) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local, remote, engine: remote, proven: remote, cid: None, several: false, unproven: None }
    }

    /// The address that the engine is told for a datagram of `length` bytes.
    pub(super) fn seen_as(&mut self, local: SocketAddr, remote: SocketAddr, length: usize) -> SocketAddr {
        if (local, remote) != (self.local, self.remote) {
            return remote;
        }
        if let Some(budget) = &mut self.unproven {
            *budget += AMPLIFICATION * length;
        }
        self.engine
    }

    /// The client was seen at a new address, by a datagram of `length` bytes.
    pub(super) fn rebind(&mut self, remote: SocketAddr, length: usize) {
        self.remote = remote;
        self.unproven = Some(AMPLIFICATION * length);
    }

    /// The address is not validated.
    pub(super) fn is_unproven(&self) -> bool {
        self.unproven.is_some()
    }

    /// `remote` is the last address that was validated.
    pub(super) fn is_proven(&self, remote: SocketAddr) -> bool {
        remote == self.proven
    }

    /// The client has answered a challenge.
    pub(super) fn validated(&mut self) {
        (self.proven, self.unproven) = (self.remote, None);
    }

    /// The client has not answered a challenge, or has returned.
    pub(super) fn failed(&mut self) {
        (self.remote, self.unproven) = (self.proven, None);
    }

    /// Takes in which path the engine sends on. True when it has migrated, so that nothing is known of the
    /// path's MTU.
    pub(super) fn follow(&mut self, local: SocketAddr, engine: SocketAddr) -> bool {
        if local == self.local && engine == self.engine {
            return false;
        }
        *self = Self { several: self.several, ..Self::new(local, engine) };
        true
    }

    /// Where packets of the engine's path to `engine` go.
    pub(super) fn destination(&self, engine: SocketAddr) -> SocketAddr {
        if engine == self.engine { self.remote } else { engine }
    }

    /// What may go to the client now: datagrams of so many bytes, `segment` unless there is only room for a smaller one, and how
    /// many.
    pub(super) fn allowance(&self, segment: usize) -> (usize, usize) {
        match self.unproven {
            None => (segment, usize::MAX),
            Some(budget) if (CHALLENGE..segment).contains(&budget) => (budget, 1),
            Some(budget) => (segment, budget / segment),
        }
    }

    /// `bytes` have gone to the client.
    pub(super) fn spend(&mut self, bytes: usize) {
        if let Some(budget) = &mut self.unproven {
            *budget = budget.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn at_home() -> Address {
        Address::new(address("192.0.2.1:443"), address("198.51.100.1:1000"))
    }

    #[test]
    fn a_rebinding_is_an_alias_with_a_budget_until_it_is_validated() {
        let (mut one, home, new) = (at_home(), at_home().remote, address("198.51.100.1:2000"));
        assert_eq!(one.allowance(1200), (1200, usize::MAX));
        one.rebind(new, 800);
        assert_eq!((one.remote, one.engine, one.destination(home)), (new, home, new));
        assert_eq!(one.allowance(1200), (1200, 2));
        one.spend(1300);
        assert_eq!(one.allowance(1200), (1100, 1), "what is left has room for a challenge");
        one.spend(1051);
        assert_eq!(one.allowance(1200), (1200, 0));
        assert_eq!(one.seen_as(one.local, new, 800), home);
        assert_eq!(one.allowance(1200), (1200, 2));
        one.validated();
        assert_eq!(one.allowance(1200), (1200, usize::MAX));
        assert!(one.is_proven(new) && !one.is_proven(home));
        let next = address("198.51.100.1:3000");
        one.rebind(next, 800);
        assert_eq!(one.destination(home), next);
        one.failed();
        assert_eq!((one.remote, one.engine, one.allowance(1200)), (new, home, (1200, usize::MAX)));
    }

    #[test]
    fn an_address_that_fails_ends_the_alias() {
        let (mut one, home, new) = (at_home(), at_home().remote, address("203.0.113.1:2000"));
        one.rebind(new, 100);
        one.failed();
        assert_eq!((one.remote, one.allowance(1200)), (home, (1200, usize::MAX)));
    }

    #[test]
    fn a_migration_of_the_engine_replaces_everything() {
        let (mut one, new) = (at_home(), address("203.0.113.1:2000"));
        one.rebind(new, 100);
        assert!(!one.follow(one.local, one.engine), "a rebinding is no migration");
        let other = address("203.0.113.9:3000");
        assert!(one.follow(one.local, other));
        assert_eq!((one.remote, one.engine, one.allowance(1200)), (other, other, (1200, usize::MAX)));
    }
}
