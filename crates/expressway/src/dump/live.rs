//! A running capture: from the kernel's hooks to lines and files, until it is told to end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use expressway_netio::xsk::interface_index;
use expressway_observe::file::{Interface as Described, Rotation, Statistics};
use expressway_observe::{Capture, CaptureOptions, Filter, Packet, Points, XdpPoints};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::interfaces::{self, Interface};
use super::output::{End, Output};
use super::privilege::Identity;
use super::read::is_wanted;
use crate::args::{Dump as Arguments, XdpPoint};
use crate::fail::Failure;

/// How long one turn waits for packets: what signals and times want is done after it.
const TURN: Duration = Duration::from_millis(100);

/// How often losses are read, files written and interfaces looked for.
const UPKEEP: Duration = Duration::from_secs(1);

/// What is captured, and where it goes.
pub(super) struct Job {
    pub(super) interfaces: Vec<String>,
    pub(super) filter: Option<String>,
    pub(super) write: Option<PathBuf>,
    pub(super) rotation: Rotation,
    pub(super) secrets: Option<PathBuf>,
    /// Written as soon as packets come.
    pub(super) at_once: bool,
    /// Nobody reads standard error.
    pub(super) silent: bool,
}

impl Job {
    /// What the arguments say.
    pub(super) fn of(arguments: &Arguments, filter: Option<String>) -> Self {
        let to_output = arguments.write.as_deref().is_some_and(super::is_standard);
        Self {
            interfaces: arguments.interfaces.clone(),
            filter,
            write: arguments.write.clone(),
            rotation: Rotation {
                size: arguments.file_size.map(|size| size.0),
                period: arguments.rotate_seconds.map(|seconds| Duration::from_secs(seconds.into())),
                count: arguments.file_count,
            },
            secrets: arguments.secrets.clone(),
            at_once: arguments.text.packet_buffered || to_output,
            silent: false,
        }
    }
}

/// What signals ask for.
struct Signals {
    stop: Arc<AtomicBool>,
    counts: Arc<AtomicBool>,
}

impl Signals {
    /// No thread, since privileges are those of threads. A second signal ends a process that is stuck.
    fn register() -> Result<Self, Failure> {
        let failed = |error| Failure::run_time(format!("signal handlers: {error}"));
        let signals = Self { stop: Arc::default(), counts: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_default(signal, signals.stop.clone()).map_err(failed)?;
            signal_hook::flag::register(signal, signals.stop.clone()).map_err(failed)?;
        }
        signal_hook::flag::register(SIGUSR1, signals.counts.clone()).map_err(failed)?;
        Ok(signals)
    }
}

/// An interface that is captured on.
struct Tapped {
    interface: Interface,
    /// Its number in files.
    id: u32,
    /// Packets lost so far, and how many of them no record tells yet.
    lost: u64,
    untold: u64,
    gone: bool,
}

/// The capture and all that goes with it.
struct Live<'a> {
    arguments: &'a Arguments,
    job: &'a Job,
    capture: Capture,
    output: Output,
    tapped: Vec<Tapped>,
    noted: usize,
    end: Option<End>,
}

/// Captures until it is told to end.
pub(super) fn run(arguments: &Arguments, job: &Job) -> Result<ExitCode, Failure> {
    let signals = Signals::register()?;
    let identity = arguments.relinquish_privileges.as_deref().map(Identity::of).transpose()?;
    let interfaces = interfaces::asked(&job.interfaces)?;
    let snaplen = match arguments.snapshot_length {
        0 => CaptureOptions::SNAPLEN,
        length => length.min(CaptureOptions::SNAPLEN),
    };
    let filter = job.filter.as_deref().map(|text| Filter::compile(text, snaplen)).transpose();
    let capture = Capture::open(CaptureOptions {
        interfaces: interfaces.iter().map(|interface| interface.index).collect(),
        snaplen,
        filter: filter.map_err(Failure::usage)?,
        points: points(arguments),
        buffer: arguments.buffer_size as usize * 1024,
    })
    .map_err(Failure::run_time)?;
    super::privilege::drop(identity)?;
    let mut output = Output::open(&arguments.text, job)?;
    let tapped = interfaces.into_iter().map(|interface| {
        let id = output.interface(described(&interface, job, snaplen));
        Tapped { interface, id, lost: 0, untold: 0, gone: false }
    });
    let tapped = tapped.collect();
    let mut live = Live { arguments, job, capture, output, tapped, noted: 0, end: None };
    live.tell_notes();
    live.tell_ready(snaplen);
    let result = live.until_told(&signals);
    live.finish(result)
}

fn described(interface: &Interface, job: &Job, snaplen: u32) -> Described {
    Described {
        filter: job.filter.clone().unwrap_or_default(),
        mac: interface.mac,
        ..Described::named(&interface.name, snaplen)
    }
}

fn points(arguments: &Arguments) -> Points {
    Points {
        xdp: match arguments.point {
            XdpPoint::Once => XdpPoints::Arrival,
            XdpPoint::Entry => XdpPoints::Entry,
            XdpPoint::Exit => XdpPoints::Exit,
            XdpPoint::Both => XdpPoints::Both,
            XdpPoint::None => XdpPoints::None,
        },
        drops: arguments.drops,
        ..Points::default()
    }
}

