//! The programs that count flows, as the verifier takes them.

use expressway_xbpf::{FlowOptions, FlowPrograms};

use super::support::permitted;

#[test]
fn as_many_devices_as_there_may_be_are_not_too_many_for_the_verifier() {
    // Nobody's: nothing is counted.
    let devices: Vec<u32> = (0..FlowPrograms::DEVICES as u32).map(|number| 1_000_000 + number).collect();
    let options = FlowOptions {
        interface: 1_000_000,
        devices: devices.clone(),
        sent_queues: 0x5555,
        tags: [(0x88a8, 7), (0x8100, 9)],
        netns: 1,
        ethernet: true,
        short_cid: 20,
    };
    let Some(programs) = permitted(FlowPrograms::load(options)) else { return };
    // Only what a kernel does not let be attached is missing.
    let too_large = |note: &&String| note.contains("too large") || note.contains("Argument list too long");
    assert_eq!(programs.notes().iter().find(too_large), None);
    assert!(programs.hooks() > 0);
    assert!(programs.queues().unwrap().is_empty());
}
