//! The checks by QUIC: `quic` provokes Version Negotiation, `quic-handshake` completes a handshake, `http3` makes a request.
//!
//! Certificates are not verified: the check is whether the node serves, at an address that is in no certificate.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use quiche::h3::{self, NameValue};
use quiche::{ConnectionId, RecvInfo};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::answer::{accept_body, accept_status};
use super::{Source, Target, random};
use crate::balance::config::CheckKind;

/// A version that no server has: of the form that is reserved to provoke negotiation (RFC 9000, section 15).
const UNKNOWN_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
/// The largest datagram that is sent or taken.
const DATAGRAM: usize = 1350;
/// What a node may send before it is asked for more: the head of a response and a little of its body.
const WINDOW: u64 = 64 << 10;
/// H3_NO_ERROR (RFC 9114, section 8.1).
const NO_ERROR: u64 = 0x100;

async fn open(target: &Target) -> io::Result<UdpSocket> {
    let source: IpAddr = match (target.source, target.address) {
        (Source::Address(source), _) => source,
        (_, SocketAddr::V4(_)) => [0; 4].into(),
        (_, SocketAddr::V6(_)) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((source, 0)).await?;
    socket.connect(target.address).await?;
    Ok(socket)
}

/// Asks for the versions that the node has.
pub(super) async fn negotiate(target: &Target) -> io::Result<()> {
    let socket = open(target).await?;
    let ids = random().to_be_bytes();
    // A server need not answer less (RFC 9000, section 14.1).
    let mut packet = vec![0; 1200];
    packet[0] = 0xc0;
    packet[1..5].copy_from_slice(&UNKNOWN_VERSION);
    packet[5] = 8;
    packet[6..14].copy_from_slice(&ids);
    packet[14] = 8;
    packet[15..23].copy_from_slice(&ids);
    let mut answer = [0; 256];
    // One may be lost; the caller's timeout ends it.
    loop {
        socket.send(&packet).await?;
        if let Ok(length) = timeout(Duration::from_millis(300), socket.recv(&mut answer)).await {
            if is_negotiation(&answer[..length?], &packet) {
                return Ok(());
            }
            return Err(io::Error::other("answered with something other than Version Negotiation"));
        }
    }
}

/// Whether `answer` is a Version Negotiation packet to `packet`: version 0, and its connection IDs the other way round.
fn is_negotiation(answer: &[u8], packet: &[u8]) -> bool {
    answer.len() >= 27
        && answer[0] & 0x80 != 0
        && answer[1..5] == [0; 4]
        && answer[5..14] == packet[14..23]
        && answer[14..23] == packet[5..14]
}

/// Connects, and makes a request if the check is `http3`.
pub(super) async fn connect(target: &Target) -> io::Result<()> {
    let socket = open(target).await?;
    let local = socket.local_addr()?;
    let connection = begin(target, local).map_err(failed)?;
    let mut session = ProbeSession { target, local, connection, http: None, body: Vec::new() };
    let result = session.run(&socket).await;
    // So that the node forgets it at once; a node that is gone does not hear it.
    let _ = session.connection.close(true, NO_ERROR, b"");
    let _ = session.flush(&socket).await;
    result
}

fn begin(target: &Target, local: SocketAddr) -> quiche::Result<quiche::Connection> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.verify_peer(false);
    let protocols: Vec<&[u8]> = target.check.alpn.iter().map(|protocol| protocol.as_bytes()).collect();
    config.set_application_protos(&protocols)?;
    config.set_max_recv_udp_payload_size(DATAGRAM);
    config.set_max_send_udp_payload_size(1200);
    config.set_initial_max_data(4 * WINDOW);
    config.set_initial_max_stream_data_bidi_local(WINDOW);
    config.set_initial_max_stream_data_uni(WINDOW);
    config.set_initial_max_streams_uni(8);
    let id = [random().to_be_bytes(), random().to_be_bytes()].concat();
    let name = target.check.host.as_deref();
    quiche::connect(name, &ConnectionId::from_ref(&id), local, target.address, &mut config)
}

fn failed(error: quiche::Error) -> io::Error {
    io::Error::other(format!("QUIC: {error}"))
}

/// A check under way.
struct ProbeSession<'a> {
    target: &'a Target,
    local: SocketAddr,
    connection: quiche::Connection,
    /// From the handshake on, if there is to be a request.
    http: Option<h3::Connection>,
    /// As much of the response's body as is expected.
    body: Vec<u8>,
}

