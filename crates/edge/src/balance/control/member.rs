//! Services and nodes with their numbers, and what the program needs to know about them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use expressway_xbpf::{Balance, BalanceMethod, BalanceName, BalanceNode, BalanceState, BalanceTraffic};

use super::Error;
use crate::balance::config::{Method, Node, Scheduler, Service};
use crate::balance::health::NO_SOURCE;
use crate::balance::maglev::{self, Share};
use crate::balance::paths::{NodePath, unspecified};
use crate::balance::slots::Slot;

/// What one flow adds to the load of a node with weight 1.
const STEP: u32 = 1000;
/// Parts of a weight in which a node that begins gets it.
const PARTS: u32 = 10;

/// A node with its number.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) node: Node,
    pub(super) slot: Slot,
    /// By an order; until the next one, or until the node leaves the file.
    pub(super) drained: bool,
    /// What the slot had counted when the node got it.
    pub(super) before: BalanceTraffic,
    /// Its tunnel has no source: [`NodePath::source`].
    pub(super) no_source: bool,
    /// As last written.
    pub(super) written: Option<BalanceNode>,
    /// The program has added to its load since, or may have.
    pub(super) stale: bool,
    pub(super) flows: u32,
    /// Entries of the service's ring.
    pub(super) ring: u32,
    /// When it came into service beside others that were there; its weight grows from then on.
    pub(super) since: Option<Instant>,
}

impl Member {
    pub(super) fn new(node: Node, slot: Slot, before: BalanceTraffic) -> Self {
        Self {
            node,
            slot,
            drained: false,
            before,
            no_source: false,
            written: None,
            stale: false,
            flows: 0,
            ring: 0,
            since: None,
        }
    }

    /// What the program should know of it. A path that is not known any longer is used as long as there is no other.
    pub(super) fn wanted(&self, scheduler: Scheduler, up: bool, path: Option<NodePath>) -> BalanceNode {
        let step = match scheduler {
            Scheduler::Maglev => 0,
            Scheduler::LeastConnections => (STEP / self.node.weight.max(1)).max(1),
        };
        let address = self.node.address;
        let last = self.written.filter(|last| last.address == address);
        let mut node = BalanceNode {
            address,
            generation: self.slot.generation,
            method: match self.node.method {
                Method::L2 => BalanceMethod::L2,
                Method::Ipip => BalanceMethod::Ipip,
                Method::Gue => BalanceMethod::Gue,
            },
            state: match up {
                false => BalanceState::Down,
                true if self.drained || self.node.drain || self.node.weight == 0 => BalanceState::Draining,
                true => BalanceState::Up,
            },
            step,
            load: u64::from(self.flows) * u64::from(step),
            ..last.unwrap_or_else(|| absent(self.slot))
        };
        if let Some(path) = path {
            // Without a source nothing is sent by a tunnel.
            node.ifindex = if self.lacks_source(&path) { 0 } else { path.ifindex };
            node.source = path.source.unwrap_or(unspecified(address));
            node.destination_mac = path.destination_mac;
            node.source_mac = path.source_mac;
            node.mtu = path.mtu;
        }
        node
    }

    fn lacks_source(&self, path: &NodePath) -> bool {
        path.source.is_none() && self.node.method != Method::L2
    }

    /// Notes whether its tunnel has a source, and says so when that changes.
    pub(super) fn look_at(&mut self, path: Option<&NodePath>) {
        let Some(path) = path else { return };
        let lacks = self.lacks_source(path);
        if lacks && !self.no_source {
            tracing::warn!(node = %self.node.address, problem = NO_SOURCE, "nothing can be sent to the node by its tunnel");
        } else if self.no_source && !lacks {
            tracing::info!(node = %self.node.address, "the node's tunnel has a source");
        }
        self.no_source = lacks;
    }

    /// Writes it, if the program may know otherwise.
    pub(super) fn write(&mut self, program: &Balance, node: &BalanceNode) -> Result<(), Error> {
        if self.written.as_ref() == Some(node) && !self.stale {
            return Ok(());
        }
        program.set_node(self.slot.number, node)?;
        self.written = Some(*node);
        self.stale = false;
        Ok(())
    }

    /// Its part of new flows at `now`, in parts of its weight.
    pub(super) fn share(&self, slow_start: Duration, now: Instant) -> u32 {
        let full = self.node.weight * PARTS;
        let Some(since) = self.since else { return full };
        let passed = now.saturating_duration_since(since).as_millis();
        // In whole steps, so that the ring is not made anew with each look.
        let steps = (passed * u128::from(PARTS) / slow_start.as_millis().max(1)).min(u128::from(PARTS) - 1);
        self.node.weight * (1 + steps as u32)
    }
}

