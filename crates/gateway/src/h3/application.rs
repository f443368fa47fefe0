//! HTTP/3 as the application of an endpoint's connections.

use std::sync::Arc;

use expressway_web::Handler;
use expressway_web::access_log::AccessLog;

use super::{Session, code};
use crate::quic::{self, Application, Settings, StreamLimits, Turn};

/// HTTP/3 (RFC 9114, section 3.1).
const ALPN: &[u8] = b"h3";

/// Client streams of one direction: control, two for QPACK, and room for reserved types (RFC 9114, section
/// 6.2) which clients open to keep servers honest.
const UNIDIRECTIONAL_STREAMS: u64 = 8;

/// Control and QPACK streams carry little.
const UNIDIRECTIONAL_WINDOW: u64 = 16 << 10;

/// Requests of connections, and who answers them.
pub struct Http3 {
    /// Answers requests.
    pub handler: Arc<dyn Handler>,
    /// Gets one line per request.
    pub access_log: Option<Arc<AccessLog>>,
    /// The name of the I/O mode, for the access log.
    pub io_mode: Arc<str>,
}

impl Application for Http3 {
    fn protocols(&self) -> &[&[u8]] {
        &[ALPN]
    }

    fn limits(&self, settings: &Settings) -> StreamLimits {
        StreamLimits {
            bidirectional: settings.max_requests,
            unidirectional: UNIDIRECTIONAL_STREAMS,
            bidirectional_window: settings.receive_window,
            unidirectional_window: UNIDIRECTIONAL_WINDOW,
            own_window: 0,
            max_stream_window: settings.receive_window.max(UNIDIRECTIONAL_WINDOW),
            // Request bodies are discarded, so one window serves all streams of a connection.
            connection_window: settings.receive_window * 4,
            max_connection_window: settings.receive_window * 4,
        }
    }

    fn closing_code(&self, _protocol: &[u8]) -> u64 {
        code::NO_ERROR
    }

    fn excess_code(&self, _protocol: &[u8]) -> u64 {
        code::EXCESSIVE_LOAD
    }

    fn start(self: Arc<Self>, turn: &mut Turn<'_>) -> Box<dyn quic::Session> {
        Box::new(Session::start(self, turn))
    }
}
