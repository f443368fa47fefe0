//! Media over QUIC: sessions publish broadcasts into rooms and subscribe to tracks of them.
//!
//! ```text
//!  publisher ─▶ QUIC endpoint ─▶ session ─▶ Track: groups as they came ─┬▶ session ─▶ endpoint ─▶ subscriber
//!               (gateway::quic)     ▲       (one copy, bounded)          └▶ …
//!                                   └── Room: broadcasts by path; who asks for which track
//! ```
//!
//! * [`wire`]: messages of moq-lite-05, and the boundaries of frames.
//! * [`room`]: broadcasts by path, and limits; [`broadcast`]: one broadcast, its tracks and its publisher.
//! * [`track`]: the groups that are kept, and their subscribers; [`cache`]: how much all tracks of a room may keep.
//! * [`local`]: broadcasts that are not of a session.
//! * [`wakers`]: wakes thousands of sessions when there is something new.
//! * `session`: one QUIC connection, or one WebTransport session, which publishes, subscribes or both.
//! * [`application`]: what the endpoint needs to create sessions: rooms and rights.
//!
//! # Connections
//!
//! Connections are those of [`expressway_gateway::quic::Endpoint`], as for an HTTP/3 server. Packets are opened and sealed in the frames
//! that they arrive and leave in, and Retry, migration, pacing and path MTU are the same. The endpoint is one of the services of a
//! relay's worker; the local address of a datagram says which service it is for. A session is on the worker that its connection came to,
//! but all workers share the rooms. A track has a lock, which is held while one chunk is added or read.
//!
//! # Why our own
//!
//! moq-net (0.3.18) was evaluated. It is a complete relay with its own model. Its tasks wake each other across threads, it writes a frame
//! again for each subscriber, keeps messages of up to 64 MiB before they are read, and has routes among relays. Here, an object is kept as the
//! bytes that it came in, and QUIC sends them from one buffer to all subscribers. Every list and every length is limited, and no turn of a
//! worker is long. What is left of the protocol is 15 short messages. moq-net is a peer in the tests.
//!
//! # Protocol
//!
//! moq-lite-05, over QUIC, negotiated by ALPN, and over WebTransport ([`expressway_gateway::webtransport`]), negotiated by its header field.
//! The client names its room in the path of SETUP, or of the URL that it asks for. Each request has a stream of its own, so none
//! waits for another, and each group is a stream. A session does not know which of both it is over.
//!
//! # Slow subscribers
//!
//! A subscriber has at most [`CONCURRENT`](session::CONCURRENT) groups in progress, each as far as its connection accepts data. It gets no
//! new group while its connection accepts no more of another. Nothing waits for it. Suppose that its connection accepts no more of a group,
//! and the group becomes older than the subscriber wants, or is no longer kept. Then the group's stream is reset, and the subscriber goes
//! on at the start of the newest group. Bytes that a subscriber has not acknowledged are counted, per session and in total. A session that
//! has reached its limit is treated like one whose connection accepts no more.

pub mod application;
pub mod broadcast;
pub mod cache;
pub mod local;
pub mod room;
pub mod session;
pub mod track;
pub mod wakers;
pub mod wire;

pub use application::{Access, Moq, Rights, Sessions};
