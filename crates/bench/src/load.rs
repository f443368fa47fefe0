//! The load generator as a process, and what it reports.

use std::io::{BufRead, BufReader};
use std::net::SocketAddrV4;
use std::process::{Child, Stdio};

use expressway_lab::{Lab, Role};
use serde::{Deserialize, Serialize};

use crate::kind::Run;
use crate::nics::{FarProgram, Nics};
use crate::server::PORT;
use crate::task::Task;
use crate::{BenchError, HOST, Tools, io_error, pinned};

/// What to ask, and how hard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// `expressway-load` at the client's end: in its namespace on a core that no server has, or at the far end.
struct Process<'a> {
    output: Output<'a>,
    contestant: String,
}

/// Where its lines come from.
enum Output<'a> {
    Here(Child, BufReader<std::process::ChildStdout>),
    Far(FarProgram<'a>),
}

impl<'a> Process<'a> {
    /// Starts it in the client namespace.
    fn start(
        lab: &Lab,
        tools: &Tools,
        contestant: &str,
        core: usize,
        arguments: &[String],
    ) -> Result<Self, BenchError> {
        let mut child = pinned::on_cores(lab, Role::Client, core..core + 1, &tools.load)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("expressway-load"))?;
        let Some(stdout) = child.stdout.take() else {
            return Err(BenchError::Missing("expressway-load: no output".into()));
        };
        Ok(Self { output: Output::Here(child, BufReader::new(stdout)), contestant: contestant.into() })
    }

    /// Starts it at the far end.
    fn start_far(nics: &'a Nics, tools: &Tools, contestant: &str, task: &Task) -> Result<Self, BenchError> {
        let file = tools.certificates().join("ca.pem");
        let authority = std::fs::read_to_string(&file).map_err(io_error(file.display().to_string()))?;
        let program = nics.start(task, Some(authority))?;
        Ok(Self { output: Output::Far(program), contestant: contestant.into() })
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let line = match &mut self.output {
            Output::Here(_, output) => {
                let mut line = String::new();
                let read = output.read_line(&mut line).map_err(io_error("expressway-load"))?;
                (read > 0).then(|| line.trim().to_owned())
            }
            Output::Far(program) => program.line()?,
        };
        line.ok_or_else(|| self.failed("it exited early; see its error above".into()))
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

impl Drop for Process<'_> {
    fn drop(&mut self) {
        if let Output::Here(child, _) = &mut self.output {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Arguments that say which server is asked, and whose certificates are trusted.
pub(crate) fn whom(server: SocketAddrV4, tools: &Tools) -> Vec<String> {
    let authority = tools.certificates().join("ca.pem").display().to_string();
    ["--connect", &server.to_string(), "--name", HOST, "--ca", &authority].map(str::to_owned).to_vec()
}

/// A load that runs.
pub(crate) struct Running<'a>(Process<'a>);

impl<'a> Running<'a> {
    /// Starts it.
    pub(crate) fn start(
        run: &Run<'a>,
        contestant: &str,
        load: &Load,
        core: usize,
    ) -> Result<Self, BenchError> {
        let to = SocketAddrV4::new(run.lab.addresses(Role::Server).ipv4, PORT);
        let task = Task::Load { to, load: load.clone() };
        let process = match run.nics {
            Some(nics) => Process::start_far(nics, run.tools, contestant, &task)?,
            None => {
                let (_, arguments) = task.command(&run.client_site());
                Process::start(run.lab, run.tools, contestant, core, &arguments)?
            }
        };
        Ok(Self(process))
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
pub(crate) struct Probe(Process<'static>);

/// What it says at the end.
#[derive(Deserialize)]
struct Probed {
    refused: u64,
}

impl Probe {
    /// Starts it.
    pub(crate) fn start(lab: &Lab, tools: &Tools, contestant: &str, core: usize) -> Result<Self, BenchError> {
        let server = SocketAddrV4::new(lab.addresses(Role::Server).ipv4, PORT);
        let mut arguments = whom(server, tools);
        arguments.push("--until-new-certificate".into());
        Process::start(lab, tools, contestant, core, &arguments).map(Self)
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
