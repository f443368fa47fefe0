//! The HTTP request by which a WebSocket begins (RFC 6455, section 4.2), and what is answered.

use super::options::Start;

/// Longest request head.
pub(crate) const MAX_HEAD: usize = 8 << 10;

/// Header lines of a request at most.
const MAX_HEADERS: usize = 64;

/// RFC 6455, section 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The page with a live example.
const PAGE: &str = include_str!("page.html");

/// Where the feed is, beside the page at `/`.
const FEED_PATH: &str = "/feed";

/// What a request comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// More of the request is needed.
    Incomplete,
    /// A subscriber, once `response` is sent; the request took `length` bytes.
    Subscribe {
        /// What it asked for, if it did.
        start: Option<Start>,
        /// The 101 response.
        response: Vec<u8>,
        /// Bytes of the request.
        length: usize,
    },
    /// A response after which the connection ends.
    Page(Vec<u8>),
    /// As `Page`; the request was refused.
    Refuse(Vec<u8>),
    /// As `Refuse`, because of the page's origin.
    RefuseOrigin(Vec<u8>),
}

/// Answers what has been received so far. `origins`: pages besides the server's own that may subscribe.
pub(crate) fn answer(received: &[u8], secure: bool, origins: &[String]) -> Answer {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if received.len() < MAX_HEAD => return Answer::Incomplete,
        Ok(httparse::Status::Partial) => {
            return Answer::Refuse(plain("431 Request Header Fields Too Large", ""));
        }
        Err(_) => return Answer::Refuse(plain("400 Bad Request", "this is no HTTP/1.1 request\n")),
    };
    let (path, query) = match request.path.unwrap_or("/").split_once('?') {
        Some((path, query)) => (path, query),
        None => (request.path.unwrap_or("/"), ""),
    };
    if request.method != Some("GET") {
        return Answer::Refuse(plain("405 Method Not Allowed", "GET only\n"));
    }
    let header = |name: &str| {
        let mut found = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let value = found.next().and_then(|header| std::str::from_utf8(header.value).ok()).map(str::trim);
        // Twice is as good as not at all: nobody can say which counts.
        value.filter(|_| found.next().is_none())
    };
    let names = |name: &str, token: &str| {
        header(name).is_some_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
    };
    let upgrade = names("upgrade", "websocket") && names("connection", "upgrade");
    match (path, upgrade) {
        ("/", false) => return Answer::Page(html()),
        (FEED_PATH, true) => {}
        (FEED_PATH, false) => {
            return Answer::Refuse(plain(
                "426 Upgrade Required\r\nupgrade: websocket",
                "a WebSocket is here\n",
            ));
        }
        _ => return Answer::Refuse(plain("404 Not Found", "the page is at /, the feed at /feed\n")),
    }
    if header("sec-websocket-version") != Some("13") {
        let status = "426 Upgrade Required\r\nsec-websocket-version: 13";
        return Answer::Refuse(plain(status, "WebSocket version 13 only\n"));
    }
    // 16 bytes in base64 (section 4.1).
    let Some(key) = header("sec-websocket-key").filter(|key| key.len() == 24) else {
        return Answer::Refuse(plain("400 Bad Request", "no Sec-WebSocket-Key\n"));
    };
    if let Some(origin) = header("origin")
        && !origin_allowed(origin, header("host").unwrap_or_default(), secure, origins)
    {
        return Answer::RefuseOrigin(plain("403 Forbidden", "pages of this origin may not subscribe\n"));
    }
    let start = query.split('&').find_map(|pair| pair.strip_prefix("start="));
    let start = match start.map(|start| start.replace("%3A", ":").replace("%3a", ":").parse()) {
        None => None,
        Some(Ok(start)) => Some(start),
        Some(Err(error)) => return Answer::Refuse(plain("400 Bad Request", &format!("start: {error}\n"))),
    };
    let accept = boring::base64::encode_block(&boring::sha::sha1(format!("{key}{GUID}").as_bytes()));
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-accept: {accept}\r\n\r\n"
    );
    Answer::Subscribe { start, response: response.into(), length }
}

