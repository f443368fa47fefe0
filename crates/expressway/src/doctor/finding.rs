//! What a check found, and what mends it.

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
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
    pub(super) fn word(self) -> &'static str {
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
pub(crate) enum Action {
    /// A feature off.
    FeatureOff { interface: String, feature: &'static str },
    /// UDP of `udp4` or `udp6` hashed by port.
    HashPorts { interface: String, flow: String },
}

/// What mends a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fix {
    /// The command, or what to do where there is none.
    pub(crate) command: String,
    /// What `--fix` does; `None` for what is the operator's to decide.
    #[serde(skip)]
    pub(crate) action: Option<Action>,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Name of the check, one word.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// What was found, one sentence or a few words.
    pub(crate) text: String,
    pub(crate) fix: Option<Fix>,
}

impl Finding {
    pub(super) fn new(check: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        Self { check, severity, text: text.into(), fix: None }
    }

    /// With a command for the operator.
    pub(super) fn command(self, command: impl Into<String>) -> Self {
        Self { fix: Some(Fix { command: command.into(), action: None }), ..self }
    }

    /// With a command that `--fix` runs when asked.
    pub(super) fn action(self, command: impl Into<String>, action: Action) -> Self {
        Self { fix: Some(Fix { command: command.into(), action: Some(action) }), ..self }
    }
}
