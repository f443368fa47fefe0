//! The Trace Event Format (JSON object form), as Perfetto and chrome://tracing read it.
//!
//! Workers are threads of one process, with datagrams, bursts and flushes as slices. Requests are nestable asynchronous
//! events of another process, with a thread for each connection; the steps of a request are nested in it. Events are
//! written as they arrive, so nothing has to be kept.

use std::collections::HashMap;
use std::io::{self, Write};

use expressway_netio::trace::{Event, Hop};
use serde_json::{Value, json};

use super::line::{Line, Recorded};
use super::model::Model;
use super::request::{Receiver, Request};

const WORKERS: u32 = 1;
const REQUESTS: u32 = 2;

/// Threads whose names are remembered, and datagrams that wait to be decrypted.
const NAMED: usize = 1 << 16;

/// A trace in that format on its way to `out`.
pub struct Chrome<W> {
    out: W,
    is_first: bool,
    /// Threads by process and number.
    named: HashMap<(u32, u64), ()>,
    /// Datagrams that are not decrypted, by worker and connection.
    taken: HashMap<(usize, u64), (u64, Value)>,
}

/// Nanoseconds as the format's microseconds.
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

impl<W: Write> Chrome<W> {
    /// Writes the beginning.
    ///
    /// # Errors
    /// Those of `out`, as for all that follows.
    pub fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let mut chrome = Self { out, is_first: true, named: HashMap::new(), taken: HashMap::new() };
        for (pid, name) in [(WORKERS, "expressway workers"), (REQUESTS, "expressway requests")] {
            chrome.write(
                &json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}),
            )?;
        }
        Ok(chrome)
    }

    fn write(&mut self, event: &Value) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.is_first) { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }

    fn name(&mut self, pid: u32, tid: u64, name: impl FnOnce() -> String) -> io::Result<()> {
        if self.named.len() >= NAMED {
            // A name may be given again.
            self.named.clear();
        }
        if self.named.insert((pid, tid), ()).is_some() {
            return Ok(());
        }
        self.write(
            &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name()}}),
        )
    }

    fn slice(
        &mut self,
        worker: usize,
        name: &str,
        (from, to): (u64, u64),
        arguments: Value,
    ) -> io::Result<()> {
        self.write(&json!({
            "ph": "X", "cat": "packet", "name": name, "pid": WORKERS, "tid": worker, "ts": microseconds(from),
            "dur": microseconds(to.saturating_sub(from)), "args": arguments,
        }))
    }

    /// Writes what of a line concerns packets; `model` has taken in what was before.
    ///
    /// # Errors
    /// Those of the output.
    pub fn take(&mut self, line: &Line, model: &Model) -> io::Result<()> {
        let Line::Recorded(Recorded { worker, event: Event { time, connection, hop } }) = line else {
            return Ok(());
        };
        let (worker, time, connection) = (*worker, *time, *connection);
        self.name(WORKERS, worker as u64, || format!("worker {worker}"))?;
        match hop {
            Hop::Taken { way, remote, bytes, .. } => {
                let way = model.way_of(worker, *way);
                let arguments =
                    json!({"connection": connection, "remote": remote, "bytes": bytes, "way": way});
                if connection != 0 && self.taken.len() < NAMED {
                    self.taken.insert((worker, connection), (time, arguments));
                    return Ok(());
                }
                self.slice(worker, "datagram", (time, time), arguments)
            }
            Hop::Opened => match self.taken.remove(&(worker, connection)) {
                Some((taken, arguments)) => self.slice(worker, "datagram", (taken, time), arguments),
                None => Ok(()),
            },
            Hop::Burst { mark, began, way, packets, bytes } => {
                let way = model.way_of(worker, *way);
                let arguments = json!({
                    "connection": connection, "mark": mark, "packets": packets, "bytes": bytes, "way": way,
                });
                self.slice(worker, "burst", (*began, time), arguments)
            }
            Hop::Flushed { mark, began } => {
                self.slice(worker, "flush", (*began, time), json!({"mark": mark}))
            }
            Hop::Sent { began } => {
                self.slice(worker, "send", (*began, time), json!({"connection": connection}))
            }
            Hop::Completed { mark } => self.write(&json!({
                "ph": "i", "s": "t", "cat": "packet", "name": "completed", "pid": WORKERS, "tid": worker,
                "ts": microseconds(time), "args": {"mark": mark},
            })),
            Hop::Closed => match self.taken.remove(&(worker, connection)) {
                Some((taken, arguments)) => self.slice(worker, "datagram", (taken, taken), arguments),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Writes a request that has ended, or how far it has come.
    ///
    /// # Errors
    /// Those of the output.
    pub fn request(&mut self, request: &Request, model: &Model) -> io::Result<()> {
        let client = request.client.as_ref().or_else(|| model.client(request.connection));
        self.name(REQUESTS, request.connection, || match client {
            Some((remote, id)) => format!("{remote} {id}"),
            None => format!("connection {}", request.connection),
        })?;
        let id = format!("{:x}-{:x}", request.connection, request.stream);
        let event = |phase: &str, name: &str, time: u64, arguments: Value| {
            json!({
                "ph": phase, "cat": "request", "id": id, "name": name, "pid": REQUESTS, "tid": request.connection,
                "ts": microseconds(time), "args": arguments,
            })
        };
        let (began, ended) = (request.began(), request.began() + request.duration());
        let arguments = json!({
            "worker": request.worker, "stream": request.stream, "status": request.status,
            "source": request.source, "bytes": request.bytes, "complete": request.complete,
            "received_by": request.receiver.map(Receiver::name), "in": request.way_in, "out": request.way_out,
        });
        self.write(&event("b", &request.text, began, arguments))?;
        for pair in request.line().windows(2) {
            let ((from, _), (to, stamp)) = (pair[0], pair[1]);
            self.write(&event("b", stamp.name(), from, json!({})))?;
            self.write(&event("e", stamp.name(), to, json!({})))?;
        }
        self.write(&event("e", &request.text, ended, json!({})))
    }

    /// Writes the end.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }
}
