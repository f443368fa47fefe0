//! A bounded queue into a worker, with an eventfd that wakes it.

/// The sending side of a worker's queue; cheap to clone, usable from any thread.
pub struct Mailbox<M> {
    marker: std::marker::PhantomData<fn(M)>,
}
