//! Everything is elsewhere: from plain HTTP to https.

use expressway_web::{Exchange, Handler, RequestBody, RequestHead, Wake};
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};

/// Sends each request to the same target with https.
#[derive(Debug, Clone, Copy)]
pub struct Redirect {
    /// 301, 302, 307 or 308.
    pub status: StatusCode,
    /// The port of https.
    pub port: u16,
}

impl Redirect {
    /// Where a request is sent; `None` if it does not say for whom it is.
    fn location(self, request: &RequestHead) -> Option<HeaderValue> {
        let authority: http::uri::Authority = request.authority.parse().ok()?;
        let host = Some(authority.host()).filter(|host| !host.is_empty())?;
        let port = if self.port == 443 { String::new() } else { format!(":{}", self.port) };
        let target = if request.target.starts_with('/') { request.target.as_str() } else { "/" };
        HeaderValue::try_from(format!("https://{host}{port}{target}")).ok()
    }
}

impl Handler for Redirect {
    fn start(&self, request: &RequestHead, _body: RequestBody, _wake: Wake) -> Exchange {
        let mut headers = HeaderMap::new();
        let status = match self.location(request) {
            Some(location) => {
                headers.insert(LOCATION, location);
                self.status
            }
            None => StatusCode::BAD_REQUEST,
        };
        Exchange::error(&request.method, status, headers)
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::{Protocol, Scheme};
    use http::Method;

    use super::*;

    fn location(authority: &str, target: &str, port: u16) -> Option<String> {
        let head = RequestHead {
            method: Method::GET,
            scheme: Scheme::Http,
            authority: authority.to_owned(),
            target: target.to_owned(),
            headers: HeaderMap::new(),
            protocol: Protocol::Http11,
            remote: "192.0.2.1:1".parse().unwrap(),
            client_subject: None,
        };
        let redirect = Redirect { status: StatusCode::PERMANENT_REDIRECT, port };
        Some(redirect.location(&head)?.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_target_stays_and_the_port_is_that_of_https() {
        let to = |location: &str| Some(location.to_owned());
        assert_eq!(location("a.example", "/x?y=//z", 443), to("https://a.example/x?y=//z"));
        assert_eq!(location("a.example:80", "/", 4433), to("https://a.example:4433/"));
        assert_eq!(location("[2001:db8::1]:80", "/", 443), to("https://[2001:db8::1]/"));
        assert_eq!(location("a.example", "*", 443), to("https://a.example/"));
        assert_eq!(location("", "/", 443), None);
        assert_eq!(location("a b", "/", 443), None);
    }
}
