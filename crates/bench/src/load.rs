//! The load generator as a process, and what it reports.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use expressway_lab::{Lab, Role};
use serde::{Deserialize, Serialize};

use crate::contestant::PORT;
use crate::{BenchError, CLIENT_CORE, HOST, Tools, io_error};

/// What to ask, and how hard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Path to GET.
    pub path: String,
    /// Connections.
    pub connections: usize,
    /// Requests at once on each connection.
    pub streams: usize,
    /// Seconds before counting.
    pub warmup: f64,
    /// Seconds of counting.
    pub seconds: f64,
}

/// What the load generator counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Counted {
    /// Seconds that it counted.
    pub seconds: f64,
    /// Whole responses.
    pub requests: u64,
    /// Body bytes.
    pub bytes: u64,
    /// Failed requests; a run with any is refused.
    pub errors: u64,
    /// Why the last one failed.
    #[serde(default)]
    pub last_error: Option<String>,
    /// Datagrams received.
    pub datagrams: u64,
    /// UDP payload bytes received.
    pub datagram_bytes: u64,
    /// Median time of a request, microseconds.
    pub latency_us_p50: u64,
    /// 99th percentile, microseconds.
    pub latency_us_p99: u64,
}

/// A load that runs.
pub(crate) struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    contestant: String,
}

impl Running {
    /// Starts it in the client namespace, on the client's core.
    pub(crate) fn start(lab: &Lab, tools: &Tools, contestant: &str, load: &Load) -> Result<Self, BenchError> {
        let server = SocketAddr::from((lab.addresses(Role::Server).ipv4, PORT));
        let mut child = lab
            .command(Role::Client, "taskset")
            .args(["-c", &CLIENT_CORE.to_string()])
            .arg(&tools.load)
            .args(["--connect", &server.to_string(), "--name", HOST, "--path", &load.path])
            .arg("--ca")
            .arg(tools.work.join("certificates/ca.pem"))
            .args(["--connections", &load.connections.to_string(), "--streams", &load.streams.to_string()])
            .args(["--warmup", &load.warmup.to_string(), "--seconds", &load.seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("expressway-load"))?;
        let output = BufReader::new(child.stdout.take().expect("stdout was piped"));
        Ok(Self { child, output, contestant: contestant.into() })
    }

    /// Waits until the warm-up is over and counting begins.
    pub(crate) fn wait_until_measuring(&mut self) -> Result<(), BenchError> {
        let line = self.line()?;
        if line == "measuring" { Ok(()) } else { Err(self.failed(format!("said {line:?}"))) }
    }

    /// Waits for the end of counting and gives the counts.
    pub(crate) fn counted(&mut self) -> Result<Counted, BenchError> {
        let line = self.line()?;
        let counted: Counted = serde_json::from_str(&line).map_err(|error| self.failed(error.to_string()))?;
        if counted.errors > 0 {
            let why = counted.last_error.clone().unwrap_or_default();
            return Err(self.failed(format!("{} requests failed, the last: {why}", counted.errors)));
        }
        Ok(counted)
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(io_error("expressway-load"))?;
        if read == 0 {
            return Err(self.failed("it ended early; its error is above".into()));
        }
        Ok(line.trim().to_owned())
    }

    fn failed(&self, problem: String) -> BenchError {
        BenchError::Load { contestant: self.contestant.clone(), problem }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
