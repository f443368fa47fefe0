//! The endpoint end to end over the simulated network, against quiche clients.

mod admission;
mod drops;
mod exchange;
mod generations;
mod handshakes;
mod lifetime;
mod names;
mod patience;
mod requests;
mod turns;
mod uploads;
