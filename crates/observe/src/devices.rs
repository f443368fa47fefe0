//! Where the packets of interfaces are captured: on the interface itself, or on the underlying devices, where XDP sees
//! them.
//!
//! Packets that a VLAN or a bond receives pass no hook under its own name (`__netif_receive_skb_core` in net/core/dev.c
//! continues with another device after the tracepoint), and AF_XDP sends below it. A VLAN is therefore captured as the
//! frames of the underlying device with its tags, and a bond as all frames of its members.

use std::collections::BTreeMap;

use expressway_netio::route::{Link, LinkKind, Snapshot};
use expressway_xbpf::{CapturePrograms, CaptureTarget, CaptureVlan};

use crate::capture::Uncaptured;

/// Deeper than the kernel lets devices nest (MAX_NEST_DEV) there is only a loop.
const DEEPEST: usize = 8;

/// Where packets are captured, and whose XDP programs see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// By device.
    pub(crate) targets: BTreeMap<u32, CaptureTarget>,
    /// The interface that packets with those tags are shown as, and its slot.
    pub(crate) vlans: BTreeMap<CaptureVlan, (u32, u32)>,
    /// By the index of the interface that has the program: the devices that it runs on.
    pub(crate) programs: BTreeMap<u32, Vec<u32>>,
    /// What is not captured.
    pub(crate) notes: Vec<Uncaptured>,
    /// There are others below, which may change.
    pub(crate) is_stacked: bool,
}

/// What an interface is made of.
#[derive(Debug, PartialEq, Eq)]
enum Stack {
    /// Its packets pass it.
    Plain,
    /// They pass the devices, with those tags if there are any; a bond's program runs on its members.
    Over { devices: Vec<u32>, tags: [(u16, u16); 2], bond: Option<u32> },
    /// They pass devices that cannot be captured on, for that reason.
    Beyond(&'static str),
}

impl Plan {
    /// The plan for these interfaces, each with its slot in this order. `has_program`: a VLAN that has an XDP program by
    /// itself is captured on as it is.
    pub(crate) fn of(asked: &[u32], links: &Snapshot, has_program: impl Fn(u32) -> bool) -> Self {
        let mut plan = Self::default();
        let mut stacked = Vec::new();
        for (slot, index) in (0..).zip(asked.iter().copied()) {
            let target = CaptureTarget { shown: Some(index), slot, ..CaptureTarget::default() };
            match stack(links, index) {
                Stack::Over { tags, .. } if tags[0].0 != 0 && has_program(index) => {
                    plan.plain(index, target);
                }
                Stack::Over { devices, tags, bond } => {
                    plan.targets.insert(index, CaptureTarget { drops_only: true, ..target });
                    stacked.push((target, devices, tags, bond));
                }
                Stack::Plain => plan.plain(index, target),
                Stack::Beyond(why) => {
                    plan.plain(index, target);
                    let name = links.link(index).map_or("", |link| &link.name);
                    plan.note(
                        index,
                        format!("interface {name}: packets it receives are not captured: {why}"),
                    );
                }
            }
        }
        // Once, as that of the topmost interface.
        for (target, devices, tags, bond) in stacked {
            plan.is_stacked = true;
            plan.over(target, &devices, tags, bond);
        }
        for (device, target) in &mut plan.targets {
            target.sent_queue = links.link(*device).is_some_and(|link| link.kind == LinkKind::Veth);
        }
        plan
    }

    fn plain(&mut self, index: u32, target: CaptureTarget) {
        self.targets.insert(index, target);
        self.programs.entry(index).or_default().push(index);
    }

    fn over(&mut self, target: CaptureTarget, devices: &[u32], tags: [(u16, u16); 2], bond: Option<u32>) {
        let shown = target.shown.unwrap_or(0);
        for device in devices.iter().copied() {
            let room = self.targets.len() < CapturePrograms::DEVICES || self.targets.contains_key(&device);
            if !room || self.vlans.len() >= CapturePrograms::VLANS {
                self.note(shown, "more devices than can be captured on at once".to_owned());
                return;
            }
            let below = self.targets.entry(device).or_default();
            if tags[0].0 == 0 {
                (below.shown, below.slot) = (target.shown, target.slot);
            } else {
                below.tagged = true;
                self.vlans.insert(CaptureVlan { device, tags }, (shown, target.slot));
            }
            for index in [Some(device), bond].into_iter().flatten() {
                let runs_on = self.programs.entry(index).or_default();
                if !runs_on.contains(&device) {
                    runs_on.push(device);
                }
            }
        }
    }

