//! Who talks over an interface: the screen, lines or documents of `expressway_observe::flows`.

mod columns;
mod document;
mod draw;
mod filter;
mod help;
mod names;
mod source;
mod state;

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};
use expressway_observe::flows::{Model, Recorder};
use expressway_settings::admin::Address;
use ratatui::{Terminal, backend::TestBackend};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::admin::{Admin, Answer};
use crate::args::Top as Arguments;
use crate::fail::Failure;
use crate::signals;
use crate::top::counters;
use crate::top::drops::{self, ProcessDrop};
use filter::Filter;
use source::SampleSource;
use state::{Action, Frozen, Pane, State};

/// How long a key may wait for its effect.
const KEYS: Duration = Duration::from_millis(50);
/// How long to wait for another key before what the last one did is drawn. With none at all crossterm looks for no key.
const NEXT_KEY: Duration = Duration::from_millis(1);
/// How often an XDP program is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// How long a process that does not answer is not asked what it dropped.
const REST: Duration = Duration::from_secs(5);
/// Of `--record-size`.
const FULL: &str = "the recording is full";
/// What is printed where there is no terminal is as wide.
const COLUMNS: u16 = 160;

/// What goes on, whatever shows it.
struct Watch<'a> {
    arguments: &'a Arguments,
    source: SampleSource,
    model: Model,
    recorder: Option<Recorder>,
    state: State,
    /// It has a terminal's screen.
    live: bool,
}

/// Shows until told to stop.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let signals = signals::receiver(&[SIGINT, SIGTERM, SIGHUP])?;
    let filter =
        Filter::parse(arguments.flows.filter.as_deref().unwrap_or_default()).map_err(Failure::usage)?;
    // Before the recording: who mistypes the interface keeps the file.
    let source = SampleSource::open(arguments)?;
    let recorder = match &arguments.flows.record {
        Some(path) => Some(Recorder::create(path, arguments.flows.record_size.0).map_err(Failure::run_time)?),
        None => None,
    };
    let mut watch = Watch {
        arguments,
        source,
        model: Model::new(&arguments.flows.quic_port),
        recorder,
        state: State::new(arguments.flows.by, filter),
        live: !arguments.once && !arguments.json && stdout().is_terminal() && stdin().is_terminal(),
    };
    if watch.live { watch.screen(&signals) } else { watch.print(&signals) }
}