/// A browser tells the origin of the page (RFC 6454); other clients need not, and may lie.
fn origin_allowed(origin: &str, host: &str, secure: bool, allowed: &[String]) -> bool {
    let own = format!("{}://{host}", if secure { "https" } else { "http" });
    origin.eq_ignore_ascii_case(&own)
        || allowed.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
}

fn plain(status: &str, text: &str) -> Vec<u8> {
    response(status, "text/plain; charset=utf-8", "", text)
}

fn html() -> Vec<u8> {
    let policy = "content-security-policy: default-src 'none'; style-src 'unsafe-inline'; \
                  script-src 'unsafe-inline'; connect-src 'self'\r\n";
    response("200 OK", "text/html; charset=utf-8", policy, PAGE)
}

fn response(status: &str, content_type: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         cache-control: no-store\r\n{more}connection: close\r\n\r\n{body}"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(target: &str, more: &str) -> Answer {
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: feed.test:80\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
        );
        answer(head.as_bytes(), false, &["https://friend.test".to_owned()])
    }

    fn status(answer: Answer) -> String {
        let (Answer::Page(bytes) | Answer::Refuse(bytes) | Answer::RefuseOrigin(bytes)) = answer else {
            return format!("{answer:?}");
        };
        String::from_utf8(bytes).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn the_handshake_is_that_of_the_rfc() {
        let Answer::Subscribe { start, response, .. } = ask("/feed", "Sec-WebSocket-Version: 13\r\n") else {
            panic!("refused")
        };
        assert_eq!(start, None);
        let response = String::from_utf8(response).unwrap();
        // RFC 6455, section 1.3.
        assert!(response.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{response}");
    }

    #[test]
    fn a_start_may_be_asked_for() {
        let start = |query: &str| match ask(&format!("/feed{query}"), "Sec-WebSocket-Version: 13\r\n") {
            Answer::Subscribe { start, .. } => Ok(start),
            other => Err(status(other)),
        };
        assert_eq!(start("?start=last:5"), Ok(Some(Start::Last(5))));
        assert_eq!(start("?a=b&start=last%3A5"), Ok(Some(Start::Last(5))));
        assert_eq!(start("?start=snapshot"), Ok(Some(Start::Snapshot)));
        assert_eq!(start("?start=yesterday"), Err("400".to_owned()));
    }

    #[test]
    fn bad_requests_are_told_what_is_wrong() {
        let version = "Sec-WebSocket-Version: 13\r\n";
        assert_eq!(status(ask("/feed", "")), "426");
        assert_eq!(status(ask("/other", version)), "404");
        assert_eq!(status(ask("/feed", &format!("{version}Origin: https://evil.test\r\n"))), "403");
        assert!(matches!(
            ask("/feed", &format!("{version}Origin: http://feed.test:80\r\n")),
            Answer::Subscribe { .. }
        ));
        assert!(matches!(
            ask("/feed", &format!("{version}Origin: https://friend.test\r\n")),
            Answer::Subscribe { .. }
        ));
        assert_eq!(status(answer(b"\x16\x03\x01", false, &[])), "400");
        assert_eq!(status(answer(b"POST / HTTP/1.1\r\n\r\n", false, &[])), "405");
        assert_eq!(status(answer(b"GET /feed HTTP/1.1\r\n\r\n", false, &[])), "426");
        assert_eq!(status(answer(&vec![b'A'; MAX_HEAD], false, &[])), "431");
        assert_eq!(answer(b"GET / HTTP/1.1\r\n", false, &[]), Answer::Incomplete);
        assert_eq!(status(answer(b"GET / HTTP/1.1\r\n\r\n", false, &[])), "200");
    }
}