    fn note(&mut self, interface: u32, text: String) {
        self.notes.push(Uncaptured { interface: Some(interface), text, gap: false });
    }
}

fn stack(links: &Snapshot, index: u32) -> Stack {
    let Some(mut link) = links.link(index) else { return Stack::Plain };
    // Innermost first.
    let mut tags = Vec::new();
    for _ in 0..DEEPEST {
        let LinkKind::Vlan { id, protocol, lower } = link.kind else { break };
        let Some(below) = lower.and_then(|lower| links.link(lower)) else {
            return Stack::Beyond("the device below is in another network namespace");
        };
        tags.push((protocol, id));
        link = below;
    }
    if tags.len() > 2 {
        return Stack::Beyond("it has more than two VLAN tags");
    }
    tags.reverse();
    let is_bond = passes_on(link);
    if tags.is_empty() && !is_bond {
        return Stack::Plain;
    }
    let tag = |at: usize| tags.get(at).copied().unwrap_or_default();
    let devices = if is_bond {
        let members = links.links().iter().filter(|member| member.controller == Some(link.index));
        members.map(|member| member.index).collect()
    } else {
        vec![link.index]
    };
    Stack::Over { devices, tags: [tag(0), tag(1)], bond: is_bond.then_some(link.index) }
}

/// Whether frames of its members go on as its own after the hooks (`RX_HANDLER_ANOTHER`).
fn passes_on(link: &Link) -> bool {
    link.is_bond() || matches!(&link.kind, LinkKind::Other(kind) if kind == "team")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, kind: LinkKind, controller: Option<u32>) -> Link {
        Link {
            index,
            name: format!("if{index}"),
            mac: None,
            mtu: 1500,
            is_up: true,
            has_carrier: true,
            kind,
            controller,
            rx_queues: 1,
            tx_queues: 1,
        }
    }

    fn vlan(id: u16, lower: Option<u32>) -> LinkKind {
        LinkKind::Vlan { id, protocol: 0x8100, lower }
    }

    /// A device with a VLAN in a VLAN; a bond of two with a VLAN; a VLAN of another namespace's device.
    fn links() -> Snapshot {
        Snapshot::of_links(vec![
            link(2, LinkKind::Physical, None),
            link(3, LinkKind::Veth, Some(5)),
            link(4, LinkKind::Veth, Some(5)),
            link(5, LinkKind::Other("bond".to_owned()), None),
            link(6, vlan(200, Some(2)), None),
            link(7, vlan(100, Some(6)), None),
            link(8, vlan(9, Some(5)), None),
            link(9, vlan(1, None), None),
        ])
    }

    fn plan(asked: &[u32]) -> Plan {
        Plan::of(asked, &links(), |_| false)
    }

    fn shown(plan: &Plan, device: u32) -> Option<u32> {
        plan.targets[&device].shown
    }

    #[test]
    fn a_plain_interface_is_its_own_device() {
        let plan = plan(&[2]);
        assert_eq!((shown(&plan, 2), plan.targets.len(), plan.is_stacked), (Some(2), 1, false));
        assert_eq!(plan.programs, BTreeMap::from([(2, vec![2])]));
    }

    #[test]
    fn a_vlan_is_the_frames_below_that_have_its_tags() {
        let plan = plan(&[7]);
        let tags = [(0x8100, 200), (0x8100, 100)];
        assert_eq!(plan.vlans, BTreeMap::from([(CaptureVlan { device: 2, tags }, (7, 0))]));
        assert!(plan.targets[&2].tagged && plan.targets[&7].drops_only);
        assert_eq!(shown(&plan, 2), None, "what has no tags is nobody's");
        assert_eq!(plan.programs, BTreeMap::from([(2, vec![2])]));
    }

    #[test]
    fn a_bond_is_its_members_and_its_program_runs_there() {
        let both = plan(&[5]);
        assert_eq!([shown(&both, 3), shown(&both, 4)], [Some(5); 2]);
        assert_eq!([3, 4, 5].map(|device| both.targets[&device].sent_queue), [true, true, false]);
        assert_eq!(both.programs, BTreeMap::from([(3, vec![3]), (4, vec![4]), (5, vec![3, 4])]));
        let on_bond = plan(&[8]);
        assert_eq!(on_bond.vlans.len(), 2);
        assert_eq!(on_bond.vlans[&CaptureVlan { device: 4, tags: [(0x8100, 9), (0, 0)] }], (8, 0));
    }

    #[test]
    fn a_packet_is_the_topmost_interfaces() {
        let plan = plan(&[2, 3, 5, 6]);
        assert_eq!((shown(&plan, 2), shown(&plan, 3)), (Some(2), Some(5)));
        assert_eq!((plan.targets[&2].slot, plan.targets[&3].slot), (0, 2));
        assert_eq!(plan.vlans[&CaptureVlan { device: 2, tags: [(0x8100, 200), (0, 0)] }], (6, 3));
    }

    #[test]
    fn what_cannot_be_found_below_is_captured_as_it_is_and_told() {
        let plan = plan(&[9]);
        assert_eq!((shown(&plan, 9), plan.targets[&9].drops_only), (Some(9), false));
        assert!(plan.notes[0].text.contains("if9: packets it receives are not captured"), "{:?}", plan.notes);
        let own = Plan::of(&[6], &links(), |index| index == 6);
        assert_eq!((own.targets[&6].drops_only, own.vlans.len()), (false, 0));
    }
}
