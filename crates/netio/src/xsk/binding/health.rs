//! The state of a binding: links that go down and come back, sockets that fail and are replaced.

use std::time::{Duration, Instant};

use super::opener::{Opener, Reopened};
use super::{BindingState, XskBinding};
use crate::xsk::config::{FailurePolicy, Fitted, TransmitVia, XskConfig};
use crate::xsk::engine::can_open;
use crate::xsk::error::OpenError;
use crate::xsk::interface::LinkState;

/// A transmit queue that completes nothing for this long although it is kicked is dead. Longer than any
/// driver's transmit watchdog is quiet (5 s is their usual `watchdog_timeo`, after which they reset).
pub(super) const STALL_TIME: Duration = Duration::from_secs(6);
/// Kicks without a completion that it takes besides: time alone also passes while the worker sleeps.
const STALL_KICKS: u32 = 16;
/// First pause before a failed socket is opened anew; doubles up to [`REOPEN_LONGEST`] with each try that
/// fails and each socket that fails before it has lived that long.
pub(super) const REOPEN_FIRST: Duration = Duration::from_millis(50);
/// Longest pause between two tries to open a socket anew.
pub(super) const REOPEN_LONGEST: Duration = Duration::from_secs(5);
/// Between two looks for the answer of another process that makes sockets.
const ANSWER_INTERVAL: Duration = Duration::from_millis(5);
/// Failures farther apart than this are not held against each other.
pub(super) const FAILURE_MEMORY: Duration = Duration::from_secs(600);
/// Failures to send, and to receive, after which [`FailurePolicy::Demote`] gives up: the first may be a driver's
/// reset; receiving is given up later because the whole queue goes with it.
const SEND_FAILURES: u32 = 2;
pub(super) const RECEIVE_FAILURES: u32 = 3;

/// What a socket failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Send,
    Receive,
}

impl XskBinding {
    /// Follows a change of the link.
    pub(crate) fn set_link(&mut self, link: LinkState) {
        let state = match (self.state, link) {
            (BindingState::Up | BindingState::Down, LinkState::Up) => BindingState::Up,
            (BindingState::Up | BindingState::Down, LinkState::Down) => BindingState::Down,
            (_, LinkState::Gone) => BindingState::Gone,
            (state, _) => state,
        };
        if state == self.state {
            return;
        }
        self.state = state;
        let (interface, queue) = (&self.config.interface, self.config.queue);
        match state {
            BindingState::Up => tracing::info!(interface, queue, "link is up: sending by AF_XDP again"),
            BindingState::Down => {
                tracing::warn!(interface, queue, "link is down: sending by the kernel socket")
            }
            BindingState::Reopening | BindingState::Gone => {
                tracing::warn!(interface, queue, "interface removed: falling back to the kernel socket");
                self.reason = Some("the interface was removed".into());
                self.close();
            }
        }
        self.publish();
    }

    /// The configuration for the interface as it is now, to be bound at once or not.
    fn fit(&self) -> Fitted {
        let asked = XskConfig { frame_size: self.frame_size, ..self.config.clone() };
        asked.fit(self.mtu).within(Duration::ZERO)
    }

    /// Follows a change of the MTU: a socket that takes one frame a packet is replaced once packets may be
    /// larger. Without the privilege to open another it stays, and the kernel drops what is larger than a frame.
    pub(crate) fn set_mtu(&mut self, now: Instant, mtu: u32) {
        self.mtu = mtu;
        let fitted = self.fit();
        let grows = fitted.multi_buffer() || fitted.frame_size > self.config.frame_size;
        if !grows || self.multi_buffer || self.active.is_none() {
            return;
        }
        let (interface, queue) = (&self.config.interface, self.config.queue);
        if let (Opener::Local(_), Err(error)) = (&self.opener, can_open()) {
            let reason = format!(
                "packets larger than a frame are dropped: MTU raised to {mtu}, and the socket cannot be reopened: {error}"
            );
            if self.reason.as_ref() != Some(&reason) {
                tracing::error!(interface, queue, "{reason}; restart the process");
                self.reason = Some(reason);
                self.publish();
            }
            return;
        }
        tracing::info!(
            interface,
            queue,
            mtu,
            "MTU raised beyond the frame size: reopening the AF_XDP socket"
        );
        self.close();
        (self.config.frame_size, self.multi_buffer) = (fitted.frame_size, fitted.multi_buffer());
        self.state = BindingState::Reopening;
        self.next_try = now;
        self.publish();
    }

