//! Traces of a running process: what its tracer ([`expressway_netio::trace`]) records, line by line, and how it is
//! evaluated.
//!
//! * An [`Order`] says what is to be traced. [`Stream`] is the process's side: a recording as lines of JSON.
//! * [`Model`] is the reader's: it puts the hops of requests together and keeps how long each [`Step`] took.
//! * [`Chrome`] writes the Trace Event Format, which Perfetto and chrome://tracing read.
//!
//! If the reader is too slow, the process loses events and says how many. Requests then lack hops; none is made up.

mod chrome;
mod line;
mod model;
mod order;
mod request;
mod steps;
mod stream;

pub use chrome::Chrome;
pub use line::{Control, Line, Recorded};
pub use model::Model;
pub use order::{MAX_SECONDS, Order};
pub use request::{Receiver, Request, Stamp};
pub use steps::{Bucket, PACKET_STEPS, Row, STEPS, Step, Steps};
pub use stream::{Next, Stream};

#[cfg(test)]
mod tests;
