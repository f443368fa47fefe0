//! Handshakes with BoringSSL's client over a socket pair.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use boring::ssl::{HandshakeError, Ssl, SslContext, SslSession, SslStream, SslVerifyMode};

use super::*;
use crate::client_auth::{ClientAuthMode, peer_subject};
use crate::ech::generate_ech;
use crate::testing::{Key, identity, identity_of, pem};

const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

/// What a client asks for.
#[derive(Default)]
struct Client {
    name: Option<&'static str>,
    algorithms: Option<&'static str>,
    most: Option<SslVersion>,
    alpn: Option<&'static [u8]>,
    session: Option<SslSession>,
    identity: Option<Arc<Identity>>,
    groups: Option<&'static str>,
    ech: Option<Vec<u8>>,
    ocsp: bool,
}

/// What came of it, at the client.
struct Outcome {
    /// The first name of the server's certificate, and its kind of key.
    certificate: (String, boring::pkey::Id),
    resumed: bool,
    session: Option<SslSession>,
    alpn: Option<Vec<u8>>,
    group: Option<&'static str>,
    ech: bool,
    ocsp: Option<Vec<u8>>,
    /// The client's subject as the server sees it.
    subject: Option<String>,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a connection with {}", self.certificate.0)
    }
}

fn named(name: &'static str) -> Client {
    Client { name: Some(name), ..Client::default() }
}

impl Client {
    fn connect(self, server: &SslContext) -> Result<Outcome, String> {
        let mut context = SslContext::builder(SslMethod::tls()).unwrap();
        context.set_verify(SslVerifyMode::NONE);
        context.set_max_proto_version(self.most).unwrap();
        if let Some(algorithms) = self.algorithms {
            context.set_sigalgs_list(algorithms).unwrap();
        }
        if let Some(identity) = &self.identity {
            identity.install(&mut context).unwrap();
        }
        if let Some(groups) = self.groups {
            context.set_curves_list(groups).unwrap();
        }
        if self.ocsp {
            context.enable_ocsp_stapling();
        }
        let saved = Arc::new(Mutex::new(None));
        let keep = saved.clone();
        context.set_session_cache_mode(SslSessionCacheMode::CLIENT);
        context.set_new_session_callback(move |_, session| *keep.lock().unwrap() = Some(session));
        let context = context.build();
        let mut ssl = Ssl::new(&context).unwrap();
        if let Some(name) = self.name {
            ssl.set_hostname(name).unwrap();
        }
        if let Some(alpn) = self.alpn {
            ssl.set_alpn_protos(alpn).unwrap();
        }
        if let Some(session) = &self.session {
            resume(&mut ssl, session);
        }
        if let Some(ech) = &self.ech {
            ssl.set_ech_config_list(ech).unwrap();
        }
        let (near, far) = UnixStream::pair().unwrap();
        let server = server.clone();
        let serve = move || -> Result<Option<String>, String> {
            let mut stream = Ssl::new(&server).unwrap().accept(far).map_err(problem)?;
            let subject = peer_subject(stream.ssl());
            stream.write_all(b"x").map_err(|error| error.to_string())?;
            // Until the client has read all.
            let _ = stream.read(&mut [0]);
            Ok(subject)
        };
        let serving = std::thread::spawn(serve);
        let outcome = ssl.connect(near).map_err(problem).and_then(|mut stream| {
            stream.read_exact(&mut [0]).map_err(|error| error.to_string())?;
            Ok(outcome(&stream, &saved))
        });
        let subject = serving.join().unwrap();
        let outcome = outcome?;
        Ok(Outcome { subject: subject?, ..outcome })
    }
}

fn problem<S: std::fmt::Debug>(error: HandshakeError<S>) -> String {
    match error {
        HandshakeError::Failure(stream) => stream.error().to_string(),
        other => format!("{other:?}"),
    }
}

#[allow(unsafe_code)]
fn resume(ssl: &mut Ssl, session: &SslSession) {
    // SAFETY: sessions come from contexts of the same settings.
    unsafe { ssl.set_session(session).unwrap() }
}

