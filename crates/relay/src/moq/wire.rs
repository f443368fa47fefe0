//! Messages of moq-lite-05 (draft-lcurley-moq-lite): what is read of streams, and what is written on them.
//!
//! A stream begins with its type; then come messages, each with its length in front. Integers are those of QUIC (RFC 9000, section 16).
//! Everything here works on what is there: [`Incomplete`](Problem::Incomplete) says that more has to come. Nothing is kept or
//! copied for a length that a peer claims: a message is at most [`MAX_MESSAGE`] long, and the bytes are the stream's.

use expressway_h3::varint;

/// The longest message that is read, in bytes: a path, a name and a chain of hops fit three times.
pub const MAX_MESSAGE: usize = 4096;
/// The longest path of a broadcast, in bytes.
pub const MAX_PATH: usize = 512;
/// The longest name of a track, in bytes.
pub const MAX_NAME: usize = 256;
/// Relays that a broadcast has passed at most.
pub const MAX_HOPS: usize = 32;
/// Parameters of a SETUP at most.
const MAX_PARAMETERS: u64 = 64;

/// Codes that a session is closed with (draft-lcurley-moq-lite, Error Codes).
pub mod session_code {
    /// Nothing is wrong.
    pub const CANCEL: u64 = 0x0;
    /// There is no such room, or no right to it.
    pub const UNAUTHORIZED: u64 = 0x2;
    /// The peer broke the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 0x3;
    /// The peer stayed after GOAWAY.
    pub const GOAWAY_TIMEOUT: u64 = 0x10;
    /// The peer said nothing of itself in time.
    pub const TIMEOUT: u64 = 0x11;
}

/// Codes that a stream is reset with (draft-lcurley-moq-lite, Error Codes).
pub mod stream_code {
    /// Nobody wants it any more.
    pub const CANCEL: u64 = 0x1;
    /// The session that it came from has ended.
    pub const SESSION_CLOSED: u64 = 0x3;
    /// Frames that are none.
    pub const MALFORMED: u64 = 0x12;
    /// More than this side does for one peer.
    pub const NO_CAPACITY: u64 = 0x30;
    /// The group is larger than what is kept.
    pub const GROUP_TOO_LARGE: u64 = 0x32;
    /// There is no such broadcast, track or group.
    pub const NOT_FOUND: u64 = 0x33;
    /// The group is older than the subscriber wants.
    pub const OLD: u64 = 0x34;
    /// The group is not kept any more.
    pub const EVICTED: u64 = 0x35;
}

/// Types of streams in both directions.
pub mod request {
    /// ANNOUNCE_REQUEST, then ANNOUNCE_OK and ANNOUNCE_BROADCAST.
    pub const ANNOUNCE: u64 = 1;
    /// SUBSCRIBE, then SUBSCRIBE_START, SUBSCRIBE_END and SUBSCRIBE_DROP.
    pub const SUBSCRIBE: u64 = 2;
    /// FETCH, then frames.
    pub const FETCH: u64 = 3;
    /// PROBE.
    pub const PROBE: u64 = 4;
    /// GOAWAY.
    pub const GOAWAY: u64 = 5;
    /// TRACK, then TRACK_INFO.
    pub const TRACK: u64 = 6;
}

/// Types of streams in one direction.
pub mod data {
    /// GROUP, then frames.
    pub const GROUP: u64 = 0;
    /// SETUP.
    pub const SETUP: u64 = 1;
}

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Not all of it is there.
    Incomplete,
    /// It can never be read; the words are for the peer.
    Invalid(&'static str),
}

