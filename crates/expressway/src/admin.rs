//! A client of the admin listener: one request a connection, over HTTP/1.1.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use expressway_settings::admin::{Address, Token, read_tokens};

use crate::args::AdminPeer;
use crate::fail::Failure;

/// How long connecting, and asking with the whole answer, may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer taken: some 100,000 subscribers.
const MAX_ANSWER: u64 = 64 << 20;

/// An answer.
pub(crate) enum Answer {
    /// The page.
    Page(String),
    /// There is no such page.
    Absent,
}

/// An admin listener.
pub(crate) struct Admin {
    address: Address,
    token: Option<Token>,
}

impl Admin {
    /// The one that the command line names; reads the token.
    pub(crate) fn of(peer: &AdminPeer) -> Result<Self, Failure> {
        let token = peer.token_file.as_ref().map(|file| {
            let tokens = read_tokens(file);
            tokens.map_err(|problem| Failure::usage(format!("--token-file {} {problem}", file.display())))
        });
        let token = token.transpose()?.and_then(|tokens| tokens.into_iter().next());
        Ok(Self { address: peer.admin.clone(), token })
    }

    /// An error that names the listener.
    pub(crate) fn failure(&self, problem: &str) -> Failure {
        Failure::run_time(format!("--admin {}: {problem}", self.address))
    }

    /// Asks for a page.
    pub(crate) fn page(&self, path: &str) -> Result<Answer, Failure> {
        let answer = self.ask(path).map_err(|error| {
            self.failure(&format!(
                "{error}; check that the process is running with --admin or [admin] listen"
            ))
        })?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(Answer::Page(body.to_owned())),
            Some((head, _)) if head.starts_with("HTTP/1.1 404 ") => Ok(Answer::Absent),
            Some((head, _)) if head.starts_with("HTTP/1.1 401 ") => Err(self.unauthorized()),
            _ => Err(self.failure(&format!("unexpected answer to {path}: not an admin listener"))),
        }
    }

    /// Orders something whose answer comes line by line. It is not over when nothing comes for a while.
    pub(crate) fn order(&self, path: &str, order: &str) -> Result<Lines, Failure> {
        let failed = |error: io::Error| {
            self.failure(&format!(
                "{error}; check that the process is running with --admin or [admin] listen"
            ))
        };
        let mut lines = self.post(path, order).map_err(failed)?;
        let head = lines.head().map_err(failed)?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        match status {
            Some("200") if lines.is_chunked => Ok(lines),
            Some("400" | "409" | "503") => {
                let problem = lines.rest().map_err(failed)?;
                Err(self.failure(problem.trim()))
            }
            Some("401") => Err(self.unauthorized()),
            Some("404" | "405") => Err(self
                .failure(&format!("has no {path}: the process does not offer it, or is an older version"))),
            _ => Err(self.failure(&format!("unexpected answer to {path}: not an admin listener"))),
        }
    }

    fn post(&self, path: &str, order: &str) -> io::Result<Lines> {
        let mut stream = self.connect()?;
        let length = order.len();
        stream.set_read_timeout(TIMEOUT)?;
        // One write: formatting onto the socket would send each piece by itself.
        let request = format!(
            "POST {path} HTTP/1.1\r\n{}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{order}",
            self.fields()
        );
        stream.write_all(request.as_bytes())?;
        Ok(Lines::new(stream))
    }

    fn ask(&self, path: &str) -> io::Result<String> {
        let mut stream = self.connect()?;
        let request = format!("GET {path} HTTP/1.1\r\n{}\r\n", self.fields());
        stream.write_all(request.as_bytes())?;
        read_to_end(stream, Instant::now() + TIMEOUT)
    }

    fn connect(&self) -> io::Result<Stream> {
        Ok(match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Stream::Tcp(stream)
            }
            // Where nobody accepts it waits, as nothing else of a unix socket does.
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Stream::Unix(stream)
            }
        })
    }

    /// Header fields of every request.
    fn fields(&self) -> String {
        let host = match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(_) => "localhost".to_owned(),
        };
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {}\r\n", token.as_str()));
        format!("host: {host}\r\nconnection: close\r\n{}", token.unwrap_or_default())
    }

    /// What 401 means.
    fn unauthorized(&self) -> Failure {
        self.failure(match &self.token {
            Some(_) => "rejected the token: give --token-file a file with a token of its [admin] token_file",
            None => "requires a token: give --token-file a file with a token of its [admin] token_file",
        })
    }
}

/// A connection.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}

/// The longest line of an answer, and the longest head.
const MAX_LINE: usize = 1 << 16;

/// Octets that are read at once.
const READ: usize = 1 << 16;

/// An answer that comes line by line, in chunks (RFC 9112, section 7.1).
pub(crate) struct Lines {
    stream: Stream,
    /// As it came, from `decoded` on not decoded.
    raw: Vec<u8>,
    decoded: usize,
    /// Decoded, from `told` on not told.
    text: Vec<u8>,
    told: usize,
    /// Octets left of the chunk.
    left: usize,
    has_ended: bool,
    is_chunked: bool,
}

/// What there is of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A line.
    Line(String),
    /// Nothing has come for the time that one waits.
    Nothing,
    /// The end, which the process has told.
    End,
}

impl Lines {
    fn new(stream: Stream) -> Self {
        let (raw, text) = (Vec::new(), Vec::new());
        Self { stream, raw, decoded: 0, text, told: 0, left: 0, has_ended: false, is_chunked: false }
    }

