//! The built-in scenarios, and those from files.

use std::path::Path;

use expressway_settings::{ConfigError, SourceFile};

use super::Scenario;

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        /// Name and text of each scenario that is embedded, in the order of a whole run.
        pub const BUILT_IN: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*];
    };
}

built_in![
    "gateway",
    "auto",
    "equal-bandwidth",
    "ranges",
    "cached",
    "tcp",
    "collapse",
    "bandwidth",
    "connections",
    "workers",
    "requests",
    "handshakes",
    "idle",
    "startup",
    "io-transmit",
    "io-receive",
    "af-xdp-receive",
    "af-xdp-transmit",
    "af-xdp-forward",
    "instructions-transmit",
    "instructions-receive",
    "instructions-gateway",
    "waiting",
    "receive",
    "receive-flows",
    "receive-cost",
    "receive-loss",
    "receive-limit",
    "round-trip",
    "capture-cost",
    "capture-idle",
    "capture-loss",
    "fanout-bursts",
    "fanout-poisson",
    "fanout-even",
    "fanout-overload",
    "xdp-drop",
    "xdp-load",
    "xdp-cost",
    "xdp-forward-one",
    "xdp-forward-two",
    "xdp-latency",
    "xdp-cores",
    "xdp-flows",
    "edge-program-guard",
    "edge-program-forward",
    "edge-program-balance",
    "edge-drop",
    "edge-forward",
    "edge-balance",
    "edge-latency",
    "edge-attack",
];

/// The names that a name stands for: itself, or all scenarios whose names begin with it and a hyphen.
pub fn expand(name: &str) -> Vec<String> {
    let of_group = |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    let exact = BUILT_IN.iter().any(|(known, _)| *known == name);
    let group: Vec<String> =
        BUILT_IN.iter().filter(|(known, _)| of_group(known)).map(|(known, _)| (*known).to_owned()).collect();
    if exact || group.is_empty() { vec![name.to_owned()] } else { group }
}

/// The scenario of this name, or of the file, where the name has a slash or ends in `.toml`; `None` for an unknown name.
///
/// # Errors
/// With file, line and key of what is wrong in it.
pub fn find(name: &str) -> Option<Result<Scenario, ConfigError>> {
    if name.contains('/') || name.ends_with(".toml") {
        let path = Path::new(name);
        return Some(SourceFile::read(path).and_then(|source| Scenario::read(&source)));
    }
    let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    let source = SourceFile { file: format!("{name}.toml").into(), text: (*text).to_owned() };
    Some(Scenario::read(&source))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_scenario_in_the_folder_is_embedded_and_right() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let mut names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert_eq!(files, names);
        for name in names {
            let scenario = find(name).unwrap().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.about.name, name);
            assert!(scenario.runs() > 0);
        }
    }

    #[test]
    fn a_scenario_of_a_path_is_read_from_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        std::fs::write(&file, BUILT_IN[0].1).unwrap();
        assert_eq!(find(file.to_str().unwrap()).unwrap().unwrap().about.name, "mine");
        assert!(find("mine").is_none());
        assert_eq!(expand("mine"), ["mine"]);
        assert_eq!(expand("io"), ["io-transmit", "io-receive"]);
        assert_eq!(expand("gateway"), ["gateway"], "a name comes before a group");
        let missing = find("/nowhere/mine.toml").unwrap().err().unwrap().to_string();
        assert!(missing.starts_with("/nowhere/mine.toml: cannot be read"), "{missing}");
    }
}
