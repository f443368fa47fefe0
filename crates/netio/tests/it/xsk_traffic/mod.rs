//! Traffic through AF_XDP on a veth with a kernel UDP peer, in good weather and bad.

mod bed;
mod faults;
mod traffic;
