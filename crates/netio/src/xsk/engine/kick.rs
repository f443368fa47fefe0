//! When to ask the kernel to send, how often, and what its answers mean.
//!
//! In copy mode one `sendto` sends at most 32 packets (`TX_BATCH_SIZE`, more with XDP_MAX_TX_SKB_BUDGET) and
//! answers EAGAIN when there are more, so a flush calls until the TX ring is empty; in zero-copy mode one
//! call starts the driver, which goes on by itself. No loop here waits: a packet that the device has no
//! room for stays in the ring for the next turn.

use std::time::Duration;

use super::ObtainedMode;
use crate::xsk::abi::TX_BATCH_SIZE;

/// How long packets wait in the TX ring of a full device before they are kicked again: 256 small packets, as many as the
/// queue of a veth holds, leave one in that time, or a NIC at 4 Gbit/s.
pub(crate) const KICK_AGAIN: Duration = Duration::from_micros(50);

/// Calls in one flush that may pass without the kernel taking a packet.
const FRUITLESS_CALLS: u32 = 3;

/// How a round of kicks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The kernel has everything.
    Sent,
    /// Packets wait in the TX ring: kick again later.
    Later,
    /// The interface is down.
    Down,
    /// The interface is gone, or the socket is no longer bound to it.
    Gone,
    /// The socket refuses to send for a reason that will not pass.
    Fault(i32),
}

/// What a round of kicks did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kicked {
    /// System calls made.
    pub(crate) calls: u32,
    /// Packets that the device's queue refused and the kernel dropped.
    pub(crate) refused: u32,
    /// How it ended.
    pub(crate) outcome: Outcome,
}

/// Kicks a socket as its mode wants it. `needs_wakeup` is the flag of its TX ring, which copy mode has always
/// set: it is not looked at there.
pub(crate) fn transmit(
    mode: ObtainedMode,
    needs_wakeup: bool,
    untaken: impl FnMut() -> u32,
    call: impl FnMut() -> Result<(), i32>,
) -> Kicked {
    match mode {
        ObtainedMode::Copy => copy_mode(untaken, call),
        ObtainedMode::ZeroCopy if needs_wakeup => zero_copy(call),
        ObtainedMode::ZeroCopy => Kicked { calls: 0, refused: 0, outcome: Outcome::Sent },
    }
}

/// Kicks a copy-mode socket until `untaken` says that the TX ring is empty.
fn copy_mode(mut untaken: impl FnMut() -> u32, mut call: impl FnMut() -> Result<(), i32>) -> Kicked {
    let mut waiting = untaken();
    let mut kicked = Kicked { calls: 0, refused: 0, outcome: Outcome::Sent };
    // Every call but the fruitless ones takes a packet at least, and a full batch in the usual case.
    let limit = waiting / TX_BATCH_SIZE + 2 * FRUITLESS_CALLS;
    let mut fruitless = 0;
    while waiting > 0 {
        if kicked.calls >= limit || fruitless >= FRUITLESS_CALLS {
            kicked.outcome = Outcome::Later;
            break;
        }
        kicked.calls += 1;
        let answer = call();
        match answer {
            // The budget was used up, or the device or the socket buffer is full; the ring tells which.
            Ok(()) | Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {}
            // NET_XMIT_DROP: the packet is gone, its frame is completed (`__xsk_generic_xmit`).
            Err(libc::EBUSY) => kicked.refused += 1,
            Err(error) => {
                kicked.outcome = permanent(error);
                break;
            }
        }
        let left = untaken();
        fruitless = if left < waiting { 0 } else { fruitless + 1 };
        waiting = left;
    }
    kicked
}

/// Kicks a zero-copy socket once.
fn zero_copy(mut call: impl FnMut() -> Result<(), i32>) -> Kicked {
    let outcome = match call() {
        Ok(()) => Outcome::Sent,
        Err(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Outcome::Later,
        Err(error) => permanent(error),
    };
    Kicked { calls: 1, refused: 0, outcome }
}

/// What an error other than a full queue says of the socket.
pub(crate) fn permanent(error: i32) -> Outcome {
    match error {
        libc::ENETDOWN => Outcome::Down,
        // ENXIO: `xsk_check_common` finds the socket unbound, which unregistering its device does.
        libc::ENXIO | libc::ENODEV => Outcome::Gone,
        other => Outcome::Fault(other),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A kernel that answers from a list: how many packets it takes, and the result.
    fn run(packets: u32, answers: &[(u32, Result<(), i32>)]) -> (Kicked, u32) {
        let ring = Cell::new(packets);
        let answers = RefCell::new(answers.iter().cycle());
        let kicked = copy_mode(
            || ring.get(),
            || {
                let &(taken, answer) = answers.borrow_mut().next().expect("a cycle has no end");
                ring.set(ring.get().saturating_sub(taken));
                answer
            },
        );
        (kicked, ring.get())
    }

    #[test]
    fn an_empty_ring_costs_no_call() {
        let (kicked, _) = run(0, &[(0, Err(libc::EIO))]);
        assert_eq!(kicked, Kicked { calls: 0, refused: 0, outcome: Outcome::Sent });
    }

    #[test]
    fn batches_of_32_are_sent_to_the_end() {
        let (kicked, left) = run(2048, &[(32, Err(libc::EAGAIN))]);
        assert_eq!((kicked.calls, kicked.outcome, left), (64, Outcome::Sent, 0));
    }

    #[test]
    fn a_device_that_takes_nothing_is_left_alone_soon() {
        for error in [libc::EAGAIN, libc::ENOBUFS, libc::EINTR] {
            let (kicked, left) = run(100, &[(0, Err(error))]);
            assert_eq!((kicked.calls, kicked.outcome, left), (3, Outcome::Later, 100));
        }
        let (kicked, left) = run(100, &[(0, Ok(()))]);
        assert_eq!((kicked.calls, kicked.outcome, left), (3, Outcome::Later, 100));
    }

    #[test]
    fn dropped_packets_are_counted_and_calls_are_bounded() {
        let (kicked, left) = run(1000, &[(1, Err(libc::EBUSY))]);
        assert_eq!(kicked.outcome, Outcome::Later);
        assert_eq!(kicked.refused, kicked.calls);
        assert_eq!((kicked.calls, left), (37, 963));
    }

    #[test]
    fn a_link_that_is_down_gone_or_broken_ends_the_round() {
        let cases = [
            (libc::ENETDOWN, Outcome::Down),
            (libc::ENXIO, Outcome::Gone),
            (libc::EPERM, Outcome::Fault(libc::EPERM)),
        ];
        for (error, outcome) in cases {
            let (kicked, left) = run(100, &[(32, Err(libc::EAGAIN)), (0, Err(error))]);
            assert_eq!((kicked.calls, kicked.outcome, left), (2, outcome, 68));
            assert_eq!(zero_copy(|| Err(error)).outcome, outcome);
        }
    }

    #[test]
    fn a_zero_copy_socket_is_kicked_once() {
        assert_eq!(zero_copy(|| Ok(())), Kicked { calls: 1, refused: 0, outcome: Outcome::Sent });
        assert_eq!(zero_copy(|| Err(libc::EAGAIN)).outcome, Outcome::Later);
    }
}
