//! Packet paths, ours and others': programs that process packets at an interface, each from a file with its best
//! known configuration and the reason for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::peers::{Placeholders, Program, fill};
use crate::{BenchError, Tools};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../peers/packets/", $name, ".toml")))),*];
        /// The names of all, as a parameter takes them.
        pub(crate) const NAMES: &[&str] = &[$($name),*];
    };
}

files![
    "kernel",
    "iptables-raw",
    "iptables-conntrack",
    "nftables-ingress",
    "nftables-raw",
    "xdp-filter",
    "testpmd-drop",
    "testpmd-back",
    "testpmd-through",
    "testpmd-send",
    "kernel-forwarding",
    "kernel-forwarding-conntrack",
    "kernel-bridge",
    "xdp-forward",
    "expressway",
    "expressway-generic",
    "expressway-guard",
    "expressway-forward",
    "expressway-balance",
    "expressway-redirect",
    "expressway-frames-drop",
    "expressway-frames-back",
    "expressway-frames-send",
];

/// One of them. Texts have placeholders such as `@interface@`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PacketPath {
    /// Why this is its best known configuration.
    why: String,
    /// The command that installs its programs on Debian.
    #[serde(default)]
    install: String,
    /// Programs that it needs, by name or path.
    #[serde(default)]
    programs: Vec<String>,
    /// A command whose exit code says whether its other requirements are met.
    #[serde(default)]
    probe: Vec<String>,
    /// The command that says its version.
    #[serde(default)]
    version: Vec<String>,
    /// What the line with the version contains; empty for the first line.
    #[serde(default)]
    version_line: String,
    /// Environment variables of what it runs.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Files below `/proc/sys` with their values, in the measured side's namespace. A leading `-` marks one that the
    /// kernel may lack.
    #[serde(default)]
    pub(crate) sysctl: BTreeMap<String, String>,
    /// Commands that set it up in the measured side's namespace, and end.
    #[serde(default)]
    prepare: Vec<Vec<String>>,
    /// A program that stays while packets are measured.
    #[serde(default)]
    run: Vec<String>,
    /// What that program prints when it is ready; if unset, it is ready when an XDP program is on the interface.
    #[serde(default)]
    pub(crate) ready: Option<String>,
    /// What precedes the number of packets in its output; if unset, the interface's counter is used.
    #[serde(default)]
    pub(crate) count: Option<String>,
    /// When it ends, it leaves a given NIC unchanged.
    #[serde(default)]
    pub(crate) on_nics: bool,
    /// It switches: frames are addressed to the host behind it.
    #[serde(default)]
    pub(crate) switches: bool,
    /// What it is configured as, with tables of the case's sizes: `guard`, `forward` or `balance`.
    #[serde(default)]
    pub(crate) tables: Option<String>,
    /// Its program lowers what hops packets have left.
    #[serde(default)]
    pub(crate) ages: bool,
}

impl PacketPath {
    /// The one of this name.
    ///
    /// # Errors
    /// When there is none, or its file is wrong.
    pub(crate) fn named(name: &str) -> Result<Self, BenchError> {
        let text = FILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        let text = text.ok_or_else(|| BenchError::Missing(format!("no packet path named {name}")))?;
        toml::from_str(text)
            .map_err(|error| BenchError::Missing(format!("peers/packets/{name}.toml: {error}")))
    }

    /// Its set-up commands with placeholders filled in.
    pub(crate) fn prepare(&self, places: &Placeholders) -> Vec<Vec<String>> {
        self.prepare.iter().map(|command| filled(command, places)).collect()
    }

    /// The command that runs while packets are measured; empty if there is none.
    pub(crate) fn run(&self, places: &Placeholders) -> Vec<String> {
        filled(&self.run, places)
    }

    /// Its version and the reason for its configuration; `None` if it cannot be run.
    pub(crate) fn program(&self, tools: &Tools) -> Option<Program> {
        let why = self.why.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((program, arguments)) = self.version.split_first() else {
            return Some(Program { version: env!("CARGO_PKG_VERSION").into(), why });
        };
        let places = Placeholders::from([("work", tools.work.display().to_string())]);
        let environment = self.environment.iter().map(|(name, value)| (name, fill(value, &places)));
        let output = Command::new(program).args(arguments).envs(environment).output().ok()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let version = said.lines().find(|line| line.contains(&self.version_line))?.trim().to_owned();
        Some(Program { version, why })
    }

    /// What this machine lacks for it, and how to install that.
    pub(crate) fn lacks(&self) -> Option<String> {
        let install = &self.install;
        if let Some(program) = self.programs.iter().find(|program| !is_program(program)) {
            return Some(format!("{program}: no such program; on Debian: {install}"));
        }
        let (program, arguments) = self.probe.split_first()?;
        let output = Command::new(program).args(arguments).output();
        let there = output.is_ok_and(|output| output.status.success());
        (!there).then(|| format!("`{}` finds nothing; on Debian: {install}", self.probe.join(" ")))
    }
}

fn filled(words: &[String], places: &Placeholders) -> Vec<String> {
    words.iter().map(|word| fill(word, places)).collect()
}

/// Whether a name is a file in a folder of PATH.
pub(crate) fn is_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(Path::new(name)).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The placeholders that a run fills in.
    pub(crate) const PLACES: [&str; 15] = [
        "interface",
        "out",
        "next_mac",
        "action",
        "expressway",
        "io",
        "from",
        "to",
        "size",
        "frame_size",
        "port",
        "core",
        "lab",
        "work",
        "queues",
    ];

    #[test]
    fn every_file_is_embedded_with_a_reason_and_no_unknown_placeholder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/packets");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let mut names = NAMES.to_vec();
        files.sort();
        names.sort_unstable();
        assert_eq!(files, names);
        let places: Placeholders = PLACES.iter().map(|name| (*name, "1".to_owned())).collect();
        for name in NAMES {
            let path = PacketPath::named(name).unwrap();
            assert!(path.why.len() > 40, "{name}");
            assert_eq!(path.programs.is_empty(), path.install.is_empty(), "{name}");
            let commands = [path.prepare(&places), vec![path.run(&places)]].concat();
            for word in commands.concat() {
                let is_place = |part: &&str| PLACES.contains(part) || part.ends_with("_mac");
                assert_eq!(word.split('@').find(is_place), None, "{name}: {word}");
            }
        }
        assert!(PacketPath::named("ipfw").is_err());
    }

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        let path = |programs: &str, probe: &str| -> PacketPath {
            let text = format!(
                "why = \"\"\ninstall = \"apt-get install x\"\nprograms = {programs}\nprobe = {probe}"
            );
            toml::from_str(&text).unwrap()
        };
        assert_eq!(path("[\"sh\"]", "[\"true\"]").lacks(), None);
        let missing = path("[\"no-such-program\"]", "[]").lacks().unwrap();
        assert_eq!(missing, "no-such-program: no such program; on Debian: apt-get install x");
        let missing = path("[\"sh\"]", "[\"false\"]").lacks().unwrap();
        assert_eq!(missing, "`false` finds nothing; on Debian: apt-get install x");
    }
}
