//! Bursts of datagrams, built in frames.

use std::time::Instant;

use expressway_wire::UdpTemplate;

use super::plan::Fallback;
use super::{ExpressIo, HEADERS_V4, HEADERS_V6, UDP_HEADER};
use crate::express::config::HEADER_SPACE;
use crate::express::metadata::Request;
use crate::express::path_cache::Routes;
use crate::express::port::Port;
use crate::io::{Flow, IoError, IoStats, PacketIo, Sent};
use crate::route::Path;

impl<K: PacketIo, R: Routes> ExpressIo<K, R> {
    /// Builds a burst on a port, in frames or in several frames a datagram.
    pub(super) fn build_on(
        &mut self,
        (port, path, hash): (usize, &Path, u64),
        flow: &Flow,
        segment: usize,
        launch: Option<u64>,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let Ok(template) = self.paths.template(flow, path, hash) else {
            return self.fall_back(Fallback::Route, flow, segment, fill);
        };
        let largest = path.mtu.saturating_sub(if template.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 });
        let burst = Burst { template, segment, largest, launch, now: self.now };
        let (port, stats) = (&mut self.ports[port], &mut self.stats);
        Ok(match segment > port.max_in_frame() {
            true => build_parts(port, burst, &mut self.staging, stats, fill),
            false => build(port, burst, stats, fill),
        })
    }
}

/// What is built for: the headers, slices of `segment` bytes of which a datagram may fill `largest`, and the time to
/// leave at. The kernel sends frames above the MTU of a device unasked, and the device or its peer loses them
/// uncounted.
struct Burst<'a> {
    template: &'a UdpTemplate,
    segment: usize,
    largest: usize,
    launch: Option<u64>,
    now: Instant,
}

/// Builds a burst of datagrams larger than a frame: each in `staging`, from where it is copied into frames. Frames
/// that lie side by side would save the copy, but soon none do: completions come back in any order.
fn build_parts(
    port: &mut Port,
    burst: Burst<'_>,
    staging: &mut [u8],
    stats: &mut IoStats,
    fill: &mut dyn FnMut(&mut [u8]) -> usize,
) -> Sent {
    let Burst { template, segment, largest, launch, now } = burst;
    let start = HEADER_SPACE - template.header_len();
    let (checksum, unfinished) = port.checksum(template.header_len() - UDP_HEADER);
    let request = Request { checksum: unfinished, launch, stamp: None };
    let mut sent = Sent::default();
    loop {
        if !port.has_room(template.header_len() + segment) {
            // In copy mode a kick gives frames back at once; else the caller comes again.
            port.flush(now);
            if !port.is_up() || !port.has_room(template.header_len() + segment) {
                sent.blocked = true;
                return sent;
            }
        }
        let length = fill(&mut staging[HEADER_SPACE..HEADER_SPACE + segment]);
        if length == 0 {
            return sent;
        }
        let length = length.min(segment);
        sent.packets += 1;
        sent.bytes += length;
        let packet = match length <= largest {
            true => template.write(&mut staging[start..], length, checksum, 0).ok(),
            false => None,
        };
        if packet.is_some_and(|packet| port.submit_parts(&staging[start..start + packet], request)) {
            stats.tx_express_packets += 1;
            stats.tx_express_bytes += length as u64;
        } else {
            stats.dropped_send_refused += 1;
        }
    }
}

/// Builds a burst in frames of `port`.
fn build(
    port: &mut Port,
    burst: Burst<'_>,
    stats: &mut IoStats,
    fill: &mut dyn FnMut(&mut [u8]) -> usize,
) -> Sent {
    let Burst { template, segment, largest, launch, now } = burst;
    let start = HEADER_SPACE - template.header_len();
    let (checksum, unfinished) = port.checksum(template.header_len() - UDP_HEADER);
    let request = Request { checksum: unfinished, launch, stamp: None };
    let mut sent = Sent::default();
    let mut flushed = false;
    loop {
        let Some(mut frame) = port.acquire() else {
            // In copy mode a kick gives frames back at once; else the caller comes again.
            if flushed || !port.is_up() {
                sent.blocked = true;
                return sent;
            }
            flushed = true;
            port.flush(now);
            continue;
        };
        flushed = false;
        let bytes = frame.bytes();
        let length = fill(&mut bytes[HEADER_SPACE..HEADER_SPACE + segment]);
        if length == 0 {
            return sent;
        }
        let length = length.min(segment);
        // Accepted either way: what cannot be sent is counted as dropped, as the kernel socket does it.
        sent.packets += 1;
        sent.bytes += length;
        if length > largest {
            stats.dropped_send_refused += 1;
            continue;
        }
        // UMEM frames have the room and the template was checked, so only a datagram that no header can
        // describe fails; IPv4 identification may be 0 in packets that are not fragmented (RFC 6864).
        let packet = template.write(&mut bytes[start..], length, checksum, 0);
        if !packet.is_ok_and(|packet| frame.submit(start..start + packet, request)) {
            stats.dropped_send_refused += 1;
            continue;
        }
        stats.tx_express_packets += 1;
        stats.tx_express_bytes += length as u64;
    }
}
