//! Target of WebRTC: one worker with a room and a session in it, and a peer that says what it likes, within DTLS and SRTP too. Media are not
//! encrypted, and DTLS of the peer's takes what the script has for it.

mod peer;
mod plain;
mod script;
mod server;

use crate::cost::Bound;
use script::Script;

/// All of a peer's datagrams, headers of IPv4 and UDP included.
const PEER: Bound =
    Bound { steps: (640, 9_000_000), allocations: (8, 4000), bytes: (1200, 1 << 20), peak: (4800, 400_000) };

/// One turn of the worker, with what it received.
const TURN: Bound =
    Bound { steps: (640, 9_000_000), allocations: (8, 4000), bytes: (1200, 1 << 20), peak: (4800, 400_000) };

/// The first byte says how the peer behaves, see [`script`]; then come its steps.
pub fn session(data: &[u8]) {
    let Some((&manner, steps)) = data.split_first() else { return };
    Script::new(manner).run(steps);
}
