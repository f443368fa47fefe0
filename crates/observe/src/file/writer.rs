//! The writer of a capture: it collects blocks, holds them back for the secrets that they need, and divides them into
//! files.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Local};

use super::names::Names;
use super::sink::Sink;
use super::{FileError, Interface, KeyLog, Rotation, Seen, Statistics, Target, block};
use crate::Packet;

/// Octets that are gathered before they are written.
const BUFFER: usize = 256 << 10;

/// How long packets wait for the secrets that they need. A server writes its secrets before it sends what they encrypt,
/// but after it has received what a client sent with 0-RTT.
const HOLD: Duration = Duration::from_millis(200);

/// How many octets wait so at most; beyond, the oldest go without.
const HELD: usize = 32 << 20;

/// Octets of secrets that a new file begins with: those of handshakes that are under way. The newest.
const KEPT_SECRETS: usize = 1 << 20;

/// Notes that wait for a packet of their interface; beyond, they are left out.
const NOTES: usize = 64;

/// What a writer is told.
#[derive(Debug)]
pub struct WriterOptions {
    /// Where to.
    pub target: Target,
    /// When files are full.
    pub rotation: Rotation,
    /// Secrets that packets are encrypted with. Files are for their owner alone then.
    pub secrets: Option<KeyLog>,
    /// The machine (`shb_hardware`), its kernel (`shb_os`) and who writes (`shb_userappl`): [`section`].
    pub section: [String; 3],
    /// Of a ring of files: begin behind the one that was written last, which another process may have done.
    pub resume: bool,
}

/// What a file says of this machine and of the program that writes it.
#[must_use]
pub fn section(application: &str) -> [String; 3] {
    let system = rustix::system::uname();
    let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let kernel = format!("{} {}", part(system.sysname()), part(system.release()));
    [part(system.machine()), kernel, application.to_owned()]
}

/// Whether a capture goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It does.
    No,
    /// The last of the files that were asked for is written.
    LastFile,
}

/// An interface and what was counted.
#[derive(Debug)]
struct Described {
    interface: Interface,
    statistics: Statistics,
    delivered: u64,
    /// What its next packet says besides, or the file's end.
    notes: Vec<String>,
}

/// Blocks that wait for secrets.
#[derive(Debug)]
struct Held {
    since: Instant,
    blocks: Vec<u8>,
}

/// Writes pcapng.
#[derive(Debug)]
pub struct Writer {
    target: Target,
    names: Names,
    section: [String; 3],
    secrets: Option<KeyLog>,
    kept_secrets: VecDeque<u8>,
    interfaces: Vec<Described>,
    sink: Sink,
    /// Whole blocks that are not written yet.
    buffer: Vec<u8>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// When the capture began, in nanoseconds since the epoch.
    started: u64,
    /// When the file has had its time.
    full_at: Option<Instant>,
    /// Octets that the file began with, which its size for rotation leaves out.
    begun: u64,
    /// Packets that are in files.
    packets: u64,
    /// Packets in the buffer.
    buffered_packets: u64,
    /// The last file has ended.
    done: bool,
    /// Something was not written, perhaps what the file begins with: what follows is a section of its own.
    broken: bool,
}

