//! Counters of an endpoint: plain numbers on the worker, published now and then for other threads.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:ident,)+) => {
        /// What happened on one endpoint. Counters only grow; gauges are named so in [`FIELDS`].
        ///
        /// Every datagram that is not processed has a `dropped_*` counter that says why, and every request
        /// or connection that is refused a `refused_*` one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// Name, help and kind of each field of [`Stats`], in order.
        pub const FIELDS: &[Field] = &[
            $(Field { name: stringify!($name), help: concat!($($doc),+), kind: Kind::$kind },)+
        ];

        impl Stats {
            /// The values in the order of [`FIELDS`].
            pub fn values(&self) -> [u64; FIELDS.len()] {
                [$(self.$name,)+]
            }

            fn from_values(values: [u64; FIELDS.len()]) -> Self {
                let [$($name,)+] = values;
                Self { $($name,)+ }
            }
        }
    };
}

/// How a number behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One number's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, in snake case.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
}

counters! {
    /// Connections in the table.
    Gauge connections,
    /// Connections whose handshake is not complete.
    Gauge handshaking,
    /// Requests that are being answered.
    Gauge requests_active,
    /// Requests that wait unread until their connection has fewer under way.
    Gauge requests_waiting,
    /// Bytes of responses in memory that clients have not acknowledged.
    Gauge response_bytes,
    /// Bytes of requests: header sections in parts, and what is kept while they are answered.
    Gauge request_bytes,
    /// Datagrams handed in by packet I/O or by other workers.
    Counter datagrams_received,
    /// Payload bytes of these.
    Counter bytes_received,
    /// Datagrams given to packet I/O.
    Counter datagrams_sent,
    /// Payload bytes of these.
    Counter bytes_sent,
    /// Bursts of datagrams given to packet I/O in one call.
    Counter bursts_sent,
    /// Connections made.
    Counter connections_accepted,
    /// Handshakes completed.
    Counter connections_established,
    /// Handshakes completed with 0-RTT accepted.
    Counter connections_early_data,
    /// Connections that have ended, for any reason.
    Counter connections_closed,
    /// Of these, the ones that were silent for the idle timeout.
    Counter connections_timed_out,
    /// Of these, the ones that ended before their handshake was complete.
    Counter connections_failed,
    /// Connections that this side closed because the client broke QUIC or HTTP/3.
    Counter connections_protocol_error,
    /// Packets declared lost, summed when connections end.
    Counter packets_lost,
    /// Stream bytes retransmitted, summed when connections end.
    Counter bytes_retransmitted,
    /// New client addresses seen on connections (migration or NAT rebinding).
    Counter paths_new,
    /// Client addresses that proved reachable and became a connection's path.
    Counter paths_migrated,
    /// Client addresses that could not be validated.
    Counter paths_failed,
    /// Path-MTU probes larger than the interface or a router's report allows, which were not sent.
    Counter mtu_probes_dropped,
    /// Version Negotiation packets sent.
    Counter version_negotiations_sent,
    /// Retry packets sent.
    Counter retries_sent,
    /// Clients that came back with a valid Retry token.
    Counter retries_validated,
    /// Stateless resets sent.
    Counter resets_sent,
    /// Datagrams handed over to the worker that their connection ID names.
    Counter handed_over,
    /// Datagrams of connections of older processes, forwarded to these.
    Counter forwarded_older,
    /// Datagrams handed over by other workers.
    Counter taken_over,
    /// Datagrams with no valid QUIC header.
    Counter dropped_bad_header,
    /// Datagrams that only servers send.
    Counter dropped_server_only,
    /// Initial packets in datagrams of less than 1200 bytes (RFC 9000, section 14.1).
    Counter dropped_small_initial,
    /// Initial packets whose connection ID is shorter than 8 bytes (RFC 9000, section 7.2).
    Counter dropped_short_cid,
    /// Packets of unknown versions too short to be answered (RFC 9000, section 6).
    Counter dropped_unknown_version,
    /// Short-header packets of unknown connections that were not answered by a reset.
    Counter dropped_unknown_connection,
    /// Handshake or 0-RTT packets of unknown connections.
    Counter dropped_no_connection,
    /// New connections beyond the configured number.
    Counter dropped_connection_limit,
    /// First packets that were not authentic, so no connection came of them.
    Counter dropped_bad_initial,
    /// Datagrams for another worker whose mailbox was full.
    Counter dropped_handover_full,
    /// Datagrams for an older process that was behind.
    Counter dropped_older_full,
    /// Datagrams for another worker when no hand-over buffer was free, or larger than one.
    Counter dropped_handover_buffer,
    /// First packets of new connections beyond what may wait for their handshakes.
    Counter dropped_handshake_queue_full,
    /// Version Negotiation, Retry, refusal and reset packets beyond what may wait for transmission.
    Counter dropped_reply_queue,
    /// Connections that could not be set up by a local fault (memory, TLS library, random generator).
    Counter dropped_local_error,
    /// New connections refused because the server is shutting down.
    Counter refused_draining,
    /// New connections refused because their Retry token was invalid.
    Counter refused_invalid_token,
    /// Requests received.
    Counter requests,
    /// Responses sent to their end.
    Counter responses_complete,
    /// Response body bytes handed to streams.
    Counter response_body_bytes,
    /// Responses that the client stopped, reset or abandoned with the connection.
    Counter responses_cancelled,
    /// Responses that this side reset because their body failed.
    Counter responses_failed,
    /// Responses that this side reset because the client took too little of them for `response_timeout`.
    Counter responses_timed_out,
    /// Connections closed because the client acknowledged too little of what was sent for `response_timeout`.
    Counter connections_stalled,
    /// Requests that had to wait unread for a while.
    Counter requests_deferred,
    /// Requests rejected because their header section did not come whole within `request_timeout`.
    Counter refused_request_timeout,
    /// Requests reset as malformed (RFC 9114, section 4.1.2).
    Counter refused_malformed,
    /// Requests of 0-RTT that are not safe to replay, and so were held until the handshake was complete.
    Counter requests_held_early,
    /// Requests answered 425: a connection held its maximum of them.
    Counter refused_early_data,
    /// Requests rejected because the server is shutting down.
    Counter refused_goaway,
    /// Requests answered 431 because of their header fields' size.
    Counter refused_header_size,
    /// Connections closed because the client kept opening and abandoning requests.
    Counter refused_rapid_reset,
    /// Wake-ups for requests that had ended meanwhile.
    Counter wakeups_stale,
}

