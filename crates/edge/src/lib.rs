//! Policy and control of the XDP programs that stand at the edge of a network. Each module is an application of its own;
//! [`interfaces`] is what they share: a program on several interfaces, which come and go.

#![forbid(unsafe_code)]

pub mod balance;
pub mod forward;
pub mod interfaces;
