//! The thread that follows lists, with one task for each.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use expressway_xbpf::GuardPrefix;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::fetch::{Fetched, Url};
use super::{Key, Location, Settings, Shared, store};
use crate::guard::Config;
use crate::guard::list::{self, Stamp};

/// The first pause after a fetch that failed; it doubles up to the interval.
const AGAIN: Duration = Duration::from_secs(5);

/// What is followed, and how.
#[derive(Debug)]
pub(super) struct Plan {
    settings: Settings,
    sources: Vec<(Key, Option<Stamp>)>,
}

impl Plan {
    pub(super) fn of(config: &Config) -> Self {
        let source = |one: &super::ListSource| ((one.kind, one.location.clone()), one.stamp);
        Self { settings: config.lists.clone(), sources: config.sources.iter().map(source).collect() }
    }
}

/// Follows one plan after another, until there is none.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut plans: watch::Receiver<Option<Arc<Plan>>>,
    hurried: watch::Receiver<u64>,
) {
    loop {
        let Some(plan) = plans.borrow_and_update().clone() else { return };
        let tasks: Vec<JoinHandle<()>> = plan
            .sources
            .iter()
            .map(|(key, stamp)| {
                let watcher = Watcher { shared: shared.clone(), plan: plan.clone(), key: key.clone() };
                let (stamp, hurried) = (*stamp, hurried.clone());
                tokio::spawn(async move {
                    match &watcher.key.1 {
                        Location::File(path) => watcher.file(path, stamp).await,
                        Location::Url(url) => watcher.url(url, hurried).await,
                    }
                })
            })
            .collect();
        let changed = plans.changed().await;
        for task in tasks {
            task.abort();
        }
        if changed.is_err() {
            return;
        }
    }
}

/// Follows one list.
struct Watcher {
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    key: Key,
}

impl Watcher {
    /// A file is read when it has changed and does not any more.
    async fn file(&self, path: &Path, mut read: Option<Stamp>) {
        let pause = self.plan.settings.files;
        if pause.is_zero() {
            return;
        }
        let mut before = read;
        loop {
            sleep(pause).await;
            let now = Stamp::of(path);
            let settled = now == before;
            before = now;
            if now == read || !settled {
                continue;
            }
            read = now;
            match list::read(path) {
                Ok((entries, stamp)) => {
                    read = Some(stamp);
                    self.taken(entries);
                }
                Err(error) => self.failed(&error.to_string()),
            }
        }
    }

    /// A URL is fetched when the interval is over, by a random part less, so that hosts do not ask all at once.
    async fn url(&self, url: &Url, mut hurried: watch::Receiver<u64>) {
        let interval = self.plan.settings.interval;
        hurried.mark_unchanged();
        let mut failures = 0u32;
        let mut due = self.first();
        loop {
            tokio::select! {
                () = sleep_until(due) => {}
                changed = hurried.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
            match self.fetch(url).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    self.failed(&format!("{url}: {error}"));
                }
            }
            due = Instant::now() + pause(interval, failures);
        }
    }

    /// When a URL is fetched first: when what is kept of it is as old as the interval.
    fn first(&self) -> Instant {
        let known = self.shared.lock();
        let checked = known.get(&self.key).and_then(|one| one.checked);
        let age = checked.and_then(|checked| SystemTime::now().duration_since(checked).ok());
        let left = age.map_or(Duration::ZERO, |age| self.plan.settings.interval.saturating_sub(age));
        Instant::now() + left
    }

    async fn fetch(&self, url: &Url) -> Result<(), String> {
        let Settings { timeout, size, folder, connector, .. } = &self.plan.settings;
        let validators = self.shared.lock().get(&self.key).map(|one| one.validators.clone());
        let validators = validators.unwrap_or_default();
        let (body, validators) = match connector.fetch(url, &validators, *size, *timeout).await? {
            Fetched::Same => {
                if let Err(error) = store::touch(folder, url) {
                    tracing::debug!(%url, %error, "cannot update the time of a saved list");
                }
                self.current();
                return Ok(());
            }
            Fetched::New(body, validators) => (body, validators),
        };
        if body.is_empty() {
            return Err("is empty, without even a comment: refused".to_owned());
        }
        let name = url.to_string();
        let entries = list::parse(&mut &body[..], Path::new(&name)).map_err(|error| {
            // The URL is said by who calls.
            let line = if error.line > 0 { format!("line {}: ", error.line) } else { String::new() };
            format!("{line}{}; the whole list is refused", error.problem)
        })?;
        if let Err(error) = store::save(folder, url, &body, &validators) {
            tracing::warn!("{}: cannot save {url} for the next start: {error}", folder.display());
        }
        if let Some(one) = self.shared.lock().get_mut(&self.key) {
            one.validators = validators;
        }
        self.taken(entries);
        Ok(())
    }

    /// Another list is there.
    fn taken(&self, mut entries: Vec<GuardPrefix>) {
        entries.sort_unstable();
        entries.dedup();
        tracing::info!(list = self.key.0.name(), source = %self.key.1, entries = entries.len(), "list read");
        if let Some(one) = self.shared.lock().get_mut(&self.key) {
            one.fresh |= *one.entries != entries;
            (one.entries, one.checked, one.error) = (Arc::new(entries), Some(SystemTime::now()), None);
        }
    }

    /// The one that is there is the newest.
    fn current(&self) {
        if let Some(one) = self.shared.lock().get_mut(&self.key) {
            (one.checked, one.error) = (Some(SystemTime::now()), None);
        }
    }

    /// One warning for a trouble, however often it is met.
    fn failed(&self, error: &str) {
        let mut known = self.shared.lock();
        let Some(one) = known.get_mut(&self.key) else { return };
        one.failures += 1;
        if one.error.as_deref() != Some(error) {
            tracing::warn!("list not read; keeping the earlier one: {error}");
        }
        one.error = Some(error.to_owned());
    }
}

/// The pause before the next fetch.
fn pause(interval: Duration, failures: u32) -> Duration {
    if failures > 0 {
        return AGAIN.saturating_mul(1 << (failures - 1).min(16)).min(interval);
    }
    use std::hash::{BuildHasher, Hasher, RandomState};
    let part = RandomState::new().build_hasher().finish() % 100;
    interval - interval / 1000 * u32::try_from(part).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_tried_again_sooner_and_then_less_often() {
        let hour = Duration::from_secs(3600);
        assert_eq!(pause(hour, 1), AGAIN);
        assert_eq!(pause(hour, 3), AGAIN * 4);
        assert_eq!((pause(hour, 90), pause(Duration::from_secs(1), 1)), (hour, Duration::from_secs(1)));
        assert!((hour * 9 / 10..=hour).contains(&pause(hour, 0)));
    }
}
