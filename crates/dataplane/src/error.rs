//! Errors of opening and keeping a data path.

use std::io;
use std::net::SocketAddr;

use expressway_agent::AgentError;
use expressway_agent::device_plugin::PluginError;
use expressway_netio::IoError;
use expressway_netio::route::RouteError;

use crate::config::IoMode;
use crate::devices::Reason;

/// Why a data path could not be opened, or not follow a change. Each displays as one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address has no interface that the mode works on.
    #[error("--io {mode}: {address}: {reason}")]
    Address {
        /// The mode that was asked for.
        mode: IoMode,
        /// The listen address.
        address: SocketAddr,
        /// What is in the way.
        reason: Reason,
    },
    /// An interface does not have the mode.
    #[error("--io {mode}: {reason}")]
    Interface {
        /// The mode that was asked for.
        mode: IoMode,
        /// What is in the way; it names the interface.
        reason: Reason,
    },
    /// Kernel sockets, or packet I/O.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The kernel's tables of routes and neighbours.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// The XDP program.
    #[error(transparent)]
    Program(#[from] expressway_xbpf::Error),
    /// What an agent said, or that it is not there.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// An agent went away while the path was being opened.
    #[error("agent {agent}: connection lost during start-up{back}")]
    AgentGone {
        /// Its socket.
        agent: String,
        /// That it did not come back, after a separator.
        back: String,
    },
    /// What the device plugin said, or that it is not there.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The NAPI contexts' settings.
    #[error("[io] napi: {source}{hint}")]
    Napi {
        /// The kernel's answer.
        source: io::Error,
        /// What it takes, after a separator.
        hint: &'static str,
    },
    /// A thread could not be started.
    #[error("starting the maintenance thread: {0}")]
    Thread(io::Error),
}
