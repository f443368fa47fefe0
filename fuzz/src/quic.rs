//! Target of the gateway: one worker with its QUIC endpoint, the engine behind it and HTTP/3 on top, and a client that says
//! what it likes. The engine is built so that packets are not encrypted (quiche's feature `fuzzing`), so that the client's
//! frames, and not only its packets, are the fuzzer's to choose.

mod packet;
mod script;
mod server;

use crate::cost::Bound;
use script::Script;
use server::Server;

/// All of a client's datagrams, headers of IPv4 and UDP included.
const CLIENT: Bound =
    Bound { steps: (4000, 400_000), allocations: (40, 4000), bytes: (8000, 4 << 20), peak: (4000, 2 << 20) };

/// One turn of the worker, with what it received.
const TURN: Bound = Bound {
    steps: (6000, 400_000),
    allocations: (60, 4000),
    bytes: (10_000, 4 << 20),
    peak: (4000, 2 << 20),
};

/// The first byte says how the client behaves, see [`script`]; then come its steps.
pub fn endpoint(data: &[u8]) {
    let Some((&manner, steps)) = data.split_first() else { return };
    let mut server = Server::new();
    Script::new(manner, &mut server).run(steps);
    server.finish();
}
