//! Datagrams that did not reach the callback, by reason.

use std::collections::BTreeMap;

use expressway_dataplane::DataPath;
use expressway_feed::receive::Counters;
use expressway_netio::IoStats;
use expressway_xbpf::Verdict;

/// Every reason that is counted, with its count, 0 included.
pub(super) fn of(path: &DataPath, counters: &Counters, io: &IoStats) -> BTreeMap<String, u64> {
    let mut losses: BTreeMap<String, u64> = [
        // At the kernel's socket: its buffer was full, or a checksum wrong.
        ("kernel_socket", io.rx_kernel_dropped),
        // At AF_XDP sockets (XDP_STATISTICS). An empty fill ring loses no packet of its own: in copy mode the packet
        // is among `rx_dropped` (`__xsk_rcv` in net/xdp/xsk.c), in zero-copy mode it waits in the NIC or is lost there.
        ("xdp_rx_ring_full", io.xdp_rx_ring_full),
        ("xdp_rx_dropped", io.xdp_rx_dropped),
        ("xdp_rx_invalid_descs", io.xdp_rx_invalid_descs),
        ("bad_descriptor", io.dropped_bad_descriptor),
        ("malformed", io.dropped_malformed),
        ("checksum", io.dropped_checksum),
        ("truncated", io.dropped_truncated),
        ("other_source", counters.dropped_source),
        ("surplus", counters.dropped_surplus),
    ]
    .map(|(reason, count)| (reason.to_owned(), count))
    .into();
    for (_, program) in path.counters() {
        for (counter, packets) in program.iter().filter(|(counter, _)| counter.verdict() == Verdict::Drop) {
            *losses.entry(format!("xdp_program_{}", counter.name())).or_default() += packets;
        }
    }
    losses
}
