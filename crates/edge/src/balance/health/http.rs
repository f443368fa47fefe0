//! The check `http`: a request over TCP without TLS.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::answer::{accept_body, accept_status};
use super::{Target, connect};

/// The longest head of a response.
const HEAD: usize = 16 << 10;

/// Asks for the check's path.
pub(super) async fn ask(target: &Target) -> io::Result<()> {
    let check = &target.check;
    let mut stream = connect(target).await?;
    let host = check.host.clone().unwrap_or_else(|| target.address.to_string());
    // A body has no chunks in HTTP/1.0 (RFC 9112, section 6.1), so that it begins as the file does.
    let version = if check.body.is_empty() { "1.1" } else { "1.0" };
    let request = format!(
        "GET {} HTTP/{version}\r\nHost: {host}\r\nUser-Agent: expressway\r\nConnection: close\r\n\r\n",
        check.path
    );
    stream.write_all(request.as_bytes()).await?;
    // "HTTP/1.1 200"
    let mut start = [0; 12];
    stream.read_exact(&mut start).await?;
    match &start {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', status @ ..] => accept_status(check, status)?,
        other => return Err(io::Error::other(format!("answered {}", other.escape_ascii()))),
    }
    if check.body.is_empty() { Ok(()) } else { body(target, stream).await }
}

async fn body(target: &Target, stream: TcpStream) -> io::Result<()> {
    let most = HEAD + target.check.body.len();
    let mut stream = stream.take(most as u64);
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut buffer).await?;
        read.extend_from_slice(&buffer[..length]);
        let head = read.windows(4).position(|four| four == b"\r\n\r\n");
        let judged = head.and_then(|end| accept_body(&target.check, &read[end + 4..], length == 0));
        match judged {
            Some(result) => return result,
            None if length == 0 => return Err(io::Error::other("sent an incomplete response head")),
            None => {}
        }
    }
}
