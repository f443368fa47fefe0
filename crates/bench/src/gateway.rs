//! Server CPU of HTTP/3 gateways for the same work, side by side.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use expressway_lab::{Lab, LabConfig, Offload, Role};

use crate::load::{Load, Running};
use crate::report::Measurement;
use crate::server::Server;
use crate::{BenchError, CLIENT_CORE, Contestant, HOST, SERVER_CORE, Tools, cpu, io_error};

/// The scenario.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Who is compared.
    pub contestants: Vec<Contestant>,
    /// Rounds; each contestant runs once in each, in an order that turns.
    pub rounds: usize,
    /// Seconds of each run.
    pub seconds: f64,
    /// `tx-udp-segmentation` of the server's interface.
    pub offloads: Vec<Offload>,
    /// Body sizes in bytes.
    pub bodies: Vec<u64>,
    /// Connections of the load.
    pub connections: usize,
    /// Requests at once on each connection.
    pub streams: usize,
}

impl Default for Gateway {
    /// The published comparison: 1 MiB bodies and 1 KiB requests, 4 connections of 8 streams.
    fn default() -> Self {
        Self {
            contestants: vec![
                Contestant::Nginx,
                Contestant::udp("gso"),
                Contestant::udp("sendmmsg"),
                Contestant::udp("sendmsg"),
                Contestant::mode("hybrid"),
                Contestant::mode("copy"),
                Contestant::mode("auto"),
            ],
            rounds: 5,
            seconds: 4.0,
            offloads: vec![Offload::Off, Offload::On],
            bodies: vec![1 << 20, 1 << 10],
            connections: 4,
            streams: 8,
        }
    }
}

impl Gateway {
    /// Runs everything, handing each measurement to `each` as it is made.
    pub fn run(&self, tools: &Tools, mut each: impl FnMut(&Measurement)) -> Result<(), BenchError> {
        prepare(tools, &self.bodies)?;
        for offload in &self.offloads {
            let before = cpu::napi_threads(Role::Server.interface())?;
            let lab = Bed::up(*offload)?;
            for body in &self.bodies {
                for round in 0..self.rounds {
                    for contestant in turned(&self.contestants, round) {
                        each(&self.measure(&lab.0, tools, contestant, *body, round, &before)?);
                    }
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        lab: &Lab,
        tools: &Tools,
        contestant: &Contestant,
        body: u64,
        round: usize,
        other_threads: &BTreeSet<u32>,
    ) -> Result<Measurement, BenchError> {
        let server = Server::start(lab, tools, contestant)?;
        let threads = cpu::napi_threads(Role::Server.interface())?;
        let threads: BTreeSet<u32> = threads.difference(other_threads).copied().collect();
        cpu::pin(&threads, SERVER_CORE)?;
        let load = Load {
            path: format!("/{body}.bin"),
            connections: self.connections,
            streams: self.streams,
            warmup: 1.0,
            seconds: self.seconds,
        };
        let name = contestant.name();
        let mut running = Running::start(lab, tools, &name, &load)?;
        running.wait_until_measuring()?;
        let (process, kernel) = (server.cpu()?, cpu::of_threads(&threads));
        let counted = running.counted()?;
        let (process, kernel) = (server.cpu()? - process, cpu::of_threads(&threads) - kernel);
        Ok(Measurement {
            contestant: name,
            body,
            udp_segmentation: lab.config().udp_segmentation.to_string(),
            round,
            server_process_ns: process,
            server_napi_ns: kernel,
            load,
            counted,
        })
    }
}

/// A lab that goes with the scenario.
pub(crate) struct Bed(Lab);

impl Bed {
    /// As configured, under a name of this process.
    pub(crate) fn with(config: LabConfig) -> Result<Self, BenchError> {
        let name = format!("bench-{}", std::process::id());
        Ok(Self(Lab::up(LabConfig { name, ..config })?))
    }

    /// The lab.
    pub(crate) fn lab(&self) -> &Lab {
        &self.0
    }

    fn up(udp_segmentation: Offload) -> Result<Self, BenchError> {
        Self::with(LabConfig {
            udp_segmentation,
            client_napi_core: Some(CLIENT_CORE),
            server_napi_core: Some(SERVER_CORE),
            ..LabConfig::default()
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = Lab::down(&self.0.config().name) {
            tracing::warn!(%error, "the benchmark's lab is still up");
        }
    }
}

/// A B C, then C B A, then A B C …: drift of the machine hits all alike.
fn turned(contestants: &[Contestant], round: usize) -> Box<dyn Iterator<Item = &Contestant> + '_> {
    if round.is_multiple_of(2) { Box::new(contestants.iter()) } else { Box::new(contestants.iter().rev()) }
}

/// Makes certificates and files to serve.
pub(crate) fn prepare(tools: &Tools, bodies: &[u64]) -> Result<(), BenchError> {
    let certificates = tools.work.join("certificates");
    let output = Command::new(&tools.expressway)
        .args(["cert", "--host", HOST, "--out"])
        .arg(&certificates)
        .output()
        .map_err(io_error(tools.expressway.display().to_string()))?;
    if !output.status.success() {
        return Err(BenchError::Missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let root = tools.work.join("root");
    std::fs::create_dir_all(&root).map_err(io_error(root.display().to_string()))?;
    for body in bodies {
        write_body(&root.join(format!("{body}.bin")), *body)?;
    }
    Ok(())
}

/// Bytes that do not compress and repeat from run to run.
fn write_body(path: &Path, length: u64) -> Result<(), BenchError> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes: Vec<u8> = (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    std::fs::write(path, bytes).map_err(io_error(path.display().to_string()))
}
