//! Any packet.

use etherparse::Ipv4Header;
use expressway_xbpf::BalanceMethod::*;
use proptest::prelude::*;

use super::bed::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever arrives: one counter, what passes is unchanged, what leaves has right checksums in its outer header.
    #[test]
    fn any_packet_has_one_verdict(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 64),
        cut in any::<prop::sample::Index>(),
        method in prop::sample::select(vec![L2, Ipip, Gue]),
        ipv6 in any::<bool>(),
    ) {
        let Some(bed) = Bed::new(method, ipv6) else { return Ok(()) };
        for frame in all_packets() {
            for pair in changes.chunks(2) {
                let mut frame = frame.clone();
                for (at, value, _) in pair {
                    let end = frame.len().min(80);
                    frame[at.index(end)] = *value;
                }
                let (counter, run) = bed.run(&frame);
                if counter.verdict() == "tx" && run.frame[12..14] == [8, 0] {
                    let header = Ipv4Header::from_slice(&run.frame[14..]).unwrap().0;
                    let valid = Ipv4Header::from_slice(&frame[14..])
                        .is_ok_and(|(header, _)| header.calc_header_checksum() == header.header_checksum);
                    if method != L2 || valid {
                        prop_assert_eq!(header.calc_header_checksum(), header.header_checksum);
                    }
                }
            }
            let length = 14 + cut.index(frame.len() - 14);
            bed.run(&frame[..length]);
        }
    }
}
