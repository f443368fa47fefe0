//! Handshakes by the hundred, each of which is a piece of work that cannot be cut. With an RSA key, and where clients show
//! certificates, one may take longer than a turn is to: SECURITY.md has the figures that this prints with `--nocapture`.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use boring::asn1::Asn1Time;
use boring::bn::BigNum;
use boring::hash::MessageDigest;
use boring::pkey::PKey;
use boring::rsa::Rsa;
use boring::x509::extension::SubjectAlternativeName;
use boring::x509::{X509, X509Name};
use expressway_gateway::quic::Settings;
use expressway_tls::{ClientAuth, ClientAuthMode, Lasting, Tls, TlsOptions};

use crate::bed::{BOUND, PLENTY, beside, client, longest, world_of};
use crate::support::client::Options;

/// The longest turn of a hundred handshakes at once.
fn handshakes(
    certificate: Option<&(String, String)>,
    tune: fn(&mut Settings),
    options: fn() -> Options,
) -> Duration {
    let _beside = beside();
    longest(|| {
        let (mut world, _) = world_of(tune, PLENTY, |_| {}, certificate.cloned());
        for port in 0..100 {
            let id = client(&mut world, 7000 + port, options());
            world.clients[id].send_first_flight();
        }
        world.until("handshakes", |world| world.stats(0).connections_established == 100);
        world.most(0).time
    })
}

#[test]
fn handshakes_by_the_hundred() {
    let longest = handshakes(None, |_| {}, Options::default);
    println!("100 handshakes: {longest:?}");
    assert!(longest <= BOUND, "{longest:?}");
}

/// A self-signed certificate with an RSA key, and the key.
fn rsa(bits: u32) -> (String, String) {
    let key = PKey::from_rsa(Rsa::generate(bits).unwrap()).unwrap();
    let mut name = X509Name::builder().unwrap();
    name.append_entry_by_text("CN", "edge.example").unwrap();
    let (name, mut made) = (name.build(), X509::builder().unwrap());
    made.set_version(2).unwrap();
    made.set_serial_number(&BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap()).unwrap();
    made.set_subject_name(&name).unwrap();
    made.set_issuer_name(&name).unwrap();
    made.set_pubkey(&key).unwrap();
    made.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    made.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    let names = SubjectAlternativeName::new().dns("edge.example").build(&made.x509v3_context(None, None));
    made.append_extension(&names.unwrap()).unwrap();
    made.sign(&key, MessageDigest::sha256()).unwrap();
    let text = |pem: Vec<u8>| String::from_utf8(pem).unwrap();
    (text(made.build().to_pem().unwrap()), text(key.private_key_to_pem_pkcs8().unwrap()))
}

/// What a signature may take beyond a turn.
#[test]
fn handshakes_with_rsa_keys_take_longer_than_a_turn_may_and_not_much() {
    for (bits, beyond) in [(2048, 2), (4096, 8)] {
        let certificate = rsa(bits);
        let longest = handshakes(Some(&certificate), |_| {}, Options::default);
        println!("100 handshakes with RSA {bits}: {longest:?}");
        assert!(longest <= BOUND + Duration::from_millis(beyond), "{bits}: {longest:?}");
    }
}

/// An authority's file, and the chain and key of a client that it signed for.
struct Authority {
    file: PathBuf,
    client: (PathBuf, PathBuf),
    _folder: tempfile::TempDir,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    // With the name that a leaf has by default, it would look like the leaf's own signature.
    params.distinguished_name.push(rcgen::DnType::CommonName, "Authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(at("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let (issuer, own) = (rcgen::Issuer::new(params, key), rcgen::KeyPair::generate().unwrap());
    let leaf = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
    fs::write(at("client.pem"), leaf.signed_by(&own, &issuer).unwrap().pem()).unwrap();
    fs::write(at("client.key"), own.serialize_pem()).unwrap();
    Authority { file: at("ca.pem"), client: (at("client.pem"), at("client.key")), _folder: folder }
});

/// Asks clients for certificates.
fn asks(settings: &mut Settings) {
    let client_auth = ClientAuth::load(ClientAuthMode::Required, &AUTHORITY.file).unwrap();
    let options = TlsOptions { client_auth, ..TlsOptions::default() };
    let identity = Arc::clone(settings.tls.identity());
    settings.tls = Arc::new(Tls::new(vec![identity], options, Lasting::new().unwrap()).unwrap());
}

#[test]
fn handshakes_of_clients_that_show_certificates() {
    let options = || Options { certificate: Some(AUTHORITY.client.clone()), ..Options::default() };
    let longest = handshakes(None, asks, options);
    println!("100 handshakes with certificates of clients: {longest:?}");
    assert!(longest <= BOUND + Duration::from_millis(1), "{longest:?}");
}