/// A reader of the body of a message, which is all there: what is missing is an error.
#[derive(Debug)]
pub struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn integer(&mut self) -> Result<u64, Problem> {
        let (value, length) =
            varint::read(self.0).ok_or(Problem::Invalid("a message ends within a field"))?;
        self.0 = &self.0[length..];
        Ok(value)
    }

    fn octet(&mut self) -> Result<u8, Problem> {
        let (first, rest) = self.0.split_first().ok_or(Problem::Invalid("a message ends within a field"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn octets(&mut self) -> Result<&'a [u8], Problem> {
        let length = usize::try_from(self.integer()?).unwrap_or(usize::MAX);
        if length > self.0.len() {
            return Err(Problem::Invalid("a field is longer than its message"));
        }
        let (octets, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(octets)
    }

    fn text(&mut self, longest: usize) -> Result<&'a str, Problem> {
        let octets = self.octets()?;
        if octets.len() > longest {
            return Err(Problem::Invalid("a path or name is too long"));
        }
        std::str::from_utf8(octets).map_err(|_| Problem::Invalid("a path or name is not UTF-8"))
    }

    /// An integer that is absent as 0, and one too high otherwise.
    fn optional(&mut self) -> Result<Option<u64>, Problem> {
        Ok(self.integer()?.checked_sub(1))
    }

    fn end(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::Invalid("a message is longer than its fields")) }
    }
}

/// The type at the front of a stream, and its length.
pub fn stream_type(input: &[u8]) -> Option<(u64, usize)> {
    varint::read(input)
}

/// The body of the message at the front of `input`, and the length of both.
fn body(input: &[u8]) -> Result<(Body<'_>, usize), Problem> {
    let (length, prefix) = varint::read(input).ok_or(Problem::Incomplete)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        return Err(Problem::Invalid("a message is too long"));
    }
    match input.get(prefix..prefix + length) {
        Some(body) => Ok((Body(body), prefix + length)),
        None => Err(Problem::Incomplete),
    }
}

/// A message that can be read.
pub trait Message<'a>: Sized {
    /// Reads the fields.
    ///
    /// # Errors
    /// A field that cannot be.
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem>;

    /// The message at the front of `input`, and its length.
    ///
    /// # Errors
    /// [`Problem::Incomplete`] until all of it is there.
    fn read(input: &'a [u8]) -> Result<(Self, usize), Problem> {
        let (mut body, length) = body(input)?;
        let message = Self::fields(&mut body)?;
        body.end()?;
        Ok((message, length))
    }
}

/// SETUP: what a peer says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup<'a> {
    /// Path and query of the URL that it asks for.
    pub path: Option<&'a str>,
}

/// The parameter of SETUP that has the path.
const PARAMETER_PATH: u64 = 2;

impl<'a> Message<'a> for Setup<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        let count = body.integer()?;
        if count > MAX_PARAMETERS {
            return Err(Problem::Invalid("too many parameters"));
        }
        let mut path = None;
        for _ in 0..count {
            let kind = body.integer()?;
            if kind == PARAMETER_PATH {
                if path.is_some() {
                    return Err(Problem::Invalid("a parameter is there twice"));
                }
                path = Some(body.text(MAX_MESSAGE)?);
            } else {
                body.octets()?;
            }
        }
        Ok(Self { path })
    }
}

/// ANNOUNCE_REQUEST: what broadcasts are there, from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnounceRequest<'a> {
    /// What their paths begin with, in whole segments.
    pub prefix: &'a str,
    /// Those that have passed this relay are not wanted; 0: all are.
    pub exclude_hop: u64,
}

impl<'a> Message<'a> for AnnounceRequest<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        Ok(Self { prefix: body.text(MAX_PATH)?, exclude_hop: body.integer()? })
    }
}

/// ANNOUNCE_OK: who answers, and how many broadcasts follow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnounceOk {
    /// The hop that the sender is; 0: it has no number.
    pub origin: u64,
    /// Messages that are there already.
    pub active: u64,
}

impl<'a> Message<'a> for AnnounceOk {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        Ok(Self { origin: body.integer()?, active: body.integer()? })
    }
}

/// ANNOUNCE_BROADCAST: a broadcast is there, or not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announce<'a> {
    /// It is there; false: not any more.
    pub is_active: bool,
    /// Its path behind the prefix that was asked for.
    pub suffix: &'a str,
    /// Relays that it has passed, the publisher's side first.
    pub hops: Vec<u64>,
}

