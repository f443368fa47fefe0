//! Certificates by name over QUIC, also where the name is encrypted.

use std::sync::{Arc, LazyLock};

use boring::ssl::SslRef;
use boring::x509::X509;
use expressway_gateway::quic::{Settings, Tls};
use expressway_tls::{EchKeys, Lasting, TlsOptions, generate_ech};

use super::exchange::client;
use crate::support::client::Options;
use crate::support::world::{Build, certificate, identity};

/// A folder with a key, and what clients have of it in DNS.
static ECH: LazyLock<(tempfile::TempDir, Vec<u8>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let (pem, list) = generate_ech("public.example").unwrap();
    std::fs::write(folder.path().join("ech.pem"), pem).unwrap();
    (folder, boring::base64::decode_block(&list).unwrap())
});

/// `edge.example` is what clients ask for; the first is for those whom nothing fits.
fn two_names(settings: &mut Settings) {
    let ech = EchKeys::load(ECH.0.path()).unwrap();
    let options = TlsOptions { ech: Some(ech), ..TlsOptions::default() };
    let identities = vec![identity(&certificate("public.example")), settings.tls.identity().clone()];
    settings.tls = Arc::new(Tls::new(identities, options, Lasting::new().unwrap()).unwrap());
}

#[test]
fn a_name_has_its_certificate_also_if_only_the_server_can_read_it() {
    for encrypted in [false, true] {
        let mut world = Build { tune: two_names, ..Build::default() }.world();
        let id = client(&mut world, 5000, Options::default());
        let ssl: &mut SslRef = world.clients[id].quic.as_mut();
        if encrypted {
            ssl.set_ech_config_list(&ECH.1).unwrap();
        }
        world.clients[id].get("/bytes/1000");
        world.until("an answer", |world| world.clients[id].is_done());
        assert_eq!(world.clients[id].response(0).received, 1000);
        let ssl: &mut SslRef = world.clients[id].quic.as_mut();
        assert_eq!(ssl.ech_accepted(), encrypted);
        assert_eq!(ssl.curve_name(), Some("X25519MLKEM768"));
        let leaf = X509::from_der(world.clients[id].quic.peer_cert().unwrap()).unwrap();
        assert!(leaf.check_host("edge.example").unwrap());
    }
}
