//! Traces that somebody orders from the admin listener.

use expressway_gateway::admin::{Feed, Piece, Refusal};
use expressway_netio::trace::Tracers;
use expressway_observe::trace::{Next, Order, Stream};

/// Starts what `order` asks for.
pub(crate) fn start(tracers: &Tracers, order: &[u8]) -> Result<Box<dyn Feed>, Refusal> {
    let order: Order =
        serde_json::from_slice(order).map_err(|error| Refusal::Invalid(format!("the order: {error}")))?;
    let options = order.options().map_err(Refusal::Invalid)?;
    let recording = tracers.start(&options).map_err(|error| Refusal::Busy(error.to_string()))?;
    tracing::info!(?order, "trace started");
    Ok(Box::new(Lines(Stream::new(recording, order))))
}

struct Lines(Stream);

impl Feed for Lines {
    fn poll(&mut self) -> Piece {
        match self.0.poll() {
            Next::Lines(lines) => Piece::Data(lines),
            Next::Nothing => Piece::Nothing,
            Next::End => Piece::End,
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        tracing::info!("trace ended");
    }
}