impl<'a> Message<'a> for Announce<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        let is_active = match body.octet()? {
            0 => false,
            1 | 2 => true,
            _ => return Err(Problem::Invalid("an announcement of no known kind")),
        };
        let suffix = body.text(MAX_PATH)?;
        let count = body.integer()?;
        if count > MAX_HOPS as u64 {
            return Err(Problem::Invalid("too many hops"));
        }
        let hops = (0..count).map(|_| body.integer()).collect::<Result<_, _>>()?;
        Ok(Self { is_active, suffix, hops })
    }
}

/// SUBSCRIBE: a track is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// The number that groups are sent with.
    pub id: u64,
    /// The path of the broadcast.
    pub broadcast: &'a str,
    /// The name of the track.
    pub track: &'a str,
    /// What may change later.
    pub wishes: Wishes,
}

/// What a subscriber wants of a track; SUBSCRIBE_UPDATE consists of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Higher goes first.
    pub priority: u8,
    /// How far behind the newest group one may be before it is skipped, in milliseconds.
    pub max_age: u64,
    /// The first group; `None`: the latest.
    pub start: Option<u64>,
    /// The last group; `None`: there is no last one.
    pub end: Option<u64>,
}

impl<'a> Message<'a> for Wishes {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        let priority = body.octet()?;
        // The order of groups, which is the same for all by now.
        body.octet()?;
        Ok(Self { priority, max_age: body.integer()?, start: body.optional()?, end: body.optional()? })
    }
}

impl<'a> Message<'a> for Subscribe<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        let (id, broadcast, track) = (body.integer()?, body.text(MAX_PATH)?, body.text(MAX_NAME)?);
        Ok(Self { id, broadcast, track, wishes: Wishes::fields(body)? })
    }
}

/// TRACK: what a track is like is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track<'a> {
    /// The path of the broadcast.
    pub broadcast: &'a str,
    /// The name of the track.
    pub track: &'a str,
}

impl<'a> Message<'a> for Track<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        Ok(Self { broadcast: body.text(MAX_PATH)?, track: body.text(MAX_NAME)? })
    }
}

/// TRACK_INFO: what a track is like as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackInfo {
    /// Of two with the same priority of a subscriber's, the higher goes first.
    pub priority: u8,
    /// How long the publisher keeps a group when there is a newer one, in milliseconds.
    pub max_age: u64,
    /// Units of a frame's time in a second.
    pub timescale: u64,
}

impl<'a> Message<'a> for TrackInfo {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        let priority = body.octet()?;
        body.octet()?;
        let info = Self { priority, max_age: body.integer()?, timescale: body.integer()? };
        if info.timescale == 0 {
            return Err(Problem::Invalid("a timescale of 0"));
        }
        Ok(info)
    }
}

/// FETCH: one group is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch<'a> {
    /// The path of the broadcast.
    pub broadcast: &'a str,
    /// The name of the track.
    pub track: &'a str,
    /// Higher goes first.
    pub priority: u8,
    /// The group.
    pub group: u64,
}

impl<'a> Message<'a> for Fetch<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        Ok(Self {
            broadcast: body.text(MAX_PATH)?,
            track: body.text(MAX_NAME)?,
            priority: body.octet()?,
            group: body.integer()?,
        })
    }
}

/// GOAWAY: the session is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goaway<'a> {
    /// Where to go; empty: here.
    pub uri: &'a str,
}

impl<'a> Message<'a> for Goaway<'a> {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        Ok(Self { uri: body.text(MAX_MESSAGE)? })
    }
}

/// GROUP: what the frames that follow belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of the subscription.
    pub subscription: u64,
    /// The number of the group.
    pub sequence: u64,
}

impl<'a> Message<'a> for Group {
    fn fields(body: &mut Body<'a>) -> Result<Self, Problem> {
        Ok(Self { subscription: body.integer()?, sequence: body.integer()? })
    }
}

/// An answer on the stream of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// SUBSCRIBE_START: the first group.
    Start(u64),
    /// SUBSCRIBE_END: there will be no group from this one on.
    End(u64),
    /// SUBSCRIBE_DROP: these groups do not come, both included.
    Drop {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
        /// Why: a code of a stream.
        code: u64,
    },
}

