//! Targets of the fan-out's doors: what a connection says before it is a subscriber's, and what one that subscribed by
//! WebSocket says after.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;

use boring::ssl::{HandshakeError, SslConnector, SslMethod, SslStream, SslVerifyMode};
use expressway_feed::fanout::fuzzing::{Connection, Frames, State};
use expressway_feed::fanout::{Protocol, Start, StartPolicy, TlsIdentity};

use crate::cost::{self, Account, Bound};
use crate::identity::PEM;

/// A connection until it is let in, is served a page or fails. A segment costs its headers too.
const CONNECTION: Bound =
    Bound { steps: (400, 40_000), allocations: (2, 400), bytes: (100, 256 << 10), peak: (20, 256 << 10) };

/// Frames of a WebSocket.
const FRAMES: Bound = Bound { steps: (60, 400), allocations: (1, 64), bytes: (16, 1024), peak: (4, 1024) };

/// Bytes of IPv4 and TCP headers.
const HEADERS: usize = 40;

/// More pieces are not sent one by one.
const MAX_PIECES: usize = 512;

static IDENTITY: LazyLock<TlsIdentity> = LazyLock::new(|| {
    let folder = tempfile::TempDir::new().expect("a folder for a certificate");
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    std::fs::write(&chain, &PEM.0)
        .and_then(|()| std::fs::write(&key, &PEM.1))
        .expect("files of a certificate");
    TlsIdentity::load(&chain, &key).expect("a certificate just made")
});

static CONNECTOR: LazyLock<SslConnector> = LazyLock::new(|| {
    let mut builder = SslConnector::builder(SslMethod::tls()).expect("a TLS context");
    builder.set_verify(SslVerifyMode::NONE);
    builder.build()
});

/// A client's end: in clear, or by TLS that is real.
enum Client {
    Clear(UnixStream),
    Tls(SslStream<UnixStream>),
}

impl Client {
    /// Says something, as far as the other end still listens.
    fn say(&mut self, bytes: &[u8]) {
        let _ = match self {
            Self::Clear(socket) => socket.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes),
        };
    }

    /// Takes what was answered, so that there is room for more.
    fn listen(&mut self) {
        let mut scratch = [0; 16 << 10];
        loop {
            let read = match self {
                Self::Clear(socket) => socket.read(&mut scratch),
                Self::Tls(stream) => stream.read(&mut scratch),
            };
            match read {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }
}

/// What a connection says: the first byte is protocol and manner, the second the size of its pieces.
pub fn handshake(data: &[u8]) {
    let [how, size, words @ ..] = data else { return };
    let protocol = Protocol::ALL[usize::from(how & 3)];
    let is_tls = matches!(protocol, Protocol::Tls | Protocol::SecureWebSocket);
    let start = if how & 4 == 0 { StartPolicy::Ask } else { StartPolicy::Fixed(Start::Last(10)) };
    let origins = vec!["https://friend.test".to_owned(), "https://other.test".to_owned()];
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("a socket");
    }
    let mut account = Account::default();
    let tls = is_tls.then_some(&*IDENTITY);
    let connection = account.run(HEADERS, || Connection::new(protocol, ours.into(), start, origins, tls));
    let mut connection = connection.expect("a TLS session");
    // Without this, what is said is taken for TLS.
    let mut client = if is_tls && how & 8 != 0 {
        shake_hands(theirs, &mut connection, &mut account)
    } else {
        Client::Clear(theirs)
    };
    let size = usize::from(*size).max(1).max(words.len() / MAX_PIECES);
    for piece in words.chunks(size) {
        client.say(piece);
        let state = account.run(HEADERS + piece.len(), || connection.advance());
        client.listen();
        if matches!(state, State::Subscribed | State::Failed) {
            break;
        }
    }
    drop(client);
    account.run(0, || drop(connection));
    account.settle(&CONNECTION);
}

/// The handshake of a client that keeps to the rules.
fn shake_hands(socket: UnixStream, connection: &mut Connection, account: &mut Account) -> Client {
    let mut outcome = CONNECTOR.connect("edge.example", socket);
    loop {
        match outcome {
            Ok(stream) => {
                account.run(HEADERS + 100, || connection.advance());
                return Client::Tls(stream);
            }
            Err(HandshakeError::WouldBlock(stream)) => {
                account.run(HEADERS + 300, || connection.advance());
                outcome = stream.handshake();
            }
            Err(error) => panic!("a handshake by the rules: {error}"),
        }
    }
}

/// Frames read the same whole and cut; the first byte says how they are cut.
pub fn websocket(data: &[u8]) {
    let Some((size, bytes)) = data.split_first() else { return };
    let read = |size: usize| {
        cost::hold(&FRAMES, bytes.len(), || {
            let mut frames = Frames::default();
            bytes.chunks(size).try_fold(0, |answered, piece| Ok(answered + frames.read(piece)?))
        })
    };
    let whole: Result<usize, &str> = read(bytes.len().max(1));
    assert_eq!(whole, read(usize::from(*size).max(1)));
    assert!(whole.is_ok_and(|answered| answered <= bytes.len()) || whole.is_err());
}
