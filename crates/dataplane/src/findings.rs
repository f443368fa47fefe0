//! What a check found, and the command that fixes it.

use expressway_netio::device::{DeviceFacts, GRO_FORWARDING, GRO_LIST, VLAN_STRIPPING};
use serde::Serialize;

use Severity::{Bad, Ok, Warn};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It costs speed, or a mode.
    Warn,
    /// It breaks service.
    Bad,
}

impl Severity {
    /// The word in the left column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// A change of a setting that `--fix` makes: each can be undone by the same command with the other word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A feature off.
    FeatureOff {
        /// The interface.
        interface: String,
        /// The feature as ethtool names it.
        feature: &'static str,
    },
    /// UDP of `udp4` or `udp6` hashed by port.
    HashPorts {
        /// The interface.
        interface: String,
        /// `udp4` or `udp6`.
        flow: String,
    },
}

/// What mends a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// The command, or what to do where there is none.
    pub command: String,
    /// What `--fix` does; `None` for what is the operator's to decide.
    #[serde(skip)]
    pub action: Option<Action>,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, one word.
    pub check: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was found, one sentence or a few words.
    pub text: String,
    /// What mends it, where something does.
    pub fix: Option<Fix>,
}

impl Finding {
    /// A finding that nothing mends.
    pub fn new(check: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        Self { check, severity, text: text.into(), fix: None }
    }

    /// With a command for the operator.
    pub fn command(self, command: impl Into<String>) -> Self {
        Self { fix: Some(Fix { command: command.into(), action: None }), ..self }
    }

    /// With a command that `--fix` runs when asked.
    pub fn action(self, command: impl Into<String>, action: Action) -> Self {
        Self { fix: Some(Fix { command: command.into(), action: Some(action) }), ..self }
    }
}

/// Settings of a device that harm a UDP service, each with what mends it.
pub fn settings(device: &DeviceFacts, has_vlans: bool) -> Vec<Finding> {
    let name = &device.name;
    let mut found = Vec::new();
    // One queue takes all, whatever is hashed.
    let hashes: &[_] =
        if device.channels.is_some_and(|channels| channels.rx > 1) { &device.hashes } else { &[] };
    for hash in hashes.iter().filter(|hash| !hash.ports) {
        let flow = hash.flow.clone();
        let text = format!("{flow} is hashed to receive queues by address only, not by port");
        found.push(Finding::new("rss", Warn, text).action(
            format!("ethtool -N {name} rx-flow-hash {flow} sdfn"),
            Action::HashPorts { interface: name.clone(), flow },
        ));
    }
    if !hashes.is_empty() && found.is_empty() {
        found.push(Finding::new("rss", Ok, "UDP is hashed to receive queues by address and port"));
    }
    let mut off = |feature: &'static str, check, severity, text: &str| {
        if device.has(feature) {
            let finding = Finding::new(check, severity, text);
            let command = format!("ethtool -K {name} {feature} off");
            found.push(if device.can_turn_off(feature) {
                finding.action(command, Action::FeatureOff { interface: name.clone(), feature })
            } else {
                finding
            });
        }
    };
    off(
        GRO_FORWARDING,
        "gro",
        Warn,
        "rx-udp-gro-forwarding merges the datagrams of a flow, which breaks QUIC",
    );
    off(GRO_LIST, "gro", Warn, "rx-gro-list chains the datagrams of a flow, which breaks QUIC");
    if has_vlans {
        let text = "VLAN tags are stripped from frames: XDP and AF_XDP cannot see them";
        off(VLAN_STRIPPING, "vlan", Bad, text);
    }
    found
}
