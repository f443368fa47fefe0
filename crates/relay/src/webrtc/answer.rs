//! Turns an offer into a session and its answer (RFC 8829, section 5.3), on the thread that took the offer.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use str0m::bwe::Bitrate;
use str0m::change::SdpOffer;
use str0m::config::DtlsCert;
use str0m::crypto::CryptoProvider;
use str0m::media::{MediaKind, Mid};
use str0m::{Candidate, IceCreds, Rtc};

use super::codec;
use super::crypto::{certificate, provider, random};
use super::demux::Ufrags;
use super::sdp;
use super::send_track::SendTrack;
use crate::config::{Codec, Kind, Room};

/// Packets of pictures that are kept to be sent again, and of sound.
const REPAIRS: (usize, usize) = (512, 64);

/// What a path is taken to carry before anything is known of it, in bits per second: less than most do, and enough for pictures.
const INITIAL: u64 = 1_000_000;

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It publishes (WHIP, RFC 9725).
    Publish,
    /// It receives (WHEP).
    Play,
}

/// What all sessions have in common.
#[derive(Debug)]
pub struct Identity {
    certificate: DtlsCert,
    provider: Arc<CryptoProvider>,
    pub(crate) ufrags: Ufrags,
}

impl Identity {
    /// With a new certificate.
    ///
    /// # Errors
    /// In words.
    pub fn new() -> Result<Self, String> {
        let certificate = certificate().map_err(|error| format!("WebRTC certificate: {error}"))?;
        Ok(Self { certificate, provider: provider(), ufrags: Ufrags::default() })
    }

    /// Encrypts by something else.
    #[cfg(feature = "fuzzing")]
    pub(super) fn with_provider(self, provider: CryptoProvider) -> Self {
        Self { provider: Arc::new(provider), ..self }
    }
}

/// A session that is agreed on.
#[derive(Debug)]
pub struct Agreed {
    pub(super) rtc: Box<Rtc>,
    pub(super) ufrag: String,
    /// Of a publisher: payload types as it calls them, and the room does.
    pub(super) types: Vec<(u8, u8)>,
    /// Of a receiver.
    pub(super) tracks: Vec<SendTrack>,
    /// Whether there may be data channels.
    pub(super) has_data: bool,
    /// Whether the peer reports on every packet that it receives.
    pub(super) has_feedback: bool,
    /// Of a receiver: the highest layer that it asks for, by RID.
    pub(super) highest: Option<Box<str>>,
    /// The answer.
    pub sdp: String,
}

/// What an offer is answered for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// To publish or to receive.
    pub role: Role,
    /// The worker that the session will be on.
    pub worker: usize,
    /// The room.
    pub room: &'a Room,
    /// Addresses that the peer is told.
    pub announce: &'a [SocketAddr],
    /// The highest layer that it asks for, by RID.
    pub highest: Option<&'a str>,
}

/// Answers an offer with a session.
///
/// # Errors
/// In a few words, for whoever sent the offer.
pub fn answer(identity: &Identity, offer: &str, wanted: Wanted<'_>) -> Result<Agreed, String> {
    sdp::check(offer)?;
    // str0m means to return errors for whatever a peer says; if it does not, this offer alone is to fail.
    let agreed = catch_unwind(AssertUnwindSafe(|| agree(identity, offer, wanted)));
    agreed.unwrap_or_else(|_| {
        tracing::error!(room = wanted.room.name, "the SDP parser panicked on an offer, which was rejected");
        Err("the offer cannot be read".into())
    })
}