/// A service with its number.
#[derive(Clone)]
pub(super) struct Active {
    pub(super) service: Service,
    pub(super) slot: Slot,
    pub(super) before: BalanceTraffic,
    pub(super) members: Vec<Member>,
    /// What the ring was made of: parts by slot.
    pub(super) ring: Vec<(u32, u32)>,
    /// Made at all; an empty ring is one.
    pub(super) has_ring: bool,
}

impl Active {
    /// Its name and its nodes', with their numbers.
    pub(super) fn names(&self) -> impl Iterator<Item = BalanceName> + '_ {
        let name = |node, slot: Slot| BalanceName {
            service: self.service.name.clone(),
            node,
            number: slot.number,
            generation: slot.generation,
        };
        let nodes = self.members.iter().map(move |member| name(Some(member.node.address), member.slot));
        std::iter::once(name(None, self.slot)).chain(nodes)
    }

    /// Makes the service's ring that of these parts by slot, if it is not.
    pub(super) fn set_ring(&mut self, program: &Balance, parts: Vec<(u32, u32)>) -> Result<(), Error> {
        if parts == self.ring && self.has_ring {
            return Ok(());
        }
        let names: Vec<String> = self.members.iter().map(|member| member.node.address.to_string()).collect();
        let part = |member: &Member| {
            parts.iter().find(|(slot, _)| *slot == member.slot.number).map_or(0, |(_, part)| *part)
        };
        let shares: Vec<Share<'_>> = names
            .iter()
            .zip(&self.members)
            .map(|(name, member)| Share { name, weight: part(member) })
            .collect();
        let ring = maglev::ring(&shares, Balance::RING as usize);
        for (index, member) in (0u32..).zip(&mut self.members) {
            member.ring = ring.iter().filter(|entry| **entry == index).count() as u32;
        }
        let slots: Vec<u32> = ring.iter().map(|index| self.members[*index as usize].slot.number).collect();
        program.set_ring(self.slot.number, &slots)?;
        self.ring = parts;
        self.has_ring = true;
        Ok(())
    }
}

/// What a free slot says.
pub(super) fn absent(slot: Slot) -> BalanceNode {
    BalanceNode {
        address: Ipv4Addr::UNSPECIFIED.into(),
        source: Ipv4Addr::UNSPECIFIED.into(),
        ifindex: 0,
        destination_mac: [0; 6],
        source_mac: [0; 6],
        generation: slot.generation,
        mtu: 1500,
        load: 0,
        step: 0,
        method: BalanceMethod::L2,
        state: BalanceState::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(weight: u32) -> Member {
        let node = Node {
            address: [192, 0, 2, 1].into(),
            weight,
            method: Method::L2,
            drain: false,
            server_id: vec![1],
        };
        Member::new(node, Slot { number: 1, generation: 1 }, BalanceTraffic::default())
    }

    #[test]
    fn a_node_that_begins_gets_its_weight_in_parts() {
        let mut member = member(3);
        let (start, slow) = (Instant::now(), Duration::from_secs(10));
        assert_eq!(member.share(slow, start), 30, "at once, as it was there from the start");
        member.since = Some(start);
        let after = |milliseconds| member.share(slow, start + Duration::from_millis(milliseconds));
        assert_eq!([0, 999, 1000, 5500, 9000, 60_000].map(after), [3, 3, 6, 18, 30, 30]);
        assert_eq!(member.share(Duration::ZERO, start + Duration::from_secs(1)), 30);
    }

    #[test]
    fn what_the_program_is_told_of_a_node() {
        let mut member = member(4);
        member.flows = 7;
        let node = member.wanted(Scheduler::LeastConnections, true, None);
        assert_eq!((node.state, node.ifindex, node.step, node.load), (BalanceState::Up, 0, 250, 1750));
        assert_eq!(member.wanted(Scheduler::Maglev, true, None).load, 0);
        assert_eq!(member.wanted(Scheduler::Maglev, false, None).state, BalanceState::Down);
        member.written = Some(BalanceNode { ifindex: 3, ..node });
        member.drained = true;
        let kept = member.wanted(Scheduler::Maglev, true, None);
        assert_eq!((kept.state, kept.ifindex), (BalanceState::Draining, 3), "the last path that was known");
        let path = |source: Option<std::net::IpAddr>| {
            Some(NodePath { source, ifindex: 4, destination_mac: [1; 6], source_mac: [2; 6], mtu: 1500 })
        };
        assert_eq!(member.wanted(Scheduler::Maglev, true, path(None)).ifindex, 4, "needs no source");
        member.node.method = Method::Gue;
        assert_eq!(member.wanted(Scheduler::Maglev, true, path(None)).ifindex, 0, "a tunnel does");
        let source = Some([192, 0, 2, 9].into());
        let told = member.wanted(Scheduler::Maglev, true, path(source));
        assert_eq!((told.ifindex, Some(told.source)), (4, source));
        member.node.address = [192, 0, 2, 2].into();
        assert_eq!(member.wanted(Scheduler::Maglev, true, None).ifindex, 0, "another node's path is not its");
    }
}
