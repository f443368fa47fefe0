//! What all file sites share.

use std::sync::Arc;

use super::FileOptions;
use crate::metrics::Metric;

/// Caches, reader threads and counters that all sites of a process share. Survives reloads.
#[derive(Debug)]
pub struct FileStore {
    #[allow(dead_code)]
    options: FileOptions,
}

impl FileStore {
    /// Starts the reader threads. Fails when a thread cannot be started or an option makes no sense.
    pub fn new(options: FileOptions) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { options }))
    }

    /// Every counter and gauge of caches and readers.
    pub fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}
