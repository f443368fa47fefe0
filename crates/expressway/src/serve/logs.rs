//! The access logs that were opened: the one in use, and former ones whose threads have not ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_web::access_log::{AccessLog, AccessLogOptions, Ending, Format, Target};

use super::config::{self, LogFormat};
use crate::fail::Failure;

/// Former logs that may wait for whoever reads them: each has a thread, a descriptor and up to 8 MiB of lines.
const MAX_FORMER: usize = 4;

/// How long the end of the server waits for the last lines to be written.
const GRACE: Duration = Duration::from_secs(2);

/// Every log that was opened and has not ended.
#[derive(Default)]
pub(crate) struct Logs {
    endings: Vec<(PathBuf, Ending)>,
}

impl Logs {
    /// Opens a log, unless it is the `previous` one.
    pub(crate) fn open(
        &mut self,
        log: &config::Log,
        previous: Option<&Previous>,
    ) -> Result<Option<Arc<AccessLog>>, Failure> {
        let Some(path) = &log.access else { return Ok(None) };
        if let Some(previous) = previous
            && previous.log == *log
        {
            return Ok(previous.access_log.clone());
        }
        self.endings.retain(|(_, ending)| !ending.is_over());
        if self.endings.len() > MAX_FORMER {
            let (former, count) = (self.endings[0].0.display(), self.endings.len() - 1);
            return Err(Failure::run_time(format!(
                "access log {}: {count} previous logs still have unread data, the first is {former}: read or close it",
                path.display()
            )));
        }
        let options = AccessLogOptions::new(target(path), format(log.format));
        let opened = AccessLog::open(AccessLogOptions { cmcd: log.cmcd, ..options })
            .map_err(|error| Failure::run_time(format!("access log {}: {error}", path.display())))?;
        self.endings.push((path.clone(), opened.ending()));
        Ok(Some(Arc::new(opened)))
    }

    /// Waits a little until all is written; for the end, when nobody has a log any more.
    pub(crate) fn finish(self) {
        let deadline = Instant::now() + GRACE;
        for (path, ending) in self.endings {
            if !ending.wait(deadline.saturating_duration_since(Instant::now())) {
                let (path, bytes) = (path.display(), ending.queued_bytes());
                tracing::error!("access log {path}: lost {bytes} bytes of fields that were never read");
            }
        }
    }
}

/// What a reload may keep of the configuration before.
pub(crate) struct Previous {
    pub(crate) log: config::Log,
    pub(crate) access_log: Option<Arc<AccessLog>>,
}

fn target(path: &Path) -> Target {
    if path.as_os_str() == "-" { Target::Stdout } else { Target::File(path.to_owned()) }
}

fn format(format: LogFormat) -> Format {
    match format {
        LogFormat::Json => Format::Json,
        LogFormat::Combined => Format::Combined,
    }
}
