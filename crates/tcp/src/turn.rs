//! Turns of a worker: how long a task is polled at a time, and when it should let others run.
//!
//! tokio's budget counts calls, not time: 128 writes of 16 KiB of TLS take milliseconds. A task that has had its slice is
//! pending at its next read, write, request or chunk, and runs again after all others that are ready.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::stats::Stats;

/// How long a task runs at a time, up to the end of the piece of work that it is in; as long as a QUIC connection.
const SLICE: Duration = Duration::from_micros(200);

thread_local! {
    /// When the running turn began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs `work`; each poll of it is a turn, and counted.
pub(crate) async fn in_turns<F: Future>(stats: Arc<Stats>, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(move |context| {
        let began = Instant::now();
        BEGAN.set(Some(began));
        let polled = work.as_mut().poll(context);
        BEGAN.set(None);
        stats.count_turn(began.elapsed());
        polled
    })
    .await
}

/// Pending if the running turn has used its slice: the task is polled again in its next turn.
pub(crate) fn poll_slice(context: &Context<'_>) -> Poll<()> {
    match BEGAN.get() {
        Some(began) if began.elapsed() >= SLICE => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        _ => Poll::Ready(()),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[tokio::test]
    async fn a_task_gives_way_after_its_slice() {
        let stats = Arc::new(Stats::default());
        let mut pieces = 0;
        let work = poll_fn(|context| {
            let before = pieces;
            while poll_slice(context).is_ready() {
                pieces += 1;
                std::thread::sleep(SLICE);
            }
            assert_eq!(pieces, before + 1);
            if pieces < 5 { Poll::Pending } else { Poll::Ready(()) }
        });
        in_turns(Arc::clone(&stats), work).await;
        let turns = stats.turns();
        assert_eq!((pieces, turns.turns()), (5, 5));
        assert!(turns.sum >= 5 * 200_000 && turns.longest >= 200_000 && turns.longest <= turns.sum);
    }

    #[test]
    fn outside_of_a_turn_nothing_gives_way() {
        assert!(poll_slice(&Context::from_waker(Waker::noop())).is_ready());
    }
}
