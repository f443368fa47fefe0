//! Bursts of datagrams, built in frames.

use std::ops::Range;
use std::time::Instant;

use expressway_wire::{ChecksumMode, UdpTemplate};

use super::plan::Fallback;
use super::{HEADERS_V4, HEADERS_V6, XskIo};
use crate::io::{Flow, IoError, IoStats, PacketIo, Sent};
use crate::route::Path;
use crate::xsk::binding::XskBinding;
use crate::xsk::config::HEADER_SPACE;
use crate::xsk::path_cache::Routes;

impl<K: PacketIo, R: Routes> XskIo<K, R> {
    /// Builds a burst on a binding, in frames or in several frames a datagram.
    pub(super) fn build_on(
        &mut self,
        (binding, path, hash): (usize, &Path, u64),
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let Ok(template) = self.paths.template(flow, path, hash) else {
            return self.fall_back(Fallback::Route, flow, segment, fill);
        };
        let (binding, stats) = (&mut self.bindings[binding], &mut self.stats);
        let burst = Burst {
            template,
            segment,
            largest: path.mtu.saturating_sub(if template.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 }),
            now: self.now,
        };
        Ok(match segment > binding.max_in_frame() {
            true => build_parts(binding, &burst, &mut self.staging, stats, fill),
            false => build(binding, &burst, stats, fill),
        })
    }
}

/// What is built for: the headers, and slices of `segment` bytes of which a datagram may fill `largest`. The kernel sends frames above the MTU of a device unasked, and the device or its peer loses
/// them uncounted.
struct Burst<'a> {
    template: &'a UdpTemplate,
    segment: usize,
    largest: usize,
    now: Instant,
}

impl Burst<'_> {
    /// Writes headers in front of the `length` bytes of payload that `buffer` has behind [`HEADER_SPACE`]. Returns
    /// where the packet lies; `None` if it cannot be sent.
    fn write(&self, buffer: &mut [u8], length: usize) -> Option<Range<usize>> {
        if length > self.largest {
            return None;
        }
        let start = HEADER_SPACE - self.template.header_len();
        // Buffers have the room and the template was checked, so only a datagram that no header can describe
        // fails; IPv4 identification may be 0 in packets that are not fragmented (RFC 6864).
        let packet = self.template.write(&mut buffer[start..], length, ChecksumMode::Full, 0).ok()?;
        Some(start..start + packet)
    }
}

/// Counts a datagram of `length` bytes that was accepted: what cannot be sent as dropped, as the kernel socket does it.
fn count(sent: &mut Sent, stats: &mut IoStats, length: usize, is_submitted: bool) {
    sent.packets += 1;
    sent.bytes += length;
    if is_submitted {
        stats.tx_xsk_packets += 1;
        stats.tx_xsk_bytes += length as u64;
    } else {
        stats.dropped_send_refused += 1;
    }
}

/// Builds a burst of datagrams larger than a frame: each in `staging`, from where it is copied into frames. Frames
/// that lie side by side would save the copy, but soon none do: completions come back in any order.
fn build_parts(
    binding: &mut XskBinding,
    burst: &Burst<'_>,
    staging: &mut [u8],
    stats: &mut IoStats,
    fill: &mut dyn FnMut(&mut [u8]) -> usize,
) -> Sent {
    let packet_len = burst.template.header_len() + burst.segment;
    let mut sent = Sent::default();
    loop {
        if !binding.has_room(packet_len) {
            // In copy mode a kick gives frames back at once; else the caller comes again.
            binding.send(burst.now);
            if !binding.is_up() || !binding.has_room(packet_len) {
                sent.blocked = true;
                return sent;
            }
        }
        let length = fill(&mut staging[HEADER_SPACE..HEADER_SPACE + burst.segment]);
        if length == 0 {
            return sent;
        }
        let length = length.min(burst.segment);
        let packet = burst.write(staging, length);
        let submitted = packet.is_some_and(|packet| binding.submit_parts(&staging[packet]));
        count(&mut sent, stats, length, submitted);
    }
}

/// Builds a burst in frames of `binding`.
fn build(
    binding: &mut XskBinding,
    burst: &Burst<'_>,
    stats: &mut IoStats,
    fill: &mut dyn FnMut(&mut [u8]) -> usize,
) -> Sent {
    let mut sent = Sent::default();
    let mut flushed = false;
    loop {
        let Some(mut frame) = binding.alloc() else {
            // In copy mode a kick gives frames back at once; else the caller comes again.
            if flushed || !binding.is_up() {
                sent.blocked = true;
                return sent;
            }
            flushed = true;
            binding.send(burst.now);
            continue;
        };
        flushed = false;
        let bytes = frame.bytes();
        let length = fill(&mut bytes[HEADER_SPACE..HEADER_SPACE + burst.segment]);
        if length == 0 {
            return sent;
        }
        let length = length.min(burst.segment);
        let packet = burst.write(bytes, length);
        let submitted = packet.is_some_and(|packet| frame.submit(packet));
        count(&mut sent, stats, length, submitted);
    }
}
