//! Where packets go: lines on standard output, a file, or both.

use std::io::{self, ErrorKind, Write};
use std::time::Instant;

use expressway_observe::Packet;
use expressway_observe::file::{
    Ended, FileError, Interface, KeyLog, NameError, Rotation, Seen, Statistics, Target, Writer,
    WriterOptions, section,
};
use expressway_observe::text::Printer;

use super::live::Job;
use super::{is_standard, json};
use crate::args::Text;
use crate::fail::Failure;

/// Text that is gathered before it is printed, within a turn.
const GATHERED: usize = 64 << 10;

/// Why no more packets go anywhere.
pub(super) enum End {
    /// The files that were asked for are written, or nobody reads any more.
    Done,
    /// It cannot be written.
    Failed(Failure),
}

impl From<FileError> for End {
    fn from(error: FileError) -> Self {
        if error.is_closed_pipe() { Self::Done } else { Self::Failed(failure(error)) }
    }
}

fn failure(error: FileError) -> Failure {
    match error {
        FileError::Name(NameError::Count | NameError::Both | NameError::Format) => Failure::usage(error),
        error => Failure::run_time(error),
    }
}

/// Lines, in text or JSON.
struct Lines {
    printer: Printer,
    json: bool,
    gathered: String,
}

impl Lines {
    fn new(text: &Text) -> Self {
        let printer = Printer::new(super::text_options(text));
        Self { printer, json: text.json, gathered: String::new() }
    }

    fn packet(&mut self, seen: &Seen<'_>) -> Result<(), End> {
        if self.json {
            self.gathered.push_str(&json::line(&mut self.printer, seen));
        } else {
            self.printer.print_seen(seen, &mut self.gathered);
        }
        if self.gathered.len() > GATHERED { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), End> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let result = out.write_all(self.gathered.as_bytes()).and_then(|()| out.flush());
        self.gathered.clear();
        result.map_err(|error| match error.kind() {
            // As with `head`: it has what it wants.
            ErrorKind::BrokenPipe => End::Done,
            _ => End::Failed(Failure::run_time(format!("standard output: {error}"))),
        })
    }
}

/// Where the packets of a capture go.
pub(super) struct Output {
    lines: Option<Lines>,
    file: Option<Writer>,
    /// Packets that were taken.
    taken: u64,
}

impl Output {
    pub(super) fn open(text: &Text, job: &Job) -> Result<Self, Failure> {
        let lines = (job.write.is_none() || text.print).then(|| Lines::new(text));
        let Some(path) = &job.write else { return Ok(Self { lines, file: None, taken: 0 }) };
        let to_output = is_standard(path);
        if to_output && job.rotation != Rotation::default() {
            return Err(Failure::usage("-w -: -C, -G and -W need a file"));
        }
        if to_output && text.print {
            return Err(Failure::usage("--print: standard output is taken by -w -"));
        }
        let secrets = job.secrets.as_deref().map(KeyLog::follow).transpose();
        let secrets = secrets.map_err(|error| {
            let path = job.secrets.as_deref().unwrap_or(path);
            Failure::run_time(format!("--secrets {}: {error}", path.display()))
        })?;
        if secrets.is_some() {
            let to = if to_output { "standard output".to_owned() } else { path.display().to_string() };
            eprintln!(
                "expressway: {to} will contain TLS secrets: anyone who reads it can decrypt the captured connections"
            );
        }
        let target = if to_output { Target::Output } else { Target::File(path.clone()) };
        let section = section(concat!("expressway ", env!("CARGO_PKG_VERSION")));
        let options = WriterOptions { target, rotation: job.rotation, secrets, section, resume: false };
        let file = Some(Writer::create(options).map_err(failure)?);
        Ok(Self { lines, file, taken: 0 })
    }

    /// Describes an interface; returns the number that packets of it have in files.
    pub(super) fn interface(&mut self, interface: Interface) -> u32 {
        self.file.as_mut().map_or(0, |file| file.interface(interface))
    }

    pub(super) fn statistics(&mut self, id: u32, statistics: Statistics) {
        if let Some(file) = &mut self.file {
            file.statistics(id, statistics);
        }
    }

    /// Has files say what happened to an interface's packets, at the next of them.
    pub(super) fn note(&mut self, id: u32, text: &str) {
        if let Some(file) = &mut self.file {
            file.note(id, text);
        }
    }

    /// Takes a packet of an interface, which has that number in files.
    pub(super) fn packet(
        &mut self,
        (id, name): (u32, &str),
        packet: &Packet<'_>,
        dropped: u64,
    ) -> Result<(), End> {
        self.taken += 1;
        if let Some(lines) = &mut self.lines {
            lines.packet(&Seen { interface: name, directed: true, packet: *packet })?;
        }
        match &mut self.file {
            Some(file) => go_on(file.packet(id, packet, dropped)?),
            None => Ok(()),
        }
    }

    /// Takes a packet of a file, whose interface has that number in the other.
    pub(super) fn copy(&mut self, id: u32, seen: &Seen<'_>) -> Result<(), End> {
        self.taken += 1;
        if let Some(lines) = &mut self.lines {
            lines.packet(seen)?;
        }
        match &mut self.file {
            Some(file) => go_on(file.copy(id, seen)?),
            None => Ok(()),
        }
    }

    /// Prints and writes what is gathered.
    pub(super) fn tick(&mut self) -> Result<(), End> {
        if let Some(lines) = &mut self.lines {
            lines.flush()?;
        }
        match &mut self.file {
            Some(file) => go_on(file.tick(Instant::now())?),
            None => Ok(()),
        }
    }

    /// Ends the file.
    pub(super) fn finish(&mut self) -> Result<(), End> {
        if let Some(lines) = &mut self.lines {
            lines.flush()?;
        }
        match &mut self.file {
            Some(file) => Ok(file.finish()?),
            None => Ok(()),
        }
    }

    /// Packets that were handed over, wherever they are now.
    pub(super) fn handed(&self) -> u64 {
        self.taken
    }

    /// Packets that were printed, or that files have.
    pub(super) fn taken(&self) -> u64 {
        self.file.as_ref().map_or(self.taken, Writer::written)
    }
}

fn go_on(ended: Ended) -> Result<(), End> {
    match ended {
        Ended::No => Ok(()),
        Ended::LastFile => Err(End::Done),
    }
}
