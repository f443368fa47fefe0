//! The hooks and XDP programs that are attached, and those that cannot be.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use expressway_netio::route;
use expressway_xbpf::{
    CaptureHook, CaptureLink, CapturePrograms, Error, ProgramChange, ProgramChanges, XdpProgram, xdp_program,
};

use super::clock::monotonic;
use super::error::{CaptureError, Uncaptured};
use super::options::{Points, XdpPoints};
use crate::devices::Plan;

/// The most notes that are kept.
const NOTES: usize = 256;

/// Between two looks at the devices below interfaces.
const RESTACK: Duration = Duration::from_secs(1);

/// Nanoseconds until the stack has received what a program passed before it was captured at.
const UNDER_WAY: u64 = 20_000_000;

/// How long a program is captured at that is on no interface yet, and how many of those.
const ABOUT: Duration = Duration::from_secs(2);
const ABOUT_MOST: usize = 16;

/// How many times of changes are kept.
const TIMES: usize = 256;

/// Everything that is attached.
#[derive(Debug)]
pub(super) struct Attached {
    hooks: Vec<CaptureLink>,
    /// By the program's id: one may be on several interfaces.
    programs: HashMap<u32, Traced>,
    /// Ids of programs that cannot be attached to.
    refused: HashSet<u32>,
    /// Programs that were loaded and are on no interface yet.
    about: HashMap<u32, (Traced, Instant)>,
    /// When programs were put on interfaces, by their id, in nanoseconds of the monotonic clock.
    placed: HashMap<u32, u64>,
    changes: Option<ProgramChanges>,
    /// It has told of programs that were put on interfaces since these were looked at.
    is_told: bool,
    asked: Vec<u32>,
    /// XDP programs are captured at.
    follows: bool,
    plan: Plan,
    restack: Instant,
    /// The program that an interface had last.
    last: HashMap<u32, Option<XdpProgram>>,
    gone: HashSet<u32>,
    /// Redirects are captured also where their program is not.
    sees_redirects: bool,
    notes: Vec<Uncaptured>,
    gaps: u64,
}

/// A program that is captured at.
#[derive(Debug)]
struct Traced {
    link: CaptureLink,
    /// Since when, in nanoseconds of the monotonic clock.
    since: u64,
}

impl Attached {
    /// Attaches to the hooks of `points`, and to the programs that the interfaces have.
    pub(super) fn open(
        programs: &CapturePrograms,
        interfaces: &[u32],
        points: Points,
    ) -> Result<Self, CaptureError> {
        for index in interfaces {
            xdp_program(*index)?;
        }
        let mut attached = Self {
            hooks: Vec::new(),
            programs: HashMap::new(),
            refused: HashSet::new(),
            about: HashMap::new(),
            placed: HashMap::new(),
            changes: None,
            is_told: false,
            asked: interfaces.to_vec(),
            follows: points.xdp != XdpPoints::None,
            plan: Plan::default(),
            restack: Instant::now(),
            last: HashMap::new(),
            gone: HashSet::new(),
            sees_redirects: false,
            notes: Vec::new(),
            gaps: 0,
        };
        let plan = attached.planned().map_err(|error| CaptureError::Io {
            action: "rtnetlink: reading the interfaces",
            source: error.source,
        })?;
        attached.enact(programs, plan);
        for hook in hooks(points) {
            match programs.attach(hook) {
                Ok(link) => {
                    attached.hooks.push(link);
                    attached.sees_redirects |= hook == CaptureHook::Redirect;
                }
                Err(error) => attached.note(None, error.to_string()),
            }
        }
        attached.follow(programs, true);
        if attached.follows {
            attached.watch(programs);
        }
        Ok(attached)
    }

    /// Whether anything is, or may be once a program comes.
    pub(super) fn is_of_use(&self, points: Points) -> bool {
        let waits = points.xdp != XdpPoints::None && self.refused.is_empty();
        !self.hooks.is_empty() || !self.programs.is_empty() || waits
    }

    /// Has the kernel tell of programs that come. Where it does not, they are looked for from time to time.
    fn watch(&mut self, programs: &CapturePrograms) {
        if self.programs.is_empty() && !self.refused.is_empty() {
            // Programs cannot be captured at here, so nobody has to know of them at once.
            return;
        }
        let placed = programs.attach(CaptureHook::Placed);
        let changes = placed.and_then(|link| Ok((programs.changes()?, link)));
        match changes {
            Ok((changes, link)) => {
                self.changes = Some(changes);
                self.hooks.push(link);
                self.hooks.extend(programs.attach(CaptureHook::Loaded));
            }
            Err(error) => tracing::debug!(%error, "XDP programs are looked for from time to time"),
        }
    }

