//! Packets from the kernel's hooks: attaching, following programs, buffers, merging by time, losses.
//!
//! Packets come in a perf buffer of each CPU, not in the newer ring buffer: `bpf_xdp_output` appends a multi-buffer packet whole.
//! They are read in place and merged by time.

mod clock;
mod error;
mod merge;
mod options;
mod owners;
mod programs;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use expressway_xbpf::{
    CaptureKind, CapturePrograms, CaptureRecord, CaptureSettings, PerfRings, drop_reasons,
};

pub use clock::Clock;
pub use error::{CaptureError, Uncaptured};
pub use options::{CaptureOptions, Points, XdpPoints};

use crate::drops::{DropReason, EGRESS, Layer};
use crate::filter::Filter;
use crate::packet::{Packet, Point, Process, TxMetadata, Verdict};
use merge::{Merge, Outcome};
use owners::Sockets;
use programs::Attached;

/// Between two looks for XDP programs, of which the kernel tells besides where it can.
const FOLLOW: Duration = Duration::from_millis(100);

/// The longest wait for a buffer to fill: so long do packets stay there that are few.
const WAIT: Duration = Duration::from_millis(20);

/// How old packets become in the buffers, in nanoseconds: in that time what another CPU has captured earlier is written, and
/// what became of them. A virtual CPU may stand still for some of it in the midst of an XDP program.
const HOLD: u64 = 20_000_000;

/// What `__dev_direct_xmit` returns for a packet that will be sent once more (`NETDEV_TX_BUSY`).
const BUSY: i32 = 0x10;

/// Octets of the addresses of Ethernet, behind which VLAN tags are.
const ADDRESSES: usize = 12;

/// What became of an interface's packets since the capture was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The interface's index.
    pub interface: u32,
    /// Packets that the hooks saw.
    pub seen: u64,
    /// Those of them that the filter matched.
    pub matched: u64,
    /// Those of these that the buffers had no room for.
    pub lost: u64,
}

/// A running capture. Dropping it, or the end of the process, detaches everything.
#[derive(Debug)]
pub struct Capture {
    attached: Attached,
    rings: PerfRings,
    merge: Merge,
    programs: CapturePrograms,
    interfaces: Vec<u32>,
    next_look: Option<Instant>,
    reader: Reader,
}

/// From records to packets.
#[derive(Debug)]
struct Reader {
    filter: Option<Filter>,
    snaplen: usize,
    points: Points,
    reasons: BTreeMap<u32, String>,
    sockets: Sockets,
    /// By interface: packets that the kernel's side let through, and that the filter refused here.
    refused: HashMap<u32, u64>,
    clock: Clock,
    room: Vec<u8>,
}

impl Capture {
    /// Attaches to the hooks. What cannot be attached is a note, not an error, as long as something can.
    ///
    /// # Errors
    /// No privilege, no such interface, or nothing that could be attached.
    pub fn open(options: CaptureOptions) -> Result<Self, CaptureError> {
        let CaptureOptions { mut interfaces, snaplen, filter, points, buffer } = options;
        interfaces.sort_unstable();
        interfaces.dedup();
        if interfaces.is_empty() || interfaces.len() > CaptureOptions::INTERFACES {
            return Err(CaptureError::Interfaces(interfaces.len()));
        }
        let snaplen = snaplen.min(CaptureOptions::SNAPLEN);
        let programs = CapturePrograms::open(CaptureSettings {
            snaplen,
            filter: filter.as_ref().map(|filter| filter.kernel().clone()),
            at_entry: matches!(points.xdp, XdpPoints::Arrival | XdpPoints::Entry | XdpPoints::Both),
            at_exit: matches!(points.xdp, XdpPoints::Exit | XdpPoints::Both),
            verdicts: points.xdp == XdpPoints::Arrival,
        })?;
        // Before anything is attached, so that nothing comes that has no room.
        let rings = programs.rings(buffer)?;
        let attached = Attached::open(&programs, &interfaces, points)?;
        if let Some(changes) = attached.changes() {
            let failed = |source| CaptureError::Io { action: "waiting for XDP programs", source };
            rings.wake_by(changes).map_err(failed)?;
        }
        if !attached.is_of_use(points) {
            let reasons: Vec<&str> = attached.notes().iter().map(|note| note.text.as_str()).collect();
            return Err(CaptureError::Nothing(reasons.join("; ")));
        }
        Ok(Self {
            attached,
            merge: Merge::new(&rings),
            rings,
            programs,
            interfaces,
            next_look: None,
            reader: Reader {
                filter,
                snaplen: snaplen as usize,
                points,
                reasons: drop_reasons(),
                sockets: Sockets::default(),
                refused: HashMap::new(),
                clock: Clock::default(),
                room: Vec::new(),
            },
        })
    }

