//! The record of a method that was not obtained.

use std::fmt;

use serde::Serialize;

/// One step down, at start or while running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepDown {
    /// Interface.
    pub interface: String,
    /// Queue; `None` when it concerns the whole interface.
    pub queue: Option<u32>,
    /// What was tried.
    pub from: String,
    /// What takes its place.
    pub to: String,
    /// Why, with the remedy where there is one.
    pub reason: String,
}

impl fmt::Display for StepDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, queue, from, to, reason } = self;
        match queue {
            Some(queue) => write!(f, "{interface} queue {queue}: ")?,
            None => write!(f, "{interface}: ")?,
        }
        write!(f, "{from} steps down to {to}: {reason}")
    }
}
