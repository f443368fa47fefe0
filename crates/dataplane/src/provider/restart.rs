//! Lets a start survive the restart of an agent.
//!
//! A start through an agent takes dozens of requests, and the agent can go away between any two of them. A start is all
//! or nothing: everything opened so far is closed, and opened again through the agent that comes back within a time
//! limit; otherwise the start fails and names the reason. There is therefore only one state after a start, in which the
//! data path does without an agent if it has to ([`crate::upkeep`]). In the tests, a relay that cuts the connection
//! after each message in turn covers every such moment.

use std::path::Path;
use std::time::{Duration, Instant};

use expressway_agent::message::Code;
use expressway_agent::{AgentError, Client};

use super::Provider;
use crate::error::Error;

/// How long an agent may be away while something is started: what a supervisor takes to start it again.
const AWAY: Duration = Duration::from_secs(5);
/// Between two looks for it.
const PAUSE: Duration = Duration::from_millis(50);

/// The agent that a start waits for, at most until its deadline.
struct Wait {
    agent: String,
    deadline: Instant,
}

impl Wait {
    fn new(agent: &str) -> Self {
        Self { agent: agent.to_owned(), deadline: Instant::now() + AWAY }
    }

    /// Tries until it is there.
    fn until<T>(&self, mut look: impl FnMut() -> Result<T, AgentError>) -> Result<T, Error> {
        loop {
            match look() {
                Ok(found) => return Ok(found),
                Err(error) if Instant::now() < self.deadline && is_passing(&error) => {
                    std::thread::sleep(PAUSE)
                }
                Err(error @ AgentError::Refused { .. }) => return Err(error.into()),
                Err(error) => {
                    return Err(Error::AgentGone {
                        agent: self.agent.clone(),
                        back: format!(", not re-established within {AWAY:?} ({error})"),
                    });
                }
            }
        }
    }
}

/// Whether it may succeed a moment later: no agent, or one that still has as many clients as it may have, former
/// connections of this program perhaps among them.
fn is_passing(error: &AgentError) -> bool {
    !matches!(error, AgentError::Refused { .. }) || error.is_refusal(Code::Clients)
}

/// Connects to an agent that is there. One that goes away before it has answered may be back soon, and one that is full
/// may have room soon.
pub(super) fn connect(path: &Path, name: &str) -> Result<Client, Error> {
    match Client::connect(path, name) {
        Err(error) if error.is_loss() || error.is_refusal(Code::Clients) => {
            Wait::new(&path.display().to_string()).until(|| Client::connect(path, name))
        }
        result => Ok(result?),
    }
}

impl Provider {
    /// Runs `open`, which opens things that take an agent, and again from the beginning if the agent went away
    /// meanwhile, also where `open` has made do without it.
    ///
    /// # Errors
    /// Those of `open`; the agent went away and was not back in time.
    pub fn persist<T, E: From<Error>>(&self, mut open: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        let Self::Agent(client) = self else { return open() };
        let mut wait = None;
        loop {
            let before = client.unanswered();
            let result = open();
            if client.unanswered() == before {
                return result;
            }
            // Sockets and programs go before others are asked for.
            drop(result);
            if !client.may_return() {
                let agent = client.agent().to_owned();
                return Err(Error::AgentGone { agent, back: String::new() }.into());
            }
            tracing::warn!(agent = client.agent(), "agent connection lost during start-up: starting over");
            wait.get_or_insert_with(|| Wait::new(client.agent())).until(|| client.reconnect())?;
        }
    }
}