impl Writer {
    /// Makes the first file. Every file begins with its interfaces: they should be described before packets come.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn create(options: WriterOptions) -> Result<Self, FileError> {
        let WriterOptions { target, rotation, secrets, section, resume } = options;
        let (base, rotation) = match &target {
            // A stream has no end but its last.
            Target::Output => ("-".into(), Rotation::default()),
            Target::File(path) => (path.clone(), rotation),
        };
        let mut names = Names::new(base, rotation)?;
        if resume {
            names.resume();
        }
        let sink = match next_sink(&target, &mut names, secrets.is_some(), false)? {
            Some(sink) => sink,
            None => Sink::output()?,
        };
        let mut writer = Self {
            target,
            names,
            section,
            secrets,
            kept_secrets: VecDeque::new(),
            interfaces: Vec::new(),
            sink,
            buffer: Vec::with_capacity(BUFFER),
            held: VecDeque::new(),
            held_bytes: 0,
            started: now(),
            full_at: None,
            begun: 0,
            packets: 0,
            buffered_packets: 0,
            done: false,
            broken: false,
        };
        writer.begin_file();
        Ok(writer)
    }

    /// Describes an interface; its number is what [`Writer::packet`] takes. One that is described already has its
    /// number.
    pub fn interface(&mut self, interface: Interface) -> u32 {
        let known = self.interfaces.iter().position(|known| known.interface == interface);
        known.unwrap_or_else(|| {
            if !self.broken {
                block::interface(&mut self.buffer, &interface);
            }
            let statistics = Statistics::default();
            self.interfaces.push(Described { interface, statistics, delivered: 0, notes: Vec::new() });
            self.interfaces.len() - 1
        }) as u32
    }

    /// What has been counted of an interface, since the beginning: written when a file ends.
    pub fn statistics(&mut self, id: u32, statistics: Statistics) {
        if let Some(described) = self.interfaces.get_mut(id as usize) {
            described.statistics = statistics;
        }
    }

    /// Has the next packet of an interface say something of what was before it, in a comment.
    pub fn note(&mut self, id: u32, text: &str) {
        if let Some(described) = self.interfaces.get_mut(id as usize)
            && described.notes.len() < NOTES
        {
            described.notes.push(text.to_owned());
        }
    }

    /// Takes a packet of an interface; `dropped` were lost since the one before.
    ///
    /// # Errors
    /// [`FileError`]: what was gathered is lost. The next packet may be written again, in a section of its own.
    pub fn packet(&mut self, id: u32, packet: &Packet<'_>, dropped: u64) -> Result<Ended, FileError> {
        self.take(id, packet, true, dropped)
    }

    /// Takes a packet of another file, under the number of its interface here.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn copy(&mut self, id: u32, seen: &Seen<'_>) -> Result<Ended, FileError> {
        self.take(id, &seen.packet, seen.directed, 0)
    }

    fn take(
        &mut self,
        id: u32,
        packet: &Packet<'_>,
        directed: bool,
        dropped: u64,
    ) -> Result<Ended, FileError> {
        let mut notes = Vec::new();
        if let Some(described) = self.interfaces.get_mut(id as usize) {
            described.delivered += 1;
            notes = std::mem::take(&mut described.notes);
        }
        let about = block::About { directed, dropped, notes: &notes };
        if self.secrets.is_some() {
            self.hold(id, packet, &about);
            return if self.held_bytes > HELD { self.release(Instant::now(), HELD) } else { Ok(Ended::No) };
        }
        if self.is_full() && self.next_file(false)? == Ended::LastFile {
            return Ok(Ended::LastFile);
        }
        if self.broken {
            self.begin_section();
        }
        block::packet(&mut self.buffer, id, packet, &about);
        self.buffered_packets += 1;
        self.write_when(BUFFER)?;
        Ok(Ended::No)
    }

    /// To be called when time has passed: releases what was held back, writes what was gathered, begins the next file
    /// when its time has come.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn tick(&mut self, now: Instant) -> Result<Ended, FileError> {
        if self.release(now, usize::MAX)? == Ended::LastFile {
            return Ok(Ended::LastFile);
        }
        if self.full_at.is_some_and(|at| at <= now) && self.next_file(true)? == Ended::LastFile {
            return Ok(Ended::LastFile);
        }
        self.write_when(0)?;
        Ok(Ended::No)
    }

    /// Packets taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.interfaces.iter().map(|described| described.delivered).sum()
    }

    /// Packets that files have, whole.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.packets
    }

    /// Writes what is left, and the statistics.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn finish(&mut self) -> Result<(), FileError> {
        if self.done || self.release(Instant::now(), 0)? == Ended::LastFile {
            return Ok(());
        }
        self.end_file()
    }

    fn hold(&mut self, id: u32, packet: &Packet<'_>, about: &block::About<'_>) {
        /// How much time the packets of one buffer span.
        const SPAN: Duration = Duration::from_millis(20);
        let now = Instant::now();
        if self.held.back().is_none_or(|held| now.duration_since(held.since) > SPAN) {
            self.held.push_back(Held { since: now, blocks: Vec::new() });
        }
        if let Some(held) = self.held.back_mut() {
            let before = held.blocks.len();
            block::packet(&mut held.blocks, id, packet, about);
            self.held_bytes += held.blocks.len() - before;
        }
    }

    /// Lets go of packets that have waited long enough, and of the oldest while there are more than `most` octets. The
    /// secrets that have come meanwhile go before them.
    fn release(&mut self, now: Instant, most: usize) -> Result<Ended, FileError> {
        self.read_secrets()?;
        while let Some(oldest) = self.held.front()
            && (self.held_bytes > most || most == 0 || now.duration_since(oldest.since) >= HOLD)
        {
            let Some(held) = self.held.pop_front() else { break };
            self.held_bytes -= held.blocks.len();
            let mut rest = &held.blocks[..];
            while let Some(length) = rest.get(4..8).and_then(|length| length.try_into().ok()) {
                if self.is_full() && self.next_file(false)? == Ended::LastFile {
                    return Ok(Ended::LastFile);
                }
                if self.broken {
                    self.begin_section();
                }
                let (packet, behind) = rest.split_at(u32::from_le_bytes(length) as usize);
                self.buffer.extend_from_slice(packet);
                self.buffered_packets += 1;
                rest = behind;
                self.write_when(BUFFER)?;
            }
        }
        Ok(Ended::No)
    }

    fn read_secrets(&mut self) -> Result<(), FileError> {
        let Some(log) = &mut self.secrets else { return Ok(()) };
        let mut lines = Vec::new();
        while log.read(&mut lines).map_err(FileError::Secrets)? {
            if lines.len() > KEPT_SECRETS {
                break;
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        block::secrets(&mut self.buffer, &lines);
        self.kept_secrets.extend(&lines);
        while self.kept_secrets.len() > KEPT_SECRETS {
            // Whole lines.
            while self.kept_secrets.pop_front().is_some_and(|byte| byte != b'\n') {}
        }
        self.write_when(BUFFER)
    }

    fn is_full(&self) -> bool {
        let size = self.sink.written() + self.buffer.len() as u64;
        self.names.rotation().size.is_some_and(|most| size.saturating_sub(self.begun) > most)
    }

    /// Writes what is gathered if it is more than that.
    fn write_when(&mut self, more: usize) -> Result<(), FileError> {
        if self.buffer.len() <= more {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.buffered_packets);
        match self.sink.write(&mut self.buffer) {
            Ok(()) => {
                self.packets += gathered;
                Ok(())
            }
            Err((error, packets)) => {
                self.packets += packets;
                self.broken = true;
                Err(error)
            }
        }
    }

    fn end_file(&mut self) -> Result<(), FileError> {
        if self.broken {
            // Whole as it is: statistics would need what it may lack.
            return Ok(());
        }
        let times = (self.started, now());
        for (id, described) in self.interfaces.iter_mut().enumerate() {
            let notes = std::mem::take(&mut described.notes);
            let counted = (&described.statistics, described.delivered);
            block::statistics(&mut self.buffer, id as u32, times, counted, &notes);
        }
        self.write_when(0)
    }

    /// Ends the file and begins the next. `period`: because its time is over.
    fn next_file(&mut self, period: bool) -> Result<Ended, FileError> {
        self.end_file()?;
        match next_sink(&self.target, &mut self.names, self.secrets.is_some(), period) {
            Ok(Some(sink)) => self.sink = sink,
            Ok(None) => {
                self.done = true;
                return Ok(Ended::LastFile);
            }
            Err(error) => {
                // The file has ended: it does not once more.
                self.broken = true;
                return Err(error);
            }
        }
        self.begin_file();
        Ok(Ended::No)
    }

    /// What every file begins with.
    fn begin_file(&mut self) {
        self.begin_section();
        self.begun = self.buffer.len() as u64;
        self.full_at = self.names.rotation().period.and_then(|period| Instant::now().checked_add(period));
    }

    /// What every section begins with: it is complete by itself.
    fn begin_section(&mut self) {
        self.broken = false;
        let [hardware, system, application] = &self.section;
        block::section(&mut self.buffer, hardware, system, application);
        for described in &self.interfaces {
            block::interface(&mut self.buffer, &described.interface);
        }
        if !self.kept_secrets.is_empty() {
            block::secrets(&mut self.buffer, self.kept_secrets.make_contiguous());
        }
    }
}

/// Where the next file's octets go; `None` if there is to be none.
fn next_sink(
    target: &Target,
    names: &mut Names,
    secret: bool,
    period: bool,
) -> Result<Option<Sink>, FileError> {
    match target {
        Target::Output => Sink::output().map(Some),
        Target::File(_) => {
            let now: DateTime<Local> = Local::now();
            names.next(now, period).map(|path| Sink::create(&path, secret)).transpose()
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
