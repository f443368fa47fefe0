//! Sites whose rules and error pages change what is answered.

use expressway_web::files::{FileOptions, FileStore, FilesConfig};
use expressway_web::{PathPattern, PathRule, SiteConfig, SiteContent, Sites, Template};
use http::StatusCode;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderValue};

use crate::common::{fetch, get, request};

fn sites(change: impl FnOnce(&mut SiteConfig)) -> (Sites, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "content of a").unwrap();
    std::fs::write(root.path().join("404.html"), "<h1>no such page</h1>").unwrap();
    let mut site = SiteConfig::new(Vec::new(), FilesConfig::new(root.path()));
    change(&mut site);
    let store = FileStore::new(FileOptions::default()).unwrap();
    (Sites::new(&[site], &store).unwrap(), root)
}

fn rule(path: &str, change: impl FnOnce(&mut PathRule)) -> PathRule {
    let mut rule = PathRule::new(PathPattern::parse(path).unwrap());
    change(&mut rule);
    rule
}

fn page(status: u16, path: &str) -> (StatusCode, String) {
    (StatusCode::from_u16(status).unwrap(), path.to_owned())
}

#[test]
fn an_error_page_is_sent_with_the_errors_status() {
    let (sites, _root) =
        sites(|site| site.error_pages = vec![page(404, "/404.html"), page(405, "/404.html")]);
    let (head, body) = fetch(&sites, &get("/missing"));
    assert_eq!((head.status.as_u16(), &body[..]), (404, &b"<h1>no such page</h1>"[..]));
    assert_eq!(head.headers[CONTENT_TYPE], "text/html");
    assert_eq!(head.headers[CONTENT_LENGTH], "21");
    assert!(!head.headers.contains_key(ETAG), "a validator of the page is none of the resource");
    let (head, body) = fetch(&sites, &request("HEAD", "a", "/missing", &[]));
    assert_eq!((head.status.as_u16(), body.len()), (404, 0));
    assert_eq!(head.headers[CONTENT_LENGTH], "21");
    let (head, _) = fetch(&sites, &request("DELETE", "a", "/a.txt", &[]));
    assert_eq!((head.status.as_u16(), head.headers[ALLOW].to_str().unwrap()), (405, "GET, HEAD"));
    let part = request("GET", "a", "/missing", &[("range", "bytes=0-3"), ("if-none-match", "*")]);
    assert_eq!(fetch(&sites, &part).1.len(), 21, "the whole page, whatever was asked of the resource");
    assert_eq!(fetch(&sites, &get("/a.txt")).1, b"content of a");
}

#[test]
fn without_its_page_an_error_is_bare() {
    let (sites, _root) =
        sites(|site| site.error_pages = vec![page(404, "/gone.html"), page(405, "/gone.html")]);
    let (head, body) = fetch(&sites, &get("/missing"));
    assert_eq!((head.status.as_u16(), &body[..]), (404, &b"404 Not Found\n"[..]));
    let (head, _) = fetch(&sites, &request("DELETE", "a", "/a.txt", &[]));
    assert_eq!((head.status.as_u16(), head.headers[ALLOW].to_str().unwrap()), (405, "GET, HEAD"));
}

#[test]
fn rules_come_before_files_and_change_their_responses() {
    let (sites, _root) = sites(|site| {
        site.rules = vec![
            rule("*", |rule| rule.set = vec![(CACHE_CONTROL, HeaderValue::from_static("max-age=5"))]),
            rule("/b.txt", |rule| rule.rewrite = Some(Template::parse("/a.txt", true).unwrap())),
            rule("/no/*", |rule| rule.respond = Some(StatusCode::FORBIDDEN)),
        ];
        site.error_pages = vec![page(403, "/404.html")];
    });
    let (head, body) = fetch(&sites, &get("/b.txt?x"));
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"content of a"[..]));
    assert_eq!(head.headers[CACHE_CONTROL], "max-age=5");
    let (head, body) = fetch(&sites, &get("/no/a"));
    assert_eq!((head.status.as_u16(), body.len()), (403, 21), "the rules' answers have pages too");
    assert_eq!(head.headers[CACHE_CONTROL], "max-age=5");
    assert_eq!(fetch(&sites, &get("/../a")).0.status, 400);
}

#[test]
fn a_site_of_nothing_but_rules_redirects_and_knows_nothing_else() {
    let (sites, _root) = sites(|site| {
        site.content = SiteContent::Nothing;
        let to = Template::parse("https://www.example/*", false).unwrap();
        site.rules = vec![rule("/a/*", |rule| rule.redirect = Some((to, StatusCode::MOVED_PERMANENTLY)))];
    });
    let (head, _) = fetch(&sites, &get("/a/b?c"));
    assert_eq!(
        (head.status.as_u16(), head.headers["location"].to_str().unwrap()),
        (301, "https://www.example/b?c")
    );
    assert_eq!(fetch(&sites, &get("/b")).0.status, 404);
}
