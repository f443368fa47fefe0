//! Low-latency HLS from files: requests that wait for data which does not exist yet.
//!
//! A request for a playlist that names a future segment or part is held until the file has it. A request for a part
//! that a watched playlist hints at is held until the playlist has moved on. A held request costs an entry in a list.
//! While requests wait for a playlist, a reader thread checks it a few times a second, once for all of them, and reads
//! it if it has changed. This also works where processes are not notified of changes (network file systems), and needs
//! no rights beyond those for serving files. If a playlist is truncated or replaced by something else meanwhile,
//! requests keep waiting.

mod exchange;
mod holds;
mod playlist;
mod reload;
mod watch;

use std::time::Duration;

pub(super) use exchange::HeldExchange;
pub(super) use holds::Holds;
pub use reload::{is_blocking_reload, is_directive, is_playlist};

use reload::{Malformed, Reload};
use watch::Registration;

/// What of a site's requests may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HlsOptions {
    /// The longest time that a request is held; three target durations if that is less.
    pub max_hold: Duration,
    /// Also hold requests for what a playlist hints at (EXT-X-PRELOAD-HINT).
    pub preload_hints: bool,
    /// Requests that are held at most; more are answered 503.
    pub max_held: usize,
}

/// Requests of a site that are held at most, unless configured. Each costs an entry in a list and is looked at whenever its playlist
/// changes.
pub const MAX_HELD: usize = 16_384;

/// Whether a request is held.
pub(in crate::files) enum Entered {
    /// It need not be.
    AtOnce,
    Held(Registration),
    /// It would have to be, and too many are.
    Full,
}

/// What a request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::files) enum Wanted {
    Reload(Reload),
    /// A file that a playlist hints at: that it no longer does.
    Hinted(Box<[u8]>),
}

impl Wanted {
    /// What a request for `path` waits for, if it has to by its query. An error is malformed.
    pub(super) fn of(path: &[u8], query: Option<&str>) -> Result<Option<Self>, ()> {
        match query {
            Some(query) if is_playlist(path) => match Reload::parse(query) {
                Ok(reload) => Ok(reload.map(Self::Reload)),
                Err(Malformed) => Err(()),
            },
            _ => Ok(None),
        }
    }
}
