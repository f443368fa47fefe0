//! A UMEM that is shared: by sockets, and with readers in other processes, written in C and in Rust, honest, slow,
//! killed and hostile.

mod bed;
mod readers;
mod sockets;
