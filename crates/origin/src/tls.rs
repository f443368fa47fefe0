//! TLS with an origin.

use boring::ssl::{SslConnector, SslFiletype, SslMethod, SslVerifyMode, SslVersion};

use crate::{Endpoint, OriginOptions, Protocol, Site};

/// ALPN identifiers, most wanted first (RFC 7301).
const BOTH: &[u8] = b"\x02h2\x08http/1.1";
const H2: &[u8] = b"\x02h2";
const HTTP1: &[u8] = b"\x08http/1.1";

/// What connections to an origin's servers are made with, its files read; `None` without a server that takes TLS.
pub(crate) fn connector(options: &OriginOptions) -> Result<Option<SslConnector>, String> {
    if !options.servers.iter().any(|server| server.endpoint.tls) {
        return Ok(None);
    }
    let tls = &options.tls;
    let wrong = |what: String| move |error: boring::error::ErrorStack| format!("{what}: {error}");
    // BoringSSL's default paths are read when a chain is built; without a file of its own nothing is read here.
    let mut builder = SslConnector::builder(SslMethod::tls()).map_err(wrong("TLS".to_owned()))?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(wrong("TLS".to_owned()))?;
    if let Some(ca) = &tls.ca {
        let mut store = boring::x509::store::X509StoreBuilder::new().map_err(wrong("TLS".to_owned()))?;
        let pem = std::fs::read(ca).map_err(|error| format!("{}: {error}", ca.display()))?;
        let certificates =
            boring::x509::X509::stack_from_pem(&pem).map_err(wrong(ca.display().to_string()))?;
        if certificates.is_empty() {
            return Err(format!("{}: no certificate in it", ca.display()));
        }
        for certificate in certificates {
            store.add_cert(&certificate).map_err(wrong(ca.display().to_string()))?;
        }
        builder.set_cert_store(store.build());
    }
    if let Some((chain, key)) = &tls.identity {
        builder.set_certificate_chain_file(chain).map_err(wrong(chain.display().to_string()))?;
        builder.set_private_key_file(key, SslFiletype::PEM).map_err(wrong(key.display().to_string()))?;
        builder.check_private_key().map_err(wrong(key.display().to_string()))?;
    }
    if tls.verify {
        builder.set_verify(SslVerifyMode::PEER);
    } else {
        builder.set_verify(SslVerifyMode::NONE);
        tracing::warn!(
            origin = options.name,
            "verify = false: ANYONE between here and this origin can read and change its responses"
        );
    }
    let protocols = match options.protocol {
        Protocol::Auto => BOTH,
        Protocol::Http1 => HTTP1,
        Protocol::H2 => H2,
    };
    builder.set_alpn_protos(protocols).map_err(wrong("TLS".to_owned()))?;
    Ok(Some(builder.build()))
}

/// The name to ask for, and to find in the certificate.
pub(crate) fn server_name<'a>(options: &'a OriginOptions, endpoint: &'a Endpoint) -> &'a str {
    match (&options.tls.server_name, &endpoint.site) {
        (Some(name), _) => name,
        (None, Site::Tcp { host, .. }) => host,
        (None, Site::Unix(_)) => "localhost",
    }
}
