//! Why packets, connections and requests were dropped, from the device to HTTP, in one list.
//!
//! Each layer counts its drops under its own names. This list gives these counters a common meaning: the metrics page
//! derives `drops_total{layer, reason}` from it, and the reference's table is this list (a test compares them). Nothing
//! is counted twice: a packet that one layer passes to the next is counted where it ends.

use std::fmt;

use expressway_xbpf::XdpDrop;

use crate::Verdict;

/// Where something was dropped, from the device upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// An XDP program.
    Xdp,
    /// The rings of an AF_XDP socket.
    Ring,
    /// IP and UDP headers, and a kernel socket's buffers.
    Udp,
    /// QUIC, up to connections.
    Quic,
    /// Connections over TCP.
    Tcp,
    /// Requests and responses, over any transport.
    Http,
    /// The receiver of feeds, and those that it hands packets on to.
    Recv,
    /// The fan-out's feed and subscribers.
    Fanout,
    /// The relay's publishers and receivers.
    Relay,
}

impl Layer {
    /// All, from the device upwards.
    pub const ALL: [Self; 9] = [
        Self::Xdp,
        Self::Ring,
        Self::Udp,
        Self::Quic,
        Self::Tcp,
        Self::Http,
        Self::Recv,
        Self::Fanout,
        Self::Relay,
    ];

    /// Its name as a label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Ring => "ring",
            Self::Udp => "udp",
            Self::Quic => "quic",
            Self::Tcp => "tcp",
            Self::Http => "http",
            Self::Recv => "recv",
            Self::Fanout => "fanout",
            Self::Relay => "relay",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A counter on a metrics page: its name, without the prefix and `_total`, and the labels that pick it among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `dropped_checksum`.
    pub name: &'static str,
    /// `[("reason", "flood")]`.
    pub labels: &'static [(&'static str, &'static str)],
}

/// A reason for a drop.
#[derive(Debug, PartialEq, Eq)]
pub struct DropReason {
    /// Where.
    pub layer: Layer,
    /// Why: words with hyphens, unique within the layer, and stable.
    pub name: &'static str,
    /// The same in a sentence.
    pub help: &'static str,
    /// What counts it, if that is one of our processes.
    pub counter: Option<Counter>,
}

macro_rules! reasons {
    ($($layer:ident { $($name:literal $(= $counter:literal $([$key:literal $value:literal])*)?: $help:literal;)+ })+) => {
        /// Every reason, from the device upwards.
        pub const REASONS: &[DropReason] = &[$($(DropReason {
            layer: Layer::$layer,
            name: $name,
            help: $help,
            counter: reasons!(@counter $($counter $([$key $value])*)?),
        },)+)+];
    };
    (@counter) => { None };
    (@counter $counter:literal $([$key:literal $value:literal])*) => {
        Some(Counter { name: $counter, labels: &[$(($key, $value)),*] })
    };
}

