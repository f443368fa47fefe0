//! The devices that an interface's packets pass, and the XDP programs that see them there.

use std::collections::{BTreeMap, HashMap, VecDeque};

use expressway_netio::route::{self, RouteError};
use expressway_xbpf::{Error, FlowPrograms, XdpProgram, XdpTarget, xdp_program};

use super::sample::Program;
use crate::devices::Plan;

/// Gaps that are told: the last ones.
const GAPS: usize = 8;

/// Those of one interface.
#[derive(Debug)]
pub(super) struct Devices {
    index: u32,
    below: Vec<u32>,
    sent_queues: u32,
    tags: [(u16, u16); 2],
    /// By the index of the interface that has the program: the devices that it runs on.
    programs: BTreeMap<u32, Vec<u32>>,
    notes: Vec<String>,
    /// Programs that cannot be traced, and why, by the interface that has them: so that this is found out once.
    untraced: HashMap<u32, (u32, String)>,
    gaps: VecDeque<String>,
    /// The programs that were there last, in the order of `programs`, and the one that is shown.
    last: Vec<Option<XdpProgram>>,
    shown: Option<Program>,
}

impl Devices {
    pub(super) fn of(index: u32) -> Result<Self, RouteError> {
        let plan = plan(index)?;
        let passed = plan.targets.iter().filter(|(_, target)| !target.drops_only);
        let below: Vec<u32> = passed.clone().map(|(device, _)| *device).collect();
        let places = passed.take(FlowPrograms::DEVICES).enumerate();
        let sent_queues =
            places.filter(|(_, (_, target))| target.sent_queue).fold(0, |bits, (place, _)| bits | 1 << place);
        let tags = plan.vlans.keys().next().map(|vlan| vlan.tags).unwrap_or_default();
        let mut notes: Vec<String> = plan.notes.iter().map(|note| note.text.clone()).collect();
        if below.len() > FlowPrograms::DEVICES {
            notes.push(format!("not counted: members beyond the {}th", FlowPrograms::DEVICES));
        }
        Ok(Self {
            index,
            below,
            sent_queues,
            tags,
            programs: plan.programs,
            notes,
            untraced: HashMap::new(),
            gaps: VecDeque::new(),
            last: Vec::new(),
            shown: None,
        })
    }

    /// Their indices.
    pub(super) fn below(&self) -> &[u32] {
        &self.below
    }

    /// Those of them, a bit each, whose received packets have the queue that they were sent by.
    pub(super) fn sent_queues(&self) -> u32 {
        self.sent_queues
    }

    /// The VLAN tags that packets of the interface have on them.
    pub(super) fn tags(&self) -> [(u16, u16); 2] {
        self.tags
    }

    /// Whether there are others by now.
    pub(super) fn have_changed(&self) -> bool {
        let stands = |plan: &Plan| {
            let below =
                plan.targets.iter().filter(|(_, target)| !target.drops_only).map(|(device, _)| device);
            below.eq(self.below.iter()) && plan.vlans.keys().all(|vlan| vlan.tags == self.tags)
        };
        // Of an interface that is gone, its absence is told.
        self.below != [self.index] && plan(self.index).is_ok_and(|plan| !stands(&plan))
    }

    /// What is not counted.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let untraced = self.untraced.values().map(|(_, note)| note);
        self.notes.iter().chain(untraced).chain(&self.gaps).cloned()
    }

    /// Attaches to the programs that see packets of the interface; returns one of them. `first`: nothing was counted before.
    pub(super) fn follow(&mut self, programs: &mut FlowPrograms, first: bool) -> Option<Program> {
        let found = self.programs.keys().map(|index| xdp_program(*index).ok().flatten()).collect();
        if self.last == found && !first {
            return self.shown.clone();
        }
        self.last = found;
        self.shown = self.attach(programs, first);
        self.shown.clone()
    }

    fn attach(&mut self, programs: &mut FlowPrograms, first: bool) -> Option<Program> {
        let mut shown = None;
        for (index, runs_on) in self.programs.clone() {
            let target = match XdpTarget::of(index) {
                Ok(target) => target,
                Err(error) => {
                    let id = match error {
                        Error::NoTypes { id, .. } => id,
                        _ => 0,
                    };
                    self.untraced.insert(index, (id, format!("not counted: {error}")));
                    for device in runs_on {
                        let _ = programs.follow(device, false, None);
                    }
                    continue;
                }
            };
            let id = target.as_ref().map_or(0, |target| target.id);
            // A bond's program is not named by its members, which have none of their own.
            if target.is_none() && runs_on != [index] || self.is_below_a_program(index) {
                continue;
            }
            if !self.untraced.get(&index).is_some_and(|(untraced, _)| *untraced == id && id != 0) {
                self.untraced.remove(&index);
                let is_new = id != 0 && !programs.follows(id);
                for device in &runs_on {
                    if let Err(error) = programs.follow(*device, *device != index, target.as_ref()) {
                        let note = format!("not counted: what the XDP program drops or sends back: {error}");
                        self.untraced.insert(index, (id, note));
                    }
                }
                if is_new && !first && programs.follows(id) {
                    self.tell_gap(id);
                }
            }
            shown = shown.or(target.map(|target| Program {
                id: target.id,
                mode: target.mode.name().to_owned(),
                traced: programs.follows(target.id),
                name: target.function,
            }));
        }
        shown
    }

    /// Whether a bond above it has a program, which is the one that runs.
    fn is_below_a_program(&self, index: u32) -> bool {
        let bond = self.programs.iter().find(|(above, runs_on)| **above != index && runs_on.contains(&index));
        bond.is_some_and(|(above, _)| xdp_program(*above).is_ok_and(|found| found.is_some()))
    }

    fn tell_gap(&mut self, program: u32) {
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(format!(
            "gap: what the XDP program {program} dropped or sent back before it was found is not counted"
        ));
    }
}

fn plan(index: u32) -> Result<Plan, RouteError> {
    let links = route::links()?;
    Ok(Plan::of(&[index], &links, |index| xdp_program(index).is_ok_and(|found| found.is_some())))
}
