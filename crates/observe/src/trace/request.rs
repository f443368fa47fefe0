//! A request on its way through the process.

use std::net::SocketAddr;

use expressway_netio::trace::Channel;

/// Where a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stamp {
    /// The XDP program or the kernel received the datagram that brought the end of its head.
    Arrived,
    /// The worker took that datagram.
    Taken,
    /// The connection had decrypted it.
    Opened,
    /// The head of the request was complete.
    Request,
    /// The handler had taken it.
    Started,
    /// The head of the response was ready.
    Answered,
    /// QUIC had taken the first of the response's body.
    Body,
    /// The first packets after that head were built.
    Built,
    /// The kernel had these.
    Flushed,
    /// Their frames had come back.
    Completed,
    /// QUIC had taken the end of the response.
    Written,
    /// The client had acknowledged all.
    Acknowledged,
}

/// Who stamped a datagram when it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// The XDP program, which redirected it to an AF_XDP socket.
    Xdp,
    /// The kernel's stack.
    Kernel,
}

impl Receiver {
    /// Who it was, by the way that the datagram came.
    pub(super) const fn of(way: Channel) -> Option<Self> {
        match way {
            Channel::Xsk(_) => Some(Self::Xdp),
            Channel::Kernel | Channel::Tcp => Some(Self::Kernel),
            // Known to whoever took it first, and to nobody.
            Channel::Worker | Channel::Simulated => None,
        }
    }

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Kernel => "kernel",
        }
    }
}

/// As many as there are.
pub(super) const STAMPS: usize = 12;

impl Stamp {
    /// All, in the usual order.
    pub const ALL: [Self; STAMPS] = [
        Self::Arrived,
        Self::Taken,
        Self::Opened,
        Self::Request,
        Self::Started,
        Self::Answered,
        Self::Body,
        Self::Built,
        Self::Flushed,
        Self::Completed,
        Self::Written,
        Self::Acknowledged,
    ];

    /// What it says of a request in a time line.
    fn text(self) -> &'static str {
        match self {
            Self::Arrived => "datagram received",
            Self::Taken => "datagram taken by the worker",
            Self::Opened => "datagram decrypted by the connection",
            Self::Request => "request head complete",
            Self::Started => "handler has taken the request",
            Self::Answered => "response head ready",
            Self::Body => "first of the body with QUIC",
            Self::Built => "first packets built",
            Self::Flushed => "given to the kernel",
            Self::Completed => "frames completed",
            Self::Written => "response with QUIC to its end",
            Self::Acknowledged => "acknowledged by the client",
        }
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arrived => "arrived",
            Self::Taken => "taken",
            Self::Opened => "opened",
            Self::Request => "request",
            Self::Started => "started",
            Self::Answered => "answered",
            Self::Body => "body",
            Self::Built => "built",
            Self::Flushed => "flushed",
            Self::Completed => "completed",
            Self::Written => "written",
            Self::Acknowledged => "acknowledged",
        }
    }
}

/// A request, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The worker.
    pub worker: usize,
    /// The connection's number.
    pub connection: u64,
    /// Its stream.
    pub stream: u64,
    /// Where the client is, and an ID of the connection.
    pub client: Option<(SocketAddr, Box<str>)>,
    /// Method and target.
    pub text: Box<str>,
    /// Who stamped the datagram when it arrived.
    pub receiver: Option<Receiver>,
    /// How the datagram came: `eth0 queue 1`, `kernel socket`.
    pub way_in: String,
    /// How the first packets left, likewise.
    pub way_out: String,
    /// Status code; 0 before.
    pub status: u16,
    /// Who answered.
    pub source: Box<str>,
    /// Octets of the body.
    pub bytes: u64,
    /// All of the response was sent.
    pub complete: bool,
    /// The mark of the first burst.
    pub(super) mark: u64,
    pub(super) times: [Option<u64>; STAMPS],
}

impl Request {
    pub(super) fn new(worker: usize, (connection, stream): (u64, u64), text: Box<str>) -> Self {
        Self {
            worker,
            connection,
            stream,
            client: None,
            text,
            receiver: None,
            way_in: String::new(),
            way_out: String::new(),
            status: 0,
            source: "".into(),
            bytes: 0,
            complete: false,
            mark: 0,
            times: [None; STAMPS],
        }
    }

    /// When it came by there, in nanoseconds of CLOCK_MONOTONIC.
    pub fn time(&self, stamp: Stamp) -> Option<u64> {
        self.times[stamp as usize]
    }

    pub(super) fn set(&mut self, stamp: Stamp, time: u64) {
        self.times[stamp as usize].get_or_insert(time);
    }

    /// A hop in words.
    pub fn hop(&self, stamp: Stamp) -> String {
        let text = stamp.text();
        match (stamp, self.receiver) {
            (Stamp::Arrived, Some(Receiver::Xdp)) => format!("{text} by the XDP program, verdict redirect"),
            (Stamp::Arrived, Some(Receiver::Kernel)) => format!("{text} by the kernel"),
            (Stamp::Taken, _) => format!("{text}: {}", self.way_in),
            (Stamp::Built, _) => format!("{text}: {}", self.way_out),
            _ => text.to_owned(),
        }
    }

    /// When it began.
    pub fn began(&self) -> u64 {
        self.times.iter().flatten().copied().min().unwrap_or(0)
    }

    /// From its beginning to the last that is known of it, in nanoseconds.
    pub fn duration(&self) -> u64 {
        self.times.iter().flatten().copied().max().unwrap_or(0) - self.began()
    }

    /// What is known, by time.
    pub fn line(&self) -> Vec<(u64, Stamp)> {
        let known = Stamp::ALL.into_iter().filter_map(|stamp| Some((self.time(stamp)?, stamp)));
        let mut line: Vec<_> = known.collect();
        line.sort_by_key(|(time, _)| *time);
        line
    }
}
