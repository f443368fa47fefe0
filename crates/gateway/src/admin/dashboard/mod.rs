//! The dashboard: a page that a browser draws from `/metrics` and the listener's documents.
//!
//! Its three files contain no data of the process, so they need no token: the page asks for one, and sends it with its
//! requests. It loads nothing from other servers, and its policy (CSP) only allows its own scripts and requests to its
//! own server.

use http::StatusCode;

use super::page::Page;

/// Nothing inline, nothing of other origins, in nobody's frame. The icon is an empty one in the page.
const FIELDS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
];

/// The file at `path`, if it is one of the dashboard's.
pub(super) fn file(path: &str) -> Option<Page> {
    let (content_type, text) = match path {
        "/dashboard" => ("text/html; charset=utf-8", include_str!("page.html")),
        "/dashboard.css" => ("text/css; charset=utf-8", include_str!("style.css")),
        "/dashboard.js" => ("text/javascript; charset=utf-8", include_str!("script.js")),
        _ => return None,
    };
    Some(Page::new(StatusCode::OK, content_type, text).with(FIELDS))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_nothing_inline_and_nothing_from_elsewhere() {
        let page = include_str!("page.html");
        assert!(page.contains("<script src=\"dashboard.js\" defer></script>"), "{page}");
        for forbidden in ["http://", "https://", "style=", "onclick", "<style"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        let script = include_str!("script.js");
        for forbidden in ["innerHTML", "eval(", "document.write", "https://", "localStorage.setItem(\"token"]
        {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }
}
