//! What clients may cost: the time of one turn of a worker and the memory of the process, whatever they ask.

#[path = "../support/mod.rs"]
mod support;
#[path = "../tagged_allocator/mod.rs"]
mod tagged_allocator;

mod attacks;
mod bed;
mod handshakes;
mod requests;