impl ProbeSession<'_> {
    async fn run(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let mut datagram = [0; 2048];
        loop {
            if let Some(result) = self.advance() {
                return result;
            }
            self.flush(socket).await?;
            let wait = self.connection.timeout().unwrap_or(Duration::from_secs(1));
            match timeout(wait, socket.recv(&mut datagram)).await {
                Ok(length) => {
                    let info = RecvInfo { from: self.target.address, to: self.local };
                    // What is not of this connection is ignored; the caller's timeout ends it.
                    if let Err(error) = self.connection.recv(&mut datagram[..length?], info) {
                        tracing::debug!(%error, node = %self.target.address, "check");
                    }
                }
                Err(_) => self.connection.on_timeout(),
            }
        }
    }

    async fn flush(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let mut datagram = [0; DATAGRAM];
        loop {
            match self.connection.send(&mut datagram) {
                Ok((length, _)) => socket.send(&datagram[..length]).await?,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
        }
    }

    /// Goes on as far as what has come allows; `Some` at the end.
    fn advance(&mut self) -> Option<io::Result<()>> {
        if let Some(why) = self.end() {
            return Some(Err(io::Error::other(why)));
        }
        if !self.connection.is_established() {
            return None;
        }
        if self.target.check.kind == CheckKind::QuicHandshake {
            return Some(Ok(()));
        }
        let polled = match self.http.take() {
            Some(mut http) => {
                let polled = self.poll(&mut http);
                self.http = Some(http);
                polled
            }
            None => self.request().map(|()| None),
        };
        polled.unwrap_or_else(|error| Some(Err(error)))
    }

    /// Why the connection has ended, if it has.
    fn end(&self) -> Option<String> {
        if let Some(error) = self.connection.peer_error() {
            let reason = error.reason.escape_ascii();
            return Some(format!("closed the connection with error {:#x} `{reason}`", error.error_code));
        }
        if let Some(error) = self.connection.local_error() {
            return Some(format!("QUIC: error {:#x}", error.error_code));
        }
        (self.connection.is_closed() || self.connection.is_draining())
            .then(|| "the connection ended before it was established".to_owned())
    }

    fn request(&mut self) -> io::Result<()> {
        let check = &self.target.check;
        let authority = check.host.clone().unwrap_or_else(|| self.target.address.to_string());
        let config = h3::Config::new().map_err(http_failed)?;
        let mut http = h3::Connection::with_transport(&mut self.connection, &config).map_err(http_failed)?;
        let fields = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", authority.as_str()),
            (":path", check.path.as_str()),
            ("user-agent", "expressway"),
        ];
        let fields = fields.map(|(name, value)| h3::Header::new(name.as_bytes(), value.as_bytes()));
        http.send_request(&mut self.connection, &fields, true).map_err(http_failed)?;
        self.http = Some(http);
        Ok(())
    }

    /// Takes the response in.
    fn poll(&mut self, http: &mut h3::Connection) -> io::Result<Option<io::Result<()>>> {
        let check = &self.target.check;
        loop {
            let (stream, event) = match http.poll(&mut self.connection) {
                Ok(event) => event,
                Err(h3::Error::Done) => return Ok(None),
                Err(error) => return Err(http_failed(error)),
            };
            let judged = match event {
                h3::Event::Headers { list, .. } => {
                    let status = list.iter().find(|field| field.name() == b":status");
                    let status = status.map_or(&b""[..], |field| field.value());
                    // Interim responses come before the response (RFC 9114, section 4.1).
                    if status.starts_with(b"1") {
                        continue;
                    }
                    accept_status(check, status)?;
                    accept_body(check, &self.body, false)
                }
                h3::Event::Data => {
                    let mut part = [0; 2048];
                    while let Ok(length) = http.recv_body(&mut self.connection, stream, &mut part) {
                        let room = check.body.len().saturating_sub(self.body.len());
                        self.body.extend_from_slice(&part[..length.min(room)]);
                    }
                    accept_body(check, &self.body, false)
                }
                h3::Event::Finished => accept_body(check, &self.body, true),
                h3::Event::Reset(code) => {
                    Some(Err(io::Error::other(format!("reset the request: {code:#x}"))))
                }
                _ => None,
            };
            if judged.is_some() {
                return Ok(judged);
            }
        }
    }
}

fn http_failed(error: h3::Error) -> io::Error {
    io::Error::other(format!("HTTP/3: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{asked, check};
    use super::*;

    #[test]
    fn quic_servers_negotiate_versions() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            for good in [true, false] {
                let mut packet = [0; 2048];
                let (length, from) = server.recv_from(&mut packet).unwrap();
                assert_eq!(length, 1200);
                let mut answer = vec![0x80, 0, 0, 0, u8::from(!good)];
                answer.extend(&packet[14..23]);
                answer.extend(&packet[5..14]);
                answer.extend([0, 0, 0, 1]);
                server.send_to(&answer, from).unwrap();
            }
        });
        let target = Target { address, source: Source::Kernel, check: check(CheckKind::Quic) };
        assert_eq!(asked(target.clone()), Ok(()));
        assert!(asked(target).is_err());
        thread.join().unwrap();
    }

    /// Noise in place of a handshake is ignored, and the check's time ends it.
    #[test]
    fn noise_is_no_handshake() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 2048];
            let (length, from) = server.recv_from(&mut packet).unwrap();
            assert!(length >= 1200, "an Initial");
            for noise in [&b"x"[..], &[0xff; 1200], &packet[..length]] {
                server.send_to(noise, from).unwrap();
            }
            // Open until the check is over: it asks again, and a port that nobody has refuses.
            server
        });
        let mut check = check(CheckKind::QuicHandshake);
        check.timeout = Duration::from_millis(500);
        let problem = asked(Target { address, source: Source::Kernel, check }).unwrap_err();
        assert_eq!(problem, "no answer in time");
        thread.join().unwrap();
    }
}