impl Watch<'_> {
    /// Takes the next sample; false at the end of a recording.
    fn step(&mut self) -> Result<bool, Failure> {
        let Some(sample) = self.source.next()? else { return Ok(false) };
        if let Some(recorder) = &mut self.recorder
            && !recorder.add(&sample).map_err(Failure::run_time)?
        {
            self.recorder = None;
            self.state.say(FULL);
            if !self.live {
                eprintln!("expressway: {FULL}");
            }
        }
        self.model.add(sample);
        Ok(true)
    }

    /// Lines or documents, without a terminal.
    fn print(&mut self, signals: &Receiver<i32>) -> Result<ExitCode, Failure> {
        let mut process = Process::new(Admin::of(&self.arguments.peer)?, &self.arguments.peer.admin);
        loop {
            // A recording waits for nobody.
            if !self.source.is_recording() && self.wait(signals) {
                return Ok(ExitCode::SUCCESS);
            }
            let more = self.step()?;
            let last = if self.source.is_recording() { !more } else { self.arguments.once };
            if if self.arguments.once { last } else { more } {
                if !self.source.is_recording() {
                    self.state.process_drops = process.drops();
                }
                if self.arguments.json {
                    let rows = self.arguments.flows.rows as usize;
                    crate::print(&format!("{}\n", document::of(&self.model, &self.state, rows)))?;
                } else {
                    crate::print(&self.lines()?)?;
                }
            }
            if last {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Waits for an interval, and looks for XDP programs meanwhile; true if it is to end.
    fn wait(&mut self, signals: &Receiver<i32>) -> bool {
        let until = Instant::now() + self.arguments.interval.0;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if signals.recv_timeout(left.min(LOOK)) != Err(RecvTimeoutError::Timeout) {
                return true;
            }
            if left <= LOOK {
                return false;
            }
            self.source.look();
        }
    }

    /// What the screen would show, as lines.
    fn lines(&mut self) -> Result<String, Failure> {
        let mut out = String::new();
        for pane in [Pane::Flows, Pane::Queues, Pane::Sockets, Pane::Drops, Pane::Cpus] {
            self.state.pane = pane;
            let rows = draw::height(&self.model, &self.state).min(self.arguments.flows.rows as usize + 12);
            let backend = TestBackend::new(COLUMNS, u16::try_from(rows).unwrap_or(u16::MAX));
            let mut terminal = Terminal::new(backend).map_err(Failure::run_time)?;
            let drawn = terminal.draw(|frame| draw::draw(frame, &self.model, &mut self.state));
            let frame = drawn.map_err(Failure::run_time)?;
            for row in 0..frame.area.height {
                let line: String =
                    (0..frame.area.width).map(|column| frame.buffer[(column, row)].symbol()).collect();
                out += line.trim_end();
                out.push('\n');
            }
        }
        self.state.pane = Pane::Flows;
        Ok(out)
    }

    fn screen(&mut self, signals: &Receiver<i32>) -> Result<ExitCode, Failure> {
        // Sets a hook, too, that restores the terminal when something panics.
        let mut terminal = ratatui::try_init()
            .map_err(|error| Failure::run_time(format!("terminal: {error}; use --once or --json")))?;
        let result = self.live(&mut terminal, signals);
        let restored = ratatui::try_restore();
        let code = result?;
        restored.map_err(|error| Failure::run_time(format!("terminal: {error}")))?;
        Ok(code)
    }

    fn live(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        signals: &Receiver<i32>,
    ) -> Result<ExitCode, Failure> {
        let failed = |error: std::io::Error| Failure::run_time(format!("terminal: {error}"));
        let mut process = Process::new(Admin::of(&self.arguments.peer)?, &self.arguments.peer.admin);
        let mut next = Instant::now();
        let (mut ended, mut changed) = (false, true);
        let mut frozen = Frozen::default();
        loop {
            if signals.try_recv().is_ok() {
                return Ok(ExitCode::SUCCESS);
            }
            // Samples go on while the screen is frozen, as recordings do; what comes is not lost.
            if !ended && Instant::now() >= next {
                ended = !self.step()?;
                if ended {
                    self.state.say("end of the recording");
                }
                match self.state.pane {
                    Pane::Process if !self.state.paused => self.state.process = process.lines(),
                    Pane::Drops if !self.state.paused => self.state.process_drops = process.drops(),
                    _ => {}
                }
                next = Instant::now() + self.source.pause(self.arguments.interval.0);
                changed |= !self.state.paused;
            }
            if changed {
                let model = frozen.shown(&self.model, self.state.paused);
                let state = &mut self.state;
                terminal.draw(|frame| draw::draw(frame, model, state)).map_err(failed)?;
                changed = false;
            }
            self.source.look();
            let wait = if ended { KEYS } else { next.saturating_duration_since(Instant::now()).min(KEYS) };
            while event::poll(if changed { NEXT_KEY } else { wait }).map_err(failed)? {
                changed = true;
                match event::read().map_err(failed)? {
                    Event::Key(key)
                        if key.kind != KeyEventKind::Release && self.state.press(key) == Action::Quit =>
                    {
                        return Ok(ExitCode::SUCCESS);
                    }
                    // Other keys and a resize are drawn like anything else.
                    _ => {}
                }
            }
        }
    }
}

/// The process at the admin listener, which may come and go.
struct Process<'a> {
    admin: Admin,
    address: &'a Address,
    /// Its sample before: rates take two.
    view: Option<super::View>,
    /// Its metrics page before, for the same reason.
    metrics: Option<counters::View>,
    /// When it did not answer last: then it is left alone for a while, or each sample could wait for its answer.
    failed: Option<Instant>,
}

impl<'a> Process<'a> {
    fn new(admin: Admin, address: &'a Address) -> Self {
        Self { admin, address, view: None, metrics: None, failed: None }
    }

    /// What it dropped since its start, by its metrics page; `None` where nothing answers.
    fn drops(&mut self) -> Option<Vec<ProcessDrop>> {
        if self.failed.is_some_and(|failed| failed.elapsed() < REST) {
            return None;
        }
        let found = match self.admin.page("/metrics") {
            Ok(Answer::Page(text)) => match self.metrics.take() {
                Some(mut view) => view.update(&text).ok().map(|()| view),
                None => counters::View::of(&text).ok(),
            },
            _ => None,
        };
        self.failed = found.is_none().then(Instant::now);
        self.metrics = found;
        self.metrics.as_ref().map(drops::of)
    }

    /// What its own screen would show now.
    fn lines(&mut self) -> Vec<String> {
        let view = match self.view.take() {
            Some(mut view) => view.update(&self.admin).map(|()| view),
            None => super::first(&self.admin),
        };
        match view {
            Ok(view) => self.view.insert(view).lines(self.address),
            Err(failure) => vec![failure.to_string()],
        }
    }
}
