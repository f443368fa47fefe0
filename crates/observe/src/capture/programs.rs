//! Which hooks and XDP programs are attached, and what is not.

use std::collections::{HashMap, HashSet};

use expressway_xbpf::{CaptureHook, CaptureLink, CapturePrograms, Error, XdpProgram, xdp_program};

use super::error::Note;
use super::options::{Points, XdpPoints};

/// The most notes that are kept.
const NOTES: usize = 256;

/// Everything that is attached.
#[derive(Debug)]
pub(super) struct Attached {
    hooks: Vec<CaptureLink>,
    /// By the program's id: one may be on several interfaces.
    programs: HashMap<u32, CaptureLink>,
    /// Ids of programs that cannot be attached to.
    refused: HashSet<u32>,
    interfaces: Vec<Watched>,
    notes: Vec<Note>,
}

/// An interface and the program that it had last.
#[derive(Debug)]
struct Watched {
    index: u32,
    program: Option<XdpProgram>,
    gone: bool,
}

impl Attached {
    /// Attaches to the hooks of `points`, and to the programs that the interfaces have.
    pub(super) fn open(
        programs: &CapturePrograms,
        interfaces: &[u32],
        points: Points,
    ) -> Result<Self, Error> {
        let watched = |index: &u32| Watched { index: *index, program: None, gone: false };
        let mut attached = Self {
            hooks: Vec::new(),
            programs: HashMap::new(),
            refused: HashSet::new(),
            interfaces: interfaces.iter().map(watched).collect(),
            notes: Vec::new(),
        };
        for index in interfaces {
            xdp_program(*index)?;
        }
        for (slot, index) in (0..).zip(interfaces) {
            programs.set_target(*index, slot, false)?;
        }
        for hook in hooks(points) {
            match programs.attach(hook) {
                Ok(link) => attached.hooks.push(link),
                Err(error) => attached.note(None, error.to_string()),
            }
        }
        if points.xdp != XdpPoints::None {
            attached.follow(programs);
        }
        Ok(attached)
    }

    /// Whether anything is, or may be once a program comes.
    pub(super) fn is_of_use(&self, points: Points) -> bool {
        let waits = points.xdp != XdpPoints::None && self.refused.is_empty();
        !self.hooks.is_empty() || !self.programs.is_empty() || waits
    }

    /// Attaches to programs that have come to the interfaces, and lets go of those that went.
    pub(super) fn follow(&mut self, programs: &CapturePrograms) {
        for at in 0..self.interfaces.len() {
            let Watched { index, program, gone } = self.interfaces[at];
            let found = match xdp_program(index) {
                Ok(found) => found,
                Err(error) => {
                    if !gone {
                        self.note(Some(index), error.to_string());
                        self.interfaces[at].gone = true;
                    }
                    None
                }
            };
            if found == program {
                continue;
            }
            self.interfaces[at].program = found;
            let is_seen = found.is_some_and(|found| self.attach(programs, index, found));
            if let Err(error) = programs.set_target(index, at as u32, is_seen) {
                self.note(Some(index), error.to_string());
            }
        }
        let used: HashSet<u32> =
            self.interfaces.iter().filter_map(|watched| watched.program).map(|program| program.id).collect();
        self.programs.retain(|id, _| used.contains(id));
        self.refused.retain(|id| used.contains(id));
    }

    fn attach(&mut self, programs: &CapturePrograms, index: u32, program: XdpProgram) -> bool {
        if self.programs.contains_key(&program.id) {
            return true;
        }
        match programs.attach_xdp(program) {
            Ok(link) => {
                self.programs.insert(program.id, link);
                true
            }
            Err(error) => {
                self.refused.insert(program.id);
                self.note(Some(index), format!("{error}; what the kernel receives is shown instead"));
                false
            }
        }
    }

    fn note(&mut self, interface: Option<u32>, text: String) {
        let note = Note { interface, text };
        if self.notes.len() < NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Calls that the kernel left out: see [`CaptureLink::misses`].
    pub(super) fn misses(&self) -> u64 {
        self.hooks.iter().chain(self.programs.values()).map(CaptureLink::misses).sum()
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