    /// What tells of programs that come.
    pub(super) fn changes(&self) -> Option<&ProgramChanges> {
        self.changes.as_ref()
    }

    /// Takes in what was told of programs. True: the interfaces are to be looked at.
    pub(super) fn hear(&mut self, programs: &CapturePrograms) -> bool {
        let Some(changes) = &mut self.changes else { return false };
        let come = changes.take();
        for ProgramChange { time, program, placed } in come.iter().copied() {
            if placed {
                if self.placed.len() >= TIMES {
                    self.placed.clear();
                }
                self.placed.entry(program).or_insert(time);
            } else if self.about.len() < ABOUT_MOST
                && let Ok(link) = programs.attach_xdp(XdpProgram { id: program, generic: false })
            {
                let traced = Traced { link, since: monotonic() };
                self.about.insert(program, (traced, Instant::now() + ABOUT));
            }
        }
        let now = Instant::now();
        self.about.retain(|_, (_, until)| *until > now);
        self.is_told |= come.iter().any(|change| change.placed);
        self.is_told
    }

    /// Attaches to programs that have come to the interfaces, and lets go of those that went. `first`: nothing was captured
    /// before.
    pub(super) fn follow(&mut self, programs: &CapturePrograms, first: bool) {
        if self.plan.is_stacked && self.restack.elapsed() > RESTACK {
            self.restack = Instant::now();
            // What cannot be read stays as it was.
            if let Ok(plan) = self.planned()
                && plan != self.plan
            {
                self.enact(programs, plan);
            }
        }
        if !self.follows {
            return;
        }
        let interfaces: Vec<u32> = self.plan.programs.keys().copied().collect();
        for index in interfaces {
            let found = match xdp_program(index) {
                Ok(found) => found,
                Err(error) => {
                    if self.gone.insert(index) {
                        self.note(Some(index), error.to_string());
                    }
                    None
                }
            };
            let before = self.last.insert(index, found).flatten();
            if found != before
                && let Some(found) = found
            {
                self.attach(programs, index, found, first);
            }
            self.tell_members(programs, index, found);
        }
        self.last.retain(|index, _| self.plan.programs.contains_key(index));
        let used: HashSet<u32> = self.last.values().flatten().map(|program| program.id).collect();
        for id in self.programs.keys().filter(|id| !used.contains(*id)) {
            if let Err(error) = programs.remove_traced(*id) {
                tracing::debug!(%error, "an XDP program that went");
            }
        }
        self.programs.retain(|id, _| used.contains(id));
        if std::mem::take(&mut self.is_told) {
            // The kernel's side has forgotten a program that was replaced, and may be on another interface. That the
            // interfaces were asked means that no change is under way.
            for id in self.programs.keys() {
                if let Err(error) = programs.set_traced(*id, monotonic() + UNDER_WAY) {
                    tracing::debug!(%error, "an XDP program that stays");
                }
            }
        }
        self.refused.retain(|id| used.contains(id));
        self.placed.retain(|id, _| used.contains(id));
    }

    fn attach(&mut self, programs: &CapturePrograms, index: u32, program: XdpProgram, first: bool) {
        if self.programs.contains_key(&program.id) {
            return;
        }
        let known: Option<Result<Traced, Error>> = self.about.remove(&program.id).map(|(traced, _)| {
            traced.link.find_reasons();
            Ok(traced)
        });
        let made = || {
            let link = programs.attach_xdp(program)?;
            Ok(Traced { link, since: monotonic() })
        };
        match known.unwrap_or_else(made) {
            Ok(traced) => {
                if let Err(error) = programs.set_traced(program.id, monotonic() + UNDER_WAY) {
                    self.note(Some(index), error.to_string());
                }
                if !first {
                    self.tell_gap(index, program.id, traced.since);
                }
                self.programs.insert(program.id, traced);
            }
            Err(error) => {
                self.refused.insert(program.id);
                let instead = match self.sees_redirects {
                    true => "packets that it redirects, and those the kernel receives, are shown instead",
                    false => "what the kernel receives is shown instead",
                };
                self.note(Some(index), format!("{error}; {instead}"));
            }
        }
    }

    /// Notes what was not captured of a program that has come, until it was captured at.
    fn tell_gap(&mut self, index: u32, program: u32, since: u64) {
        let length = match self.placed.get(&program) {
            Some(placed) if *placed >= since => return,
            Some(placed) => format!("{:.1} ms", (since - placed) as f64 / 1e6),
            // As long as between two looks.
            None => format!("up to {} ms", super::FOLLOW.as_millis()),
        };
        self.gaps += 1;
        let name = self.name(index);
        self.keep(Uncaptured {
            interface: Some(self.shown_as(index)),
            text: format!(
                "interface {name}: gap: what the new XDP program {program} dropped or sent back in its first \
                 {length} is not shown"
            ),
            gap: true,
        });
    }

