//! Targets of QUIC: one worker with its QUIC endpoint, the engine behind it and HTTP/3 or Media over QUIC on top, and a client that says
//! what it likes. The engine is built so that packets are not encrypted (quiche's feature `fuzzing`), so that the client's
//! frames, and not only its packets, are the fuzzer's to choose.

mod packet;
mod script;
mod server;

use std::sync::{Arc, LazyLock};

use expressway_gateway::quic::{Settings, Setup};
use expressway_relay::moq::room::{Limits, Room};
use expressway_relay::moq::{Access, Moq, Sessions};

use crate::cost::Bound;
use crate::identity::TLS;
use script::{Script, Speaks};
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
    Script::new(Speaks::Http3, manner, &mut server).run(steps);
    server.finish();
}

/// The same with Media over QUIC. The room is a new one for each input, with so little room that groups are given up.
pub fn moq(data: &[u8]) {
    let Some((&manner, steps)) = data.split_first() else { return };
    let limits = Limits { track_cache: 16 << 10, room_cache: 24 << 10, frame: 8 << 10, ..Limits::default() };
    let room = Room::new("a", limits);
    let application = Moq::new([Arc::clone(&room)], Access::default(), Sessions::default());
    let mut server = Server::of(&Arc::new(Setup { settings: SETTINGS.clone(), application }));
    Script::new(Speaks::Moq, manner, &mut server).run(steps);
    server.finish();
    assert!(room.cached() <= 24 << 10, "{} bytes are kept", room.cached());
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings::new(Arc::clone(&TLS)));
