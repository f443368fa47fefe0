//! The load generator as a process, and what it reports.

use std::net::SocketAddrV4;

use expressway_lab::Role;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::h2load::H2load;
use crate::kind::Run;
use crate::server::{PORT, is_tcp};
use crate::task::Task;
use crate::{BenchError, HOST, Tools};

/// A load of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    /// Connections.
    pub connections: usize,
    /// Requests at once on each connection.
    pub streams: usize,
    /// Requests a second over all of them; 0 for a closed loop.
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
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Counted {
    /// Seconds that it counted.
    pub seconds: f64,
    /// Whole responses.
    pub requests: u64,
    /// Body bytes.
    pub bytes: u64,
    /// Failed requests; any fails the run.
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

/// Arguments that name the server and the trusted CA.
pub(crate) fn whom(server: SocketAddrV4, tools: &Tools) -> Vec<String> {
    let authority = tools.certificates().join("ca.pem").display().to_string();
    ["--connect", &server.to_string(), "--name", HOST, "--ca", &authority].map(str::to_owned).to_vec()
}

/// A load that runs.
pub(crate) enum Running<'a> {
    /// Over HTTP/3.
    Ours(Client<'a>),
    /// Over HTTP/2 or HTTP/1.1.
    H2load(H2load),
}

impl<'a> Running<'a> {
    /// Starts it.
    pub(crate) fn start(
        run: &Run<'a>,
        contestant: &str,
        load: &Load,
        core: usize,
    ) -> Result<Self, BenchError> {
        if is_tcp(run.case) {
            return H2load::start(run, contestant, server_address(run), load, core).map(Self::H2load);
        }
        let task = Task::Load { to: server_address(run), load: load.clone() };
        Client::start(run, contestant, core, &task).map(Self::Ours)
    }

    /// Waits until the warm-up is over and counting begins.
    pub(crate) fn wait_until_measuring(&mut self) -> Result<(), BenchError> {
        match self {
            Self::Ours(client) => client.expect("measuring"),
            Self::H2load(h2load) => h2load.wait_until_measuring(),
        }
    }

    /// Waits for the end of counting and gives the counts.
    pub(crate) fn counted(&mut self) -> Result<Counted, BenchError> {
        let (counted, client): (Counted, _) = match self {
            Self::Ours(client) => (client.report()?, &*client),
            Self::H2load(h2load) => (h2load.counted()?, &h2load.client),
        };
        if counted.errors > 0 {
            let why = counted.last_error.clone().unwrap_or_default();
            return Err(client.failed(format!("{} requests failed, the last: {why}", counted.errors)));
        }
        Ok(counted)
    }
}

/// Makes connections one after another until the server's certificate changes.
pub(crate) struct Probe(Client<'static>);

/// Its report.
#[derive(Deserialize)]
struct Probed {
    refused: u64,
}

impl Probe {
    /// Starts it.
    pub(crate) fn start(run: &Run<'_>, contestant: &str, core: usize) -> Result<Self, BenchError> {
        let mut arguments = whom(server_address(run), run.tools);
        arguments.push("--until-new-certificate".into());
        Client::start_here(run, contestant, core, &run.tools.load, &arguments).map(Self)
    }

    /// Waits for the first connection.
    pub(crate) fn wait_until_connected(&mut self) -> Result<(), BenchError> {
        self.0.expect("connected")
    }

    /// Waits for the new certificate; gives the number of connections that failed until then.
    pub(crate) fn wait_for_new_certificate(&mut self) -> Result<u64, BenchError> {
        self.0.report().map(|probed: Probed| probed.refused)
    }
}

fn server_address(run: &Run<'_>) -> SocketAddrV4 {
    SocketAddrV4::new(run.lab.addresses(Role::Server).ipv4, PORT)
}
