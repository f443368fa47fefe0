//! Targets of `expressway-agent`: what either side may say to the other.

use std::fmt::Debug;

use expressway_agent::channel::{MAX_FDS, MAX_MESSAGE, decode, encode};
use expressway_agent::message::{Reply, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cost::Bound;

/// The message, and the same said again.
pub const BOUND: Bound =
    Bound { steps: (100, 4000), allocations: (1, 64), bytes: (32, 4096), peak: (16, 4096) };

/// The bit of the first byte that says that the message's header is made for what follows.
const FRAMED: u8 = 0x80;

/// What a client says to the agent. The first byte is the number of descriptors that came beside the message; with
/// [`FRAMED`], the rest is the message without its header.
pub fn request(data: &[u8]) {
    message::<Request>(data);
}

/// What an agent says to its client.
pub fn reply(data: &[u8]) {
    message::<Reply>(data);
}

/// A message that is understood means the same when it is said again. One that cannot be said again has strings that
/// grow when they are written anew.
fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let fds = usize::from(first & !FRAMED);
    let framed;
    let message = if first & FRAMED == 0 {
        rest
    } else {
        let length = rest.len().to_le_bytes();
        framed = [b"XWAG\x01\0".as_slice(), &[first & !FRAMED, 0, 7, 0, 0, 0], &length[..4], rest].concat();
        &framed
    };
    let Ok((sequence, content)) = decode::<T>(message, fds) else { return };
    match encode(sequence, &content, fds) {
        Ok(again) => assert_eq!(decode::<T>(&again, fds).expect("our own words"), (sequence, content)),
        Err(_) => assert!(fds > MAX_FDS || message.len() > MAX_MESSAGE / 6),
    }
}
