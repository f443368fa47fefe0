//! No client has a worker to itself for longer than a piece of its work takes.

use crate::world::{Build, World};

/// Requests of `/slow`, each of which takes more than a turn's slice.
const REQUESTS: u64 = 16;

fn turns(world: &World) -> u64 {
    world.server.stats().iter().map(|stats| stats.turns().turns()).sum()
}

#[test]
fn requests_that_come_together_have_a_turn_each() {
    let world = Build::default().world();
    let mut wire = world.connect();
    wire.get("/bytes/1");
    let before = turns(&world);
    wire.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n".repeat(REQUESTS as usize));
    for _ in 0..REQUESTS {
        assert!(wire.response().0.starts_with("HTTP/1.1 200"));
    }
    let taken = turns(&world) - before;
    assert!(taken >= REQUESTS, "{taken} turns");
    assert!(world.server.stats()[0].turns().longest >= 1_000_000);
}