reasons! {
    Xdp {
        "program": "An XDP program dropped it (`XDP_DROP`) for a reason that is not known: it is a third-party program, or its maps cannot be read.";
        "aborted": "An XDP program failed (`XDP_ABORTED`).";
        "redirect-failed": "A redirect failed for a reason other than those below.";
        "no-target": "A redirect led to an interface or socket that does not exist or is down.";
        "too-long": "A redirect led to an interface whose MTU is smaller.";
        "udp-header" = "xdp_packets" ["reason" "udp_header"]: "Ours, but packet or frame ends inside the UDP header.";
        "ip-length" = "xdp_packets" ["reason" "ip_length"]: "Ours, but the frame ends before the length that the IP header gives.";
        "udp-length" = "xdp_packets" ["reason" "udp_length"]: "Ours, but the UDP length is below 8 or beyond the IP payload.";
        "blocked" = "guard_packets" ["verdict" "drop"] ["reason" "blocked"]: "The source is on a `guard`'s block list.";
        "banned" = "guard_packets" ["verdict" "drop"] ["reason" "banned"]: "The source is banned by a `guard` for now.";
        "malformed" = "guard_packets" ["verdict" "drop"] ["reason" "malformed"]: "Headers that contradict themselves, each other or the frame's length.";
        "tcp-flags" = "guard_packets" ["verdict" "drop"] ["reason" "tcp_flags"]: "TCP flags that exclude each other, or none.";
        "address" = "guard_packets" ["verdict" "drop"] ["reason" "address"]: "A source that is multicast, loopback, IPv4-mapped or the destination itself.";
        "fragment" = "guard_packets" ["verdict" "drop"] ["reason" "fragment"]: "A fragment.";
        "quic-initial" = "guard_packets" ["verdict" "drop"] ["reason" "quic_initial"]: "A QUIC Initial in a datagram of less than 1200 bytes, or less than any QUIC packet.";
        "quic-version" = "guard_packets" ["verdict" "drop"] ["reason" "quic_version"]: "A QUIC version or connection ID that no client sends.";
        "quic-connection" = "guard_packets" ["verdict" "drop"] ["reason" "quic_connection"]: "A QUIC packet with a connection ID that no server issued.";
        "quic-token" = "guard_packets" ["verdict" "drop"] ["reason" "quic_token"]: "A QUIC Initial with an invalid or expired token.";
        "quic-challenge" = "guard_packets" ["verdict" "drop"] ["reason" "quic_challenge"]: "A QUIC Initial without a token that could not be answered by Retry.";
        "syn" = "guard_packets" ["verdict" "drop"] ["reason" "syn"]: "A TCP SYN whose answer could not be written.";
        "tcp-ack" = "guard_packets" ["verdict" "drop"] ["reason" "tcp_ack"]: "A TCP packet of no connection and without a SYN cookie, beyond what is left for the stack to refuse.";
        "rule" = "guard_packets" ["verdict" "drop"] ["reason" "rule"]: "A rule of a `guard` drops it.";
        "limit" = "guard_packets" ["verdict" "drop"] ["reason" "limit"]: "Over the limit of a rule.";
        "default" = "guard_packets" ["verdict" "drop"] ["reason" "default"]: "No rule of a `guard` matches.";
        "blackhole" = "forward_packets" ["reason" "blackhole"]: "The route of a packet to forward is a blackhole.";
        "no-node" = "balance_packets" ["reason" "no_node"]: "For a service with no node up.";
        "unresolved" = "balance_packets" ["reason" "unresolved"]: "The route to a service's node, or the MAC address there, is unknown.";
        "tunnel-too-big" = "balance_service_drops" ["reason" "too_big"]: "Too big for the tunnel to a service's node, and no ICMP error may be sent for it.";
        "no-room" = "balance_packets" ["reason" "no_room"]: "The driver leaves no room for the header of a tunnel to a service's node.";
        "egress" = "forward_egress" ["result" "refused"]: "The device that a packet was forwarded to did not take it: its ring was full, it is down, or it sends no redirected frames any more. Of a feed's copies, only a full ring counts.";
    }
    Ring {
        "rx-full" = "xdp_rx_ring_full": "The receive ring was full: the process was too slow.";
        "no-frame" = "xdp_rx_dropped": "No frame was free in the fill ring, or the packet did not fit into one.";
        "rx-descriptor" = "xdp_rx_invalid_descs": "The process put a wrong address into the fill ring.";
        "tx-descriptor" = "xdp_tx_invalid_descs": "The process put a wrong descriptor into the transmit ring.";
        "tx-refused": "The device did not take what an AF_XDP socket sent in copy mode: it is down, or its queue was full.";
        "kernel-descriptor" = "dropped_bad_descriptor": "The kernel returned a descriptor outside of the UMEM, or of a frame that was not its own.";
    }
    Udp {
        "malformed" = "dropped_malformed": "A frame that is not a UDP datagram, or has an impossible source address.";
        "checksum" = "dropped_checksum": "A wrong UDP checksum.";
        "truncated" = "dropped_truncated": "A datagram larger than the buffer for it.";
        "socket-full" = "rx_kernel_dropped": "The kernel socket's receive buffer was full, or the checksum wrong.";
        "send-refused" = "dropped_send_refused": "The kernel refused to send a datagram.";
        "no-buffer" = "dropped_no_buffer": "No send buffer became free.";
    }
    Quic {
        "bad-header" = "dropped_bad_header": "A datagram with no valid QUIC header.";
        "bad-initial" = "dropped_bad_initial": "A first packet that is not authentic.";
        "small-initial" = "dropped_small_initial": "An Initial in a datagram of less than 1200 bytes.";
        "short-cid" = "dropped_short_cid": "An Initial whose connection ID has less than 8 bytes.";
        "unknown-version" = "dropped_unknown_version": "An unknown version, in too short a packet to be answered.";
        "unknown-connection" = "dropped_unknown_connection": "A short header of an unknown connection, not answered by a reset.";
        "no-connection" = "dropped_no_connection": "A Handshake or 0-RTT packet of an unknown connection.";
        "server-only" = "dropped_server_only": "A packet that only servers send.";
        "connection-limit" = "dropped_connection_limit": "More connections than configured.";
        "handshake-queue-full" = "dropped_handshake_queue_full": "More handshakes than may wait.";
        "handover-full" = "dropped_handover_full": "The mailbox of the worker that the datagram is for was full.";
        "older-full" = "dropped_older_full": "After an upgrade, the older process that has the connection was behind.";
        "handover-buffer" = "dropped_handover_buffer": "No buffer was free to hand the datagram to its worker.";
        "reply-queue" = "dropped_reply_queue": "More Retry, Version Negotiation and reset packets than may wait.";
        "local-error" = "dropped_local_error": "A connection could not be set up because of a fault of this host.";
        "draining" = "refused_draining": "A new connection while the server shuts down.";
        "invalid-token" = "refused_invalid_token": "A new connection with an invalid Retry token.";
        "rapid-reset" = "refused_rapid_reset": "A client that kept opening and abandoning requests.";
        "received-memory" = "refused_received_memory": "A client whose data cannot be read and took too much memory.";
        "received-timeout" = "refused_received_timeout": "A client that left out data for too long and sent what comes after it.";
        "datagram-frame" = "dropped_datagram_frame": "A DATAGRAM frame (RFC 9221): nothing reads them.";
        "webtransport-stream" = "refused_webtransport_stream": "A stream of an unknown WebTransport session, one too many before its session began, or one without a type in time.";
        "webtransport-session" = "refused_webtransport_session": "A WebTransport session beyond the one of its connection, or refused by what it was for.";
    }
    Tcp {
        "accept" = "tcp_refused" ["reason" "accept"]: "The system had no resources for a connection.";
        "connections" = "tcp_refused" ["reason" "connections"]: "More connections than configured.";
        "address" = "tcp_refused" ["reason" "address"]: "More connections of one address than configured.";
        "shed" = "tcp_refused" ["reason" "shed"]: "The longest idle connection made room for a new one.";
        "proxy" = "tcp_refused" ["reason" "proxy"]: "A wrong or late PROXY header.";
        "handshake" = "tcp_refused" ["reason" "handshake"]: "A TLS handshake that failed.";
        "handshake-timeout" = "tcp_refused" ["reason" "handshake-timeout"]: "A TLS handshake that took too long.";
        "flood" = "tcp_refused" ["reason" "flood"]: "Frames that carry nothing, beyond the allowance.";
        "memory" = "tcp_refused" ["reason" "memory"]: "A connection with more unread data than there is memory for.";
        "malformed" = "tcp_refused" ["reason" "malformed"]: "A client that broke HTTP.";
    }
    Http {
        "header-size" = "refused_header_size": "Header fields beyond the limit (431).";
        "header-size-tcp" = "tcp_refused" ["reason" "header-size"]: "The same over TCP.";
        "header-timeout-tcp" = "tcp_refused" ["reason" "header-timeout"]: "A header section that took too long, over TCP.";
        "malformed" = "refused_malformed": "A malformed request.";
        "goaway" = "refused_goaway": "A request while the server shuts down.";
        "early-data" = "refused_early_data": "More requests waiting for the handshake than one connection may have (425).";
        "request-timeout" = "refused_request_timeout": "A request that took too long to arrive.";
        "request-timeout-tcp" = "tcp_refused" ["reason" "request-timeout"]: "The same over TCP.";
        "response-timeout" = "responses_timed_out": "A client that read nothing of its response.";
        "response-timeout-tcp" = "tcp_refused" ["reason" "response-timeout"]: "The same over TCP.";
        "response-failed" = "responses_failed": "A response whose body failed.";
        "origin-busy" = "origin_refused": "More requests to an origin than configured (503).";
        "hls-full" = "hls_full": "A request that would have to be held, when as many are as may be (503).";
        "hls-segment" = "hls_refused": "A request for a video segment too far in the future (400).";
        "admin-pages" = "admin_refused_pages": "A request to the admin listener whose clients had not read earlier responses (503).";
        "log-queue-full" = "access_log_dropped": "A line of the access log for which its queue was full.";
        "log-failed" = "access_log_failed": "A line of the access log that could not be written.";
    }
    Recv {
        "source": "A datagram from an unwanted source.";
        "surplus": "A datagram that arrived together with the last one wanted, after it.";
        "echo": "A datagram that could not be sent back: empty, too long, or no room.";
        "line": "A datagram to an address that is not a line of the sequenced feed.";
        "reader-quota": "A packet for a reader that held its whole quota.";
        "record": "A datagram that is longer than the longest record.";
    }
    Fanout {
        "source" = "fanout_dropped_source": "A datagram from a source that is not allowed.";
        "empty" = "fanout_dropped_empty": "An empty datagram, which the framing cannot carry.";
        "skipped" = "fanout_skipped_frames": "A datagram that a slow subscriber jumped over.";
        "address" = "fanout_refused_address": "A subscriber whose address is not allowed.";
        "limit" = "fanout_refused_limit": "More subscribers than configured.";
        "limit-address" = "fanout_refused_limit_address": "More subscribers of one address than configured.";
        "busy" = "fanout_refused_busy": "More handshakes than may be in progress.";
        "descriptors" = "fanout_refused_descriptors": "No file descriptor was left for a subscriber.";
        "handshake" = "fanout_refused_handshake": "A handshake that failed.";
        "handshake-timeout" = "fanout_refused_handshake_timeout": "A handshake that took too long.";
        "displaced" = "fanout_refused_displaced": "A slow handshake made room for others.";
        "size" = "fanout_refused_size": "A request or handshake of too many bytes.";
        "origin" = "fanout_refused_origin": "A page whose origin is not allowed.";
        "unforwarded" = "fanout_dropped_unforwarded": "A datagram that forwarding in the kernel cannot take.";
        "private-group" = "fanout_dropped_private": "A datagram to the private group from outside.";
        "rewrite" = "fanout_dropped_rewrite": "Headers that could not be rewritten.";
        "gone" = "fanout_dropped_unknown": "A subscriber that has just gone.";
        "lag-bytes" = "fanout_skipped_lag_bytes": "A subscriber was too many bytes behind.";
        "queue" = "fanout_skipped_queue": "Too many datagrams waited for a subscriber's socket.";
        "lag-age" = "fanout_skipped_lag_age": "A datagram had waited too long for a subscriber's socket.";
        "catching-up" = "fanout_skipped_catching_up": "A slow subscriber had not yet taken everything.";
        "state" = "fanout_skipped_state": "A subscriber's connection had ended.";
        "memory" = "fanout_skipped_memory": "No memory for a subscriber's datagram.";
    }
    Relay {
        "malformed" = "relay_dropped_malformed": "A packet for a room that is not RTP, or came to its RTCP port.";
        "not-allowed" = "relay_dropped_not_allowed": "A packet from an address that may not publish.";
        "second-publisher" = "relay_dropped_second_publisher": "A packet from another address while a publisher is active.";
        "too-long" = "relay_dropped_too_long": "A packet longer than `max_packet`.";
        "ssrc" = "relay_dropped_ssrc": "A packet of one SSRC too many.";
        "duplicate" = "relay_dropped_duplicate": "A packet that arrived twice.";
        "srtp" = "relay_dropped_srtp": "A packet that was not sealed with the right key.";
        "replay" = "relay_dropped_replay": "A sealed packet that arrived before, or too late to tell.";
        "rtcp-malformed" = "relay_dropped_rtcp_malformed": "Malformed RTCP.";
        "rtcp-stranger" = "relay_dropped_rtcp_stranger": "RTCP from an address that neither publishes nor receives.";
        "handover" = "relay_dropped_handover": "A packet for a room of another worker, which was behind.";
        "receiver-skipped" = "relay_receiver_skipped": "A packet for a receiver that was too far behind.";
        "receiver-too-long" = "relay_receiver_dropped_too_long": "A packet longer than what goes to a receiver in one datagram.";
        "repair-refused" = "relay_receiver_repairs_refused": "A request for packets beyond what may be sent again.";
        "session-unknown" = "relay_demux_dropped_fragment": "An ICE request for a WebRTC session that does not exist.";
        "session-stranger" = "relay_demux_dropped_stranger": "DTLS or RTP from an address of no session, or an ICE request from the address of another session.";
        "session-protocol" = "relay_demux_dropped_unknown": "A datagram for sessions that is not a WebRTC protocol.";
        "session-handover" = "relay_demux_dropped_handover": "A datagram for a session of another worker, which was behind.";
        "session-malformed" = "relay_webrtc_dropped_malformed": "A datagram for a session that cannot be read.";
        "session-password" = "relay_webrtc_dropped_password": "An ICE request without the session's password.";
        "session-new-address" = "relay_webrtc_dropped_new_address": "An ICE request from more new addresses than a session may have.";
        "session-codec" = "relay_webrtc_dropped_codec": "A packet of a codec that was not negotiated with a session.";
        "session-waiting" = "relay_webrtc_dropped_waiting": "A datagram for a session with too many waiting.";
        "session-too-long" = "relay_webrtc_dropped_too_long": "A datagram longer than what goes to a session at once.";
        "session-skipped" = "relay_webrtc_skipped": "A packet for a session that was too far behind.";
        "session-token" = "relay_http_refused_token": "A request without a token that allows it (401).";
        "session-offer" = "relay_http_refused_offer": "An offer that cannot be parsed, or has nothing for its room.";
        "session-conflict" = "relay_http_refused_conflict": "An offer to publish into a room that has a publisher (409).";
        "session-limit" = "relay_http_refused_full": "An offer beyond the number of sessions or publishers (503).";
        "session-room" = "relay_http_refused_room": "An offer beyond the number of players of its room (503).";
        "session-address" = "relay_http_refused_address": "An offer beyond the number of sessions or publishers of its address (429).";
        "session-busy" = "relay_http_refused_busy": "An offer for a worker that is behind (503).";
        "session-request" = "relay_http_refused_request": "A request that is neither WHIP nor WHEP.";
        "message" = "relay_webrtc_dropped_message": "A message of a session that is not heard, without a channel, or too long.";
        "message-slow" = "relay_webrtc_dropped_slow_message": "A message on an unreliable channel whose receiver had no room.";
        "message-skipped" = "relay_webrtc_skipped_messages": "A message for a session that was too far behind.";
        "moq-group-too-large" = "relay_moq_dropped_group_too_large": "A group of Media over QUIC that is more than what is kept, or the longest in a full room.";
        "moq-malformed" = "relay_moq_dropped_malformed": "A group that does not consist of whole objects, or of one that is too long.";
        "moq-skipped" = "relay_moq_groups_skipped": "A group that a subscriber was too far behind for.";
        "moq-broadcast" = "relay_moq_refused_broadcast": "A broadcast beyond their number, or with a path that is too long.";
        "moq-limit" = "relay_moq_refused_limit": "A request beyond the number of a session, a broadcast or a track.";
        "moq-not-found" = "relay_moq_refused_not_found": "A request for a broadcast that is not there.";
        "moq-session" = "relay_moq_refused_session": "A session for no room that is there, or without a right to it.";
        "bridge-lost" = "relay_bridge_frames_lost": "A frame from RTP for Media over QUIC with lost packets, or one after a loss and before the next key frame.";
        "bridge-codec" = "relay_bridge_dropped_codec": "A packet of a codec that does not go from RTP to Media over QUIC.";
        "bridge-late" = "relay_bridge_dropped_late": "A packet that came after it was given up.";
        "bridge-malformed" = "relay_bridge_dropped_malformed": "A frame with a packet that is not what its codec has.";
        "bridge-too-long" = "relay_bridge_dropped_too_long": "A frame longer than `max_object`.";
        "bridge-no-parameters" = "relay_bridge_dropped_no_parameters": "A key frame of H.264 without parameter sets in the stream.";
        "bridge-unpublished" = "relay_bridge_dropped_unpublished": "A frame of a group that is more than what is kept, or while a session's broadcast is in the place of the room's.";
    }
}

