//! Policy and control of the XDP programs at the edge of a network. Each module is a separate application; they share
//! [`interfaces`]: a program on several interfaces, which may come and go.
//!
//! ```text
//!  frame ─▶ guard ─▶ balance ─▶ forward ─▶ redirect ─▶ kernel        (the order in a libxdp dispatcher)
//! ```
//!
//! This crate decides what the programs' maps contain; the programs handle packets. They have these rules in common:
//!
//! * A program handles only what it is certain of, and passes everything else on unchanged. [`forward`] does not imitate
//!   routing: it looks up the kernel's own tables, and the kernel answers senders.
//! * The cost of a packet does not grow with the length of lists or the number of rules, which are compiled into sets.
//! * Where [`guard`] answers on a server's behalf (Retry, SYN cookies), it keeps no state.
//! * A flood evicts nothing that is established: new flows and unknown sources have tables of their own.
//! * A change is one write, which every packet sees either completely or not at all.
//! * With `pin`, a program outlives its process, and the next start takes it over.

#![forbid(unsafe_code)]

pub mod balance;
pub mod forward;
pub mod guard;
pub mod interfaces;