fn outcome(stream: &SslStream<UnixStream>, saved: &Mutex<Option<SslSession>>) -> Outcome {
    let ssl = stream.ssl();
    let leaf = ssl.peer_certificate().unwrap();
    let name = leaf.subject_alt_names().unwrap().get(0).unwrap().dnsname().unwrap().to_owned();
    Outcome {
        certificate: (name, leaf.public_key().unwrap().id()),
        resumed: ssl.session_reused(),
        session: saved.lock().unwrap().take(),
        alpn: ssl.selected_alpn_protocol().map(<[u8]>::to_vec),
        group: ssl.curve_name(),
        ech: ssl.ech_accepted(),
        ocsp: ssl.ocsp_status().map(<[u8]>::to_vec),
        subject: None,
    }
}

fn tls(identities: Vec<Identity>, options: TlsOptions) -> Tls {
    tls_with(identities, options, Lasting::new().unwrap())
}

fn tls_with(identities: Vec<Identity>, options: TlsOptions, lasting: Lasting) -> Tls {
    Tls::new(identities.into_iter().map(Arc::new).collect(), options, lasting).unwrap()
}

/// Both contexts of a server; that of QUIC is used over a byte stream here, where only TLS 1.3 is asked for.
fn contexts(tls: &Tls) -> [SslContext; 2] {
    [tls.tcp(PROTOCOLS).unwrap().build(), tls.quic().unwrap().build()]
}

#[test]
fn each_name_gets_its_certificate_and_others_the_first() {
    let tls = tls(vec![identity(&["a.example"]), identity(&["*.b.example"])], TlsOptions::default());
    for context in contexts(&tls) {
        for (client, expected) in [
            (named("a.example"), "a.example"),
            (named("x.b.example"), "*.b.example"),
            (named("y.x.b.example"), "a.example"),
            (named("c.example"), "a.example"),
            (Client::default(), "a.example"),
        ] {
            assert_eq!(client.connect(&context).unwrap().certificate.0, expected);
        }
    }
}

#[test]
fn unknown_names_can_be_refused_by_the_alert_that_says_so() {
    let options = TlsOptions { unknown_name: UnknownName::Reject, ..TlsOptions::default() };
    let tls = tls(vec![identity(&["a.example"])], options);
    for context in contexts(&tls) {
        let error = named("b.example").connect(&context).unwrap_err();
        assert!(error.contains("UNRECOGNIZED_NAME") || error.contains("unrecognized name"), "{error}");
        assert!(named("A.example").connect(&context).is_ok());
        assert!(Client::default().connect(&context).is_ok(), "a client that names no server");
        tls.lasting().issued.replace(vec![Arc::new(identity(&["b.example"]))]).unwrap();
        assert_eq!(named("b.example").connect(&context).unwrap().certificate.0, "b.example");
        tls.lasting().issued.replace(Vec::new()).unwrap();
    }
}

#[test]
fn the_key_follows_the_clients_signature_algorithms() {
    use boring::pkey::Id;
    let both = vec![identity_of(&["a.example"], Key::Rsa), identity_of(&["a.example"], Key::Ecdsa)];
    let tls = tls(both, TlsOptions::default());
    for context in contexts(&tls) {
        let kind = |client: Client| client.connect(&context).unwrap().certificate.1;
        assert_eq!(kind(named("a.example")), Id::EC);
        let rsa = Client { algorithms: Some("rsa_pss_rsae_sha256"), ..named("a.example") };
        assert_eq!(kind(rsa), Id::RSA);
        let ecdsa = Client { algorithms: Some("ecdsa_secp256r1_sha256"), ..Client::default() };
        assert_eq!(kind(ecdsa), Id::EC);
    }
    let old =
        Client { most: Some(SslVersion::TLS1_2), algorithms: Some("rsa_pkcs1_sha256"), ..named("a.example") };
    let context = tls.tcp(PROTOCOLS).unwrap().build();
    assert_eq!(old.connect(&context).unwrap().certificate.1, Id::RSA);
}

#[test]
fn post_quantum_key_agreement_is_used_where_the_client_offers_it() {
    let tls = tls(vec![identity(&["a.example"])], TlsOptions::default());
    for context in contexts(&tls) {
        for (groups, expected) in [
            ("X25519MLKEM768:X25519", "X25519MLKEM768"),
            ("X25519:X25519MLKEM768", "X25519"),
            ("P-256", "P-256"),
        ] {
            let client = Client { groups: Some(groups), ..Client::default() };
            assert_eq!(client.connect(&context).unwrap().group, Some(expected));
        }
    }
}

