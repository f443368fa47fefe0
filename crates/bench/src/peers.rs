//! Servers that are measured, each from a file with its best known configuration and the reason for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{BenchError, Tools};

/// The files, in the order of tables.
const FILES: [(&str, &str); 7] = [
    ("expressway", include_str!("../peers/expressway.toml")),
    ("nginx", include_str!("../peers/nginx.toml")),
    ("caddy", include_str!("../peers/caddy.toml")),
    ("envoy", include_str!("../peers/envoy.toml")),
    ("quic-go", include_str!("../peers/quic-go.toml")),
    ("h2o", include_str!("../peers/h2o.toml")),
    ("quinn", include_str!("../peers/quinn.toml")),
];

/// The servers' names, as a parameter takes them.
pub(crate) const NAMES: &[&str] = &["expressway", "nginx", "caddy", "envoy", "quic-go", "h2o", "quinn"];

/// A server's file. Texts have placeholders such as `@address@`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// Why this is its best known configuration.
    why: String,
    /// The program's file name.
    program: String,
    /// Its arguments.
    arguments: Vec<String>,
    /// Arguments that make it print its version.
    version: Vec<String>,
    /// Whether it answers requests for ranges.
    #[serde(default = "yes")]
    ranges: bool,
    /// Environment variables.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Its configuration file, if it has one.
    #[serde(default)]
    pub(crate) configuration: Option<String>,
    /// `@content@` in it, by what is served; without, only files.
    #[serde(default)]
    pub(crate) content: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

/// Values of the placeholders.
pub(crate) type Placeholders = BTreeMap<&'static str, String>;

impl Server {
    /// The server of this name.
    ///
    /// # Errors
    /// When there is none, or its file is wrong.
    pub(crate) fn named(name: &str) -> Result<Self, BenchError> {
        let text = FILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        let text = text.ok_or_else(|| BenchError::Missing(format!("no server named {name}")))?;
        toml::from_str(text).map_err(|error| BenchError::Missing(format!("peers/{name}.toml: {error}")))
    }

    /// Where its program is: beside ours, or among the peers.
    pub(crate) fn program(&self, tools: &Tools) -> PathBuf {
        match self.program.as_str() {
            "expressway" => tools.expressway.clone(),
            "nginx" => tools.nginx.clone().unwrap_or_else(|| tools.peers.join("nginx")),
            own if own.starts_with("expressway-") => tools.expressway.with_file_name(own),
            other => tools.peers.join(other),
        }
    }

    /// Its arguments with placeholders filled in.
    pub(crate) fn arguments(&self, places: &Placeholders) -> Vec<String> {
        self.arguments.iter().map(|argument| fill(argument, places)).collect()
    }

    /// The line with its version; `None` if it cannot be run.
    fn said_version(&self, tools: &Tools) -> Option<String> {
        let output = Command::new(self.program(tools)).args(&self.version).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text)
            .lines()
            .map(|line| line.trim().to_owned())
            .find(|line| !line.is_empty())
    }
}

/// Why a server cannot be measured here, if so.
pub(crate) fn lacks(name: &str, ranges: bool, content: &str, tools: &Tools) -> Option<String> {
    let server = match Server::named(name) {
        Ok(server) => server,
        Err(error) => return Some(error.to_string()),
    };
    if ranges && !server.ranges {
        return Some(format!("{name} as configured here does not support ranges (peers/{name}.toml)"));
    }
    if content != "file" && !server.content.contains_key(content) {
        return Some(format!("{name} as configured here has no cache (peers/{name}.toml)"));
    }
    let program = server.program(tools);
    (!program.exists()).then(|| format!("{}: no such program; `make bench` builds it", program.display()))
}

/// Fills in placeholders.
pub(crate) fn fill(text: &str, places: &Placeholders) -> String {
    let mut text = text.to_owned();
    for (name, value) in places {
        text = text.replace(&format!("@{name}@"), value);
    }
    text
}

/// An installed program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its version as it prints it.
    pub version: String,
    /// Why it is configured as it is.
    pub why: String,
}

/// All installed servers, by name.
pub(crate) fn programs(tools: &Tools) -> BTreeMap<String, Program> {
    let program = |name: &str| {
        let server = Server::named(name).ok()?;
        let version = server.said_version(tools)?;
        Some((
            name.to_owned(),
            Program { version, why: server.why.split_whitespace().collect::<Vec<_>>().join(" ") },
        ))
    };
    NAMES.iter().filter_map(|name| program(name)).collect()
}

/// A path as configurations have it.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_a_file_with_a_reason_and_no_unknown_placeholder() {
        let known = [
            "address",
            "port",
            "host",
            "root",
            "certificates",
            "work",
            "configuration",
            "workers",
            "body",
            "io",
            "udp_send",
            "cores_mask",
            "content",
            "origin",
        ];
        let places: Placeholders = known.iter().map(|name| (*name, "1".to_owned())).collect();
        for name in NAMES {
            let server = Server::named(name).unwrap();
            assert!(server.why.len() > 40, "{name}");
            let texts = server.arguments(&places).join(" ")
                + &server.content.values().map(|value| fill(value, &places)).collect::<String>()
                + &fill(server.configuration.as_deref().unwrap_or(""), &places)
                + &server.environment.values().map(|value| fill(value, &places)).collect::<String>();
            // `@type` is a key of protocol buffers in JSON, not a placeholder.
            assert!(!texts.replace("\"@type\"", "").contains('@'), "{name}: {texts}");
        }
        assert!(Server::named("apache").is_err());
    }
}
