//! The control runtime, on which everything runs that waits for other servers.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads for name resolution, which blocks in the C library.
const RESOLVER_THREADS: usize = 4;

/// A small async runtime, shared by origins and caches. On drop its tasks are dropped where they stand, and what
/// they owed is answered with errors.
#[derive(Debug)]
pub struct Control {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Control {
    /// Starts `threads` threads, which inherit confinement and affinity of the calling one.
    pub fn start(threads: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(RESOLVER_THREADS)
            .thread_name("control")
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    /// Where to spawn tasks. What is spawned after the drop is dropped at once.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