impl Answer {
    /// The answer at the front of `input`, and its length.
    ///
    /// # Errors
    /// [`Problem::Incomplete`] until all of it is there.
    pub fn read(input: &[u8]) -> Result<(Self, usize), Problem> {
        let (kind, prefix) = varint::read(input).ok_or(Problem::Incomplete)?;
        let (mut body, length) = body(&input[prefix..])?;
        let answer = match kind {
            0 => Self::Start(body.integer()?),
            1 => Self::End(body.integer()?),
            2 => Self::Drop { first: body.integer()?, last: body.integer()?, code: body.integer()? },
            _ => return Err(Problem::Invalid("an answer of no known kind")),
        };
        body.end()?;
        Ok((answer, prefix + length))
    }

    /// Appends it.
    pub fn write(self, out: &mut Vec<u8>) {
        let (kind, fields) = match self {
            Self::Start(group) => (0, vec![group]),
            Self::End(group) => (1, vec![group]),
            Self::Drop { first, last, code } => (2, vec![first, last, code]),
        };
        varint::write(kind, out);
        message(out, |body| fields.iter().for_each(|field| varint::write(*field, body)));
    }
}

/// Appends a message, its length in front.
fn message(out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    fields(&mut body);
    varint::write(body.len() as u64, out);
    out.append(&mut body);
}

fn text(value: &str, out: &mut Vec<u8>) {
    varint::write(value.len() as u64, out);
    out.extend_from_slice(value.as_bytes());
}

/// Writers, each of what begins a stream or answers on one.
pub mod write {
    use super::{Announce, Group, MAX_HOPS, TrackInfo, Wishes, data, message, request, text};
    use expressway_h3::varint;

    /// The stream that says what this side is: nothing that a peer would need to know.
    pub fn setup() -> Vec<u8> {
        let mut out = vec![data::SETUP as u8];
        message(&mut out, |body| varint::write(0, body));
        out
    }

    /// The head of a group's stream.
    pub fn group(group: Group) -> Vec<u8> {
        let mut out = vec![data::GROUP as u8];
        message(&mut out, |body| {
            varint::write(group.subscription, body);
            varint::write(group.sequence, body);
        });
        out
    }

    /// The request for all announcements but those that passed the hop `own`.
    pub fn announce_request(own: u64) -> Vec<u8> {
        let mut out = vec![request::ANNOUNCE as u8];
        message(&mut out, |body| {
            text("", body);
            varint::write(own, body);
        });
        out
    }

    /// ANNOUNCE_OK of the hop `own`, and how many announcements follow at once.
    pub fn announce_ok(own: u64, active: u64, out: &mut Vec<u8>) {
        message(out, |body| {
            varint::write(own, body);
            varint::write(active, body);
        });
    }

    /// ANNOUNCE_BROADCAST.
    pub fn announce(announce: &Announce<'_>, out: &mut Vec<u8>) {
        message(out, |body| {
            body.push(u8::from(announce.is_active));
            text(announce.suffix, body);
            let hops = &announce.hops[..announce.hops.len().min(MAX_HOPS)];
            varint::write(hops.len() as u64, body);
            hops.iter().for_each(|hop| varint::write(*hop, body));
        });
    }

    /// The request for what a track is like.
    pub fn track(broadcast: &str, track: &str) -> Vec<u8> {
        let mut out = vec![request::TRACK as u8];
        message(&mut out, |body| {
            text(broadcast, body);
            text(track, body);
        });
        out
    }

    /// TRACK_INFO.
    pub fn track_info(info: TrackInfo) -> Vec<u8> {
        let mut out = Vec::new();
        message(&mut out, |body| {
            body.extend([info.priority, 0]);
            varint::write(info.max_age, body);
            varint::write(info.timescale, body);
        });
        out
    }

