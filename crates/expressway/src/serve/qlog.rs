//! The qlog of one connection, which somebody orders from the admin listener.

use std::time::{Duration, Instant};

use expressway_gateway::admin::{Feed, Piece, Refusal};
use expressway_gateway::quic::{QlogError, QlogPhase, QlogReport, Recording, Shared};
use expressway_observe::trace::Order as Filter;
use serde::{Deserialize, Serialize};

/// Bytes at most, and by default.
pub(crate) const MAX_BYTES: u64 = 1 << 30;
const BYTES: u64 = 64 << 20;

/// An order, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Order {
    /// The client: an address, with a port or without.
    client: Option<String>,
    /// What a connection ID of the server's begins with, in hexadecimal.
    connection: Option<String>,
    /// How long.
    seconds: u32,
    /// How much.
    bytes: u64,
}

impl Default for Order {
    fn default() -> Self {
        Self { client: None, connection: None, seconds: 10, bytes: BYTES }
    }
}

/// Starts what `order` asks for.
pub(crate) fn start(shared: &Shared, order: &[u8]) -> Result<Box<dyn Feed>, Refusal> {
    let order: Order =
        serde_json::from_slice(order).map_err(|error| Refusal::Invalid(format!("the order: {error}")))?;
    let Order { client, connection, seconds, bytes } = order.clone();
    if client.is_none() && connection.is_none() {
        return Err(Refusal::Invalid("specify client or connection".to_owned()));
    }
    if !(1..=MAX_BYTES).contains(&bytes) {
        return Err(Refusal::Invalid(format!("bytes is {bytes}: must be 1 to {MAX_BYTES}")));
    }
    let filter = Filter { client, connection, seconds, sample: 1 };
    let filter = filter.options().map_err(Refusal::Invalid)?.filter;
    let limit = usize::try_from(bytes).unwrap_or(usize::MAX);
    let recording = shared.record_qlog(filter, limit).map_err(|error| match error {
        QlogError::Busy => Refusal::Busy(error.to_string()),
        QlogError::All | QlogError::Unsupported => Refusal::Invalid(error.to_string()),
    })?;
    tracing::info!(?order, "qlog started");
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    Ok(Box::new(Events { recording, deadline, has_ended: false }))
}

struct Events {
    recording: Recording,
    deadline: Instant,
    has_ended: bool,
}

impl Feed for Events {
    fn content_type(&self) -> &'static str {
        "application/qlog+json-seq"
    }

    fn poll(&mut self) -> Piece {
        if self.has_ended {
            return Piece::End;
        }
        // What ends it is looked at first: what was written before that is there.
        let report = self.recording.report();
        let why = match report.phase {
            QlogPhase::Closed => Some("the connection has closed"),
            QlogPhase::Full => Some("the size limit was reached"),
            _ if Instant::now() >= self.deadline => Some("the time limit was reached"),
            QlogPhase::Waiting | QlogPhase::Running => None,
        };
        let mut events = self.recording.read();
        match why {
            Some(why) => {
                self.has_ended = true;
                events.extend(last(why, &self.recording.report()));
                if events.is_empty() { Piece::End } else { Piece::Data(events) }
            }
            None if events.is_empty() => Piece::Nothing,
            None => Piece::Data(events),
        }
    }
}

/// Tells why it has ended, and what is missing, as an event (main schema, "loglevel"); nothing of a connection that never was.
fn last(why: &str, report: &QlogReport) -> Vec<u8> {
    let Some(began) = report.began else { return Vec::new() };
    let time = began.elapsed().as_micros() as f64 / 1000.0;
    let message = format!("end of the recording: {why}; {} events lost", report.lost);
    let event = serde_json::json!({ "time": time, "name": "loglevel:info", "data": { "message": message } });
    format!("\x1e{event}\n").into_bytes()
}

impl Drop for Events {
    fn drop(&mut self) {
        let QlogReport { events, lost, .. } = self.recording.report();
        tracing::info!(events, lost, "qlog ended");
    }
}
