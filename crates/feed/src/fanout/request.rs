//! The HTTP request that opens a WebSocket (RFC 6455, section 4.2), and the response.

use super::options::Start;

/// Header lines of a request at most.
const MAX_HEADERS: usize = 64;

/// RFC 6455, section 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The page with a live example.
const PAGE: &str = include_str!("page.html");

/// Path of the feed; `/` is the page.
const FEED_PATH: &str = "/feed";

/// A request head that arrives in pieces of any size. It is parsed at its end, and each time that it has
/// doubled, so that invalid requests are detected early and each byte is parsed a few times at most, however
/// it arrives.
#[derive(Debug)]
pub(crate) struct Head {
    received: Vec<u8>,
    limit: usize,
    /// Its length when it was parsed last.
    parsed: usize,
    /// A line with something in it has begun, behind which an empty one is the end.
    begun: bool,
    /// The line has nothing in it so far.
    blank: bool,
    ended: bool,
    #[cfg(test)]
    bytes_parsed: usize,
}

impl Head {
    /// An empty one, of at most so many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let received = Vec::new();
        Self {
            received,
            limit,
            parsed: 0,
            begun: false,
            blank: true,
            ended: false,
            #[cfg(test)]
            bytes_parsed: 0,
        }
    }

    /// How many more bytes it takes.
    pub(crate) fn room(&self) -> usize {
        self.limit - self.received.len()
    }

    /// Adds received data, no more than there is room for.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    self.ended |= self.begun && self.blank;
                    self.blank = true;
                }
                b'\r' => {}
                _ => (self.begun, self.blank) = (true, false),
            }
        }
        self.received.extend_from_slice(bytes);
    }

    /// Answers what has arrived so far. `origins`: pages, in addition to the server's own, that may
    /// subscribe.
    pub(crate) fn answer(&mut self, secure: bool, origins: &[String]) -> Answer {
        let length = self.received.len();
        let is_full = length >= self.limit;
        if !std::mem::take(&mut self.ended) && !is_full && length < 2 * self.parsed {
            return Answer::Incomplete;
        }
        self.parsed = length;
        #[cfg(test)]
        (self.bytes_parsed += length);
        match answer(&self.received, secure, origins) {
            Answer::Incomplete if is_full => {
                Answer::TooLong(plain("431 Request Header Fields Too Large", ""))
            }
            answer => answer,
        }
    }

    /// What has come behind the request, which took `length` bytes.
    pub(crate) fn behind(&mut self, length: usize) -> Vec<u8> {
        self.received.split_off(length)
    }
}

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
    /// As `Refuse`, because of its length.
    TooLong(Vec<u8>),
}

fn answer(received: &[u8], secure: bool, origins: &[String]) -> Answer {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Answer::Incomplete,
        Err(_) => return Answer::Refuse(plain("400 Bad Request", "not an HTTP/1.1 request\n")),
    };
    let (path, query) = match request.path.unwrap_or("/").split_once('?') {
        Some((path, query)) => (path, query),
        None => (request.path.unwrap_or("/"), ""),
    };
    if request.method != Some("GET") {
        return Answer::Refuse(plain("405 Method Not Allowed", "only GET is supported\n"));
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
                "WebSocket endpoint\n",
            ));
        }
        _ => return Answer::Refuse(plain("404 Not Found", "the page is at /, the feed at /feed\n")),
    }
    if header("sec-websocket-version") != Some("13") {
        let status = "426 Upgrade Required\r\nsec-websocket-version: 13";
        return Answer::Refuse(plain(status, "only WebSocket version 13 is supported\n"));
    }
    // 16 bytes in base64 (section 4.1).
    let Some(key) = header("sec-websocket-key").filter(|key| key.len() == 24) else {
        return Answer::Refuse(plain("400 Bad Request", "missing Sec-WebSocket-Key\n"));
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
        let (Answer::Page(bytes)
        | Answer::Refuse(bytes)
        | Answer::RefuseOrigin(bytes)
        | Answer::TooLong(bytes)) = answer
        else {
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
        assert_eq!(answer(b"GET / HTTP/1.1\r\n", false, &[]), Answer::Incomplete);
        assert_eq!(status(answer(b"GET / HTTP/1.1\r\n\r\n", false, &[])), "200");
    }

    /// The result for a head that arrives in pieces of one size, and how many of its bytes were read.
    fn ask_slowly(head: &mut Head, bytes: &[u8], size: usize) -> (Answer, usize) {
        for (number, piece) in bytes.chunks(size).enumerate() {
            let piece = &piece[..piece.len().min(head.room())];
            head.push(piece);
            let answer = head.answer(false, &[]);
            if answer != Answer::Incomplete {
                return (answer, number * size + piece.len());
            }
        }
        (Answer::Incomplete, bytes.len())
    }

    #[test]
    fn a_head_that_comes_in_pieces_is_answered_at_its_end() {
        let request = b"\r\n\nGET / HTTP/1.1\r\nHost: feed.test\r\nCookie: a\n\r\n";
        for size in [1, 2, 3, 7, request.len()] {
            let (answer, taken) = ask_slowly(&mut Head::new(8192), request, size);
            assert_eq!((status(answer), taken), ("200".to_owned(), request.len()), "in pieces of {size}");
        }
        let mut head = Head::new(8192);
        let subscribe = b"GET /feed HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        head.push(&[&subscribe[..], b"\x89\x80abcd"].concat());
        let Answer::Subscribe { length, .. } = head.answer(false, &[]) else { panic!("refused") };
        assert_eq!((length, &head.behind(length)[..]), (subscribe.len(), &b"\x89\x80abcd"[..]));
    }

    #[test]
    fn what_is_no_request_is_told_early_and_one_that_is_too_long_at_the_limit() {
        let (answer, taken) = ask_slowly(&mut Head::new(8192), &[0x16; 8192], 1);
        assert_eq!((status(answer), taken), ("400".to_owned(), 1));
        let long = [&b"GET / HTTP/1.1\r\nCookie: "[..], &[b'a'; 9000]].concat();
        for (size, limit) in [(1, 8192), (1000, 8192), (9000, 512)] {
            let (answer, taken) = ask_slowly(&mut Head::new(limit), &long, size);
            assert_eq!((status(answer), taken), ("431".to_owned(), limit));
        }
    }

    #[test]
    fn however_a_head_comes_each_byte_is_parsed_a_few_times_at_most() {
        let name = |head: &str| [b"GET / HTTP/1.1\r\n", head.repeat(9000).as_bytes()].concat();
        for bytes in [
            name("a"),
            name("\r"),
            name("\n"),
            name("\r\n"),
            name("a:\r\n"),
            vec![b'\n'; 9000],
            [b'\r', b'\n'].repeat(9000),
        ] {
            let mut head = Head::new(8192);
            ask_slowly(&mut head, &bytes, 1);
            assert!(head.bytes_parsed <= 4 * 8192, "{} bytes parsed", head.bytes_parsed);
        }
    }
}
