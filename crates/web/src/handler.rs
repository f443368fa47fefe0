//! The interface between transports and request handling.

use crate::{Exchange, RequestBody, RequestHead, Wake};

/// Answers requests. Shared by all workers.
pub trait Handler: Send + Sync {
    /// Starts answering `request`. Never blocks and never fails: problems with the request become the
    /// exchange's response.
    ///
    /// Whenever a poll of the exchange returns `Pending`, `wake` is called once polling makes sense again. Who
    /// does not want the `body` drops it.
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange;
}