#[test]
fn protocols_are_chosen_in_our_order_and_strangers_refused() {
    let context = tls(vec![identity(&["a.example"])], TlsOptions::default()).tcp(PROTOCOLS).unwrap().build();
    let alpn = |offer| Client { alpn: Some(offer), ..Client::default() }.connect(&context);
    assert_eq!(alpn(b"\x08http/1.1\x02h2").unwrap().alpn.unwrap(), b"h2");
    assert_eq!(alpn(b"\x08http/1.1").unwrap().alpn.unwrap(), b"http/1.1");
    let error = alpn(b"\x02h9").unwrap_err();
    assert!(
        error.to_lowercase().contains("no_application_protocol") || error.contains("no application"),
        "{error}"
    );
    assert_eq!(Client::default().connect(&context).unwrap().alpn, None);
}

#[test]
fn a_challenge_is_answered_to_those_who_ask_for_nothing_else() {
    let tls = tls(vec![identity(&["a.example"])], TlsOptions::default());
    let context = tls.tcp(PROTOCOLS).unwrap().build();
    let ask = |alpn: &'static [u8]| Client { alpn: Some(alpn), ..named("b.example") }.connect(&context);
    assert!(ask(b"\x0aacme-tls/1").is_err(), "no challenge waits");
    let issued = &tls.lasting().issued;
    issued.set_challenge("B.example", Some(Arc::new(identity(&["b.example"])))).unwrap();
    let answered = ask(b"\x0aacme-tls/1").unwrap();
    assert_eq!(
        (answered.certificate.0.as_str(), answered.alpn.unwrap().as_slice()),
        ("b.example", ACME_TLS_ALPN)
    );
    assert_eq!(ask(b"\x02h2\x0aacme-tls/1").unwrap().certificate.0, "a.example");
    assert_eq!(ask(b"\x02h2").unwrap().certificate.0, "a.example");
    issued.set_challenge("b.example", None).unwrap();
    assert!(ask(b"\x0aacme-tls/1").is_err());
}

/// Tickets of TLS 1.2 and 1.3 between two servers, as nodes of a service or before and after a reload.
#[test]
fn sessions_are_resumed_with_the_previous_key_and_not_with_an_older() {
    for most in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let lasting = Lasting::new().unwrap();
        let server = |lasting: &Lasting| {
            let tls = tls_with(vec![identity(&["a.example"])], TlsOptions::default(), lasting.clone());
            tls.tcp(PROTOCOLS).unwrap().build()
        };
        let (first, second) = (server(&lasting), server(&lasting));
        let stranger = server(&Lasting::new().unwrap());
        let client = |session: &Option<SslSession>| Client {
            most: Some(most),
            session: session.clone(),
            ..named("a.example")
        };
        let start = client(&None).connect(&first).unwrap();
        assert!(!start.resumed);
        assert!(client(&start.session).connect(&second).unwrap().resumed, "{most:?}: another server");
        assert!(!client(&start.session).connect(&stranger).unwrap().resumed, "{most:?}: other keys");
        let rotate = |turn: u64| {
            let now = Instant::now() + Duration::from_secs(turn * 100);
            assert!(lasting.tickets.rotate_if_due(now, Duration::from_secs(99)).unwrap());
        };
        rotate(1);
        let renewed = client(&start.session).connect(&second).unwrap();
        assert!(renewed.resumed, "{most:?}: the previous key");
        assert!(renewed.session.is_some(), "{most:?}: with a ticket of the current key");
        rotate(2);
        assert!(!client(&start.session).connect(&first).unwrap().resumed, "{most:?}: an older key");
        assert!(client(&renewed.session).connect(&first).unwrap().resumed, "{most:?}: the renewed ticket");
    }
}

