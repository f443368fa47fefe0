//! Samples of dropped packets into pcapng files, by a thread of its own. What it cannot write is counted and left out: the
//! filter does not wait for a disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_edge::guard::{Capture as Settings, RuleNames};
use expressway_netio::priority;
use expressway_observe::file::{FileError, Interface, Rotation, Target, Writer, WriterOptions, section};
use expressway_observe::{Clock, Packet, Point, Verdict};
use expressway_xbpf::{GuardSample, GuardSamples, interface_name};

use crate::fail::Failure;

/// Octets of a CPU's buffer: what comes in a turn at the highest usual rates.
pub(super) const BUFFER: usize = 256 << 10;

/// The longest wait for a buffer to fill, after which samples are written.
const TURN: Duration = Duration::from_millis(100);

/// How long nothing is written after an error.
const PAUSE: Duration = Duration::from_secs(2);

/// Interfaces whose names are remembered, beyond which all are asked for again.
const INTERFACES: usize = 256;

/// What the thread is set back by: packets come first.
const NICE: i32 = 10;

/// What became of samples after the kernel.
#[derive(Debug, Default)]
pub(super) struct Counts {
    written: AtomicU64,
    unwritten: AtomicU64,
    failing: AtomicBool,
}

impl Counts {
    /// Samples that files have, those that could not be written, and whether that goes on.
    pub(super) fn read(&self) -> (u64, u64, bool) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.written), load(&self.unwritten), self.failing.load(Ordering::Relaxed))
    }
}

/// A change of the settings, with where its outcome goes.
type Change = (Option<Settings>, SyncSender<Result<(), String>>);

/// The running thread. Dropped, it writes what has come and ends.
pub(super) struct Capture {
    changes: Option<SyncSender<Change>>,
    thread: Option<JoinHandle<()>>,
    settings: Option<Settings>,
}

impl Capture {
    /// Makes the first file and starts.
    ///
    /// # Errors
    /// The file cannot be made, for another reason than a full disk; or the thread cannot.
    pub(super) fn start(
        settings: Settings,
        samples: GuardSamples,
        names: RuleNames,
        counts: Arc<Counts>,
    ) -> Result<Self, Failure> {
        let (changes, orders) = sync_channel(1);
        let output = Output::open(settings.clone(), &counts).map_err(Failure::run_time)?;
        let mut task = Task {
            samples,
            names,
            orders,
            clock: Clock::default(),
            interfaces: HashMap::new(),
            output: Some(output),
            counts,
        };
        let thread = std::thread::Builder::new().name("expressway-capture".into());
        let thread = thread.spawn(move || task.run());
        let thread = thread.map_err(|error| Failure::run_time(format!("the capture's thread: {error}")))?;
        Ok(Self { changes: Some(changes), thread: Some(thread), settings: Some(settings) })
    }

    /// Goes on with other settings, or with none.
    ///
    /// # Errors
    /// The file cannot be made; then it goes on as before.
    pub(super) fn change(&mut self, settings: Option<&Settings>) -> Result<(), String> {
        if self.settings.as_ref() == settings {
            return Ok(());
        }
        let ended = || "the capture's thread has ended: restart".to_owned();
        let (outcome, answer) = sync_channel(1);
        let changes = self.changes.as_ref().ok_or_else(ended)?;
        changes.send((settings.cloned(), outcome)).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())??;
        self.settings = settings.cloned();
        Ok(())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Task {
    samples: GuardSamples,
    names: RuleNames,
    orders: Receiver<Change>,
    clock: Clock,
    /// Names by index.
    interfaces: HashMap<u32, String>,
    output: Option<Output>,
    counts: Arc<Counts>,
}

impl Task {
    fn run(&mut self) {
        if let Err(error) = priority::stand_back(NICE) {
            tracing::debug!(%error, "setpriority failed: the capture runs at the usual priority");
        }
        loop {
            if let Err(error) = self.samples.wait(TURN) {
                tracing::error!(%error, "capture stopped: waiting for samples failed");
                return;
            }
            self.deliver(false);
            match self.orders.try_recv() {
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    self.deliver(true);
                    if let Some(output) = &mut self.output {
                        output.finish(&self.counts);
                    }
                    return;
                }
                Ok((settings, outcome)) => {
                    self.deliver(true);
                    let _ = outcome.send(self.change(settings));
                }
            }
        }
    }

    fn deliver(&mut self, all: bool) {
        let Self { samples, names, clock, interfaces, output, counts, .. } = self;
        clock.set();
        samples.read(all, &mut |sample| {
            let Some(output) = output.as_mut() else { return };
            if !interfaces.contains_key(&sample.ifindex) {
                if interfaces.len() == INTERFACES {
                    interfaces.clear();
                }
                let name = interface_name(sample.ifindex);
                interfaces
                    .insert(sample.ifindex, name.unwrap_or_else(|| format!("interface {}", sample.ifindex)));
            }
            let name = interfaces.get(&sample.ifindex).map_or("", String::as_str);
            let reason = said(sample, names);
            let verdict = if sample.passed { Verdict::Pass } else { Verdict::Drop };
            let packet = Packet {
                time: clock.epoch(sample.time),
                interface: sample.ifindex,
                queue: Some(sample.queue),
                point: Point::XdpEntry,
                id: None,
                verdict: Some(verdict),
                metadata: None,
                drop: Some(&reason),
                process: None,
                length: sample.length,
                data: sample.data,
            };
            output.packet(name, &packet, counts);
        });
        if let Some(output) = output {
            output.tick(counts);
        }
    }

