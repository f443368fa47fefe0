//! A certificate for the targets that speak TLS, made anew by each process.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use boring::asn1::Asn1Time;
use boring::ec::{EcGroup, EcKey};
use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::PKey;
use boring::x509::{X509, X509NameBuilder};
use expressway_gateway::quic::{Identity, Tls};

/// Certificate chain and private key, in PEM.
pub(crate) static PEM: LazyLock<(Vec<u8>, Vec<u8>)> =
    LazyLock::new(|| make().expect("the TLS library makes a certificate"));

/// The same, loaded.
pub(crate) static TLS: LazyLock<Arc<Tls>> = LazyLock::new(|| {
    let path = Path::new("fuzz.pem");
    let identity = Identity::from_pem(&PEM.0, &PEM.1, path, path).expect("a certificate just made");
    Arc::new(Tls::single(Arc::new(identity)).expect("ticket keys"))
});

fn make() -> Result<(Vec<u8>, Vec<u8>), ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let key = PKey::from_ec_key(EcKey::generate(&group)?)?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_nid(Nid::COMMONNAME, "edge.example")?;
    let name = name.build();
    let (before, after) = (Asn1Time::days_from_now(0)?, Asn1Time::days_from_now(30)?);
    let mut builder = X509::builder()?;
    builder.set_version(2)?;
    builder.set_subject_name(&name)?;
    builder.set_issuer_name(&name)?;
    builder.set_pubkey(&key)?;
    builder.set_not_before(&before)?;
    builder.set_not_after(&after)?;
    builder.sign(&key, MessageDigest::sha256())?;
    Ok((builder.build().to_pem()?, key.private_key_to_pem_pkcs8()?))
}