    /// Waits up to `timeout` for packets and hands those that have come to `each`, in the order of their time. Attaches to
    /// programs that have come. Packets are held back for some milliseconds, until their order is known.
    ///
    /// # Errors
    /// The buffers cannot be waited for.
    pub fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(&Packet<'_>)) -> Result<(), CaptureError> {
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            self.look(now);
            let wait = deadline.saturating_duration_since(now).min(WAIT);
            self.rings
                .wait(wait)
                .map_err(|source| CaptureError::Io { action: "waiting for packets", source })?;
            let until = self.reader.clock.set().saturating_sub(HOLD);
            if self.deliver(until, each) > 0 || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// Follows XDP programs that come and go, and the devices of interfaces.
    fn look(&mut self, now: Instant) {
        let is_told = self.attached.hear(&self.programs);
        if is_told || self.next_look.is_none_or(|next| now >= next) {
            self.attached.follow(&self.programs, false);
            self.next_look = Some(Instant::now() + FOLLOW);
        }
    }

    /// Hands over everything that has come, without waiting.
    pub fn flush(&mut self, each: &mut dyn FnMut(&Packet<'_>)) {
        self.reader.clock.set();
        self.deliver(u64::MAX, each);
    }

    fn deliver(&mut self, until: u64, each: &mut dyn FnMut(&Packet<'_>)) -> usize {
        let reader = &mut self.reader;
        self.merge.deliver(&mut self.rings, until, &mut |record, outcome, pieces| {
            reader.packet(record, outcome, pieces, each);
        })
    }

    /// What became of each interface's packets.
    #[must_use]
    pub fn losses(&self) -> Vec<Losses> {
        let of = |(slot, interface): (u32, &u32)| {
            let counts = self.programs.counts(slot).unwrap_or_default();
            let refused = self.reader.refused.get(interface).copied().unwrap_or(0);
            Losses {
                interface: *interface,
                seen: counts.seen,
                matched: counts.matched.saturating_sub(refused),
                lost: counts.lost,
            }
        };
        (0..).zip(&self.interfaces).map(of).collect()
    }

    /// Packets that no hook saw, of all interfaces: another packet was just being looked at on the same CPU.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.attached.misses()
    }

    /// How often something may not have been seen because an XDP program had just come: each time is an [`Uncaptured`].
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.attached.gaps()
    }

    /// What could not be attached and why, at the start and since; at most some hundred.
    #[must_use]
    pub fn notes(&self) -> &[Uncaptured] {
        self.attached.notes()
    }
}

impl Reader {
    fn packet(
        &mut self,
        record: &CaptureRecord<'_>,
        outcome: &Outcome,
        pieces: &[u8],
        each: &mut dyn FnMut(&Packet<'_>),
    ) {
        let point = match record.kind {
            CaptureKind::XdpEntry => Point::XdpEntry,
            CaptureKind::XdpExit => Point::XdpExit,
            CaptureKind::XskCopy => Point::XskTransmit { zero_copy: false },
            CaptureKind::XskZeroCopy => Point::XskTransmit { zero_copy: true },
            CaptureKind::KernelReceive => Point::KernelReceive,
            CaptureKind::KernelTransmit => Point::KernelTransmit,
            CaptureKind::XdpTransmit => Point::XdpTransmit,
            _ => return,
        };
        // A piece that was lost is counted; a packet that its device was too busy for comes once more.
        let is_again = outcome.sent == Some(BUSY) && point != Point::XdpTransmit;
        if is_again {
            *self.refused.entry(record.ifindex).or_default() += 1;
        }
        if is_again || outcome.incomplete {
            return;
        }
        let length = record.length.saturating_sub(record.strip as u32);
        let whole = if record.more && record.strip == 0 {
            pieces
        } else if record.skip > 0 || record.strip > 0 {
            self.room.clear();
            if record.more {
                self.room.extend_from_slice(pieces);
            } else {
                self.room.extend_from_slice(record.prefix);
                self.room.extend_from_slice(record.payload.get(record.skip..).unwrap_or(&[]));
            }
            let tags = self.room.len().min(ADDRESSES)..self.room.len().min(ADDRESSES + record.strip);
            self.room.drain(tags);
            &self.room
        } else {
            record.whole
        };
        if record.undecided && self.filter.as_ref().is_some_and(|filter| !filter.matches(whole, length)) {
            *self.refused.entry(record.ifindex).or_default() += 1;
            return;
        }
        let verdict = self.verdict(record, outcome);
        let inode = if outcome.inode != 0 { outcome.inode } else { record.inode };
        let name;
        let process = if record.pid != 0 {
            name = String::from_utf8_lossy(record.comm);
            Some(Process { id: record.pid, name: &name })
        } else {
            self.sockets.owner(inode).map(|owner| Process { id: owner.id, name: &owner.name })
        };
        let unknown;
        let drop = if record.dropped {
            match self.reasons.get(&record.result.cast_unsigned()) {
                Some(reason) => Some(reason.as_str()),
                None => {
                    unknown = format!("reason {:#x}", record.result);
                    Some(unknown.as_str())
                }
            }
        } else {
            // That a program dropped it is the verdict; why, programs of ours tell.
            let program = record.drop.or(outcome.drop).filter(|_| verdict == Some(Verdict::Drop));
            let program = program.map(|drop| DropReason::of_program(drop).name);
            let failed = verdict.filter(|verdict| matches!(verdict, Verdict::Redirect { .. }));
            let redirect = failed.and_then(DropReason::of_verdict).map(|reason| reason.name);
            let refused = match point {
                Point::XdpTransmit => (Layer::Xdp, EGRESS),
                _ => (Layer::Ring, "tx-refused"),
            };
            let sent = outcome.sent.and_then(|_| DropReason::find(refused.0, refused.1));
            sent.map(|reason| reason.name).or(redirect).or(program)
        };
        let metadata = TxMetadata {
            checksum: record.checksum,
            timestamp: record.timestamp,
            launch_time: record.launch_time,
        };
        let is_pair = self.points.xdp == XdpPoints::Both && matches!(point, Point::XdpEntry | Point::XdpExit);
        each(&Packet {
            time: self.clock.epoch(record.time),
            interface: record.ifindex,
            queue: record.queue,
            point,
            id: is_pair.then_some(record.id),
            verdict,
            metadata: Some(metadata).filter(|metadata| *metadata != TxMetadata::default()),
            drop,
            process,
            length,
            data: whole.get(..self.snaplen).unwrap_or(whole),
        });
    }

    fn verdict(&self, record: &CaptureRecord<'_>, outcome: &Outcome) -> Option<Verdict> {
        let value = match record.kind {
            CaptureKind::XdpExit => record.result,
            CaptureKind::XdpTransmit => return Some(Verdict::Redirect { error: None }),
            CaptureKind::XdpEntry if self.points.xdp == XdpPoints::Arrival => outcome.verdict?,
            _ => return None,
        };
        Some(match value.cast_unsigned() {
            0 => Verdict::Aborted,
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::Tx,
            4 => Verdict::Redirect { error: outcome.redirect },
            other => Verdict::Unknown(other),
        })
    }
}
