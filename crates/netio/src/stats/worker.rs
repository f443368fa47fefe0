//! The counters of a worker.

super::counters! {
    /// Counters of one worker since it was made.
    pub struct WorkerStats {
        /// Turns taken: one pass over receive, messages, timers, transmit, flush.
        pub turns: u64,
        /// Times the worker slept.
        pub sleeps: u64,
        /// Turns without work after which a spinning worker turned again instead of sleeping.
        pub spins: u64,
        /// Datagrams received and handled.
        pub received: u64,
        /// Datagrams built for transmission.
        pub transmitted: u64,
        /// Messages from other threads handled.
        pub messages: u64,
        /// Timers fired.
        pub timers: u64,
        /// Turns that wanted to send more than there were buffers for.
        pub blocked: u64,
        /// Turns that left work to the next one because their time was spent.
        pub unfinished: u64,
        /// Pauses taken because a descriptor stayed readable without giving anything.
        pub stuck_pauses: u64,
        /// Times the backend's descriptors changed, and were watched anew unless the worker spins.
        pub descriptor_changes: u64,
    }
}