    /// Ends the files of before and begins those of `settings`.
    fn change(&mut self, settings: Option<Settings>) -> Result<(), String> {
        let Some(settings) = settings else {
            if let Some(mut output) = self.output.take() {
                output.finish(&self.counts);
            }
            return Ok(());
        };
        match &mut self.output {
            Some(output) if output.settings.file == settings.file => {
                output.finish(&self.counts);
                *output = Output::resume(settings);
            }
            output => {
                let next = Output::open(settings, &self.counts)?;
                if let Some(mut before) = output.replace(next) {
                    before.finish(&self.counts);
                }
            }
        }
        Ok(())
    }
}

/// The words of a packet's comment.
fn said(sample: &GuardSample<'_>, names: &RuleNames) -> String {
    let reason = sample.reason.name();
    let mut text = match sample.rule {
        None => reason.to_owned(),
        Some((rule, generation)) => {
            let name = names.name(rule, generation);
            let name = name.unwrap_or_else(|| format!("number {rule} of an earlier configuration"));
            if reason == "rule" { format!("rule {name}") } else { format!("{reason} of rule {name}") }
        }
    };
    if sample.passed {
        text += " (dry run: passed)";
    }
    text
}

/// The files.
struct Output {
    settings: Settings,
    /// `None` while none could be made.
    writer: Option<Writer>,
    /// Of this writer: packets that were handed over and those that were lost with errors.
    given: u64,
    lost: u64,
    /// Of this writer: packets that files have and are counted.
    counted: u64,
    /// Nothing is written until then.
    until: Option<Instant>,
}

impl Output {
    /// With its first file; on a full disk that comes later.
    fn open(settings: Settings, counts: &Counts) -> Result<Self, String> {
        let mut output = Self::resume(settings);
        match output.create() {
            Ok(()) => Ok(output),
            Err(error) if is_full(&error) => {
                output.failed(&error, counts);
                Ok(output)
            }
            Err(error) => Err(format!("capture.file: {error}")),
        }
    }

    /// Without its first file.
    fn resume(settings: Settings) -> Self {
        Self { settings, writer: None, given: 0, lost: 0, counted: 0, until: None }
    }

    fn create(&mut self) -> Result<(), FileError> {
        let Settings { file, size, files, .. } = &self.settings;
        (self.given, self.lost, self.counted) = (0, 0, 0);
        self.writer = Some(Writer::create(WriterOptions {
            target: Target::File(file.clone()),
            rotation: Rotation { size: Some(*size), period: None, count: Some(*files) },
            secrets: None,
            section: section(concat!("expressway guard ", env!("CARGO_PKG_VERSION"))),
            resume: true,
        })?);
        Ok(())
    }

    /// Whether something may be written now; the first file is made if there is none.
    fn is_ready(&mut self, counts: &Counts) -> bool {
        if self.until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.until = None;
        if self.writer.is_none()
            && let Err(error) = self.create()
        {
            self.failed(&error, counts);
        }
        self.until.is_none()
    }

    fn packet(&mut self, interface: &str, packet: &Packet<'_>, counts: &Counts) {
        if !self.is_ready(counts) {
            counts.unwritten.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(writer) = &mut self.writer else { return };
        self.given += 1;
        let id = writer.interface(Interface::named(interface, self.settings.sampling.snaplen));
        if let Err(error) = writer.packet(id, packet, 0) {
            self.failed(&error, counts);
        }
    }

    /// Writes what is gathered.
    fn tick(&mut self, counts: &Counts) {
        if self.until.is_some() {
            return;
        }
        let Some(writer) = &mut self.writer else { return };
        let before = self.counted;
        if let Err(error) = writer.tick(Instant::now()) {
            self.failed(&error, counts);
            return;
        }
        self.count(counts);
        if self.counted > before && counts.failing.swap(false, Ordering::Relaxed) {
            tracing::info!(file = %self.settings.file.display(), "capture is written again");
        }
    }

    fn finish(&mut self, counts: &Counts) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = writer.finish() {
            self.failed(&error, counts);
        }
        self.count(counts);
    }

    /// Counts what files have since.
    fn count(&mut self, counts: &Counts) {
        let written = self.writer.as_ref().map_or(0, Writer::written);
        counts.written.fetch_add(written - self.counted, Ordering::Relaxed);
        self.counted = written;
    }

    /// Once a trouble is one warning, however long it lasts.
    fn failed(&mut self, error: &FileError, counts: &Counts) {
        self.count(counts);
        // What was gathered is gone with the error.
        let lost = self.given.saturating_sub(self.counted + self.lost);
        self.lost += lost;
        counts.unwritten.fetch_add(lost, Ordering::Relaxed);
        self.until = Some(Instant::now() + PAUSE);
        if !counts.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "capture not written: {error}; filtering continues, and the capture resumes once there is room"
            );
        }
    }
}

fn is_full(error: &FileError) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let (FileError::Create { source, .. } | FileError::Write { source, .. }) = error else { return false };
    matches!(source.kind(), StorageFull | QuotaExceeded)
}
