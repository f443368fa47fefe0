//! A thread that maintains a data path.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::data_path::DataPath;
use crate::error::Error;

/// How often.
const INTERVAL: Duration = Duration::from_secs(1);

/// A thread that has a data path and looks after it once a second. Dropped, it has closed it.
#[derive(Debug)]
pub struct Maintainer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Maintainer {
    /// Starts it.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(mut path: DataPath) -> Result<Self, Error> {
        let (stop, stopped) = channel::<()>();
        let look_after = move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                path.maintain();
            }
            path.finish();
        };
        let thread =
            std::thread::Builder::new().name("dataplane".into()).spawn(look_after).map_err(Error::Thread)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Maintainer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the data path's maintenance thread panicked");
        }
    }
}