#[test]
fn a_node_takes_tickets_of_one_that_is_a_rotation_ahead() {
    let directory = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
    // Current, previous, next.
    std::fs::write(&one, [[1; 80], [0; 80], [2; 80]].concat()).unwrap();
    std::fs::write(&two, [[2; 80], [1; 80], [3; 80]].concat()).unwrap();
    let (behind, ahead) = (Lasting::new().unwrap(), Lasting::new().unwrap());
    behind.tickets.load(&one).unwrap();
    ahead.tickets.load(&two).unwrap();
    let [behind, ahead] = [behind, ahead].map(|lasting| {
        tls_with(vec![identity(&["a.example"])], TlsOptions::default(), lasting)
            .tcp(PROTOCOLS)
            .unwrap()
            .build()
    });
    let session = Client::default().connect(&ahead).unwrap().session;
    assert!(Client { session, ..Client::default() }.connect(&behind).unwrap().resumed);
    let session = Client::default().connect(&behind).unwrap().session;
    assert!(Client { session, ..Client::default() }.connect(&ahead).unwrap().resumed);
}

fn client_auth(mode: ClientAuthMode, authority: &(String, String)) -> TlsOptions {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, &authority.0).unwrap();
    TlsOptions { client_auth: ClientAuth::load(mode, &file).unwrap(), ..TlsOptions::default() }
}

/// A certificate that `issuer` signs, or itself.
fn person(name: &str, authority: bool, issuer: Option<&(String, String)>) -> (String, String) {
    let mut parameters = rcgen::CertificateParams::new(vec!["person.example".to_owned()]).unwrap();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    if authority {
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let signed = match issuer {
        Some((_, issuer_key)) => {
            let mut of_issuer = rcgen::CertificateParams::new(Vec::new()).unwrap();
            of_issuer.distinguished_name = rcgen::DistinguishedName::new();
            of_issuer.distinguished_name.push(rcgen::DnType::CommonName, "authority");
            of_issuer.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let issuer = rcgen::Issuer::new(of_issuer, rcgen::KeyPair::from_pem(issuer_key).unwrap());
            parameters.signed_by(&key, &issuer).unwrap()
        }
        None => parameters.self_signed(&key).unwrap(),
    };
    (signed.pem(), key.serialize_pem())
}

fn parsed((chain, key): &(String, String)) -> Arc<Identity> {
    let path = std::path::Path::new("client.pem");
    Arc::new(Identity::from_pem(chain.as_bytes(), key.as_bytes(), path, path).unwrap())
}

#[test]
fn clients_show_certificates_of_the_authorities_that_are_trusted() {
    let authority = person("authority", true, None);
    let alice = parsed(&person("alice", false, Some(&authority)));
    let mallory = parsed(&person("mallory", false, Some(&person("authority", true, None))));
    for (mode, without) in [(ClientAuthMode::Required, false), (ClientAuthMode::Optional, true)] {
        let tls = tls(vec![identity(&["a.example"])], client_auth(mode, &authority));
        for context in contexts(&tls) {
            let shown = |identity: Option<&Arc<Identity>>| {
                Client { identity: identity.cloned(), ..Client::default() }.connect(&context)
            };
            let met = shown(Some(&alice)).unwrap();
            assert_eq!(met.subject.as_deref(), Some("CN=alice"));
            let again = Client { session: met.session, ..Client::default() }.connect(&context).unwrap();
            assert!(again.resumed);
            assert_eq!(again.subject.as_deref(), Some("CN=alice"), "a resumed session is of the same client");
            assert!(shown(Some(&mallory)).is_err(), "{mode:?}");
            assert_eq!(shown(None).is_ok(), without, "{mode:?}");
        }
    }
}

#[test]
fn no_session_from_before_gets_past_a_certificate_that_is_required_now() {
    let authority = person("authority", true, None);
    let lasting = Lasting::new().unwrap();
    let identities = || vec![identity(&["a.example"])];
    let before =
        tls_with(identities(), TlsOptions::default(), lasting.clone()).tcp(PROTOCOLS).unwrap().build();
    let after = tls_with(identities(), client_auth(ClientAuthMode::Required, &authority), lasting);
    let session = Client::default().connect(&before).unwrap().session;
    assert!(session.is_some());
    assert!(Client { session, ..Client::default() }.connect(&after.tcp(PROTOCOLS).unwrap().build()).is_err());
}

#[test]
fn ocsp_responses_are_stapled_for_those_who_ask() {
    let directory = tempfile::tempdir().unwrap();
    let [chain, key, ocsp] = ["c", "k", "o"].map(|name| directory.path().join(name));
    let response = [0x30, 0x05, 0x0a, 0x01, 0x00, 0x05, 0x00];
    let texts = pem(&["a.example"], Key::Ecdsa);
    std::fs::write(&chain, texts.0).unwrap();
    std::fs::write(&key, texts.1).unwrap();
    std::fs::write(&ocsp, response).unwrap();
    let stapled = Identity::load_with(&chain, &key, Some(&ocsp)).unwrap();
    let tls = tls(vec![stapled, identity(&["b.example"])], TlsOptions::default());
    for context in contexts(&tls) {
        let ask = |name, ocsp| Client { ocsp, ..named(name) }.connect(&context).unwrap().ocsp;
        assert_eq!(ask("a.example", true).as_deref(), Some(&response[..]));
        assert_eq!(ask("a.example", false), None);
        assert_eq!(ask("b.example", true), None);
    }
}

#[test]
fn encrypted_names_are_served_with_each_key_of_the_folder() {
    let directory = tempfile::tempdir().unwrap();
    let decode = |list: &str| boring::base64::decode_block(list).unwrap();
    let made = ["old", "new"].map(|name| {
        let (pem, list) = generate_ech("public.example").unwrap();
        std::fs::write(directory.path().join(name).with_extension("pem"), pem).unwrap();
        decode(&list)
    });
    let options =
        || TlsOptions { ech: Some(EchKeys::load(directory.path()).unwrap()), ..TlsOptions::default() };
    let identities = || vec![identity(&["public.example"]), identity(&["secret.example"])];
    for context in contexts(&tls(identities(), options())) {
        for list in &made {
            let client = Client { ech: Some(list.clone()), ..named("secret.example") };
            let met = client.connect(&context).unwrap();
            assert!(met.ech);
            assert_eq!(met.certificate.0, "secret.example");
        }
        assert!(!named("secret.example").connect(&context).unwrap().ech);
    }
    std::fs::write(directory.path().join("zzz.pem"), "nothing").unwrap();
    let error = EchKeys::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("zzz.pem: no X25519 private key"), "{error}");
    let (pem, _) = generate_ech("public.example").unwrap();
    let (other, _) = generate_ech("public.example").unwrap();
    let mixed =
        [&pem[..pem.find("-----BEGIN ECH").unwrap()], &other[other.find("-----BEGIN ECH").unwrap()..]]
            .concat();
    std::fs::write(directory.path().join("zzz.pem"), mixed).unwrap();
    let error = EchKeys::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("zzz.pem: the configuration is not for this key"), "{error}");
    assert!(generate_ech("no name").is_err());
}