    /// How long one waits for a line.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(patience)
    }

    /// The next line.
    ///
    /// # Errors
    /// The connection is lost, or what comes is no such answer.
    pub(crate) fn poll(&mut self) -> io::Result<Part> {
        loop {
            let untold = &self.text[self.told..];
            if let Some(end) = untold.iter().position(|byte| *byte == b'\n') {
                let line = untold[..end].to_vec();
                self.told += end + 1;
                return text(line).map(Part::Line);
            }
            if untold.len() > MAX_LINE {
                return Err(invalid("a line is too long"));
            }
            if self.has_ended {
                return Ok(Part::End);
            }
            self.text.drain(..std::mem::take(&mut self.told));
            if !self.decode()? && !self.read()? {
                return Ok(Part::Nothing);
            }
        }
    }

    /// Reads more. False if nothing has come.
    fn read(&mut self) -> io::Result<bool> {
        self.raw.drain(..std::mem::take(&mut self.decoded));
        let before = self.raw.len();
        self.raw.resize(before + READ, 0);
        let read = self.stream.read(&mut self.raw[before..]);
        self.raw.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process closed the connection")),
            Ok(_) => Ok(true),
            // A signal is something to look at too.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Decodes what is there of a chunk. False if it takes more to be read.
    fn decode(&mut self) -> io::Result<bool> {
        let raw = &self.raw[self.decoded..];
        if self.left > 0 {
            let length = raw.len().min(self.left);
            self.text.extend_from_slice(&raw[..length]);
            self.decoded += length;
            self.left -= length;
            return Ok(length > 0);
        }
        let Some(end) = raw.windows(2).position(|pair| pair == b"\r\n") else {
            return if raw.len() > 64 { Err(invalid("not a chunked answer")) } else { Ok(false) };
        };
        let digits = text(raw[..end].to_vec())?;
        self.decoded += end + 2;
        // An empty line ends the chunk before.
        if !digits.is_empty() {
            self.left = usize::from_str_radix(&digits, 16).map_err(|_| invalid("not a chunked answer"))?;
            self.has_ended = self.left == 0;
        }
        Ok(true)
    }

    /// Reads the head, and returns its first line.
    fn head(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.raw.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = text(self.raw[..end].to_vec())?;
                self.decoded = end + 4;
                self.is_chunked =
                    head.lines().any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
                return Ok(head.lines().next().unwrap_or_default().to_owned());
            }
            if self.raw.len() > MAX_LINE {
                return Err(invalid("the head is too long"));
            }
            if !self.read()? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// What follows the head, of an answer that is not in chunks.
    fn rest(&mut self) -> io::Result<String> {
        let mut rest = self.raw.split_off(self.decoded);
        (&mut self.stream).take(MAX_LINE as u64).read_to_end(&mut rest)?;
        text(rest)
    }
}

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| invalid("the answer is not text"))
}

/// All that comes, which has to be text and to end by the deadline.
fn read_to_end(mut stream: Stream, deadline: Instant) -> io::Result<String> {
    let (mut answer, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out reading the answer"));
        }
        stream.set_read_timeout(left)?;
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

    /// An admin listener that answers an order with these octets, piece by piece.
    fn answering(pieces: &'static [&'static str]) -> (Admin, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let admin = Admin { address, token: None };
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of it: closing a socket with unread data resets the connection, and the answer may be lost with it.
            let (mut order, mut chunk) = (Vec::new(), [0; 1024]);
            while !order.ends_with(b"\r\n\r\n{}") {
                let length = stream.read(&mut chunk).unwrap();
                assert!(length > 0, "the order breaks off: {order:?}");
                order.extend_from_slice(&chunk[..length]);
            }
            for piece in pieces {
                stream.write_all(piece.as_bytes()).unwrap();
                stream.flush().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        (admin, thread)
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let (admin, thread) =
            answering(&[CHUNKED, "3\r\na\nb", "\r\n", "A", "\r", "\nc\nddddddd\n\r\n0\r\n\r\n"]);
        let mut lines = admin.order("/trace", "{}").unwrap();
        let mut all = Vec::new();
        loop {
            match lines.poll().unwrap() {
                Part::Line(line) => all.push(line),
                Part::Nothing => {}
                Part::End => break,
            }
        }
        assert_eq!(all, ["a", "bc", "ddddddd"]);
        thread.join().unwrap();
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error_and_no_end() {
        for pieces in [&[CHUNKED, "ff\r\nab"][..], &[CHUNKED, "2\r\na\n\r\n"], &[CHUNKED, "no\r\n"]] {
            let (admin, thread) = answering(Box::leak(pieces.to_vec().into_boxed_slice()));
            let mut lines = admin.order("/trace", "{}").unwrap();
            let broken = loop {
                match lines.poll() {
                    Ok(Part::End) => panic!("it has no end"),
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(!broken.to_string().is_empty());
            thread.join().unwrap();
        }
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        for (answer, says) in [
            ("HTTP/1.1 409 Conflict\r\ncontent-length: 5\r\n\r\nbusy\n", "busy"),
            ("HTTP/1.1 401 Unauthorized\r\n\r\n", "--token-file"),
            ("HTTP/1.1 404 Not Found\r\n\r\n", "older version"),
            ("HTTP/1.1 405 Method Not Allowed\r\n\r\n", "older version"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "not an admin listener"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "not an admin listener"),
        ] {
            let (admin, thread) = answering(Box::leak(vec![answer].into_boxed_slice()));
            let Err(failure) = admin.order("/trace", "{}") else { panic!("{answer}") };
            assert!(failure.to_string().contains(says), "{failure}");
            thread.join().unwrap();
        }
    }

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
        let given_up = read_to_end(Stream::Tcp(stream), Instant::now() + Duration::from_millis(100));
        assert!(given_up.is_err(), "{given_up:?}");
        drips.join().unwrap();
    }
}
