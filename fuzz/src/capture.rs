//! Target of `expressway_feed::generate::capture`: files of anybody.

use std::io::Cursor;
use std::path::Path;

use expressway_feed::generate::Capture;

use crate::cost::Bound;

/// The longest payload that is replayed.
const LARGEST: usize = 1472;

/// The whole file, and a copy of it.
pub const BOUND: Bound =
    Bound { steps: (24, 2000), allocations: (0, 64), bytes: (16, 640 << 10), peak: (8, 640 << 10) };

/// Payloads are never longer than asked for and times never decrease, packets are counted once each, and a file comes to
/// an end.
pub fn replay(data: &[u8]) {
    let Ok(mut capture) = Capture::read(Path::new("fuzz"), Cursor::new(data.to_vec()), 1.0, LARGEST) else {
        return;
    };
    let (mut payload, mut before, mut found) = (Vec::new(), 0, 0u64);
    while let Ok(Some(due)) = capture.next_payload(&mut payload) {
        assert!((1..=LARGEST).contains(&payload.len()), "{} bytes", payload.len());
        assert!(due >= before, "{due} after {before}");
        payload.clear();
        (before, found) = (due, found + 1);
    }
    assert!(payload.is_empty(), "what is not replayed leaves nothing behind");
    let stats = capture.stats();
    assert_eq!(stats.replayed, found);
    // The smallest block of either format is longer than that.
    let packets = stats.replayed + stats.other + stats.broken + stats.unfit;
    assert!(packets <= data.len() as u64 / 12, "{packets} packets in {} bytes", data.len());
}
