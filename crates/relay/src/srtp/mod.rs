//! SRTP on RTP legs (RFC 3711; RFC 7714 for AES-GCM), with keys from the configuration: packets of a publisher are opened before
//! anything of them is believed, and what goes to a receiver is sealed in the frame that it leaves in.
//!
//! * [`keys`]: a master key, its profile, and what is derived from it.
//! * `cipher`: one packet, by BoringSSL and the cipher that WebRTC sessions have too.
//! * `window`: indices of packets: what a sequence number means, and whether it came before.
//! * [`session`]: all that is sent, and all that comes, under a master key.
//!
//! There is no exchange of keys, no rekeying and no MKI: whoever sets up both sides gives them the key.

mod cipher;
pub mod keys;
pub mod session;
mod window;

pub use keys::{Keys, Profile};
pub use session::{Inbound, Outbound, Rejected};

/// Both directions under one key.
pub(crate) fn pair(keys: &Keys) -> (Inbound, Outbound) {
    (Inbound::new(keys), Outbound::new(keys))
}

/// RTCP as it is sent: sealed, if there is a key.
pub(crate) fn rtcp(srtp: &mut Option<(Inbound, Outbound)>, packet: Vec<u8>) -> Vec<u8> {
    match srtp {
        Some((_, outbound)) => outbound.seal_rtcp(packet),
        None => packet,
    }
}
