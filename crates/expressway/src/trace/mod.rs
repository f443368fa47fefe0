//! `expressway trace`: requests through a running gateway, hop by hop, as its admin listener tells them.

mod report;

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use expressway_observe::trace::{Chrome, Line, Model, Order};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::admin::{Admin, Part};
use crate::args::Trace as Arguments;
use crate::fail::Failure;
use crate::screen::Screen;
use crate::signals;

/// How long signals may wait.
const PATIENCE: Duration = Duration::from_millis(100);

/// How often the screen is drawn.
const DRAW: Duration = Duration::from_millis(500);

/// How long what happened before a signal may take to be told: the process tells the time every second.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// The process tells something every second: without a word for so long it hangs, or is gone without having said so.
const SILENCE: Duration = Duration::from_secs(10);

/// A trace in a file, for Perfetto.
struct Output<'a> {
    path: &'a Path,
    chrome: Chrome<BufWriter<File>>,
}

/// Traces until the time limit was reached, or one is told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { client, connection, seconds, sample, .. } = arguments;
    let order =
        Order { client: client.clone(), connection: connection.clone(), seconds: *seconds, sample: *sample };
    order.options().map_err(|problem| Failure::usage(format!("--{problem}")))?;
    let order = serde_json::to_string(&order).map_err(Failure::run_time)?;
    let signals = signals::receiver(&[SIGINT, SIGTERM])?;
    let admin = Admin::of(&arguments.peer)?;
    let lines = admin.order("/trace", &order)?;
    // Nothing is left behind of a trace that was refused.
    let mut output = arguments.chrome.as_deref().map(Output::create).transpose()?;
    let mut model = Model::with_wanted(arguments.request.clone());
    let stopped = || !matches!(signals.try_recv(), Err(TryRecvError::Empty));
    let followed = follow(&admin, lines, (&mut model, output.as_mut()), arguments, stopped);
    // What has come is worth something, whatever the rest was.
    let (rest, unfinished) = (model.end(), model.under_way());
    debug_assert_eq!(unfinished, 0);
    if let Some(mut output) = output {
        for request in &rest {
            output.request(request, &model)?;
        }
        output.end()?;
    }
    match arguments.json {
        true => crate::print(&format!("{:#}\n", report::document(&model, rest.len())))?,
        false => crate::print(&(report::lines(&model, rest.len(), true).join("\n") + "\n"))?,
    }
    followed.map(|()| ExitCode::SUCCESS)
}

/// Takes in line by line, until the process has told the end or `stopped` says so.
fn follow(
    admin: &Admin,
    mut lines: crate::admin::Lines,
    (model, mut output): (&mut Model, Option<&mut Output<'_>>),
    arguments: &Arguments,
    stopped: impl Fn() -> bool,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| admin.failure(&format!("the trace was cut short: {error}"));
    lines.set_patience(PATIENCE).map_err(failed)?;
    let is_live = std::io::IsTerminal::is_terminal(&std::io::stdout()) && !arguments.json;
    let mut screen = if is_live { Some(Screen::open(true)?) } else { None };
    let (mut drawn, mut heard) = (None, Instant::now());
    // Told to stop: when, by the clock of events, and when it does so in any case.
    let mut stop: Option<(u64, Instant)> = None;
    loop {
        let now = Instant::now();
        if stop.is_none() && stopped() {
            stop = Some((monotonic(), now + LAST_WORDS));
        }
        if stop.is_some_and(|(time, latest)| model.time >= time || now >= latest) {
            return Ok(());
        }
        match lines.poll().map_err(failed)? {
            Part::End => return Ok(()),
            Part::Nothing if now.duration_since(heard) > SILENCE => {
                return Err(admin.failure("the process stopped sending events"));
            }
            Part::Nothing => {}
            Part::Line(line) => {
                heard = now;
                take(admin, &line, model, output.as_deref_mut())?;
            }
        }
        if let Some(screen) = &mut screen
            && drawn.is_none_or(|drawn| now.duration_since(drawn) >= DRAW)
        {
            drawn = Some(now);
            screen.show(&report::lines(model, model.under_way(), false))?;
        }
    }
}

fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn take(
    admin: &Admin,
    line: &str,
    model: &mut Model,
    output: Option<&mut Output<'_>>,
) -> Result<(), Failure> {
    let line: Line = serde_json::from_str(line)
        .map_err(|error| admin.failure(&format!("cannot parse a line of the trace: {error}")))?;
    let Some(output) = output else {
        model.take(line);
        return Ok(());
    };
    output.line(&line, model)?;
    model.take(line).iter().try_for_each(|request| output.request(request, model))
}

impl<'a> Output<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        let chrome = File::create(path).and_then(|file| Chrome::begin(BufWriter::new(file)));
        let chrome = chrome.map_err(|error| failed(path, &error))?;
        Ok(Self { path, chrome })
    }

    fn line(&mut self, line: &Line, model: &Model) -> Result<(), Failure> {
        self.chrome.take(line, model).map_err(|error| failed(self.path, &error))
    }

    fn request(
        &mut self,
        request: &expressway_observe::trace::Request,
        model: &Model,
    ) -> Result<(), Failure> {
        self.chrome.request(request, model).map_err(|error| failed(self.path, &error))
    }

    fn end(self) -> Result<(), Failure> {
        self.chrome.end().map(|_| ()).map_err(|error| failed(self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::run_time(format!("--chrome {}: {error}", path.display()))
}
