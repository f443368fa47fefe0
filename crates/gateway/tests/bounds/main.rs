//! What clients may cost: the time of one turn of a worker, whatever they ask.

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod bed;
mod requests;