fn agree(identity: &Identity, offer: &str, wanted: Wanted<'_>) -> Result<Agreed, String> {
    let Wanted { role, worker, room, announce, highest } = wanted;
    let has_feedback = role == Role::Play && offers_feedback(offer);
    // The parser's own words contain an address of this process's memory.
    let rejected = sdp::rejected(offer, room.data);
    let plain = sdp::plain(offer, role, &rejected);
    if !plain.contains("\nm=") {
        return Err(nothing(role));
    }
    let offer = SdpOffer::from_sdp_string(&plain).map_err(|_| "the offer is not valid SDP")?;
    let ufrag = identity.ufrags.issue(worker);
    let pass = HEX.encode(&random::<16>());
    let mut config = Rtc::builder()
        .set_crypto_provider(Arc::clone(&identity.provider))
        .set_dtls_cert(identity.certificate.clone())
        .set_local_ice_credentials(IceCreds { ufrag: ufrag.clone(), pass })
        .set_ice_lite(true)
        .set_rtp_mode(true)
        .set_stats_interval(None)
        .set_send_buffer_video(REPAIRS.0)
        .set_send_buffer_audio(REPAIRS.1)
        .enable_bwe(has_feedback.then_some(Bitrate::from(INITIAL)))
        .clear_codecs();
    for codec in room.codecs.iter().flatten() {
        config = match codec {
            Codec::Opus => config.enable_opus(true, false),
            Codec::Pcmu => config.enable_pcmu(true, false),
            Codec::Pcma => config.enable_pcma(true, false),
            Codec::Vp8 => config.enable_vp8(true),
            Codec::Vp9 => config.enable_vp9(true),
            Codec::H264 => config.enable_h264(true),
            Codec::Av1 => config.enable_av1(true),
        };
    }
    let mut rtc = config.build(Instant::now());
    for address in announce {
        let candidate = Candidate::host(*address, "udp").map_err(|error| error.to_string())?;
        rtc.add_local_candidate(candidate);
    }
    let sdp =
        rtc.sdp_api().accept_offer(offer).map_err(|error| format!("the offer was rejected: {error}"))?;
    let sdp = sdp::with_rejected(&sdp.to_sdp_string(), &rejected);
    let mids = sdp.lines().filter_map(|line| line.trim_end().strip_prefix("a=mid:")).map(Mid::from);
    let (mut types, mut tracks) = (Vec::new(), Vec::new());
    for mid in mids.collect::<Vec<_>>() {
        let Some(media) = rtc.media(mid) else { continue };
        let pairs: Vec<_> = media
            .remote_pts()
            .iter()
            .filter_map(|pt| {
                let params = rtc.codec_config().params().iter().find(|params| params.pt() == *pt)?;
                Some((codec::payload_type(&room.codecs, codec::ours(params.spec().codec)?)?, *pt))
            })
            .collect();
        let is_wanted = match role {
            Role::Publish => media.direction().is_receiving(),
            Role::Play => media.direction().is_sending(),
        };
        if !is_wanted || pairs.is_empty() {
            continue;
        }
        let kind = if media.kind() == MediaKind::Audio { Kind::Audio } else { Kind::Video };
        match role {
            Role::Publish => types.extend(pairs.iter().map(|(room, pt)| (**pt, *room))),
            Role::Play => {
                let Some(stream) = rtc.direct_api().stream_tx_by_mid(mid, None).map(|stream| stream.ssrc())
                else {
                    continue;
                };
                tracks.push(SendTrack::new(kind, mid, stream, pairs));
            }
        }
    }
    let has_data =
        sdp.lines().any(|line| line.starts_with("m=application") && !line.starts_with("m=application 0"));
    if types.is_empty() && tracks.is_empty() && !has_data {
        return Err(nothing(role));
    }
    let highest = highest.map(Into::into);
    Ok(Agreed { rtc: Box::new(rtc), ufrag, types, tracks, has_data, has_feedback, highest, sdp })
}

/// What is wrong with an offer that has nothing for its room.
fn nothing(role: Role) -> String {
    match role {
        Role::Publish => "the offer has no sendonly media in a codec of this room".into(),
        Role::Play => "the offer has no recvonly media in a codec of this room".into(),
    }
}

/// Whether who offers that would report on every packet: it says so of a payload type, and knows the extension that numbers them.
fn offers_feedback(offer: &str) -> bool {
    let says = |line: &str| line.starts_with("a=rtcp-fb:") && line.ends_with(" transport-cc");
    let knows =
        |line: &str| line.starts_with("a=extmap:") && line.contains("transport-wide-cc-extensions-01");
    offer.lines().map(str::trim_end).any(says) && offer.lines().any(knows)
}
