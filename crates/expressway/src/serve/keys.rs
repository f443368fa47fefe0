//! Keys that this server shares with others: from the document to all that uses them, at the start and when another document
//! comes.

use std::sync::Arc;

use expressway_gateway::quic::SharedRetryKeys;
use expressway_keys::{Document, Keys, Store};
use expressway_metrics::{Registry, Sample};
use expressway_tls::{TicketKey, TicketKeys};
use expressway_web::{TokenKey, TokenKeys};

use super::config::Config;
use crate::fail::Failure;
use crate::metrics;

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
        let store =
            section.open().map_err(|problem| Failure::usage(config.at(section.file.span(), problem)))?;
        let document = store.document();
        let tokens = TokenKeys::new(url_keys(&document));
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
        let document = self.store.keep_up(is_asked)?;
        self.tokens.replace(url_keys(&document));
        Some(document)
    }

    /// Registers what the document is, and what became of its file.
    pub(crate) fn register(self: &Arc<Self>, registry: &Registry) {
        let keys = Arc::clone(self);
        registry.register(move |out: &mut Vec<Sample>| metrics::shared_keys(&keys.store.report(), out));
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
