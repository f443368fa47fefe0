//! Turns a server's response head into the client's.

use expressway_web::{ResponseHead, date_header};
use http::header::{CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Response, StatusCode, Version};

use crate::failure::{Failed, Reason};
use crate::fields;

/// Fields that are taken at most.
const MAX_FIELDS: usize = 128;

/// The head for the client; `limit` bounds its fields in octets, each counting 32 more.
pub(crate) fn head<B>(method: &Method, response: &Response<B>, limit: usize) -> Result<ResponseHead, Failed> {
    let invalid = |what: &str| Failed::sent(Reason::InvalidResponse, what);
    let status = response.status();
    if status.is_informational() {
        return Err(invalid("an upgrade that was not requested"));
    }
    let mut headers = response.headers().clone();
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    if headers.len() > MAX_FIELDS || size > limit {
        return Err(Failed::sent(Reason::HeadTooLarge, format!("{} fields of {size} octets", headers.len())));
    }
    let is_bodyless =
        *method == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let length = content_length(&headers)?;
    if let Some(coding) = headers.get(TRANSFER_ENCODING) {
        // Whoever sends both may mean either (RFC 9112, section 6.3).
        if length.is_some() {
            return Err(invalid("both content-length and transfer-encoding"));
        }
        let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !is_bodyless && (!is_chunked || headers.get_all(TRANSFER_ENCODING).iter().count() > 1) {
            return Err(invalid("a transfer coding other than chunked"));
        }
    }
    let has_trailers = response.version() == Version::HTTP_2 && headers.contains_key(TRAILER);
    let trailer = fields::announced(&headers);
    fields::strip(&mut headers).map_err(|_| invalid("a connection field that lists too much"))?;
    headers.remove(CONTENT_LENGTH);
    if status != StatusCode::NO_CONTENT
        && let Some(length) = length
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    if let Some(trailer) = trailer.filter(|_| !is_bodyless) {
        headers.insert(TRAILER, trailer);
    }
    if !headers.contains_key(DATE) {
        headers.insert(DATE, date_header());
    }
    let body_length = match () {
        () if is_bodyless => Some(0),
        // Trailers come behind an end that is not known before.
        () if has_trailers => None,
        () => length,
    };
    Ok(ResponseHead { status, headers, body_length })
}

/// What `content-length` says, which may be repeated and must not differ.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Failed> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for member in value.as_bytes().split(|byte| *byte == b',') {
            let digits = member.trim_ascii();
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let number =
                std::str::from_utf8(digits).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
            if number.is_none() || length.is_some_and(|length| Some(length) != number) {
                return Err(Failed::sent(
                    Reason::InvalidResponse,
                    "content-length is invalid or contradictory",
                ));
            }
            length = number;
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, status: u16, fields: &[(&str, &str)]) -> Result<ResponseHead, Reason> {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        head(&method, &response.body(()).unwrap(), 1000).map_err(|failed| failed.reason)
    }

    #[test]
    fn lengths_that_conflict_are_refused() {
        for fields in [
            &[("content-length", "5"), ("content-length", "6")][..],
            &[("content-length", "5, 6")],
            &[("content-length", "5"), ("transfer-encoding", "chunked")],
            &[("content-length", "+5")],
            &[("content-length", "")],
            &[("content-length", "99999999999999999999")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        ] {
            assert_eq!(read(Method::GET, 200, fields).unwrap_err(), Reason::InvalidResponse, "{fields:?}");
        }
        let twice = read(Method::GET, 200, &[("content-length", "5, 5"), ("content-length", "5")]).unwrap();
        assert_eq!(twice.headers.get_all("content-length").iter().count(), 1);
        assert_eq!(twice.body_length, Some(5));
    }

    #[test]
    fn responses_without_a_body_keep_what_they_say_of_it() {
        let head = read(Method::HEAD, 200, &[("content-length", "5")]).unwrap();
        assert_eq!((head.body_length, &head.headers["content-length"]), (Some(0), &"5".parse().unwrap()));
        let unmodified = read(Method::GET, 304, &[("content-length", "5"), ("etag", "\"x\"")]).unwrap();
        assert_eq!(unmodified.body_length, Some(0));
        let empty = read(Method::GET, 204, &[("content-length", "0")]).unwrap();
        assert!(!empty.headers.contains_key("content-length"), "RFC 9110, section 8.6");
        assert_eq!(
            read(Method::HEAD, 200, &[("transfer-encoding", "chunked")]).unwrap().body_length,
            Some(0)
        );
    }

    #[test]
    fn fields_of_the_connection_end_and_a_date_is_added() {
        let head =
            read(Method::GET, 200, &[("connection", "x-a"), ("x-a", "1"), ("keep-alive", "x")]).unwrap();
        assert_eq!(head.headers.keys().collect::<Vec<_>>(), ["date"]);
        let old = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(read(Method::GET, 200, &[("date", old)]).unwrap().headers["date"], old);
    }

    #[test]
    fn heads_are_bounded() {
        let long = "x".repeat(1000);
        assert_eq!(read(Method::GET, 200, &[("a", &long)]).unwrap_err(), Reason::HeadTooLarge);
        let many = vec![("a", ""); MAX_FIELDS + 1];
        assert_eq!(read(Method::GET, 200, &many).unwrap_err(), Reason::HeadTooLarge);
        assert_eq!(read(Method::GET, 101, &[]).unwrap_err(), Reason::InvalidResponse);
    }
}