impl Stats {
    /// Each number with its description.
    pub fn fields(&self) -> impl Iterator<Item = (&'static Field, u64)> {
        FIELDS.iter().zip(self.values())
    }

    /// Adds another worker's numbers to these.
    pub fn add(&mut self, other: &Self) {
        let mut values = self.values();
        for (value, other) in values.iter_mut().zip(other.values()) {
            *value = value.wrapping_add(other);
        }
        *self = Self::from_values(values);
    }
}

/// One worker's numbers as other threads see them: at most a tenth of a second old while the worker runs.
#[derive(Debug)]
pub struct Published([AtomicU64; FIELDS.len()]);

impl Default for Published {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Published {
    /// A copy of the numbers. They are read one by one, so sums may be off by what happened meanwhile.
    pub fn read(&self) -> Stats {
        Stats::from_values(std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed)))
    }

    pub(crate) fn write(&self, stats: &Stats) {
        for (slot, value) in self.0.iter().zip(stats.values()) {
            slot.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_numbers_come_back_in_place() {
        let stats = Stats { connections: 1, datagrams_received: 2, wakeups_stale: 3, ..Stats::default() };
        let published = Published::default();
        published.write(&stats);
        assert_eq!(published.read(), stats);
        let mut sum = stats;
        sum.add(&stats);
        assert_eq!((sum.connections, sum.wakeups_stale), (2, 6));
        let named: Vec<_> = stats.fields().filter(|(_, value)| *value != 0).collect();
        assert_eq!(named[0].0.name, "connections");
        assert_eq!(named[0].0.kind, Kind::Gauge);
        assert_eq!(named[2].0.name, "wakeups_stale");
    }
}
