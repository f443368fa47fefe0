//! What a server's admin listener shows, and the orders that it takes.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use expressway_cache::{Cache, Purge, SiteOptions};
use expressway_dataplane::DataPath;
use expressway_gateway::admin::{Feed, Refusal, State};
use expressway_gateway::quic::Shared;
use expressway_netio::trace::Tracers;

use super::events::Event;
use super::upgrade::Report;
use super::upgrade::generation::Generation;
use super::{qlog, trace};

/// What `/healthz`, `/config` and `/io` show.
pub(crate) struct Status {
    pub(super) state: Mutex<Result<(), String>>,
    pub(super) configuration: Mutex<String>,
    pub(super) path: Arc<Mutex<DataPath>>,
    pub(super) cache: Option<Cache>,
    pub(super) tracers: Tracers,
    pub(super) shared: Arc<Shared>,
    /// Hosts of sites, and how their responses are kept.
    pub(super) kept: Mutex<Vec<(Vec<String>, Option<SiteOptions>)>>,
    pub(super) generation: Generation,
    pub(super) events: Sender<Event>,
}

impl Status {
    /// How responses of a host are kept: an exact name counts before the longest wildcard, and that before the first site.
    fn kept(&self, authority: &str) -> SiteOptions {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_ascii_lowercase();
        let length = |pattern: &String| match pattern.strip_prefix("*.") {
            Some(below)
                if host.strip_suffix(below).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')) =>
            {
                Some(below.len())
            }
            None if *pattern == host => Some(usize::MAX),
            _ => None,
        };
        let matching = kept
            .iter()
            .filter_map(|(hosts, options)| Some((hosts.iter().filter_map(length).max()?, options)));
        let best = matching.max_by_key(|(length, _)| *length).map(|(_, options)| options);
        best.or(kept.first().map(|(_, options)| options)).cloned().flatten().unwrap_or_default()
    }
}

impl State for Status {
    fn purge(&self, order: &[u8]) -> Option<Result<String, String>> {
        let cache = self.cache.as_ref()?;
        let purge = || {
            let order: Purge = serde_json::from_slice(order).map_err(|error| error.to_string())?;
            let purged =
                cache.purge(&order, |authority| self.kept(authority)).map_err(|error| error.to_string())?;
            serde_json::to_string(&purged).map_err(|error| error.to_string())
        };
        Some(purge())
    }

    fn trace(&self, order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        Some(trace::start(&self.tracers, order))
    }

    fn qlog(&self, order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        Some(qlog::start(&self.shared, order))
    }

    fn upgrade(&self, _order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        let (report, feed) = Report::new();
        let asked = self.events.send(Event::Upgrade(Some(report)));
        Some(asked.map(|()| feed).map_err(|_| Refusal::Busy("the process is stopping".into())))
    }

    fn generations(&self) -> Option<String> {
        Some(format!("{:#}\n", self.generation.document()))
    }

    fn health(&self) -> Result<(), String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn configuration(&self) -> String {
        self.configuration.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn io(&self) -> Option<String> {
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        Some(format!("{:#}\n", expressway_dataplane::report::io(&path)))
    }
}
