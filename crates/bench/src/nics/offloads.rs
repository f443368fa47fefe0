//! Offloads that a run changes. They are restored after the run, or by the next start if this one was killed.

use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::nic::Nic;
use crate::{BenchError, io_error};

/// Where changes are recorded until they are undone.
const STATE: &str = "/run/expressway/bench";

/// A feature of an interface that was switched; dropping it switches it back.
#[derive(Serialize, Deserialize)]
pub(crate) struct Changed {
    interface: String,
    feature: String,
    was: bool,
}

impl Changed {
    /// Records and switches a feature; `None` if it already has that state.
    pub(crate) fn set(nic: &Nic, feature: &str, on: bool) -> Result<Option<Self>, BenchError> {
        let was = Nic::read(&nic.interface, Some(nic.address))?.has(feature);
        if was == on {
            return Ok(None);
        }
        let changed = Self { interface: nic.interface.clone(), feature: feature.to_owned(), was };
        let file = file_of(&nic.interface);
        let text = serde_json::to_vec(&changed).map_err(|error| BenchError::Missing(error.to_string()))?;
        std::fs::create_dir_all(STATE)
            .and_then(|()| std::fs::write(&file, text))
            .map_err(io_error(file.display().to_string()))?;
        switch(&nic.interface, feature, on)?;
        if Nic::read(&nic.interface, Some(nic.address))?.has(feature) == on {
            return Ok(Some(changed));
        }
        Err(BenchError::Missing(format!(
            "interface {}: the driver does not turn {feature} {}",
            nic.interface,
            word(on)
        )))
    }

    fn undo(&self) -> Result<(), BenchError> {
        switch(&self.interface, &self.feature, self.was)?;
        let file = file_of(&self.interface);
        std::fs::remove_file(&file).map_err(io_error(file.display().to_string()))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            let (interface, feature, was) = (&self.interface, &self.feature, word(self.was));
            tracing::warn!(%error, "cannot restore the setting: ethtool -K {interface} {feature} {was}");
        }
    }
}

/// Restores what a killed run left changed.
pub(crate) fn restore_leftovers(interface: &str) -> Result<(), BenchError> {
    let file = file_of(interface);
    let Ok(text) = std::fs::read(&file) else { return Ok(()) };
    match serde_json::from_slice::<Changed>(&text) {
        // Dropping it restores the feature.
        Ok(changed) if changed.interface == interface => {
            tracing::info!(interface, feature = changed.feature, "undid the change of a killed run");
        }
        _ => std::fs::remove_file(&file).map_err(io_error(file.display().to_string()))?,
    }
    Ok(())
}

fn file_of(interface: &str) -> PathBuf {
    PathBuf::from(STATE).join(format!("{interface}.json"))
}

fn word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn switch(interface: &str, feature: &str, on: bool) -> Result<(), BenchError> {
    let arguments = ["-K", interface, feature, word(on)];
    let output = Command::new("ethtool").args(arguments).output().map_err(io_error("ethtool"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(BenchError::Missing(format!("ethtool {}: {said}", arguments.join(" "))))
}
