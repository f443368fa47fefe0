//! What devices do besides sending: checksums, once they are shown to be right, and transmit time stamps.

use expressway_wire::ChecksumMode;

use super::{ExpressIo, UDP_HEADER};
use crate::express::config::HEADER_SPACE;
use crate::express::hints::{ChecksumProbe, ChecksumProof, PROBE_LEN};
use crate::express::metadata::{Request, TransmitTime, Unfinished};
use crate::express::path_cache::Routes;
use crate::io::{Flow, PacketIo};

impl<K: PacketIo, R: Routes> ExpressIo<K, R> {
    /// Fetches the time stamps of datagrams sent by AF_XDP, with the index of their port, oldest first. A port keeps
    /// as many as its ring has entries; those it could not keep are counted in `tx_stamps_unfetched`.
    pub fn transmit_times(&mut self, visit: &mut dyn FnMut(u16, TransmitTime)) {
        for (index, port) in self.ports.iter_mut().enumerate() {
            while let Some(time) = port.next_stamp() {
                visit(index as u16, time);
            }
        }
    }

    /// Sends a datagram of `flow` whose checksum is left to the device, for a receiver that judges it
    /// ([`ChecksumProbe::judge`]). It leaves with the next flush. `None` where the flow leaves by the kernel socket,
    /// or its port was granted no checksums.
    pub fn send_checksum_probe(&mut self, flow: &Flow) -> Option<ChecksumProbe> {
        let hash = self.paths.hash(flow);
        let (port, path) = self.plan(flow, PROBE_LEN, hash).ok()?;
        let template = self.paths.template(flow, &path, hash).ok()?;
        let port = &mut self.ports[port];
        if !port.grants().checksum.is_granted() {
            return None;
        }
        let start = HEADER_SPACE - template.header_len();
        let udp = template.header_len() - UDP_HEADER;
        let probe = ChecksumProbe::new(port.ifindex(), port.queue(), self.probes);
        self.probes += 1;
        let mut frame = port.acquire()?;
        let bytes = frame.bytes();
        bytes[HEADER_SPACE..HEADER_SPACE + PROBE_LEN].copy_from_slice(&probe.payload);
        let packet = template.write(&mut bytes[start..], PROBE_LEN, ChecksumMode::PseudoOnly, 0).ok()?;
        let checksum = Some(Unfinished { start: udp as u16, offset: 6 });
        frame.submit(start..start + packet, Request { checksum, ..Request::default() }).then_some(probe)
    }

    /// Leaves the checksums of the port that a probe was sent by to its device, until its socket is opened anew. False
    /// where that port is gone.
    pub fn trust_checksum(&mut self, proof: &ChecksumProof) -> bool {
        self.ports.iter_mut().any(|port| port.trust_checksum(proof))
    }
}
