//! The load generator as a process, and what it reports.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use expressway_lab::{Lab, Role};
use serde::{Deserialize, Serialize};

use crate::server::PORT;
use crate::{BenchError, HOST, Tools, io_error, pinned};

/// What to ask, and how hard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Load {
    /// Connections.
    pub connections: usize,
    /// Requests at once on each connection.
    pub streams: usize,
    /// Requests a second over all of them; 0 for the next one as soon as one is done.
    pub rate: f64,
    /// Bytes of a range request, and of the file that ranges are taken from; 0 asks for whole files.
    pub range: u64,
    /// Bytes of the file.
    pub body: u64,
    /// A new connection for each request.
    pub handshakes: bool,
    /// Seconds before counting.
    pub warmup: f64,
    /// Seconds of counting.
    pub seconds: f64,
}

/// What the load generator counted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Counted {
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
    /// Handshakes completed.
    #[serde(default)]
    pub handshakes: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// UDP payload bytes received.
    pub datagram_bytes: u64,
    /// Median time of a request, microseconds.
    pub latency_us_p50: u64,
    /// 99th percentile, microseconds.
    pub latency_us_p99: u64,
    /// 99.9th percentile, microseconds.
    #[serde(default)]
    pub latency_us_p999: u64,
    /// CPU of the load generator, nanoseconds.
    #[serde(default)]
    pub client_ns: u64,
}

/// `expressway-load` in the client namespace, on a core that no server has.
struct Process {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    contestant: String,
}

impl Process {
    fn start(
        lab: &Lab,
        tools: &Tools,
        contestant: &str,
        core: usize,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let server = SocketAddr::from((lab.addresses(Role::Server).ipv4, PORT));
        let mut child = pinned::on_cores(lab, Role::Client, core..core + 1, &tools.load)
            .args(["--connect", &server.to_string(), "--name", HOST])
            .arg("--ca")
            .arg(tools.certificates().join("ca.pem"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("expressway-load"))?;
        let Some(stdout) = child.stdout.take() else {
            return Err(BenchError::Missing("expressway-load: no output".into()));
        };
        Ok(Self { child, output: BufReader::new(stdout), contestant: contestant.into() })
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(io_error("expressway-load"))?;
        if read == 0 {
            return Err(self.failed("it ended early; its error is above".into()));
        }
        Ok(line.trim().to_owned())
    }

    fn expect(&mut self, expected: &str) -> Result<(), BenchError> {
        let line = self.line()?;
        if line == expected { Ok(()) } else { Err(self.failed(format!("said {line:?}"))) }
    }

    fn document<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| self.failed(error.to_string()))
    }

    fn failed(&self, problem: String) -> BenchError {
        BenchError::Load { contestant: self.contestant.clone(), problem }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A load that runs.
pub(crate) struct Running(Process);

impl Running {
    /// Starts it.
    pub(crate) fn start(
        lab: &Lab,
        tools: &Tools,
        contestant: &str,
        load: &Load,
        core: usize,
    ) -> Result<Self, BenchError> {
        let mut arguments = Vec::new();
        for (option, value) in [
            ("--path", format!("/{}.bin", load.body)),
            ("--connections", load.connections.to_string()),
            ("--streams", load.streams.to_string()),
            ("--rate", load.rate.to_string()),
            ("--range", load.range.to_string()),
            ("--length", load.body.to_string()),
            ("--warmup", load.warmup.to_string()),
            ("--seconds", load.seconds.to_string()),
        ] {
            arguments.extend([option.to_owned(), value]);
        }
        arguments.extend(load.handshakes.then(|| "--handshakes".to_owned()));
        Process::start(lab, tools, contestant, core, &arguments).map(Self)
    }

    /// Waits until the warm-up is over and counting begins.
    pub(crate) fn wait_until_measuring(&mut self) -> Result<(), BenchError> {
        self.0.expect("measuring")
    }

    /// Waits for the end of counting and gives the counts.
    pub(crate) fn counted(&mut self) -> Result<Counted, BenchError> {
        let counted: Counted = self.0.document()?;
        if counted.errors > 0 {
            let why = counted.last_error.clone().unwrap_or_default();
            return Err(self.0.failed(format!("{} requests failed, the last: {why}", counted.errors)));
        }
        Ok(counted)
    }
}

/// Connections one after the other, until the server's certificate is another one.
pub(crate) struct Probe(Process);

/// What it says at the end.
#[derive(Deserialize)]
struct Probed {
    refused: u64,
}

impl Probe {
    /// Starts it.
    pub(crate) fn start(lab: &Lab, tools: &Tools, contestant: &str, core: usize) -> Result<Self, BenchError> {
        Process::start(lab, tools, contestant, core, &["--until-new-certificate".into()]).map(Self)
    }

    /// Waits for the first connection.
    pub(crate) fn wait_until_connected(&mut self) -> Result<(), BenchError> {
        self.0.expect("connected")
    }

    /// Waits for the new certificate; gives the number of connections that failed until then.
    pub(crate) fn wait_for_new_certificate(&mut self) -> Result<u64, BenchError> {
        self.0.document().map(|probed: Probed| probed.refused)
    }
}
