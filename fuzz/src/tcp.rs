//! Target of `expressway-tcp`: what a load balancer says before TLS.

use expressway_tcp::fuzzing::proxy_header;

use crate::cost::Bound;

/// A header, of which at most two kilobytes are read.
pub const PROXY: Bound =
    Bound { steps: (20, 4_000), allocations: (0, 20), bytes: (0, 4 << 10), peak: (0, 4 << 10) };

/// A header is read to its end and no further.
pub fn proxy(data: &[u8]) {
    let (said, rest) = proxy_header(data);
    let read = data.len() - rest.len();
    if let Ok(address) = said {
        assert!((15..=16 + 2048).contains(&read), "a header of {read} bytes: {address:?}");
        let (again, none) = proxy_header(&data[..read]);
        assert!(again.is_ok_and(|again| again == address) && none.is_empty());
    }
}