/// The reason of [`Layer::Xdp`] for a device that does not take what is redirected to it.
pub const EGRESS: &str = "egress";

impl DropReason {
    /// The reason of a layer by its name.
    #[must_use]
    pub fn find(layer: Layer, name: &str) -> Option<&'static Self> {
        REASONS.iter().find(|reason| reason.layer == layer && reason.name == name)
    }

    /// The reason that a sample of a metrics page counts.
    #[must_use]
    pub fn of_sample(name: &str, labels: &[(&'static str, String)]) -> Option<&'static Self> {
        Self::of_series(name, |key, value| labels.iter().any(|(name, given)| *name == key && given == value))
    }

    /// The same, where `is_labelled` says whether a label has a value.
    #[must_use]
    pub fn of_series(name: &str, is_labelled: impl Fn(&str, &str) -> bool) -> Option<&'static Self> {
        REASONS.iter().find(|reason| {
            reason.counter.is_some_and(|counter| {
                counter.name == name && counter.labels.iter().all(|(key, value)| is_labelled(key, value))
            })
        })
    }

    /// Why a program of ours dropped a packet.
    ///
    /// # Panics
    /// Never: a test goes through all of them.
    #[must_use]
    pub fn of_program(drop: XdpDrop) -> &'static Self {
        let (counters, label): (&[&str], _) = match drop {
            XdpDrop::Redirect(counter) => (&["xdp_packets"], counter.name()),
            XdpDrop::Guard(reason) => (&["guard_packets"], reason.name()),
            XdpDrop::Forward(counter) => (&["forward_packets"], counter.name()),
            XdpDrop::Balance(counter) => (&["balance_packets", "balance_service_drops"], counter.name()),
        };
        let counts = |counter: Counter| {
            counters.contains(&counter.name) && counter.labels.contains(&("reason", label))
        };
        REASONS.iter().find(|reason| reason.counter.is_some_and(counts)).expect("each is in the list")
    }

    /// Why a packet with this verdict goes no further; `None` if it does.
    ///
    /// What a redirect to an AF_XDP socket fails with: ENOBUFS for a full receive ring, ENOMEM or ENOSPC for want of a frame
    /// (net/xdp/xsk.c, `__xsk_rcv`); to an interface: ENETDOWN, EMSGSIZE (net/core/dev.h, `xdp_ok_fwd_dev`).
    #[must_use]
    pub fn of_verdict(verdict: Verdict) -> Option<&'static Self> {
        let (layer, name) = match verdict {
            Verdict::Pass | Verdict::Tx | Verdict::Redirect { error: None } => return None,
            Verdict::Drop => (Layer::Xdp, "program"),
            Verdict::Aborted | Verdict::Unknown(_) => (Layer::Xdp, "aborted"),
            Verdict::Redirect { error: Some(error) } => match error {
                libc::ENOBUFS => (Layer::Ring, "rx-full"),
                libc::ENOMEM | libc::ENOSPC => (Layer::Ring, "no-frame"),
                libc::EMSGSIZE | libc::EOVERFLOW => (Layer::Xdp, "too-long"),
                libc::ENETDOWN | libc::ENXIO | libc::EINVAL | libc::ENODEV => (Layer::Xdp, "no-target"),
                _ => (Layer::Xdp, "redirect-failed"),
            },
        };
        Self::find(layer, name)
    }
}

