//! Answers to HTTP-01 challenges (RFC 8555, section 8.3).

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use expressway_web::{Exchange, Handler, RequestBody, RequestHead, Wake};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

/// Where authorities ask.
const PATH: &str = "/.well-known/acme-challenge/";

/// What waits to be asked for. Lookups take no lock.
#[derive(Debug, Default)]
pub struct Tokens(ArcSwap<HashMap<String, Bytes>>);

impl Tokens {
    /// Answers a token, or, with `None`, no more. One task alone calls it.
    pub(crate) fn set(&self, token: &str, answer: Option<String>) {
        let mut tokens = HashMap::clone(&self.0.load());
        match answer {
            Some(answer) => tokens.insert(token.to_owned(), answer.into()),
            None => tokens.remove(token),
        };
        self.0.store(Arc::new(tokens));
    }

    fn find(&self, target: &str) -> Option<Bytes> {
        self.0.load().get(target.strip_prefix(PATH)?).cloned()
    }
}

/// Answers challenges that wait, of any host, and leaves all else to another handler.
pub struct Answers {
    /// What waits.
    pub tokens: Arc<Tokens>,
    /// Answers all else.
    pub next: Arc<dyn Handler>,
}

impl Handler for Answers {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        let asks = request.method == Method::GET || request.method == Method::HEAD;
        match self.tokens.find(&request.target).filter(|_| asks) {
            Some(answer) => {
                let mut headers = HeaderMap::new();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                Exchange::fixed(&request.method, StatusCode::OK, headers, answer)
            }
            None => self.next.start(request, body, wake),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_answered_while_its_challenge_waits() {
        let tokens = Tokens::default();
        assert_eq!(tokens.find("/.well-known/acme-challenge/abc"), None);
        tokens.set("abc", Some("abc.thumb".into()));
        assert_eq!(tokens.find("/.well-known/acme-challenge/abc").as_deref(), Some(&b"abc.thumb"[..]));
        assert_eq!(tokens.find("/.well-known/acme-challenge/abcd"), None);
        assert_eq!(tokens.find("/abc"), None);
        tokens.set("abc", None);
        assert_eq!(tokens.find("/.well-known/acme-challenge/abc"), None);
    }
}
