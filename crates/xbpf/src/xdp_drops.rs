//! Why XDP programs of this crate drop packets, as whoever observes them is told: by the one map `xdp_drop_map` that each of
//! them has (`bpf/include/xdp_drop.h`), which observers find and read (`bpf/include/xdp_drop_seen.h`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Program};

use crate::balance::BalanceCounter;
use crate::counters::{Counter, Verdict};
use crate::forward::ForwardCounter;
use crate::guard::GuardReason;
use crate::skeleton::capture_types::{xdp_drop, xdp_drop_program};
use crate::sys;

/// The map of a program that tells.
const TABLE: &str = "xdp_drop_map";

/// Links of the system that are looked at for the components of a dispatcher.
const LINKS: usize = 1 << 16;

/// Why an XDP program of this crate dropped a packet: the program's own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XdpDrop {
    /// The redirect program.
    Redirect(Counter),
    /// The filter.
    Guard(GuardReason),
    /// The router.
    Forward(ForwardCounter),
    /// The load balancer.
    Balance(BalanceCounter),
}

impl XdpDrop {
    /// The reason by the number that programs leave; `None` for one that this version does not know.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        let which = usize::from(number & 0xff);
        match xdp_drop_program(u32::from(number & 0xff00)) {
            xdp_drop_program::XDP_DROP_REDIRECT => {
                nth(&Counter::ALL, |counter| counter.verdict() == Verdict::Drop, which).map(Self::Redirect)
            }
            xdp_drop_program::XDP_DROP_GUARD => {
                nth(&GuardReason::ALL, |reason| reason.drops(), which).map(Self::Guard)
            }
            xdp_drop_program::XDP_DROP_FORWARD => {
                nth(&ForwardCounter::ALL, |counter| counter.verdict() == Verdict::Drop, which)
                    .map(Self::Forward)
            }
            xdp_drop_program::XDP_DROP_BALANCE => {
                nth(&BalanceCounter::ALL, |counter| counter.verdict() == "drop", which).map(Self::Balance)
            }
            _ => None,
        }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u16::MAX).filter_map(Self::from_number)
    }
}

/// The programs' drops follow each other, behind what they do not drop.
fn nth<T: Copy>(all: &[T], drops: impl Fn(T) -> bool, which: usize) -> Option<T> {
    all.iter().copied().filter(|one| drops(*one)).nth(which)
}

/// The maps by which a load that observes an XDP program knows why it dropped.
#[derive(Debug)]
pub(crate) struct DropTables {
    tables: MapHandle,
    seen: MapHandle,
}

impl DropTables {
    /// Names of the maps, of which each load for an XDP program has its own.
    pub(crate) const TABLES: &str = "drop_tables_map";
    pub(crate) const SEEN: &str = "drops_seen_map";

    pub(crate) fn new(tables: MapHandle, seen: MapHandle) -> Self {
        Self { tables, seen }
    }

    /// Has the load look at the maps of the program, or of those in its place if it is a dispatcher. Without the right to find
    /// them (CAP_SYS_ADMIN) drops are told without the program's reason.
    pub(crate) fn follow(&self, program: BorrowedFd<'_>) {
        if let Err(error) = self.fill(program) {
            tracing::debug!(%error, "why an XDP program drops is not known");
        }
    }

    fn fill(&self, program: BorrowedFd<'_>) -> Result<(), libbpf_rs::Error> {
        let zero = 0u32.to_ne_bytes();
        let mut numbers = 0..self.tables.max_entries();
        for (table, number) in tables_of(program)?.into_iter().zip(&mut numbers) {
            let key = number.to_ne_bytes();
            // What was dropped before is not taken for the next drop.
            if let Some(values) = table.lookup_percpu(&zero, MapFlags::ANY)? {
                self.seen.update_percpu(&key, &values, MapFlags::ANY)?;
            }
            self.tables.update(&key, &table.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)?;
        }
        // Of components that went. Where there was none, it is none that is missing.
        for number in numbers {
            let _ = self.tables.delete(&number.to_ne_bytes());
        }
        Ok(())
    }
}

