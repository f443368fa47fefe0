//! A client of the admin listener: one GET a connection, over HTTP/1.1.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::fail::Failure;

/// How long connecting, and asking with the whole answer, may take.
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
            self.failure(&format!(
                "{error}; check that the process is running with --admin or [admin] listen"
            ))
        })?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(Answer::Page(body.to_owned())),
            Some((head, _)) if head.starts_with("HTTP/1.1 404 ") => Ok(Answer::Absent),
            _ => Err(self.failure(&format!("unexpected answer to {path}: not an admin listener"))),
        }
    }

    fn ask(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address, TIMEOUT)?;
        let address = self.address;
        stream.set_write_timeout(Some(TIMEOUT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        read_to_end(stream, Instant::now() + TIMEOUT)
    }
}

/// All that comes, which has to be text and to end by the deadline.
fn read_to_end(mut stream: TcpStream, deadline: Instant) -> io::Result<String> {
    let (mut answer, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out reading the answer"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => break,
            length => answer.extend_from_slice(&chunk[..length]),
        }
        if answer.len() as u64 > MAX_ANSWER {
            return Err(io::Error::other(format!("answer exceeds {MAX_ANSWER} bytes")));
        }
    }
    String::from_utf8(answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_that_drips_for_ever_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let drips = std::thread::spawn(move || {
            while other.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let given_up = read_to_end(stream, Instant::now() + Duration::from_millis(100));
        assert!(given_up.is_err(), "{given_up:?}");
        drips.join().unwrap();
    }
}
