//! Trials of a binding before it is given to a worker: a probe frame that has to be completed, and what sending costs.
//!
//! Both send frames that go from the interface's own hardware address to itself, so that no station but this
//! one is meant and no switch passes them on: a probe is one frame of Ethernet type 0x88b5; a
//! [`Calibration`] is at most [`CALIBRATION_FRAMES`] UDP datagrams each way.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use expressway_wire::{ChecksumMode, MacAddr};
use rustix::time::{ClockId, clock_gettime};

use super::binding::{BindingState, XskBinding};
use super::config::HEADER_SPACE;
use super::interface::{Interfaces, LinkState};
use crate::packet::{HEADERS, KernelSender, ProbeListener, calibration_headers, probe_frame};
use crate::route::OwnNamespace;

/// Datagrams that a calibration sends each way, at most.
pub const CALIBRATION_FRAMES: usize = 512;
/// Rounds that they are sent in, in turn, so that a disturbance does not meet one way alone.
const ROUNDS: usize = 4;
/// Time that one round of one way may take: what is not sent by then is not measured.
const ROUND_TIME: Duration = Duration::from_millis(50);
/// Payload of a datagram where the MTU allows, bytes: what a full QUIC packet has, about.
const PAYLOAD: usize = 1400;
/// Datagrams in one GSO message.
const GSO_DATAGRAMS: usize = 32;
/// Pause between two looks at the completion ring of a silent queue.
const PAUSE: Duration = Duration::from_micros(100);

/// Why a binding failed its trial.
#[derive(Debug, thiserror::Error)]
#[error("{interface} queue {queue}: {problem}")]
pub struct TrialError {
    /// Interface.
    pub interface: String,
    /// Queue.
    pub queue: u32,
    /// What was not as it must be.
    pub problem: TrialProblem,
}

/// What a trial found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialProblem {
    /// The probe frame was not completed in time: the transmit queue is silent.
    Silent(Duration),
    /// It was completed, but has not arrived at the other end in time.
    Lost(Duration),
    /// No frame came free, or the socket failed on the way.
    Failed,
    /// The socket only receives.
    Receives,
}

impl fmt::Display for TrialProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(time) => write!(f, "AF_XDP: a probe frame was not completed within {time:?}"),
            Self::Lost(time) => {
                write!(f, "AF_XDP: a probe frame was completed but did not arrive within {time:?}")
            }
            Self::Failed => write!(f, "AF_XDP: a probe frame could not be sent"),
            Self::Receives => write!(f, "AF_XDP: the socket was opened receive-only"),
        }
    }
}

/// How a probe went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The frame was completed, and arrived where somebody listened.
    Passed,
    /// The link is down, so nothing can be said.
    LinkDown,
}

/// What one datagram of [`Calibration::payload`] bytes cost the sending thread, system calls and softirqs run in
/// them included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Bytes of payload of each datagram.
    pub payload: usize,
    /// By AF_XDP on the binding, headers and checksum written by this process; nanoseconds.
    pub xsk: u64,
    /// By the kernel, in GSO messages segmented below the socket; nanoseconds. `None` before Linux 6.2.
    pub gso: Option<u64>,
    /// By the kernel, one datagram a message; nanoseconds.
    pub single: Option<u64>,
}

