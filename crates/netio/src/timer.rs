//! Timers of one worker: a hierarchical wheel keyed by token.

/// Arms and fires timers with a resolution of a fraction of a millisecond.
pub struct TimerWheel {}
