//! The PROXY protocol, versions 1 and 2: whom a load balancer speaks for.
//!
//! No octet is read of what follows a header, and a header is bounded. One that is malformed ends the connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// What version 2 begins with.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The longest header of version 1, with its CRLF.
const MAX_V1: usize = 107;

/// The longest rest of a header of version 2 that is read: addresses, and additions by the load balancer.
const MAX_V2: usize = 2048;

/// What both versions have at least: `PROXY UNKNOWN\r\n`; the fixed part of version 2 has one octet more.
const SHORTEST: usize = 15;

/// Reads a header, and with it the address of the client. `None`: the load balancer speaks for itself, or for something
/// without an address.
///
/// # Errors
/// `InvalidData` for a malformed header, or of reading.
pub(crate) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<SocketAddr>> {
    let mut buffer = [0; 16 + MAX_V2];
    stream.read_exact(&mut buffer[..SHORTEST]).await?;
    if buffer.starts_with(SIGNATURE) {
        stream.read_exact(&mut buffer[SHORTEST..16]).await?;
        let length = usize::from(u16::from_be_bytes([buffer[14], buffer[15]]));
        if length > MAX_V2 {
            return Err(malformed("too long"));
        }
        stream.read_exact(&mut buffer[16..16 + length]).await?;
        return version_2(buffer[12], buffer[13], &buffer[16..16 + length]);
    }
    if !buffer.starts_with(b"PROXY ") {
        return Err(malformed("missing"));
    }
    let mut length = SHORTEST;
    while !buffer[..length].ends_with(b"\r\n") {
        if length == MAX_V1 {
            return Err(malformed("too long"));
        }
        stream.read_exact(&mut buffer[length..=length]).await?;
        length += 1;
    }
    version_1(&buffer[..length - 2])
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("PROXY header: {what}"))
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 1234 443`
fn version_1(line: &[u8]) -> io::Result<Option<SocketAddr>> {
    let line = std::str::from_utf8(line).map_err(|_| malformed("not a line of version 1"))?;
    let mut words = line.split(' ').skip(1);
    let mut word = || words.next().ok_or_else(|| malformed("incomplete"));
    let is_v4 = match word()? {
        "TCP4" => true,
        "TCP6" => false,
        "UNKNOWN" => return Ok(None),
        _ => return Err(malformed("unknown family")),
    };
    let address = |text: &str| {
        let address: IpAddr = text.parse().map_err(|_| malformed("not an address"))?;
        if address.is_ipv4() == is_v4 {
            Ok(address)
        } else {
            Err(malformed("an address of the other family"))
        }
    };
    let (source, _destination) = (address(word()?)?, address(word()?)?);
    let port = |text: &str| match text.parse() {
        Ok(port) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err(malformed("not a port")),
    };
    let (port, _destination): (u16, u16) = (port(word()?)?, port(word()?)?);
    match words.next() {
        None => Ok(Some(SocketAddr::new(source, port))),
        Some(_) => Err(malformed("more than a line of version 1 has")),
    }
}

fn version_2(command: u8, family: u8, rest: &[u8]) -> io::Result<Option<SocketAddr>> {
    match command {
        // LOCAL: the load balancer itself, which asks after our health.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(malformed("unknown version or command")),
    }
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    match family {
        0x11 if rest.len() >= 12 => {
            let address = Ipv4Addr::new(rest[0], rest[1], rest[2], rest[3]);
            Ok(Some(SocketAddr::new(address.into(), port(8))))
        }
        0x21 if rest.len() >= 36 => {
            let mut address = [0; 16];
            address.copy_from_slice(&rest[..16]);
            Ok(Some(SocketAddr::new(Ipv6Addr::from(address).into(), port(32))))
        }
        0x11 | 0x21 => Err(malformed("incomplete")),
        // Unix sockets, UDP, unspecified.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => Ok(None),
        _ => Err(malformed("unknown family")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `octets` say, and what is left of them.
    fn say(octets: &[u8]) -> (io::Result<Option<SocketAddr>>, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut rest = octets;
        let said = runtime.block_on(read(&mut rest));
        (said, rest.to_vec())
    }

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend([command, family]);
        header.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        header.extend(rest);
        header
    }

    fn address(octets: &[u8]) -> Option<String> {
        let (said, rest) = say(&[octets, b"GET /"].concat());
        assert_eq!(rest, b"GET /", "{}", String::from_utf8_lossy(octets));
        said.unwrap().map(|address| address.to_string())
    }

    #[test]
    fn both_versions_say_whom_they_speak_for_and_leave_the_rest() {
        let v4 = b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 443\r\n";
        assert_eq!(address(v4).as_deref(), Some("192.0.2.1:1234"));
        let v6 = b"PROXY TCP6 2001:db8::1 2001:db8::2 65535 443\r\n";
        assert_eq!(address(v6).as_deref(), Some("[2001:db8::1]:65535"));
        assert_eq!(address(b"PROXY UNKNOWN\r\n"), None);
        assert_eq!(address(b"PROXY UNKNOWN ffff:f...f:ffff ffff 65535 65535\r\n"), None);
        let four = [192, 0, 2, 7, 198, 51, 100, 2, 0x12, 0x34, 1, 187];
        assert_eq!(address(&v2(0x21, 0x11, &four)).as_deref(), Some("192.0.2.7:4660"));
        let with_additions = [&four[..], b"\x04\x00\x01x"].concat();
        assert_eq!(address(&v2(0x21, 0x11, &with_additions)).as_deref(), Some("192.0.2.7:4660"));
        let mut six = [0; 36];
        six[15] = 1;
        six[33] = 80;
        assert_eq!(address(&v2(0x21, 0x21, &six)).as_deref(), Some("[::1]:80"));
        assert_eq!(address(&v2(0x20, 0x00, b"")), None);
        assert_eq!(address(&v2(0x21, 0x31, &[0; 216])), None);
    }

    #[test]
    fn malformed_headers_are_refused() {
        let line = |line: &str| format!("{line}\r\n").into_bytes();
        for wrong in [
            line("PROXY TCP4 192.0.2.1 198.51.100.2 1234"),
            line("PROXY TCP4 192.0.2.1 198.51.100.2 1234 443 x"),
            line("PROXY TCP4 192.0.2.1 198.51.100.2 +1234 443"),
            line("PROXY TCP4 192.0.2.1 198.51.100.2 65536 443"),
            line("PROXY TCP4 2001:db8::1 2001:db8::2 1 443"),
            line("PROXY TCP4  192.0.2.1 198.51.100.2 1 443"),
            line("PROXY UDP4 192.0.2.1 198.51.100.2 1 443"),
            line("GET / HTTP/1.1 and so on"),
            [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat(),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 443\n\n".to_vec(),
            v2(0x22, 0x11, &[0; 12]),
            v2(0x11, 0x11, &[0; 12]),
            v2(0x21, 0x41, &[0; 12]),
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x11, &[0; MAX_V2 + 1]),
            v2(0x21, 0x11, &[0; 12])[..20].to_vec(),
        ] {
            let (said, _) = say(&wrong);
            assert!(said.is_err(), "{:?}: {said:?}", String::from_utf8_lossy(&wrong));
        }
    }
}