#[test]
fn a_stopgap_is_served_until_a_certificate_is_issued() {
    let options = TlsOptions { stopgap: true, ..TlsOptions::default() };
    let tls = tls(vec![identity(&["stopgap.example"])], options);
    for context in contexts(&tls) {
        let met = |client: Client| client.connect(&context).unwrap().certificate.0;
        assert_eq!(met(named("a.example")), "stopgap.example");
        tls.lasting().issued.replace(vec![Arc::new(identity(&["a.example"]))]).unwrap();
        assert_eq!(met(named("a.example")), "a.example");
        assert_eq!(met(Client::default()), "a.example");
        tls.lasting().issued.replace(Vec::new()).unwrap();
    }
}

/// Contexts of a new configuration are made, and used beside those of the old, while clients come.
#[test]
fn a_reload_loses_no_handshake() {
    let lasting = Lasting::new().unwrap();
    let server = |name: &str| tls_with(vec![identity(&[name])], TlsOptions::default(), lasting.clone());
    let current = arc_swap::ArcSwap::from_pointee(server("one.example").tcp(PROTOCOLS).unwrap().build());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let (mut session, mut resumed) = (None, 0);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let context = SslContext::clone(&current.load());
                        let met = Client { session, ..Client::default() }.connect(&context).unwrap();
                        resumed += usize::from(met.resumed);
                        session = met.session;
                    }
                    resumed
                })
            })
            .collect();
        for turn in 0..20 {
            let name = if turn % 2 == 0 { "two.example" } else { "one.example" };
            current.store(Arc::new(server(name).tcp(PROTOCOLS).unwrap().build()));
            named("x.example").connect(&current.load()).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(clients.into_iter().all(|client| client.join().unwrap() > 0));
    });
}
