//! A client of the admin listener: one GET a connection, over HTTP/1.1.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::fail::Failure;

/// How long connecting, and each read and write, may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer taken: some 100,000 subscribers.
const MAX_ANSWER: u64 = 64 << 20;

/// An answer.
pub(super) enum Answer {
    /// The page.
    Page(String),
    /// There is no such page.
    Absent,
}

/// An admin listener.
pub(super) struct Admin {
    address: SocketAddr,
}

impl Admin {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// An error that names the listener.
    pub(super) fn failure(&self, problem: &str) -> Failure {
        Failure::run_time(format!("--admin {}: {problem}", self.address))
    }

    /// Asks for a page.
    pub(super) fn page(&self, path: &str) -> Result<Answer, Failure> {
        let answer = self.ask(path).map_err(|error| {
            self.failure(&format!("{error}; is a process there, with --admin or [admin] listen?"))
        })?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(Answer::Page(body.to_owned())),
            Some((head, _)) if head.starts_with("HTTP/1.1 404 ") => Ok(Answer::Absent),
            _ => Err(self.failure(&format!("{path} is not answered as an admin listener does"))),
        }
    }

    fn ask(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let address = self.address;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
        Ok(answer)
    }
}
