//! The file that keeps the results of calibrations, so that the next start need not measure.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use expressway_netio::device::{DeviceFacts, Driver};
use serde::{Deserialize, Serialize};

use super::Costs;

/// Layout of the file; another one is measured anew.
const VERSION: u32 = 1;
/// A file larger than that is none of ours.
const LARGEST: u64 = 1 << 20;
/// Entries kept; with more the file is begun anew.
const MOST: usize = 256;

/// What a measurement is good for: the same driver and firmware with the same features under the same kernel on the same
/// processor.
pub(crate) fn key(facts: &DeviceFacts, release: &str, processor: &str, attach: &str, mtu: usize) -> String {
    let driver = facts.driver.clone().unwrap_or_default();
    let features: Vec<&str> =
        facts.features.iter().filter(|feature| feature.active).map(|feature| feature.name.as_str()).collect();
    let features = features.join(",");
    let Driver { name, firmware, .. } = driver;
    format!("{name} {firmware} | {release} | {processor} | {attach} | mtu {mtu} | {features}")
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    version: u32,
    costs: BTreeMap<String, Costs>,
}

/// The file's content in memory.
#[derive(Debug)]
pub(crate) struct Cache {
    file: Option<PathBuf>,
    costs: BTreeMap<String, Costs>,
}

impl Cache {
    /// Reads the file; without one nothing is kept. One that cannot be read is measured anew, after a log line.
    pub(crate) fn open(file: Option<&Path>) -> Self {
        let costs = file.map_or_else(BTreeMap::new, |file| {
            read(file).unwrap_or_else(|problem| {
                tracing::warn!(file = %file.display(), "calibration cache: {problem}: measuring again");
                BTreeMap::new()
            })
        });
        Self { file: file.map(Path::to_owned), costs }
    }

    /// What was measured under that key.
    pub(crate) fn costs(&self, key: &str) -> Option<Costs> {
        self.costs.get(key).copied()
    }

    /// Keeps a measurement, in the file too. That this fails harms nothing but the next start's time.
    pub(crate) fn keep(&mut self, key: String, costs: Costs) {
        if self.costs.len() >= MOST {
            self.costs.clear();
        }
        self.costs.insert(key, costs);
        if let Some(file) = &self.file
            && let Err(error) = write(file, &Content { version: VERSION, costs: self.costs.clone() })
        {
            tracing::info!(file = %file.display(), %error, "cannot write the calibration cache");
        }
    }
}

fn read(file: &Path) -> Result<BTreeMap<String, Costs>, String> {
    let text = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.to_string()),
        Ok(found) if !found.is_file() || found.len() > LARGEST => return Err("not a cache file".into()),
        Ok(_) => fs::read_to_string(file).map_err(|error| error.to_string())?,
    };
    let content: Content = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if content.version != VERSION {
        return Err(format!("version {}, expected {VERSION}", content.version));
    }
    Ok(content.costs)
}

/// Writes beside the file and renames, so that a reader finds the old or the new one, whole.
fn write(file: &Path, content: &Content) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        fs::create_dir_all(folder)?;
    }
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let result = fs::OpenOptions::new().write(true).create_new(true).open(&beside).and_then(|mut out| {
        out.write_all(serde_json::to_string_pretty(content)?.as_bytes())?;
        fs::rename(&beside, file)
    });
    if result.is_err() {
        let _ = fs::remove_file(&beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { copy: Some(700), gso: Some(500), single: None };

    #[test]
    fn what_is_kept_is_there_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/calibration.json");
        let mut cache = Cache::open(Some(&file));
        assert_eq!(cache.costs("veth"), None);
        cache.keep("veth".into(), COSTS);
        assert_eq!(Cache::open(Some(&file)).costs("veth"), Some(COSTS));
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_broken_file_is_measured_anew_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("calibration.json");
        for broken in
            ["", "{", "[]", r#"{"version":2,"costs":{}}"#, r#"{"version":1,"costs":{"veth":{"copy":-1}}}"#]
        {
            fs::write(&file, broken).unwrap();
            assert!(read(&file).is_err(), "{broken}");
            let mut cache = Cache::open(Some(&file));
            assert_eq!(cache.costs("veth"), None);
            cache.keep("veth".into(), COSTS);
            assert_eq!(read(&file).unwrap().len(), 1);
        }
        assert!(read(folder.path()).is_err(), "a folder is no cache file");
    }

    #[test]
    fn a_file_that_cannot_be_written_costs_nothing_else() {
        let mut cache = Cache::open(Some(Path::new("/proc/no-such-folder/calibration.json")));
        cache.keep("veth".into(), COSTS);
        assert_eq!(cache.costs("veth"), Some(COSTS));
    }

    #[test]
    fn another_kernel_processor_or_driver_is_another_key() {
        let facts = DeviceFacts::default();
        let same = key(&facts, "6.18", "cpu", "native", 1500);
        assert_ne!(same, key(&facts, "6.19", "cpu", "native", 1500));
        assert_ne!(same, key(&facts, "6.18", "another cpu", "native", 1500));
        assert_ne!(same, key(&facts, "6.18", "cpu", "generic", 1500));
        assert_ne!(same, key(&facts, "6.18", "cpu", "native", 9000));
    }
}
