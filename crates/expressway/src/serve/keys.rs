//! Keys that this server shares with others: from the document to all that uses them, at the start and when another document
//! comes.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use expressway_gateway::quic::SharedRetryKeys;
use expressway_keys::{Document, Keys, Refusal, Store};
use expressway_metrics::{Registry, Sample};
use expressway_tls::{TicketKey, TicketKeys};
use expressway_web::{TokenKey, TokenKeys};

use super::config::Config;
use crate::fail::Failure;

/// The document, and those of its keys that nobody else holds.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    store: Store,
    tokens: TokenKeys,
}

impl SharedKeys {
    /// Those of the configuration, if it has some.
    ///
    /// # Errors
    /// Without a good document there is nothing to begin with.
    pub(crate) fn open(config: &Config) -> Result<Option<Arc<Self>>, Failure> {
        let Some(section) = &config.keys else { return Ok(None) };
        let (file, signer) = (section.file.get_ref(), section.signer.get_ref());
        let store = Store::open(file, signer, Instant::now())
            .map_err(|problem| Failure::usage(config.at(section.file.span(), problem)))?;
        let document = store.document();
        let tokens = TokenKeys::new(url_keys(&document));
        warn_if_from_the_future(&document);
        Ok(Some(Arc::new(Self { store, tokens })))
    }

    /// The document in use.
    pub(crate) fn document(&self) -> Arc<Document> {
        self.store.document()
    }

    /// Keys of signed URLs, which follow the document by themselves.
    pub(crate) fn tokens(&self) -> &TokenKeys {
        &self.tokens
    }

    /// Looks at the file; `is_asked` reads it in any case. A new document is in use for URLs when this returns, and for the rest when the
    /// caller has seen to it.
    pub(crate) fn follow(&self, is_asked: bool) -> Option<Arc<Document>> {
        match self.store.follow(Instant::now(), is_asked) {
            Ok(Some(document)) => {
                self.tokens.replace(url_keys(&document));
                tracing::info!(
                    file = %self.store.file().display(), version = document.version, current = document.current.id(),
                    "new shared keys"
                );
                warn_if_from_the_future(&document);
                Some(document)
            }
            Ok(None) => None,
            Err(problem) => {
                let version = self.store.report().version;
                tracing::error!("keeping version {version} of the shared keys: {problem}");
                None
            }
        }
    }

    /// Registers what the document is, and what became of its file.
    pub(crate) fn register(self: &Arc<Self>, registry: &Registry) {
        let keys = Arc::clone(self);
        registry.register(move |out: &mut Vec<Sample>| {
            let report = keys.store.report();
            let help = "Version of the shared keys in use: usually the Unix time at which they were made.";
            out.push(Sample::gauge("shared_keys_version", help, report.version));
            let help = "1 if the shared keys in use are those of the file when it was last read; 0 if it was refused.";
            out.push(Sample::gauge("shared_keys_good", help, report.is_good.into()));
            let help = "Documents of shared keys accepted since the start, including the first.";
            out.push(Sample::counter("shared_keys_taken", help, report.taken));
            let help = "Times that the file of the shared keys was read and refused.";
            for (reason, count) in Refusal::REASONS.into_iter().zip(report.refused) {
                out.push(Sample::counter("shared_keys_refused", help, count).label("reason", reason));
            }
        });
    }
}

/// Has tickets made and taken by the document's keys.
pub(crate) fn set_tickets(document: &Document, tickets: &TicketKeys) {
    let of = |keys: &Keys| TicketKey::from_bytes(&keys.tickets);
    tickets.set(of(&document.current), Some(of(&document.next)), document.previous.as_ref().map(of));
}

/// Keys of Retry tokens, the current first.
pub(crate) fn retry(document: &Document) -> Result<SharedRetryKeys, Failure> {
    let masters: Vec<_> = document.all().map(|(_, keys)| keys.retry).collect();
    SharedRetryKeys::new(&masters).map_err(Failure::run_time)
}

fn url_keys(document: &Document) -> Vec<TokenKey> {
    document.all().map(|(_, keys)| TokenKey::from_bytes(&keys.tokens)).collect()
}

/// A signer whose clock is ahead makes documents that others' cannot follow for as long.
fn warn_if_from_the_future(document: &Document) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if document.version > now + 3600 {
        let ahead = document.version - now;
        tracing::warn!(
            "the version of the shared keys is {ahead} s ahead of this machine's clock: check the clocks"
        );
    }
}
