//! TLS for TCP: versions, ciphers and protocols.

use boring::error::ErrorStack;
use boring::ssl::{
    AlpnError, SslContextBuilder, SslMethod, SslMode, SslOptions, SslVersion, select_next_proto,
};
use expressway_settings::identity::Identity;

/// What is offered, in the server's order of preference.
const PROTOCOLS: &[u8] = b"\x02h2\x08http/1.1";

/// TLS 1.2 as Mozilla's "intermediate" recommendation has it, without DHE, which BoringSSL does not implement. Those of
/// TLS 1.3 are BoringSSL's own.
const CIPHERS: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
                       ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";

/// A context for servers over TCP: TLS 1.3 and 1.2, and HTTP/2 or else HTTP/1.1 (ALPN, RFC 7301). All workers share it,
/// so that a ticket of one is good for all.
///
/// # Errors
/// When the TLS library refuses.
pub fn context(identity: &Identity) -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_cipher_list(CIPHERS)?;
    context.set_options(SslOptions::NO_COMPRESSION);
    // A write that found no room is repeated from wherever its octets are by then; idle connections keep no buffers.
    context.set_mode(
        SslMode::AUTO_RETRY
            | SslMode::ACCEPT_MOVING_WRITE_BUFFER
            | SslMode::ENABLE_PARTIAL_WRITE
            | SslMode::RELEASE_BUFFERS,
    );
    context.set_alpn_select_callback(|_, offered| {
        select_next_proto(PROTOCOLS, offered).ok_or(AlpnError::ALERT_FATAL)
    });
    identity.install(&mut context)?;
    Ok(context)
}
