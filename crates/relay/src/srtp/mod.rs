//! SRTP on RTP legs (RFC 3711; RFC 7714 for AES-GCM), with keys from the configuration. A publisher's packets are opened before anything
//! in them is trusted. Packets to a receiver are sealed in the frame that they leave in.
//!
//! * [`keys`]: a master key, its profile, and the session keys derived from it.
//! * `cipher`: opens and seals one packet, by BoringSSL and the cipher that WebRTC sessions use too.
//! * `window`: packet indices: the full number behind a sequence number, and whether it was seen before.
//! * [`session`]: everything sent and received under a master key.
//!
//! There is no key exchange, no rekeying and no MKI: whoever sets up both sides gives them the key.

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