impl XskBinding {
    /// Waits for the link, which is one of the calling thread's network namespace: some drivers restart it when an
    /// XDP program comes. True if it is up.
    pub fn wait_for_link(&mut self, patience: Duration) -> io::Result<bool> {
        let interfaces = Interfaces::open(&OwnNamespace)?;
        let deadline = Instant::now() + patience;
        loop {
            let state = interfaces.state(self.ifindex());
            if state == LinkState::Up || Instant::now() >= deadline {
                self.set_link(state);
                return Ok(state == LinkState::Up);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends one probe frame, which has to be completed, and to arrive at `listener` where there is one, within
    /// `patience`. `mac` is the interface's own address.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn probe(
        &mut self,
        mac: MacAddr,
        listener: Option<&ProbeListener>,
        patience: Duration,
    ) -> Result<ProbeOutcome, TrialError> {
        let nonce = clock_gettime(ClockId::Monotonic).tv_nsec as u64 ^ u64::from(std::process::id()) << 32;
        let frame = probe_frame(mac, nonce);
        let start = Instant::now();
        let deadline = start + patience;
        if !self.sends() {
            return Err(self.failed(TrialProblem::Receives));
        }
        if self.report().state == BindingState::Down {
            return Ok(ProbeOutcome::LinkDown);
        }
        let before = self.completed();
        let built = self.alloc().is_some_and(|mut slot| {
            slot.bytes()[..frame.len()].copy_from_slice(&frame);
            slot.submit(0..frame.len())
        });
        if !built {
            return Err(self.failed(TrialProblem::Failed));
        }
        loop {
            self.send(Instant::now());
            self.recycle();
            match self.report().state {
                BindingState::Up => {}
                BindingState::Down => return Ok(ProbeOutcome::LinkDown),
                BindingState::Reopening | BindingState::Gone => return Err(self.failed(TrialProblem::Failed)),
            }
            if self.completed() > before {
                break;
            }
            if Instant::now() >= deadline {
                return Err(self.failed(TrialProblem::Silent(patience)));
            }
            std::thread::sleep(PAUSE);
        }
        match listener {
            Some(listener) if !listener.wait(nonce, deadline) => {
                Err(self.failed(TrialProblem::Lost(patience)))
            }
            _ => Ok(ProbeOutcome::Passed),
        }
    }

    /// Measures what sending costs by this binding and by the kernel's ways, in turn, on an interface of the calling
    /// thread's network namespace. `None` when too little was sent in time to say: the link is down or slow, or the
    /// device refuses.
    pub fn calibrate(&mut self, mac: MacAddr, mtu: usize) -> Option<Calibration> {
        if !self.sends() {
            return None;
        }
        let payload = PAYLOAD.min(self.max_in_frame()).min(mtu.checked_sub(HEADERS - 14)?);
        let template = calibration_headers(mac).template().ok()?;
        let start = HEADER_SPACE - template.header_len();
        let gso = KernelSender::open(self.ifindex(), mac, payload, GSO_DATAGRAMS).ok();
        let single = KernelSender::open(self.ifindex(), mac, payload, 1).ok();
        let (mut xsk_cost, mut gso_cost, mut single_cost) = (None, None, None);
        for _ in 0..ROUNDS {
            least(
                &mut xsk_cost,
                self.round(|slot| {
                    template
                        .write(&mut slot[start..], payload, ChecksumMode::Full, 0)
                        .map_or(0..0, |length| start..start + length)
                }),
            );
            for (sender, cost) in [(&gso, &mut gso_cost), (&single, &mut single_cost)] {
                if let Some(sender) = sender {
                    least(cost, kernel_round(sender));
                }
            }
        }
        Some(Calibration { payload, xsk: xsk_cost?, gso: gso_cost, single: single_cost })
    }

    /// Sends one round by AF_XDP: nanoseconds a frame, if all of it was completed in time.
    fn round(&mut self, mut build: impl FnMut(&mut [u8]) -> std::ops::Range<usize>) -> Option<u64> {
        const FRAMES: u64 = (CALIBRATION_FRAMES / ROUNDS) as u64;
        let deadline = Instant::now() + ROUND_TIME;
        let before = self.completed();
        let clock = thread_time();
        let mut built = 0;
        while self.completed() - before < FRAMES {
            while built < FRAMES {
                let Some(mut slot) = self.alloc() else { break };
                let range = build(slot.bytes());
                if range.is_empty() || !slot.submit(range) {
                    return None;
                }
                built += 1;
            }
            self.send(Instant::now());
            self.recycle();
            if self.report().state != BindingState::Up || Instant::now() >= deadline {
                return None;
            }
        }
        Some((thread_time() - clock) / FRAMES)
    }

    fn failed(&self, problem: TrialProblem) -> TrialError {
        let report = self.report();
        TrialError { interface: report.interface, queue: report.queue, problem }
    }
}

/// Sends one round by the kernel: nanoseconds a datagram.
fn kernel_round(sender: &KernelSender) -> Option<u64> {
    let messages = (CALIBRATION_FRAMES / ROUNDS).div_ceil(sender.datagrams);
    let deadline = Instant::now() + ROUND_TIME;
    let clock = thread_time();
    for _ in 0..messages {
        if sender.send().is_err() || Instant::now() >= deadline {
            return None;
        }
    }
    Some((thread_time() - clock) / (messages * sender.datagrams) as u64)
}

/// Keeps the least of what was measured: what disturbs only adds.
fn least(best: &mut Option<u64>, measured: Option<u64>) {
    if let Some(measured) = measured {
        *best = Some(best.map_or(measured, |best| best.min(measured)));
    }
}

/// Nanoseconds that this thread has run, in the kernel too.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
