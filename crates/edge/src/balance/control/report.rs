//! The state that a [`Balancer`] reports.

use expressway_xbpf::BalanceState;

use super::member::{Active, Member};
use super::{Balancer, Error};
use crate::balance::health::NO_SOURCE;
use crate::balance::status::{NodeStatus, ServiceStatus, Status};

impl Balancer {
    /// Everything that can be told; counts the flows of each node.
    ///
    /// # Errors
    /// Of the program.
    pub fn status(&mut self) -> Result<Status, Error> {
        self.count()?;
        let interfaces = self.interfaces().into_iter().map(|(name, mode)| (name, mode.name())).collect();
        let services =
            self.active.iter().map(|active| self.service_status(active)).collect::<Result<_, _>>()?;
        Ok(Status { interfaces, packets: self.program.counters()?, services })
    }

    fn service_status(&self, active: &Active) -> Result<ServiceStatus, Error> {
        let nodes: Result<Vec<NodeStatus>, Error> =
            active.members.iter().map(|member| self.node_status(member)).collect();
        let nodes = nodes?;
        Ok(ServiceStatus {
            name: active.service.name.clone(),
            listen: active.service.listen.clone(),
            protocol: active.service.protocol.to_string(),
            flows: nodes.iter().map(|node| node.flows).sum(),
            traffic: self.program.service_traffic(active.slot.number)?.since(&active.before),
            nodes,
        })
    }

    fn node_status(&self, member: &Member) -> Result<NodeStatus, Error> {
        let written = member.written.as_ref();
        let link = written.and_then(|node| self.paths.snapshot().link(node.ifindex));
        let state = match written.map(|node| node.state) {
            Some(BalanceState::Up) => "up",
            Some(BalanceState::Draining) => "draining",
            _ => "down",
        };
        let health = self.checker.health(member.slot.number);
        Ok(NodeStatus {
            address: member.node.address,
            state,
            weight: member.node.weight,
            method: member.node.method.to_string(),
            ring: member.ring,
            interface: link.map(|link| link.name.clone()),
            problem: match member.no_source {
                true => Some(NO_SOURCE.to_owned()),
                false => health.as_ref().and_then(|health| health.problem.clone()),
            },
            checks: health.map(|health| (health.asked, health.failed)),
            flows: member.flows,
            traffic: self.program.node_traffic(member.slot.number)?.since(&member.before),
        })
    }
}
