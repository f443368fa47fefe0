//! Policy and control of the XDP programs at the edge of a network. Each module is a separate application; they share
//! [`interfaces`]: a program on several interfaces, which may come and go.

#![forbid(unsafe_code)]

pub mod balance;
pub mod forward;
pub mod guard;
pub mod interfaces;
