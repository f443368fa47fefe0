//! Incoming messages and their fields.

use expressway_h3::varint;

use super::write::message;
use super::{Body, MAX_HOPS, MAX_MESSAGE, MAX_NAME, MAX_PATH, Message, Problem, body};

/// Parameters of a SETUP at most.
const MAX_PARAMETERS: u64 = 64;

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