impl fmt::Display for DropReason {
    /// `ring/rx-full`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.layer, self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_and_counters_are_unique() {
        let names: HashSet<_> = REASONS.iter().map(|reason| (reason.layer, reason.name)).collect();
        assert_eq!(names.len(), REASONS.len());
        let counters: Vec<_> = REASONS.iter().filter_map(|reason| reason.counter).collect();
        for (index, counter) in counters.iter().enumerate() {
            assert!(!counters[..index].contains(counter), "{counter:?}");
        }
        assert!(REASONS.is_sorted_by_key(|reason| reason.layer));
    }

    #[test]
    fn samples_are_told_by_name_and_label() {
        let flood = [("worker", "0".to_owned()), ("reason", "flood".to_owned())];
        assert_eq!(DropReason::of_sample("tcp_refused", &flood).unwrap().to_string(), "tcp/flood");
        assert_eq!(DropReason::of_sample("tcp_refused", &[]), None);
        assert_eq!(DropReason::of_sample("dropped_checksum", &flood).unwrap().name, "checksum");
        let passed = [("verdict", "pass".to_owned()), ("reason", "other_pair".to_owned())];
        assert_eq!(DropReason::of_sample("xdp_packets", &passed), None);
        let judged = |verdict: &str| [("verdict", verdict.to_owned()), ("reason", "fragment".to_owned())];
        assert_eq!(
            DropReason::of_sample("guard_packets", &judged("drop")).unwrap().to_string(),
            "xdp/fragment"
        );
        assert_eq!(DropReason::of_sample("guard_packets", &judged("pass")), None);
    }

    #[test]
    fn every_drop_of_our_programs_has_a_reason_of_its_own() {
        let found: Vec<_> = XdpDrop::all().map(DropReason::of_program).collect();
        let names: HashSet<_> = found.iter().map(|reason| reason.name).collect();
        assert_eq!(names.len(), found.len());
        assert!(found.iter().all(|reason| reason.layer == Layer::Xdp));
        // What else is counted of XDP, no program decides.
        let others: Vec<_> = REASONS
            .iter()
            .filter(|reason| reason.layer == Layer::Xdp && reason.counter.is_some())
            .filter(|reason| !names.contains(reason.name))
            .map(|reason| reason.name)
            .collect();
        assert_eq!(others, ["egress"]);
    }

    #[test]
    fn every_verdict_that_ends_a_packet_has_a_reason() {
        for ends in [Verdict::Drop, Verdict::Aborted, Verdict::Unknown(9)] {
            assert!(DropReason::of_verdict(ends).is_some());
        }
        for error in 1..200 {
            assert!(DropReason::of_verdict(Verdict::Redirect { error: Some(error) }).is_some(), "{error}");
        }
        for goes_on in [Verdict::Pass, Verdict::Tx, Verdict::Redirect { error: None }] {
            assert_eq!(DropReason::of_verdict(goes_on), None);
        }
    }

    #[test]
    fn what_a_verdict_ends_has_the_reason_of_its_layer() {
        let redirect = |error| Verdict::Redirect { error: Some(error) };
        for (verdict, reason) in [
            (Verdict::Drop, "xdp/program"),
            (Verdict::Aborted, "xdp/aborted"),
            (Verdict::Unknown(9), "xdp/aborted"),
            (redirect(libc::ENOBUFS), "ring/rx-full"),
            (redirect(libc::ENOSPC), "ring/no-frame"),
            (redirect(libc::EMSGSIZE), "xdp/too-long"),
            (redirect(libc::ENETDOWN), "xdp/no-target"),
            (redirect(libc::EOPNOTSUPP), "xdp/redirect-failed"),
        ] {
            assert_eq!(DropReason::of_verdict(verdict).unwrap().to_string(), reason, "{verdict:?}");
        }
    }
}
