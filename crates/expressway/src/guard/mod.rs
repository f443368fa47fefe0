//! `expressway guard`: a filter in XDP, until a signal.

mod capture;
mod orders;
mod report;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expressway_edge::guard::{
    Capture as CaptureSettings, CaptureStatus, Config, Error, Filter, Lists, Status,
};
use expressway_gateway::admin::State;
use expressway_metrics::Sample;
use expressway_xbpf::Existing;

use crate::args::Guard as Arguments;
use crate::daemon::{self, Daemon, lock};
use crate::fail::Failure;
use crate::notify;
use capture::Capture;

/// Filters until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut config = load(arguments)?;
    if arguments.check {
        crate::print(&format!("{}: ok\n", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = daemon::signals()?;
    let (section, settings) = (config.admin.clone(), config.capture.clone());
    let mut lists = Lists::default();
    lists.fill(&mut config).map_err(Failure::usage)?;
    let filter = Filter::start(config).map_err(Failure::run_time)?;
    lists.follow(filter.config()).map_err(|error| Failure::run_time(format!("lists: {error}")))?;
    let guard = Arc::new(Guard {
        filter: Mutex::new(filter),
        lists: Mutex::new(lists),
        capture: Mutex::new(None),
        written: Arc::default(),
        arguments: arguments.clone(),
    });
    guard.capture(settings.as_ref())?;
    let admin = daemon::admin(section.as_ref(), &guard, |_| ())?;
    let lines = if arguments.json { String::new() } else { report::ready(lock(&guard.filter).interfaces()) };
    notify::ready(&lines)?;
    daemon::watch(&*guard, admin.as_ref(), &signals);
    guard.save(true);
    // At the end lines would only be in the way of what the shell prints next.
    if arguments.json {
        guard.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load(arguments: &Arguments) -> Result<Config, Failure> {
    let mut config = Config::load(&arguments.config).map_err(Failure::usage)?;
    config.options.dry_run |= arguments.dry_run;
    if arguments.replace {
        config.attach.existing = Existing::Replace;
    }
    Ok(config)
}

/// Why a change was not taken.
enum Refused {
    /// The earlier configuration stays.
    Stays(String),
    /// Neither it nor the earlier one is everywhere.
    Partly(String),
}

impl Refused {
    fn of(error: &Error) -> Self {
        match error {
            Error::Partly(_) => Self::Partly(error.to_string()),
            error => Self::Stays(error.to_string()),
        }
    }
}

/// The filter with what goes on beside it, for its upkeep and the admin pages. Whoever locks several does it in this order.
struct Guard {
    filter: Mutex<Filter>,
    lists: Mutex<Lists>,
    capture: Mutex<Option<Capture>>,
    written: Arc<capture::Counts>,
    arguments: Arguments,
}

impl Guard {
    /// What it did.
    fn status(&self) -> Result<Status, Error> {
        let filter = lock(&self.filter);
        let mut status = filter.status()?;
        status.lists = lock(&self.lists).status();
        if filter.config().capture.is_some() {
            let (written, unwritten, failing) = self.written.read();
            status.capture = Some(CaptureStatus { written, unwritten, failing });
        }
        Ok(status)
    }

    /// Puts another configuration in the place of this one, with its lists and its capture.
    fn change(&self, mut config: Config) -> Result<(), Refused> {
        lock(&self.lists).fill(&mut config).map_err(Refused::Stays)?;
        let (before, settings) = (lock(&self.filter).config().capture.clone(), config.capture.clone());
        self.capture(settings.as_ref()).map_err(|error| Refused::Stays(error.to_string()))?;
        let result = lock(&self.filter).change(config);
        if let Err(error) = result {
            if let Err(error) = self.capture(before.as_ref()) {
                tracing::error!("{error}");
            }
            return Err(Refused::of(&error));
        }
        let filter = lock(&self.filter);
        let followed = lock(&self.lists).follow(filter.config());
        if let Err(error) = followed {
            tracing::error!("cannot follow the lists: {error}");
        }
        Ok(())
    }

    /// Takes what has changed of lists since the last time.
    fn renew(&self) {
        let fresh = lock(&self.lists).take();
        let Some(fresh) = fresh else { return };
        let mut filter = lock(&self.filter);
        let mut config = filter.config().clone();
        for (kind, place, entries) in &fresh {
            config.set(*kind, place, entries);
        }
        let changed = config.join().and_then(|()| filter.change(config).map_err(|error| error.to_string()));
        match changed {
            Ok(()) => {
                let options = &filter.config().options;
                let (allowed, blocked) = (options.allow.len(), options.block.len());
                tracing::info!(allowed, blocked, "lists reloaded");
            }
            Err(error) => tracing::error!("lists not reloaded; keeping the earlier ones: {error}"),
        }
    }

    /// Writes learned sources when it is time to, or at the end.
    fn save(&self, at_end: bool) {
        let unsaved = lock(&self.filter).unsaved(at_end);
        if let Some(unsaved) = unsaved {
            let result = unsaved.write();
            lock(&self.filter).saved(result);
        }
    }

    /// Has samples written as `settings` say, or none.
    fn capture(&self, settings: Option<&CaptureSettings>) -> Result<(), Failure> {
        let filter = lock(&self.filter);
        let mut capture = lock(&self.capture);
        match (&mut *capture, settings) {
            (Some(capture), settings) => capture.change(settings).map_err(Failure::run_time),
            (None, None) => Ok(()),
            (none, Some(settings)) => {
                let samples = filter.samples(capture::BUFFER).map_err(Failure::run_time)?;
                let (names, written) = (filter.rule_names(), self.written.clone());
                *none = Some(Capture::start(settings.clone(), samples, names, written)?);
                Ok(())
            }
        }
    }
}

impl Daemon for Guard {
    const UPKEEP: Duration = Duration::from_secs(1);

    fn upkeep(&self) {
        lock(&self.filter).upkeep();
        self.renew();
        self.save(false);
    }

    fn reload(&self) {
        // Lists are read before anybody has to wait.
        let result = load(&self.arguments).map_err(|error| Refused::Stays(error.to_string()));
        match result.and_then(|config| self.change(config)) {
            Ok(()) => {
                tracing::info!(config = %self.arguments.config.display(), "configuration reloaded");
            }
            Err(Refused::Partly(error)) => tracing::error!("{error}"),
            Err(Refused::Stays(error)) => {
                tracing::error!("configuration not reloaded; keeping the earlier one: {error}");
            }
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let status = self.status().map_err(Failure::run_time)?;
        crate::print(&if self.arguments.json { report::document(&status) } else { report::lines(&status) })
    }

    fn samples(&self, out: &mut Vec<Sample>) {
        match self.status() {
            Ok(status) => report::samples(&status, out),
            Err(error) => tracing::warn!(%error, "cannot read the counters"),
        }
    }
}

impl State for Guard {
    fn health(&self) -> Result<(), String> {
        lock(&self.filter).health()
    }

    fn configuration(&self) -> String {
        lock(&self.filter).config().text.clone()
    }

    fn io(&self) -> Option<String> {
        self.status().ok().map(|status| report::document(&status))
    }

    fn ban(&self, order: &[u8]) -> Option<Result<String, String>> {
        Some(orders::Ban::read(order).and_then(|ban| {
            let mut filter = lock(&self.filter);
            let banned = filter.ban(&ban.sources, ban.time).map_err(|error| error.to_string())?;
            match ban.sources.len() - banned {
                0 => Ok(format!("{{\"banned\":{banned}}}")),
                more => Err(format!("{more} of {} not added: table full; raise `bans`", ban.sources.len())),
            }
        }))
    }

    fn unban(&self, order: &[u8]) -> Option<Result<String, String>> {
        Some(orders::Unban::read(order).map(|unban| {
            let mut filter = lock(&self.filter);
            let sources = match unban {
                orders::Unban::All => filter.bans(usize::MAX).into_iter().map(|(source, _)| source).collect(),
                orders::Unban::Sources(sources) => sources,
            };
            format!("{{\"unbanned\":{}}}", filter.unban(&sources))
        }))
    }

    fn bans(&self) -> Option<String> {
        let filter = lock(&self.filter);
        let bans = filter.bans(report::BANS + 1);
        Some(report::bans(&bans))
    }

    fn attack(&self, order: &[u8]) -> Option<Result<String, String>> {
        let attack = match orders::attack(order) {
            Ok(attack) => attack,
            Err(problem) => return Some(Err(problem)),
        };
        let mut filter = lock(&self.filter);
        filter.set_attack(attack).map(|attack| Ok(format!("{{\"attack\":{attack}}}")))
    }

    fn learn(&self, order: &[u8]) -> Option<Result<String, String>> {
        let sources = match orders::learn(order) {
            Ok(sources) => sources,
            Err(problem) => return Some(Err(problem)),
        };
        let learned = lock(&self.filter).learn(&sources)?;
        Some(match sources.len() - learned {
            0 => Ok(format!("{{\"learned\":{learned}}}")),
            more => Err(format!("{more} of {} not added: table full; raise `learn.entries`", sources.len())),
        })
    }

    fn refresh(&self, order: &[u8]) -> Option<Result<String, String>> {
        Some(orders::nothing(order).map(|()| format!("{{\"urls\":{}}}", lock(&self.lists).hurry())))
    }
}
