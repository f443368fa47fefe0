//! Memory of idle established connections.

use expressway_lab::{Lab, LabConfig};

use crate::load::{Load, Running};
use crate::server::Server;
use crate::{BenchError, Contestant, Tools, gateway};

/// The scenario: how much the server's memory grows by connections that do nothing.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Who is measured.
    pub contestant: Contestant,
    /// Connections held open.
    pub connections: usize,
}

/// What it found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct IdleMemory {
    /// Who was measured.
    pub contestant: String,
    /// Connections held open.
    pub connections: usize,
    /// Anonymous resident memory without connections, bytes.
    pub before: u64,
    /// And with all of them established and idle.
    pub after: u64,
    /// Growth by connection, bytes.
    pub each: u64,
}

impl Default for Idle {
    fn default() -> Self {
        Self { contestant: Contestant::mode("udp"), connections: 10_000 }
    }
}

impl Idle {
    /// Opens the connections one after the other, lets them settle and reads the server's memory.
    pub fn run(&self, tools: &Tools) -> Result<IdleMemory, BenchError> {
        gateway::prepare(tools, &[1024])?;
        let name = format!("bench-{}", std::process::id());
        let lab = Lab::up(LabConfig::named(&name))?;
        let result = self.measure(&lab, tools);
        Lab::down(&name)?;
        result
    }

    fn measure(&self, lab: &Lab, tools: &Tools) -> Result<IdleMemory, BenchError> {
        let server = Server::start(lab, tools, &self.contestant)?;
        let before = server.memory()?;
        let load = Load {
            path: "/1024.bin".into(),
            connections: self.connections,
            streams: 0,
            warmup: 2.0,
            seconds: 2.0,
        };
        let contestant = self.contestant.name();
        let mut running = Running::start(lab, tools, &contestant, &load)?;
        running.wait_until_measuring()?;
        let after = server.memory()?;
        running.counted()?;
        let each = after.saturating_sub(before) / self.connections as u64;
        Ok(IdleMemory { contestant, connections: self.connections, before, after, each })
    }
}
