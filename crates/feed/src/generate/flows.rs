//! The flows over which datagrams are spread.

use std::net::{IpAddr, SocketAddr};

use expressway_netio::Flow;

/// Flows by number.
///
/// Flow *n* leaves from source address *n* modulo their number, goes to destination port *n* modulo theirs, and has as
/// source port the first one plus *n* divided by the number of source addresses. So no two flows have the same source.
/// With [`Flows::with_destinations`] it goes to destination address *n* modulo their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flows {
    sources: Vec<IpAddr>,
    first_port: u16,
    to: SocketAddr,
    to_ports: u16,
    /// In place of the address of `to`; may be empty.
    destinations: Vec<IpAddr>,
    count: u32,
    /// Datagrams of a flow in succession.
    run: u32,
}

impl Flows {
    /// `count` flows from `sources` (at least one) and from `first_port` on, to `to` and the `to_ports` ports from
    /// its own on; `run` datagrams go to one flow before the next has its turn.
    ///
    /// # Errors
    /// What does not fit, in a few words.
    pub fn new(
        sources: Vec<IpAddr>,
        first_port: u16,
        (to, to_ports): (SocketAddr, u16),
        count: u32,
        run: u32,
    ) -> Result<Self, String> {
        let [first, ..] = sources[..] else { return Err("no source address".into()) };
        if let Some(other) = sources.iter().find(|source| source.is_ipv4() != to.is_ipv4()) {
            return Err(format!("source {other} is not of the address family of {to}"));
        }
        if first_port == 0 || to.port() == 0 {
            return Err("port 0 is not allowed as source or destination".into());
        }
        if count == 0 || run == 0 || to_ports == 0 {
            return Err("flows, datagrams per turn and destination ports must each be at least 1".into());
        }
        if u32::from(to.port()) + u32::from(to_ports) > 65_536 {
            return Err(format!("{to_ports} destination ports starting at {} exceed 65535", to.port()));
        }
        let ports = count.div_ceil(sources.len() as u32);
        if u32::from(first_port) + ports > 65_536 {
            return Err(format!(
                "{count} flows need {ports} source ports on {first}, but only {} are available from {first_port}",
                65_536 - u32::from(first_port)
            ));
        }
        Ok(Self { sources, first_port, to, to_ports, destinations: Vec::new(), count, run })
    }

