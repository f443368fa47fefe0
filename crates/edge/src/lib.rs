//! Policy and control of the XDP programs that stand at the edge of a network. Each module is an application of its own.

#![forbid(unsafe_code)]

pub mod balance;
