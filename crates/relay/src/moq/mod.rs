//! Media over QUIC: sessions publish broadcasts into rooms and subscribe to tracks of them.
//!
//! ```text
//!  publisher ─▶ QUIC endpoint ─▶ session ─▶ Track: groups as they came ─┬▶ session ─▶ endpoint ─▶ subscriber
//!               (gateway::quic)     ▲       (one copy, bounded)          └▶ …
//!                                   └── Room: broadcasts by path; who asks for which track
//! ```
//!
//! * [`wire`]: messages of moq-lite-05, and where frames begin and end.
//! * [`room`]: broadcasts by path, and limits; [`broadcast`]: one, its tracks and its publisher.
//! * [`track`]: groups that are kept, and who follows them; [`cache`]: what all tracks of a room may keep.
//! * [`wakers`]: how thousands hear that something is new.
//! * `session`: one QUIC connection, which publishes, subscribes or both.
//! * [`application`]: what the endpoint makes sessions with: rooms and rights.
//!
//! # What it stands on
//!
//! Connections are those of [`expressway_gateway::quic::Endpoint`], which an HTTP/3 server has too: packets are opened and sealed in the
//! frames that they come and leave in, and Retry, migration, pacing and path MTU are the same. The endpoint is one of the services of a
//! relay's worker; which of them a datagram is for is told by the address that it came to. A session is on the worker that its
//! connection came to, and rooms are shared by all: a track has a lock, held while one chunk is added or looked at.
//!
//! # Why our own
//!
//! moq-net (0.3.18) was looked at. It is a whole relay with a model of its own: tasks that wake each other across threads, a frame
//! written again for each subscriber, messages of up to 64 MiB kept before they are read, and routes among relays. Here an object is kept in the
//! octets that it came in, and QUIC takes those of one buffer for all subscribers, whatever the session; every list and every length has a
//! limit; and no turn of a worker is long. What is left of the protocol then are 15 short messages. moq-net is a peer in the tests
//! instead.
//!
//! # What is spoken
//!
//! moq-lite-05 over QUIC, agreed on by ALPN. The client names its room in the path of SETUP. Requests are streams of their own, so none waits
//! for another, and each group is a stream.
//!
//! # Who is slow
//!
//! A subscriber has at most [`CONCURRENT`](session::CONCURRENT) groups under way, each as far as its connection takes it, and no new one while it takes
//! no more of another. Nothing waits for it: when a group is older than the subscriber wants while its connection takes no more of it, or is not
//! kept any more, its stream is reset, and the subscriber goes on with the newest group from its start. What is on its way to a subscriber and not
//! acknowledged is counted, by session and of all; a session that holds as much as it may is like one whose connection takes no more.

pub mod application;
pub mod broadcast;
pub mod cache;
pub mod room;
pub mod session;
pub mod track;
pub mod wakers;
pub mod wire;

pub use application::{Moq, Rights, Sessions};