    /// Spreads the flows over `destinations` in place of the one address; over that one again if there are none.
    ///
    /// # Errors
    /// One of the other address family, or a group.
    pub fn with_destinations(mut self, destinations: Vec<IpAddr>) -> Result<Self, String> {
        if let Some(other) = destinations.iter().find(|address| address.is_ipv4() != self.to.is_ipv4()) {
            return Err(format!("destination {other} is not of the address family of {}", self.to));
        }
        if let Some(group) = destinations.iter().find(|address| address.is_multicast()) {
            return Err(format!("destination {group} is a multicast group"));
        }
        self.destinations = destinations;
        Ok(self)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// A flow by its number, which is below [`Self::count`].
    #[inline]
    pub fn flow(&self, number: u32) -> Flow {
        let sources = self.sources.len() as u32;
        let source = self.sources[(number % sources) as usize];
        let port = self.first_port + (number / sources) as u16;
        let mut to = self.to;
        if !self.destinations.is_empty() {
            to.set_ip(self.destinations[number as usize % self.destinations.len()]);
        }
        to.set_port(to.port() + (number % u32::from(self.to_ports)) as u16);
        Flow::new(SocketAddr::new(source, port), to)
    }

    /// Which flow datagram `index` of all belongs to, and its number therein.
    #[inline]
    pub fn place(&self, index: u64) -> (u32, u64) {
        let (run, count) = (u64::from(self.run), u64::from(self.count));
        let turn = index / run;
        ((turn % count) as u32, turn / count * run + index % run)
    }

    /// The inverse of [`Self::place`]; `None` for values it never returns.
    #[inline]
    pub fn index(&self, flow: u32, sequence: u64) -> Option<u64> {
        let (run, count) = (u64::from(self.run), u64::from(self.count));
        if flow >= self.count {
            return None;
        }
        let turn = (sequence / run).checked_mul(count)?.checked_add(u64::from(flow))?;
        turn.checked_mul(run)?.checked_add(sequence % run)
    }

    /// Every source address and port.
    pub fn sources(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        (0..self.count).map(|number| self.flow(number).local)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn to() -> SocketAddr {
        "192.0.2.9:7000".parse().unwrap()
    }

    fn sources(count: u8) -> Vec<IpAddr> {
        (1..=count).map(|host| IpAddr::from([192, 0, 2, host])).collect()
    }

    #[test]
    fn flows_differ_in_source_and_take_turns() {
        let flows = Flows::new(sources(2), 5000, (to(), 3), 5, 2).unwrap();
        let all: Vec<String> = (0..5)
            .map(|n| flows.flow(n))
            .map(|flow| format!("{} {}", flow.local, flow.remote.port()))
            .collect();
        assert_eq!(
            all,
            [
                "192.0.2.1:5000 7000",
                "192.0.2.2:5000 7001",
                "192.0.2.1:5001 7002",
                "192.0.2.2:5001 7000",
                "192.0.2.1:5002 7001"
            ]
        );
        let places: Vec<_> = (0..12).map(|index| flows.place(index)).collect();
        assert_eq!(places[..4], [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(places[10..], [(0, 2), (0, 3)]);
    }

    #[test]
    fn destinations_take_turns() {
        let flows = Flows::new(sources(2), 5000, (to(), 1), 5, 1).unwrap();
        let spread = flows
            .clone()
            .with_destinations(vec![[10, 0, 0, 1].into(), [10, 9, 0, 1].into(), [11, 0, 0, 1].into()])
            .unwrap();
        let all: Vec<String> = (0..5).map(|n| spread.flow(n).remote.to_string()).collect();
        assert_eq!(
            all,
            ["10.0.0.1:7000", "10.9.0.1:7000", "11.0.0.1:7000", "10.0.0.1:7000", "10.9.0.1:7000"]
        );
        assert_eq!(spread.flow(4).local, flows.flow(4).local, "sources are as before");
        assert_eq!(spread.with_destinations(Vec::new()).unwrap(), flows);
        let wrong =
            |address: &str| flows.clone().with_destinations(vec![address.parse().unwrap()]).unwrap_err();
        assert!(wrong("2001:db8::1").contains("address family"));
        assert!(wrong("224.0.0.1").contains("multicast group"));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let with =
            |sources, port, ports, count| Flows::new(sources, port, (to(), ports), count, 1).unwrap_err();
        assert!(with(vec![], 5000, 1, 1).contains("no source"));
        assert!(with(vec!["2001:db8::1".parse().unwrap()], 5000, 1, 1).contains("address family"));
        assert!(with(sources(1), 0, 1, 1).contains("port 0"));
        assert!(with(sources(1), 65_000, 1, 600).contains("only 536 are available"));
        assert!(with(sources(1), 5000, 60_000, 1).contains("exceed 65535"));
        assert!(with(sources(1), 5000, 1, 0).contains("at least 1"));
        assert!(Flows::new(sources(2), 65_535, (to(), 1), 2, 1).is_ok(), "the last port counts");
    }

    proptest! {
        #[test]
        fn places_and_indices_are_each_other_s_reverse(count in 1u32..5000, run in 1u32..50, index in 0u64..1 << 40) {
            let flows = Flows::new(sources(1), 10_000, (to(), 1), count, run).unwrap();
            let (flow, sequence) = flows.place(index);
            prop_assert!(flow < count);
            prop_assert_eq!(flows.index(flow, sequence), Some(index));
        }

        #[test]
        fn no_two_flows_share_a_source(hosts in 1u8..5, count in 1u32..300) {
            let flows = Flows::new(sources(hosts), 65_000, (to(), 7), count, 1).unwrap();
            prop_assert_eq!(flows.sources().collect::<HashSet<_>>().len(), count as usize);
        }

        #[test]
        fn numbers_that_cannot_be_have_no_index(flow: u32, sequence: u64) {
            let flows = Flows::new(sources(1), 10_000, (to(), 1), 7, 3).unwrap();
            if let Some(index) = flows.index(flow, sequence) {
                prop_assert_eq!(flows.place(index), (flow, sequence));
            }
        }
    }
}