    /// The request for a track.
    pub fn subscribe(id: u64, broadcast: &str, track: &str, wishes: Wishes) -> Vec<u8> {
        let mut out = vec![request::SUBSCRIBE as u8];
        message(&mut out, |body| {
            varint::write(id, body);
            text(broadcast, body);
            text(track, body);
            body.extend([wishes.priority, 0]);
            varint::write(wishes.max_age, body);
            for bound in [wishes.start, wishes.end] {
                varint::write(bound.map_or(0, |bound| bound.saturating_add(1).min(varint::MAX)), body);
            }
        });
        out
    }

    /// The stream that says that the session is to end, and to go nowhere else.
    pub fn goaway() -> Vec<u8> {
        let mut out = vec![request::GOAWAY as u8];
        message(&mut out, |body| text("", body));
        out
    }
}

/// Follows the frames on a stream, so that a group is known to consist of whole ones.
///
/// A frame is the difference of its time to that of the frame before, its length, and as many octets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frames {
    state: State,
    /// Frames that have ended.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Before a frame.
    #[default]
    Between,
    /// Within the integer that is a frame's time, or that is its length: octets that are missing, and its value up to them.
    Head { is_length: bool, missing: u8, value: u64 },
    /// Before the length.
    Length,
    /// Octets of the frame that are missing.
    Payload(u64),
}

impl Frames {
    /// Takes in what has come next. Frames longer than `longest` are refused.
    ///
    /// # Errors
    /// What is wrong.
    pub fn follow(&mut self, mut input: &[u8], longest: u64) -> Result<(), &'static str> {
        while let Some((&first, rest)) = input.split_first() {
            match self.state {
                State::Between | State::Length => {
                    input = rest;
                    let missing = varint::len_of(first) as u8 - 1;
                    let is_length = matches!(self.state, State::Length);
                    self.state = State::Head { is_length, missing, value: u64::from(first & 0x3f) };
                    self.settle(longest)?;
                }
                State::Head { is_length, missing, value } => {
                    input = rest;
                    let value = value << 8 | u64::from(first);
                    self.state = State::Head { is_length, missing: missing - 1, value };
                    self.settle(longest)?;
                }
                State::Payload(missing) => {
                    let taken = missing.min(input.len() as u64);
                    input = &input[taken as usize..];
                    self.state = State::Payload(missing - taken);
                    self.settle_payload();
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self, longest: u64) -> Result<(), &'static str> {
        match self.state {
            State::Head { is_length: false, missing: 0, .. } => self.state = State::Length,
            State::Head { is_length: true, missing: 0, value } => {
                if value > longest {
                    return Err("a frame is too long");
                }
                self.state = State::Payload(value);
                self.settle_payload();
            }
            _ => {}
        }
        Ok(())
    }

    fn settle_payload(&mut self) {
        if let State::Payload(0) = self.state {
            self.state = State::Between;
            self.count += 1;
        }
    }

    /// The last frame is complete.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, State::Between)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<'a, M: Message<'a>>(input: &'a [u8]) -> Result<M, Problem> {
        let (message, length) = M::read(input)?;
        assert_eq!(length, input.len());
        Ok(message)
    }

    #[test]
    fn what_is_written_is_read() {
        let wishes = Wishes { priority: 7, max_age: 10_000, start: None, end: Some(9) };
        let subscribe = Subscribe { id: 3, broadcast: "cam/1", track: "video", wishes };
        let written = write::subscribe(3, "cam/1", "video", wishes);
        assert_eq!(written[0], 2);
        assert_eq!(read(&written[1..]), Ok(subscribe));
        let group = Group { subscription: 3, sequence: 1 << 40 };
        assert_eq!(read(&write::group(group)[1..]), Ok(group));
        let info = TrackInfo { priority: 1, max_age: 5000, timescale: 1_000_000 };
        assert_eq!(read(&write::track_info(info)), Ok(info));
        assert_eq!(read(&write::track("a", "b")[1..]), Ok(Track { broadcast: "a", track: "b" }));
        let asked = AnnounceRequest { prefix: "", exclude_hop: 77 };
        assert_eq!(read(&write::announce_request(77)[1..]), Ok(asked));
        let mut out = Vec::new();
        let announce = Announce { is_active: true, suffix: "cam", hops: vec![1, 1 << 50] };
        write::announce(&announce, &mut out);
        assert_eq!(read(&out), Ok(announce));
        out.clear();
        write::announce_ok(5, 2, &mut out);
        assert_eq!(read(&out), Ok(AnnounceOk { origin: 5, active: 2 }));
        assert_eq!(read(&write::setup()[1..]), Ok(Setup { path: None }));
        assert_eq!(read(&write::goaway()[1..]), Ok(Goaway { uri: "" }));
        for answer in [Answer::Start(4), Answer::End(1 << 30), Answer::Drop { first: 1, last: 2, code: 0x34 }]
        {
            let mut out = Vec::new();
            answer.write(&mut out);
            assert_eq!(Answer::read(&out), Ok((answer, out.len())));
            for cut in 0..out.len() {
                assert_eq!(Answer::read(&out[..cut]), Err(Problem::Incomplete));
            }
        }
    }

