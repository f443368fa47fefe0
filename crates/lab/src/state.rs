//! A lab's state: `/run/expressway/lab/NAME.json`, and the lock that makes changes one at a time.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::config::LabConfig;
use crate::error::LabError;

/// Lost at boot, like the namespaces.
const DIRECTORY: &str = "/run/expressway/lab";

fn path(name: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("{name}.json"))
}

/// Held while a lab is made or removed; released when dropped, or when the process dies.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

impl Lock {
    pub(crate) fn take() -> Result<Self, LabError> {
        fs::create_dir_all(DIRECTORY).map_err(LabError::io(DIRECTORY))?;
        let path = PathBuf::from(DIRECTORY).join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(LabError::io(path.display().to_string()))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| LabError::io(format!("flock {}", path.display()))(error.into()))?;
        Ok(Self(file))
    }
}

/// Marks a lab as finished. The rename makes the file whole or absent, whatever happens meanwhile.
pub(crate) fn save(config: &LabConfig) -> Result<(), LabError> {
    let path = path(&config.name);
    let new = path.with_extension("json.new");
    let text = serde_json::to_string_pretty(config).map_err(|error| LabError::Config(error.to_string()))?;
    fs::write(&new, text).map_err(LabError::io(new.display().to_string()))?;
    fs::rename(&new, &path).map_err(LabError::io(path.display().to_string()))
}

/// A finished lab's configuration; `None` if absent or unreadable, in which case the lab is rebuilt.
pub(crate) fn load(name: &str) -> Option<LabConfig> {
    let path = path(name);
    let text = fs::read_to_string(&path).ok()?;
    match serde_json::from_str(&text) {
        Ok(config) => Some(config),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "lab state is unreadable");
            None
        }
    }
}

/// Removes a lab's record. Returns whether there was one.
pub(crate) fn forget(name: &str) -> Result<bool, LabError> {
    let path = path(name);
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(LabError::io(path.display().to_string())(error)),
    }
}
