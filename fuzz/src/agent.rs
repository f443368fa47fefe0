//! Targets of `expressway-agent`: what either side may say to the other.

use std::fmt::Debug;

use expressway_agent::channel::{MAX_FDS, MAX_MESSAGE, decode, encode};
use expressway_agent::message::{Reply, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a client says to the agent. The first byte is the number of descriptors that came beside the message.
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
    let Some((&fds, message)) = data.split_first() else { return };
    let fds = usize::from(fds);
    let Ok((sequence, content)) = decode::<T>(message, fds) else { return };
    match encode(sequence, &content, fds) {
        Ok(again) => assert_eq!(decode::<T>(&again, fds).expect("our own words"), (sequence, content)),
        Err(_) => assert!(fds > MAX_FDS || message.len() > MAX_MESSAGE / 6),
    }
}