    #[test]
    fn lengths_that_are_claimed_cost_nothing() {
        let huge = [0xff; 8];
        assert_eq!(Setup::read(&huge), Err(Problem::Invalid("a message is too long")));
        // A message of 9 octets whose path claims to have 2^62.
        let mut path = vec![9];
        path.extend(huge);
        path.push(0);
        assert!(matches!(AnnounceRequest::read(&path), Err(Problem::Invalid(_))));
        assert!(matches!(Setup::read(&[2, 0x40, 0x41]), Err(Problem::Invalid("too many parameters"))));
        let long = "x".repeat(MAX_PATH + 1);
        let written = write::track(&long, "t");
        assert_eq!(Track::read(&written[1..]), Err(Problem::Invalid("a path or name is too long")));
        let mut hops = Vec::new();
        message(&mut hops, |body| body.extend([1, 0, MAX_HOPS as u8 + 1]));
        assert_eq!(Announce::read(&hops), Err(Problem::Invalid("too many hops")));
        assert_eq!(Group::read(&[3, 1, 1, 1]), Err(Problem::Invalid("a message is longer than its fields")));
        assert_eq!(TrackInfo::read(&[4, 0, 0, 1, 0]), Err(Problem::Invalid("a timescale of 0")));
        assert_eq!(Track::read(&[4, 1, 0xff, 1, b'a']), Err(Problem::Invalid("a path or name is not UTF-8")));
    }

    #[test]
    fn frames_are_followed_wherever_they_are_cut() {
        let mut stream = Vec::new();
        for (time, length) in [(4000_u64, 3_usize), (1, 0), (66, 70)] {
            varint::write(time, &mut stream);
            varint::write(length as u64, &mut stream);
            stream.extend(std::iter::repeat_n(0xff, length));
        }
        for cut in 0..=stream.len() {
            let mut frames = Frames::default();
            frames.follow(&stream[..cut], 100).unwrap();
            frames.follow(&stream[cut..], 100).unwrap();
            assert!(frames.is_whole());
            assert_eq!(frames.count, 3);
        }
        let mut frames = Frames::default();
        frames.follow(&stream[..stream.len() - 1], 100).unwrap();
        assert!(!frames.is_whole());
        assert_eq!(Frames::default().follow(&stream, 69), Err("a frame is too long"));
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Setup::read(&input);
            let _ = AnnounceRequest::read(&input);
            let _ = AnnounceOk::read(&input);
            let _ = Subscribe::read(&input);
            let _ = Wishes::read(&input);
            let _ = Track::read(&input);
            let _ = TrackInfo::read(&input);
            let _ = Fetch::read(&input);
            let _ = Goaway::read(&input);
            let _ = Answer::read(&input);
            if let Ok((announce, length)) = Announce::read(&input) {
                prop_assert!(length <= input.len());
                let mut again = Vec::new();
                write::announce(&announce, &mut again);
                let reread = Announce::read(&again).map(|(announce, _)| announce);
                prop_assert_eq!(reread, Ok(announce.clone()));
            }
            let mut frames = Frames::default();
            let _ = frames.follow(&input, 1 << 20);
            prop_assert!(frames.count <= input.len() as u64);
        }
    }
}