/// The maps that tell, of the program or of what extends it.
fn tables_of(program: BorrowedFd<'_>) -> Result<Vec<MapHandle>, libbpf_rs::Error> {
    let info = sys::program_info(program)?;
    let mut found = tables_among(&info.maps);
    if found.is_empty() {
        for id in sys::programs_at(info.id, LINKS)? {
            // One that has gone meanwhile drops nothing.
            let Ok(extension) = Program::fd_from_id(id) else { continue };
            let Ok(extension) = sys::program_info(extension.as_fd()) else { continue };
            found.extend(tables_among(&extension.maps));
        }
    }
    Ok(found)
}

fn tables_among(maps: &[u32]) -> Vec<MapHandle> {
    let is_table = |map: &MapHandle| {
        map.name() == TABLE
            && map.map_type() == MapType::PercpuArray
            && (map.key_size(), map.max_entries()) == (4, 1)
            && map.value_size() as usize == size_of::<xdp_drop>()
    };
    maps.iter().filter_map(|id| MapHandle::from_map_id(*id).ok()).filter(is_table).collect()
}

/// What the map of a program has on this CPU or another, for tests of the programs: the reason that was left last.
///
/// # Errors
/// [`libbpf_rs::Error`].
#[doc(hidden)]
pub fn last_drops(program: BorrowedFd<'_>) -> Result<Vec<XdpDrop>, libbpf_rs::Error> {
    let mut found = Vec::new();
    for table in tables_of(program)? {
        for value in table.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default() {
            let at = std::mem::offset_of!(xdp_drop, reason);
            let number = value.get(at..at + 2).map_or(0, |octets| u16::from_ne_bytes([octets[0], octets[1]]));
            found.extend(XdpDrop::from_number(number));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_programs_counters() {
        use crate::skeleton::guard::types::guard_reason;
        let guard = xdp_drop_program::XDP_DROP_GUARD.0 as u16;
        for reason in GuardReason::ALL.into_iter().filter(|reason| reason.drops()) {
            let number = guard + (reason as u32 - guard_reason::GUARD_DROP_BLOCKED.0) as u16;
            assert_eq!(XdpDrop::from_number(number), Some(XdpDrop::Guard(reason)));
        }
        let redirect = xdp_drop_program::XDP_DROP_REDIRECT.0 as u16;
        assert_eq!(XdpDrop::from_number(redirect), Some(XdpDrop::Redirect(Counter::DropUdpHeader)));
        assert_eq!(XdpDrop::from_number(redirect + 3), None);
        let forward = xdp_drop_program::XDP_DROP_FORWARD.0 as u16;
        assert_eq!(XdpDrop::from_number(forward), Some(XdpDrop::Forward(ForwardCounter::DropBlackhole)));
        let balance = xdp_drop_program::XDP_DROP_BALANCE.0 as u16;
        assert_eq!(XdpDrop::from_number(balance + 3), Some(XdpDrop::Balance(BalanceCounter::DropNoRoom)));
        for none in [0, 1, 0x500, u16::MAX] {
            assert_eq!(XdpDrop::from_number(none), None);
        }
    }

    #[test]
    fn drops_come_behind_everything_else() {
        // The programs number them from the first on.
        fn is_last<T: Copy>(all: &[T], drops: impl Fn(T) -> bool) -> bool {
            all.iter().map(|one| drops(*one)).is_sorted()
        }
        assert!(is_last(&Counter::ALL, |counter| counter.verdict() == Verdict::Drop));
        assert!(is_last(&GuardReason::ALL, GuardReason::drops));
        assert!(is_last(&ForwardCounter::ALL, |counter| counter.verdict() == Verdict::Drop));
        assert!(is_last(&BalanceCounter::ALL, |counter| counter.verdict() == "drop"));
        assert_eq!(XdpDrop::all().count(), 3 + 16 + 1 + 4);
    }
}
