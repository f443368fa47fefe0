//! The messages between the two ends.
//!
//! The near end says hello, and the far end answers. Both hellos have `protocol` and `version` in every version that there
//! will be. Then the near end sends requests, one at a time, and the far end answers each. Lines that a program prints are
//! sent without a request.

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::task::Task;

use super::nic::Nic;

/// Raised with every change of what follows the hellos.
pub(super) const PROTOCOL: u32 = 3;

/// The first message of the near end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    pub(super) version: String,
}

impl Hello {
    pub(super) fn own() -> Self {
        Self { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Why the two ends cannot work together: the programs that they start print what their version does.
    pub(super) fn refuses(&self, other: &Self) -> Option<String> {
        let same = self.protocol == other.protocol && self.version == other.version;
        let shown = |hello: &Self| format!("expressway {} (protocol {})", hello.version, hello.protocol);
        (!same).then(|| {
            format!("version mismatch: the far end is {}, the near end is {}", shown(self), shown(other))
        })
    }
}

/// The first message of the far end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    #[serde(flatten)]
    pub(super) hello: Hello,
    /// Why it refuses.
    #[serde(default)]
    pub(super) refused: Option<String>,
    /// The host, as JSON of its version.
    #[serde(default)]
    pub(super) host: serde_json::Value,
}

/// The far end's host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Host {
    pub(super) nic: Nic,
    pub(super) environment: Environment,
}

/// Requests of the near end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// Start a program of the suite; one runs at a time.
    Start {
        task: Task,
        /// The certificate of the CA that servers' certificates are from (PEM), for tasks that check it.
        #[serde(default)]
        authority: Option<String>,
    },
    /// End the program, if it runs.
    Stop,
}

/// Messages of the far end.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    /// The program was started.
    Started,
    /// It was not, or the request was not understood.
    Refused { reason: String },
    /// A line that it printed.
    Line { text: String },
    /// It has ended by itself.
    Ended { status: String, said: String },
    /// It was ended; no more lines follow.
    Stopped,
}