    /// Gives up a socket that no longer works, to open another.
    pub(super) fn fail(&mut self, now: Instant, task: Task, reason: &str) {
        self.close();
        if self.failed.is_some_and(|failed| now.saturating_duration_since(failed) > FAILURE_MEMORY) {
            self.failures = [0; 2];
        }
        self.failed = Some(now);
        let count = &mut self.failures[task as usize];
        *count += 1;
        let (interface, queue, demote) =
            (&self.config.interface, self.config.queue, self.config.failing == FailurePolicy::Demote);
        self.state = BindingState::Reopening;
        match task {
            Task::Send if demote && *count >= SEND_FAILURES => {
                tracing::error!(
                    interface,
                    queue,
                    reason,
                    "AF_XDP sending failed repeatedly: sending by the kernel socket"
                );
                self.config.transmit = TransmitVia::Kernel;
                self.reason = Some(reason.to_owned());
            }
            Task::Receive if demote && *count >= RECEIVE_FAILURES => {
                tracing::error!(
                    interface,
                    queue,
                    reason,
                    "AF_XDP failed repeatedly: falling back to the kernel socket"
                );
                self.state = BindingState::Gone;
                self.reason = Some(reason.to_owned());
            }
            _ => tracing::warn!(interface, queue, reason, "AF_XDP socket failed: reopening"),
        }
        self.publish();
        let lived = now.saturating_duration_since(self.opened);
        // The first socket has no pause behind it that could grow.
        self.pause = match self.reopened > 0 && lived < REOPEN_LONGEST {
            true => (self.pause * 2).min(REOPEN_LONGEST),
            false => REOPEN_FIRST,
        };
        self.next_try = now + self.pause;
    }

    /// Tries to open a failed socket anew when it is time. True if that has succeeded.
    pub(crate) fn reopen(&mut self, now: Instant) -> bool {
        if self.state != BindingState::Reopening || now < self.next_try {
            return false;
        }
        let Some(reopened) = self.opener.open(self.fit(), self.ifindex) else {
            self.next_try = now + ANSWER_INTERVAL;
            return false;
        };
        let (interface, queue) = (&self.config.interface, self.config.queue);
        match reopened {
            Ok(Reopened { fitted, active }) => {
                tracing::info!(interface, queue, mode = %active.xsk().mode(), "AF_XDP socket reopened");
                (self.config.frame_size, self.multi_buffer) = (fitted.frame_size, fitted.multi_buffer());
                // What the first socket was given, this one gets; without it, it serves all the same.
                if let Err(error) = active.prepare(self.wait, interface) {
                    tracing::warn!(interface, queue, %error, "cannot enable busy polling on the new socket");
                }
                self.active = Some(active);
                self.state = BindingState::Up;
                self.reopened += 1;
                self.opened = now;
                self.publish();
                true
            }
            Err(error) if is_denied(&error) => {
                tracing::error!(interface, queue, %error, "cannot reopen the AF_XDP socket: falling back to the kernel socket");
                self.state = BindingState::Gone;
                self.reason = Some(error.to_string());
                self.publish();
                false
            }
            Err(error) => {
                tracing::debug!(interface, queue, %error, "cannot reopen the AF_XDP socket yet");
                self.pause = (self.pause * 2).min(REOPEN_LONGEST);
                self.next_try = now + self.pause;
                false
            }
        }
    }
}

/// True if opening failed for want of privileges, which do not come back.
fn is_denied(error: &OpenError) -> bool {
    match error {
        OpenError::Socket { source, .. } => {
            matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        }
        OpenError::Refused { transient, .. } => !transient,
        _ => false,
    }
}

/// Follows the completions at each kick; true when there have been none for too long.
pub(super) fn is_stalled(
    quiet: &mut Option<(Instant, u32, u64)>,
    now: Instant,
    in_flight: usize,
    completed: u64,
) -> bool {
    match quiet {
        Some((since, kicks, before)) if in_flight > 0 && *before == completed => {
            *kicks += 1;
            *kicks >= STALL_KICKS && now.saturating_duration_since(*since) >= STALL_TIME
        }
        _ => {
            *quiet = Some((now, 1, completed));
            false
        }
    }
}
