//! nghttp2's h2load: sends requests over HTTP/2 and HTTP/1.1, and reports on them.

use std::net::SocketAddrV4;

use crate::client::Client;
use crate::kind::Run;
use crate::load::{Counted, Load};
use crate::packet_path::is_program;
use crate::server::PORT;
use crate::task::words;
use crate::{BenchError, HOST};

/// Bytes of a body beside which a head is nothing.
const LARGE: u64 = 256 << 10;

/// Why it cannot be run, if so.
pub(crate) fn lacks() -> Option<String> {
    (!is_program("h2load"))
        .then(|| "h2load: no such program; on Debian: apt-get install nghttp2-client".into())
}

/// An h2load that runs.
pub(crate) struct H2load {
    pub(crate) client: Client<'static>,
    body: u64,
    seconds: f64,
}

impl H2load {
    /// Starts a load; with no time to count, each connection makes one request. HTTP/1.1 has a connection for each request at
    /// a time.
    pub(crate) fn start(
        run: &Run<'_>,
        contestant: &str,
        server: SocketAddrV4,
        load: &Load,
        core: usize,
    ) -> Result<Self, BenchError> {
        let is_h1 = run.case.text("protocol") == "h1";
        let (clients, streams) =
            if is_h1 { (load.connections * load.streams, 1) } else { (load.connections, load.streams) };
        let milliseconds = |seconds: f64| format!("{}ms", (seconds * 1e3).round());
        // It needs a descriptor for each client, and its stages have to be seen when they begin.
        let mut arguments = vec![format!("--nofile={}:", clients + 64)];
        arguments.extend(words("stdbuf -oL h2load -t1"));
        arguments.extend([format!("-c{clients}"), format!("-m{streams}")]);
        arguments.extend(is_h1.then(|| "--h1".to_owned()));
        arguments.extend(match load.seconds > 0.0 {
            true => [
                format!("--duration={}", milliseconds(load.seconds)),
                format!("--warm-up-time={}", milliseconds(load.warmup)),
            ],
            false => ["-n".to_owned(), clients.to_string()],
        });
        arguments.push(format!("--connect-to={server}"));
        arguments.push(format!("https://{HOST}:{PORT}/{}.bin", load.body));
        let client = Client::start_here(run, contestant, core, "prlimit".as_ref(), &arguments)?;
        Ok(Self { client, body: load.body, seconds: load.seconds })
    }

    /// The rest of the first line that has this.
    fn after(&mut self, text: &str) -> Result<String, BenchError> {
        loop {
            let line = self.client.line()?;
            if let Some(at) = line.find(text) {
                return Ok(line[at + text.len()..].to_owned());
            }
        }
    }

    /// Waits until the warm-up is over.
    pub(crate) fn wait_until_measuring(&mut self) -> Result<(), BenchError> {
        self.after("Main benchmark duration is started").map(drop)
    }

    /// Waits for its counts: responses that began while it counted, or as many as the bytes that came meanwhile, heads and
    /// frames' headers included, are of large bodies, of which there are few.
    pub(crate) fn counted(&mut self) -> Result<Counted, BenchError> {
        let [requests, codes, traffic] =
            [self.after("requests: ")?, self.after("status codes: ")?, self.after("traffic: ")?];
        let errors = ["failed", "errored", "timeout"].iter().filter_map(|what| before(&requests, what));
        let refused = ["4xx", "5xx"].iter().filter_map(|what| before(&codes, what));
        let errors: u64 = errors.chain(refused).sum();
        let counted =
            before(&codes, "2xx").zip(traffic.split(['(', ')']).nth(1).and_then(|n| n.parse().ok()));
        let Some((mut requests, bytes)) = counted else {
            return Err(self.client.failed(format!("h2load says `{codes}` and `{traffic}`")));
        };
        if self.seconds > 0.0 && self.body >= LARGE {
            requests = bytes / self.body;
        }
        let why = (errors > 0).then_some(codes);
        Ok(Counted { seconds: self.seconds, requests, bytes, errors, last_error: why, ..Counted::default() })
    }
}

/// The number before a word.
fn before(line: &str, word: &str) -> Option<u64> {
    line.split(", ").find_map(|part| part.strip_suffix(word)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_before_its_word() {
        let line = "480 total, 480 started, 480 done, 479 succeeded, 1 failed, 0 errored, 0 timeout";
        assert_eq!((before(line, "failed"), before(line, "lost")), (Some(1), None));
    }
}
