//! Lists that change while the filter runs: files that are checked, and URLs that are fetched.
//!
//! A separate thread follows them. The owner of the filter collects changes by [`Lists::take`]. A list is replaced as a
//! whole: if it cannot be fetched, or has an invalid line, the previous one stays in use, in memory and, for a URL, on
//! disk.

mod fetch;
mod follow;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use expressway_xbpf::GuardPrefix;
use tokio::sync::watch;

use fetch::Validators;
pub use fetch::{Connector, Url};
pub(super) use store::replace;

use super::Config;
use super::list::Stamp;
use super::status::ListStatus;

/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Its sources pass.
    Allow,
    /// Its sources are dropped.
    Block,
}

impl Kind {
    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Block => "block",
        }
    }
}

/// Where a list is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// In a file.
    File(PathBuf),
    /// With a server.
    Url(Url),
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// A list that the configuration names, with what it has.
#[derive(Clone, Debug)]
pub struct ListSource {
    /// What for.
    pub kind: Kind,
    /// Where.
    pub location: Location,
    /// Empty while nothing is known of a URL.
    pub entries: Arc<Vec<GuardPrefix>>,
    /// Of the file, when it was read.
    pub(super) stamp: Option<Stamp>,
}

/// `[lists]`
#[derive(Clone, Debug)]
pub struct Settings {
    /// Between two fetches of a URL.
    pub interval: std::time::Duration,
    /// For a fetch, from the look-up of the name to the last octet.
    pub timeout: std::time::Duration,
    /// Octets of a fetched list at most.
    pub size: u64,
    /// Between two looks at a file; zero is never.
    pub files: std::time::Duration,
    /// Where fetched lists are kept.
    pub folder: PathBuf,
    /// Trusts whom it says.
    pub connector: Connector,
}

type Key = (Kind, Location);

/// What is known of a list.
#[derive(Clone, Debug, Default)]
struct Known {
    entries: Arc<Vec<GuardPrefix>>,
    validators: Validators,
    /// When it was last known to be current.
    checked: Option<SystemTime>,
    /// How often it could not be had, or was refused.
    failures: u64,
    error: Option<String>,
    /// Not taken by the filter yet.
    fresh: bool,
}

/// What the thread and the filter's owner share.
#[derive(Debug, Default)]
struct Shared(Mutex<BTreeMap<Key, Known>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists that are followed. Dropping this ends their thread.
#[derive(Debug, Default)]
pub struct Lists {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    /// What to follow; `None` is the end.
    plans: watch::Sender<Option<Arc<follow::Plan>>>,
    /// Grows when all is to be fetched at once.
    hurry: watch::Sender<u64>,
    handle: Option<JoinHandle<()>>,
}

/// The entries of a list as they are now.
pub type Taken = (Kind, Location, Arc<Vec<GuardPrefix>>);

impl Lists {
    /// Gives the configuration what is known of its URLs, from memory or else from disk, and joins its lists.
    ///
    /// # Errors
    /// There are too many entries.
    pub fn fill(&self, config: &mut Config) -> Result<(), String> {
        let mut known = self.shared.lock();
        for source in &mut config.sources {
            let key = (source.kind, source.location.clone());
            let Location::Url(url) = &source.location else { continue };
            let one = known.entry(key).or_insert_with(|| match store::load(&config.lists.folder, url) {
                Some(stored) => Known {
                    entries: Arc::new(stored.entries),
                    validators: stored.validators,
                    checked: Some(stored.checked),
                    ..Known::default()
                },
                None => Known::default(),
            });
            source.entries = one.entries.clone();
        }
        config.join()
    }

    /// Follows the lists of this configuration, which is in force, from now on, and no others.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow(&mut self, config: &Config) -> std::io::Result<()> {
        let keys: Vec<Key> = config.sources.iter().map(|one| (one.kind, one.location.clone())).collect();
        let mut known = self.shared.lock();
        known.retain(|key, _| keys.contains(key));
        for (key, source) in keys.iter().zip(&config.sources) {
            let one = known.entry(key.clone()).or_default();
            if matches!(source.location, Location::File(_)) {
                (one.entries, one.checked, one.error) =
                    (source.entries.clone(), Some(SystemTime::now()), None);
            }
            one.fresh = !Arc::ptr_eq(&one.entries, &source.entries);
        }
        drop(known);
        let plan = Arc::new(follow::Plan::of(config));
        if let Some(thread) = &self.thread {
            thread.plans.send_replace(Some(plan));
            return Ok(());
        }
        if config.sources.is_empty() {
            return Ok(());
        }
        let (plans, planned) = watch::channel(Some(plan));
        let (hurry, hurried) = watch::channel(0);
        let shared = self.shared.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = std::thread::Builder::new().name("expressway-lists".into()).spawn(move || {
            runtime.block_on(follow::run(shared, planned, hurried));
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        })?;
        self.thread = Some(Thread { plans, hurry, handle: Some(handle) });
        Ok(())
    }

    /// What has changed since it was last asked; `None` if nothing has.
    pub fn take(&self) -> Option<Vec<Taken>> {
        let mut known = self.shared.lock();
        let fresh = known.iter_mut().filter_map(|((kind, location), one)| {
            std::mem::take(&mut one.fresh).then(|| (*kind, location.clone(), one.entries.clone()))
        });
        Some(fresh.collect()).filter(|fresh: &Vec<_>| !fresh.is_empty())
    }

    /// Has all URLs fetched at once. Their number.
    pub fn hurry(&self) -> usize {
        if let Some(thread) = &self.thread {
            thread.hurry.send_modify(|times| *times += 1);
        }
        self.shared.lock().keys().filter(|(_, location)| matches!(location, Location::Url(_))).count()
    }

    /// What is known of each.
    pub fn status(&self) -> Vec<ListStatus> {
        let known = self.shared.lock();
        let of = |((kind, location), one): (&Key, &Known)| ListStatus {
            list: kind.name(),
            source: location.to_string(),
            entries: one.entries.len(),
            age_seconds: one
                .checked
                .map(|checked| SystemTime::now().duration_since(checked).unwrap_or_default().as_secs()),
            failures: one.failures,
            error: one.error.clone(),
        };
        known.iter().map(of).collect()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.plans.send_replace(None);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}
