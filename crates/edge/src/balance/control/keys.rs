//! Connection IDs by shared keys: what the document says now.

use expressway_keys::{Document, Report, Section, Store};

use super::{Balancer, Error, ids};
use crate::balance::config::{Config, Service, shared_configs};

impl Balancer {
    /// What became of the file of the shared keys, if there is one.
    pub fn keys(&self) -> Option<Report> {
        self.keys.as_ref().map(Store::report)
    }

    /// Has a configuration that is about to be applied use the newest good document: its file may have changed since it was
    /// read, and what is in use is never older than what was.
    pub(super) fn set_keys(&mut self, config: &mut Config) -> Result<(), Error> {
        if self.keys.is_none() || self.config.keys != config.keys {
            self.keys = config.keys.as_ref().map(Section::open).transpose().map_err(Error::Keys)?;
        } else if let Some(store) = &self.keys {
            store.keep_up(true);
        }
        if let Some(store) = &self.keys {
            let document = store.document();
            config.services.iter_mut().for_each(|service| set(service, &document));
        }
        Ok(())
    }

    /// Has services follow a new document. Flows stay where they are.
    pub(super) fn follow_keys(&mut self) -> Result<(), Error> {
        if let Some(document) = self.keys.as_ref().and_then(|store| store.keep_up(false)) {
            self.config.services.iter_mut().for_each(|service| set(service, &document));
            self.active.iter_mut().for_each(|active| set(&mut active.service, &document));
            self.has_new_keys = true;
        }
        // Again until all of it is done.
        if self.has_new_keys {
            for active in self.active.iter().filter(|active| active.service.shared_keys) {
                ids::publish(&self.program, active)?;
            }
            self.has_new_keys = false;
        }
        Ok(())
    }
}

fn set(service: &mut Service, document: &Document) {
    let server_id = service.nodes.first().map_or(0, |node| node.server_id.len());
    // The length was checked when the file was read.
    if let Some(configs) = shared_configs(document, server_id).filter(|_| service.shared_keys) {
        service.quic = configs;
    }
}
