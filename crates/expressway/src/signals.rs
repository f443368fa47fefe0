//! Signals as events of a channel.

use std::sync::mpsc::{Receiver, Sender, channel};

use signal_hook::iterator::Signals;

use crate::fail::Failure;

/// Sends what `event` makes of each of `signals` that comes, until nobody listens.
pub(crate) fn follow<E: Send + 'static>(
    signals: &[i32],
    sender: Sender<E>,
    event: impl Fn(i32) -> E + Send + 'static,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::run_time(format!("signal handlers: {error}"));
    let mut signals = Signals::new(signals).map_err(failed)?;
    let follow = move || {
        for signal in signals.forever() {
            if sender.send(event(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("expressway-signal".into()).spawn(follow).map_err(failed)?;
    Ok(())
}

/// Signals of these numbers, as they come.
pub(crate) fn receiver(signals: &[i32]) -> Result<Receiver<i32>, Failure> {
    let (sender, receiver) = channel();
    follow(signals, sender, |signal| signal)?;
    Ok(receiver)
}