    /// Tells the members of a bond whether its program is captured at.
    fn tell_members(&mut self, programs: &CapturePrograms, index: u32, found: Option<XdpProgram>) {
        let traced = found.is_some_and(|found| self.programs.contains_key(&found.id));
        let members = self.plan.programs.get(&index).cloned().unwrap_or_default();
        for member in members.into_iter().filter(|member| *member != index) {
            let Some(target) = self.plan.targets.get_mut(&member) else { continue };
            if target.traced_above == traced {
                continue;
            }
            target.traced_above = traced;
            if let Err(error) = programs.set_target(member, *target) {
                self.note(Some(index), error.to_string());
            }
        }
    }

    /// Where packets would be captured by the devices that there are.
    fn planned(&self) -> Result<Plan, route::RouteError> {
        let links = route::links()?;
        let mut plan =
            Plan::of(&self.asked, &links, |index| xdp_program(index).is_ok_and(|found| found.is_some()));
        for (device, target) in &mut plan.targets {
            target.traced_above = self.plan.targets.get(device).is_some_and(|known| known.traced_above);
        }
        Ok(plan)
    }

    /// Has packets captured so.
    fn enact(&mut self, programs: &CapturePrograms, plan: Plan) {
        let mut failed = Vec::new();
        for (vlan, (shown, slot)) in &plan.vlans {
            failed.extend(programs.set_vlan(*vlan, *shown, *slot).err());
        }
        for (device, target) in &plan.targets {
            failed.extend(programs.set_target(*device, *target).err());
        }
        let old: BTreeSet<u32> = self.plan.targets.keys().copied().collect();
        for device in old.iter().filter(|device| !plan.targets.contains_key(*device)) {
            failed.extend(programs.remove_target(*device).err());
        }
        for vlan in self.plan.vlans.keys().filter(|vlan| !plan.vlans.contains_key(*vlan)) {
            failed.extend(programs.remove_vlan(*vlan).err());
        }
        for error in failed {
            self.note(None, error.to_string());
        }
        for note in plan.notes.clone() {
            self.keep(note);
        }
        self.plan = plan;
    }

    /// The interface that packets of a device, or of a bond's members, are shown as.
    fn shown_as(&self, index: u32) -> u32 {
        let own = |index: &u32| self.plan.targets.get(index).and_then(|target| target.shown);
        let vlan =
            || self.plan.vlans.iter().find(|(vlan, _)| vlan.device == index).map(|(_, (shown, _))| *shown);
        own(&index).or_else(vlan).unwrap_or(index)
    }

    fn name(&self, index: u32) -> String {
        let name = route::links().ok().and_then(|links| Some(links.link(index)?.name.clone()));
        name.unwrap_or_else(|| index.to_string())
    }

    fn note(&mut self, interface: Option<u32>, text: String) {
        self.keep(Uncaptured { interface, text, gap: false });
    }

    fn keep(&mut self, note: Uncaptured) {
        if self.notes.len() < NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn notes(&self) -> &[Uncaptured] {
        &self.notes
    }

    /// How often something was not captured because a program had just come.
    pub(super) fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Calls that the kernel left out: see [`CaptureLink::misses`].
    pub(super) fn misses(&self) -> u64 {
        let programs = self.programs.values().map(|traced| &traced.link);
        self.hooks.iter().chain(programs).map(CaptureLink::misses).sum()
    }
}

fn hooks(points: Points) -> Vec<CaptureHook> {
    let mut hooks = Vec::new();
    if !matches!(points.xdp, XdpPoints::None | XdpPoints::Entry) {
        hooks.extend([
            CaptureHook::XskRedirect,
            CaptureHook::XskRedirectGeneric,
            CaptureHook::Redirect,
            CaptureHook::RedirectGeneric,
        ]);
    }
    if points.xdp != XdpPoints::None {
        hooks.extend([CaptureHook::Forward, CaptureHook::ForwardGeneric]);
    }
    if points.xsk {
        hooks.extend([CaptureHook::Direct, CaptureHook::ZeroCopy]);
    }
    if points.kernel {
        hooks.extend([CaptureHook::Receive, CaptureHook::Transmit]);
    }
    if points.drops {
        hooks.push(CaptureHook::Drop);
    }
    hooks
}
