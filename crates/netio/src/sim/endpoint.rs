//! An endpoint of the simulated network, as packet I/O.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::alarm::Alarm;
use super::link::header_bytes;
use super::network::Network;
use crate::io::{Datagram, Flow, IoError, IoStats, PacketIo, Sent, Via};

/// Datagrams received at once, as the kernel backend does.
const BATCH: usize = 64;

/// Transmit buffers: small enough that tests meet `blocked` as services do on AF_XDP.
const TRANSMIT_BUFFERS: usize = 512;

/// The largest payload that UDP can name.
const MAX_PAYLOAD: usize = 65_507;

/// Packet I/O over a [`Network`]. Dropping it leaves the network.
///
/// Its counters are the `kernel` ones of [`IoStats`].
pub struct SimIo {
    network: Network,
    index: usize,
    alarm: Option<Arc<Alarm>>,
    staged: Vec<Staged>,
    stats: IoStats,
}

struct Staged {
    flow: Flow,
    payload: Vec<u8>,
}

impl std::fmt::Debug for SimIo {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SimIo").field("index", &self.index).finish_non_exhaustive()
    }
}

impl SimIo {
    pub(super) fn new(network: Network, index: usize, alarm: Option<Arc<Alarm>>) -> Self {
        let staged = Vec::with_capacity(TRANSMIT_BUFFERS);
        Self { network, index, alarm, staged, stats: IoStats::default() }
    }

    /// The network that it belongs to.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Fills one buffer; the payload's length, 0 when the burst has ended.
    fn stage(&mut self, flow: &Flow, segment: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> usize {
        let mut payload = self.network.lock().buffer(segment);
        let len = fill(&mut payload).min(segment);
        if len == 0 {
            self.network.lock().recycle(payload);
            return 0;
        }
        payload.truncate(len);
        self.staged.push(Staged { flow: *flow, payload });
        len
    }
}

impl PacketIo for SimIo {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        let mut received = 0;
        while received < BATCH {
            // Not locked during `sink`: another thread's endpoint goes on meanwhile.
            let Some(mut arrival) = self.network.lock().take(self.index, now) else { break };
            received += 1;
            self.stats.rx_kernel_packets += 1;
            self.stats.rx_kernel_bytes += arrival.payload.len() as u64;
            sink(Datagram {
                payload: &mut arrival.payload,
                remote: arrival.remote,
                local: arrival.local,
                ecn: arrival.ecn,
                via: Via::Simulated,
                hints: Default::default(),
            });
            self.network.lock().recycle(arrival.payload);
        }
        if self.alarm.is_some() {
            self.network.lock().set_alarm(self.index);
        }
        Ok(received)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let mut sent = Sent::default();
        if !(1..=MAX_PAYLOAD).contains(&segment) {
            return Err(IoError::Socket {
                what: format!("sim: transmit with a segment of {segment} bytes (1 to {MAX_PAYLOAD})"),
                source: std::io::ErrorKind::InvalidInput.into(),
            });
        }
        loop {
            if self.staged.len() == TRANSMIT_BUFFERS {
                sent.blocked = true;
                break;
            }
            let len = self.stage(flow, segment, fill);
            if len == 0 {
                break;
            }
            sent.packets += 1;
            sent.bytes += len;
        }
        Ok(sent)
    }

    fn flush(&mut self, now: Instant) -> Result<(), IoError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let mut state = self.network.lock();
        for Staged { flow, payload } in self.staged.drain(..) {
            let mtu = state.mtu(flow.local.ip(), flow.remote.ip());
            let fits = payload.len() + header_bytes(flow.remote.is_ipv4()) <= mtu;
            let allowed = state.owns(self.index, flow.local) && flow.local.is_ipv4() == flow.remote.is_ipv4();
            if fits && allowed {
                self.stats.tx_kernel_packets += 1;
                self.stats.tx_kernel_bytes += payload.len() as u64;
                state.send(now, (flow.local, flow.remote), flow.ecn, payload);
            } else {
                self.stats.dropped_send_refused += 1;
                state.recycle(payload);
            }
        }
        Ok(())
    }

    fn max_payload(&mut self, flow: &Flow) -> usize {
        let mtu = self.network.lock().mtu(flow.local.ip(), flow.remote.ip());
        mtu.saturating_sub(header_bytes(flow.remote.is_ipv4())).min(MAX_PAYLOAD)
    }

    /// The alarm of a network in real time; none under a virtual clock, where nobody sleeps.
    fn descriptors(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        if let Some(alarm) = &self.alarm {
            visit(alarm.as_fd());
        }
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn stats(&self) -> IoStats {
        self.stats
    }
}

impl Drop for SimIo {
    fn drop(&mut self) {
        self.network.lock().unbind(self.index);
    }
}