impl Live<'_> {
    fn until_told(&mut self, signals: &Signals) -> Result<(), Failure> {
        let mut upkeep = Instant::now() + UPKEEP;
        // Lines are printed and streams written after each turn, files when there is much, or time has passed.
        let each_turn = self.job.at_once || self.job.write.is_none() || self.arguments.text.print;
        while !signals.stop.load(Ordering::Relaxed) && self.end.is_none() && !self.has_enough() {
            self.poll()?;
            self.tell_notes();
            let now = Instant::now();
            if upkeep <= now {
                upkeep = now + UPKEEP;
                self.read_losses();
                self.look_for_interfaces()?;
                self.tick();
            } else if each_turn || self.job.secrets.is_some() {
                self.tick();
            }
            if signals.counts.swap(false, Ordering::Relaxed) {
                self.tell_counts();
            }
        }
        if !self.has_enough() && self.end.is_none() {
            self.flush();
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), Failure> {
        let (mut sink, capture) = self.split();
        let timeout = if sink.secrets { TURN / 4 } else { TURN };
        capture.poll(timeout, &mut |packet| sink.take(packet)).map_err(Failure::run_time)
    }

    fn flush(&mut self) {
        let (mut sink, capture) = self.split();
        capture.flush(&mut |packet| sink.take(packet));
    }

    fn split(&mut self) -> (Sink<'_>, &mut Capture) {
        let Self { arguments, job, capture, output, tapped, end, .. } = self;
        (Sink { arguments, output, tapped, end, secrets: job.secrets.is_some() }, capture)
    }

    fn has_enough(&self) -> bool {
        self.arguments.count.is_some_and(|count| self.output.handed() >= count)
    }

    fn tick(&mut self) {
        if self.end.is_none() {
            self.end = self.output.tick().err();
        }
    }

    fn read_losses(&mut self) {
        for losses in self.capture.losses() {
            let Some(tapped) =
                self.tapped.iter_mut().find(|tapped| tapped.interface.index == losses.interface)
            else {
                continue;
            };
            tapped.untold += losses.lost.saturating_sub(tapped.lost);
            tapped.lost = tapped.lost.max(losses.lost);
            let statistics = Statistics {
                received: Some(losses.seen),
                accepted: Some(losses.matched),
                dropped: Some(losses.lost),
            };
            self.output.statistics(tapped.id, statistics);
        }
    }

    /// Ends when the last interface is gone.
    fn look_for_interfaces(&mut self) -> Result<(), Failure> {
        for tapped in self.tapped.iter_mut().filter(|tapped| !tapped.gone) {
            tapped.gone = interface_index(&tapped.interface.name).ok() != Some(tapped.interface.index);
            if tapped.gone && !self.job.silent {
                eprintln!("expressway: interface {}: gone", tapped.interface.name);
            }
        }
        if self.tapped.iter().all(|tapped| tapped.gone) {
            return Err(Failure::run_time("no interface is left to capture on"));
        }
        Ok(())
    }

    fn tell_ready(&self, snaplen: u32) {
        if self.job.silent {
            return;
        }
        let names: Vec<_> = self.tapped.iter().map(|tapped| &*tapped.interface.name).collect();
        eprintln!(
            "listening on {}, link-type EN10MB (Ethernet), snapshot length {snaplen} bytes",
            names.join(", ")
        );
    }

    fn tell_notes(&mut self) {
        let notes = self.capture.notes();
        for note in notes.get(self.noted..).unwrap_or_default() {
            if !self.job.silent {
                eprintln!("expressway: {note}");
            }
            let about = self.tapped.iter().find(|tapped| Some(tapped.interface.index) == note.interface);
            if let Some(tapped) = about.filter(|_| note.gap) {
                self.output.note(tapped.id, &note.text);
            }
        }
        self.noted = notes.len();
    }

    fn tell_counts(&mut self) {
        self.read_losses();
        if self.job.silent {
            return;
        }
        let (seen, matched, lost) =
            self.capture.losses().iter().fold((0, 0, 0), |(seen, matched, lost), one| {
                (seen + one.seen, matched + one.matched, lost + one.lost)
            });
        let captured = self.output.taken();
        let some = |count: u64, what: &str| match count {
            0 => String::new(),
            count => format!(", {count} {what}"),
        };
        let missed = some(self.capture.missed(), "missed by the hooks");
        let gaps = match self.capture.gaps() {
            0 => String::new(),
            count => format!(", gaps while XDP programs came: {count}"),
        };
        eprintln!(
            "{captured} packets captured, {lost} lost{missed}{gaps}; {seen} seen, {matched} of them by the filter"
        );
    }

    /// Ends the file whatever has happened, and tells what there was.
    fn finish(mut self, result: Result<(), Failure>) -> Result<ExitCode, Failure> {
        self.tell_notes();
        self.read_losses();
        let finished = match self.end {
            // A file that failed has been cut to whole blocks.
            Some(End::Failed(_)) => None,
            _ => self.output.finish().err(),
        };
        self.tell_counts();
        for end in [self.end.take(), finished].into_iter().flatten() {
            if let End::Failed(failure) = end {
                return Err(failure);
            }
        }
        result.map(|()| ExitCode::SUCCESS)
    }
}

/// What takes the packets of a turn.
struct Sink<'a> {
    arguments: &'a Arguments,
    output: &'a mut Output,
    tapped: &'a mut [Tapped],
    end: &'a mut Option<End>,
    secrets: bool,
}

impl Sink<'_> {
    fn take(&mut self, packet: &Packet<'_>) {
        let enough = self.arguments.count.is_some_and(|count| self.output.handed() >= count);
        if self.end.is_some() || enough || !is_wanted(self.arguments.direction, packet.point.direction()) {
            return;
        }
        let Some(tapped) = self.tapped.iter_mut().find(|tapped| tapped.interface.index == packet.interface)
        else {
            return;
        };
        let dropped = std::mem::take(&mut tapped.untold);
        *self.end = self.output.packet((tapped.id, &tapped.interface.name), packet, dropped).err();
    }
}
