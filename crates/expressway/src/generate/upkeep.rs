//! Looks after the data path while the schedule runs: interfaces and agents that go and come back.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fail::Failure;
use crate::serve::data_path::DataPath;

/// How often.
const INTERVAL: Duration = Duration::from_secs(1);

/// A thread that has the data path. Dropped, it has closed it.
pub(super) struct Upkeep {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts it.
    pub(super) fn start(mut path: DataPath) -> Result<Self, Failure> {
        let (stop, stopped) = channel::<()>();
        let look_after = move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                path.maintain();
            }
            path.finish();
        };
        let thread = std::thread::Builder::new()
            .name("gen-upkeep".into())
            .spawn(look_after)
            .map_err(|error| Failure::run_time(format!("starting the maintenance thread: {error}")))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the data path's maintenance thread panicked");
        }
    }
}
