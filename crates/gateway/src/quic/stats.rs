//! Counters of an endpoint: plain numbers on the worker, published periodically for other threads.

use expressway_metrics::counters;

counters! {
    /// What happened on one endpoint.
    ///
    /// Every datagram that is not processed has a `dropped_*` counter that says why, and every request
    /// or connection that is refused a `refused_*` one.
    pub struct Stats {
        /// Connections in the table.
        pub connections: Gauge,
        /// Connections whose handshake is not complete.
        pub handshaking: Gauge,
        /// Requests that are being answered.
        pub requests_active: Gauge,
        /// Requests that wait unread until their connection has fewer under way.
        pub requests_waiting: Gauge,
        /// Bytes of responses in memory that clients have not acknowledged.
        pub response_bytes: Gauge,
        /// Bytes of requests: received and not read yet, header sections in parts, and what is kept while they are answered.
        pub request_bytes: Gauge,
        /// Datagrams handed in by packet I/O or by other workers.
        pub datagrams_received: u64,
        /// Payload bytes of these.
        pub bytes_received: u64,
        /// Datagrams given to packet I/O.
        pub datagrams_sent: u64,
        /// Payload bytes of these.
        pub bytes_sent: u64,
        /// Bursts of datagrams given to packet I/O in one call.
        pub bursts_sent: u64,
        /// Connections created.
        pub connections_accepted: u64,
        /// Handshakes completed.
        pub connections_established: u64,
        /// Handshakes completed with 0-RTT accepted.
        pub connections_early_data: u64,
        /// Connections that have ended, for any reason.
        pub connections_closed: u64,
        /// Connections that ended by idle timeout.
        pub connections_timed_out: u64,
        /// Connections that ended before their handshake was complete.
        pub connections_failed: u64,
        /// Connections that this side closed because the client broke QUIC or HTTP/3.
        pub connections_protocol_error: u64,
        /// WebTransport sessions that began.
        pub webtransport_sessions: u64,
        /// Packets declared lost, summed when connections end.
        pub packets_lost: u64,
        /// Stream bytes retransmitted, summed when connections end.
        pub bytes_retransmitted: u64,
        /// New client addresses seen on connections (migration or NAT rebinding).
        pub paths_new: u64,
        /// Client addresses that proved reachable and became a connection's path.
        pub paths_migrated: u64,
        /// Client addresses that could not be validated.
        pub paths_failed: u64,
        /// Path-MTU probes larger than the interface or a router's report allows, which were not sent.
        pub mtu_probes_dropped: u64,
        /// Version Negotiation packets sent.
        pub version_negotiations_sent: u64,
        /// Retry packets sent.
        pub retries_sent: u64,
        /// Clients that came back with a valid Retry token.
        pub retries_validated: u64,
        /// Stateless resets sent.
        pub resets_sent: u64,
        /// Datagrams handed over to the worker that their connection ID names.
        pub handed_over: u64,
        /// Datagrams of connections of older processes, forwarded to these.
        pub forwarded_older: u64,
        /// Datagrams handed over by other workers.
        pub taken_over: u64,
        /// Datagrams with no valid QUIC header.
        pub dropped_bad_header: u64,
        /// Datagrams that only servers send.
        pub dropped_server_only: u64,
        /// Initial packets in datagrams of less than 1200 bytes (RFC 9000, section 14.1).
        pub dropped_small_initial: u64,
        /// Initial packets whose connection ID is shorter than 8 bytes (RFC 9000, section 7.2).
        pub dropped_short_cid: u64,
        /// Packets of unknown versions too short to be answered (RFC 9000, section 6).
        pub dropped_unknown_version: u64,
        /// Short-header packets of unknown connections that were not answered by a reset.
        pub dropped_unknown_connection: u64,
        /// Handshake or 0-RTT packets of unknown connections.
        pub dropped_no_connection: u64,
        /// New connections beyond the configured number.
        pub dropped_connection_limit: u64,
        /// Initial packets that failed authentication; no connection was created.
        pub dropped_bad_initial: u64,
        /// Datagrams for another worker whose mailbox was full.
        pub dropped_handover_full: u64,
        /// Datagrams dropped because an older process's queue was full.
        pub dropped_older_full: u64,
        /// Datagrams for another worker when no hand-over buffer was free, or larger than one.
        pub dropped_handover_buffer: u64,
        /// First packets of new connections beyond what may wait for their handshakes.
        pub dropped_handshake_queue_full: u64,
        /// Version Negotiation, Retry, refusal and reset packets beyond what may wait for transmission.
        pub dropped_reply_queue: u64,
        /// Connections that could not be set up by a local fault (memory, TLS library, random generator).
        pub dropped_local_error: u64,
        /// DATAGRAM frames (RFC 9221), which nothing reads.
        pub dropped_datagram_frame: u64,
        /// Streams dropped: unknown WebTransport session, too many before it began, or no type in time.
        pub refused_webtransport_stream: u64,
        /// WebTransport sessions refused: the connection already has one, or the application rejected it.
        pub refused_webtransport_session: u64,
        /// New connections refused because the server is shutting down.
        pub refused_draining: u64,
        /// New connections refused because their Retry token was invalid.
        pub refused_invalid_token: u64,
        /// Requests received.
        pub requests: u64,
        /// Responses sent to their end.
        pub responses_complete: u64,
        /// Response body bytes handed to streams.
        pub response_body_bytes: u64,
        /// Responses that the client stopped, reset or abandoned with the connection.
        pub responses_cancelled: u64,
        /// Responses that this side reset because their body failed.
        pub responses_failed: u64,
        /// Responses that this side reset because the client took too little of them for `response_timeout`.
        pub responses_timed_out: u64,
        /// Connections closed because the client acknowledged too little of what was sent for `response_timeout`.
        pub connections_stalled: u64,
        /// Requests that had to wait unread for a while.
        pub requests_deferred: u64,
        /// Requests rejected because their header section was incomplete after `request_timeout`.
        pub refused_request_timeout: u64,
        /// Requests reset as malformed (RFC 9114, section 4.1.2).
        pub refused_malformed: u64,
        /// Requests of 0-RTT that are not safe to replay, and so were held until the handshake was complete.
        pub requests_held_early: u64,
        /// Requests answered 425: a connection held its maximum of them.
        pub refused_early_data: u64,
        /// Requests rejected because the server is shutting down.
        pub refused_goaway: u64,
        /// Requests answered 431 because of their header fields' size.
        pub refused_header_size: u64,
        /// Connections closed because the client kept opening and abandoning requests.
        pub refused_rapid_reset: u64,
        /// Connections closed because data that had been received and could not be read took more memory than one may hold.
        pub refused_received_memory: u64,
        /// Connections closed because data was missing for `missing_timeout` while later data was kept.
        pub refused_received_timeout: u64,
        /// Wake-ups for requests that had ended meanwhile.
        pub wakeups_stale: u64,
    }
}
