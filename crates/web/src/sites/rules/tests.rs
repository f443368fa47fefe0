use http::Method;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, ORIGIN, SERVER, VARY};

use super::*;
use crate::{Protocol, Scheme};

fn request(method: &str, target: &str, remote: &str, headers: &[(HeaderName, &str)]) -> RequestHead {
    let value = |value: &str| HeaderValue::from_str(value).unwrap();
    RequestHead {
        method: Method::from_bytes(method.as_bytes()).unwrap(),
        scheme: Scheme::Https,
        authority: "a.example".to_owned(),
        target: target.to_owned(),
        headers: headers.iter().map(|(name, text)| (name.clone(), value(text))).collect(),
        protocol: Protocol::H3,
        remote: format!("{remote}:4000").parse().unwrap(),
        client_subject: None,
    }
}

fn get(target: &str) -> RequestHead {
    request("GET", target, "192.0.2.1", &[])
}

fn rule(path: &str, change: impl FnOnce(&mut PathRule)) -> PathRule {
    let mut rule = PathRule::new(PathPattern::parse(path).unwrap());
    change(&mut rule);
    rule.validate().unwrap();
    rule
}

fn answer(rules: &[PathRule], request: &RequestHead) -> Option<(u16, HeaderMap)> {
    let mut exchange = judge(rules, request).unwrap().answer?;
    match exchange.poll_head() {
        std::task::Poll::Ready(head) => Some((head.status.as_u16(), head.headers)),
        std::task::Poll::Pending => panic!("an answer of the rules is there at once"),
    }
}

#[test]
fn addresses_are_admitted_by_allow_then_deny() {
    let networks = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
    let allow = [rule("/in/*", |rule| rule.allow = networks(&["192.0.2.0/24", "2001:db8::/32"]))];
    let deny = [rule("*", |rule| rule.deny = networks(&["198.51.100.0/24"]))];
    let status = |rules: &[PathRule], target: &str, remote: &str| {
        answer(rules, &request("GET", target, remote, &[])).map(|(status, _)| status)
    };
    assert_eq!(status(&allow, "/in/a", "192.0.2.7"), None);
    assert_eq!(status(&allow, "/in/a", "[2001:db8::1]"), None);
    assert_eq!(status(&allow, "/in/a", "[::ffff:192.0.2.7]"), None, "a mapped address is the IPv4 one");
    assert_eq!(status(&allow, "/in/a", "198.51.100.1"), Some(403));
    assert_eq!(status(&allow, "/out", "198.51.100.1"), None);
    assert_eq!(status(&deny, "/", "198.51.100.1"), Some(403));
    assert_eq!(status(&deny, "/", "192.0.2.1"), None);
}

#[test]
fn no_spelling_of_a_path_goes_past_a_rule() {
    let rules = [rule("/private/*", |rule| rule.respond = Some(StatusCode::NOT_FOUND))];
    for target in
        ["/private/a", "/%70rivate/a", "//private//a", "/x/../private/a", "/./private/a", "/private%2fa"]
    {
        assert_eq!(answer(&rules, &get(target)).map(|(status, _)| status), Some(404), "{target}");
    }
    assert!(judge(&rules, &get("/../private/a")).is_none(), "malformed");
}

#[test]
fn the_first_answer_ends_it_and_a_rewritten_path_is_what_later_rules_see() {
    let to = |text: &str| Template::parse(text, false).unwrap();
    let rules = [
        rule("/v1/*", |rule| rule.rewrite = Some(Template::parse("/v2/*", true).unwrap())),
        rule("/v2/old/*", |rule| {
            rule.redirect = Some((to("https://b.example/*"), StatusCode::PERMANENT_REDIRECT))
        }),
        rule("/v2/*", |rule| rule.respond = Some(StatusCode::GONE)),
    ];
    let (status, headers) = answer(&rules, &get("/v1/old/x%20y?q=1")).unwrap();
    assert_eq!((status, &headers[LOCATION]), (308, &HeaderValue::from_static("https://b.example/x%20y?q=1")));
    assert_eq!(answer(&rules, &get("/v1/new")).unwrap().0, 410);
    let verdict = judge(&rules[..1], &get("/v1/a%2Fb?q")).unwrap();
    assert_eq!(verdict.target.unwrap(), "/v2/a/b?q");
}

#[test]
fn a_target_that_rewrites_make_too_long_is_answered() {
    let long = format!("/{}/*", "x".repeat(1000));
    let rules: Vec<_> = (0..40)
        .map(|_| rule("*", |rule| rule.rewrite = Some(Template::parse(&long, true).unwrap())))
        .collect();
    assert_eq!(answer(&rules, &get("/a")).unwrap().0, 414);
}

#[test]
fn header_changes_apply_in_order() {
    let value = HeaderValue::from_static;
    let rules = [
        rule("*", |rule| {
            rule.set = vec![(CACHE_CONTROL, value("max-age=1")), (SERVER, value("a"))];
        }),
        rule("*.m4s", |rule| rule.set = vec![(CACHE_CONTROL, value("max-age=9"))]),
        rule("/quiet/*", |rule| rule.remove = vec![SERVER]),
    ];
    let changed = |target: &str| {
        let mut headers = HeaderMap::from_iter([(SERVER, value("x")), (CACHE_CONTROL, value("none"))]);
        if let Some(changes) = judge(&rules, &get(target)).unwrap().changes {
            changes.apply(&mut headers);
        }
        (headers.get(CACHE_CONTROL).cloned(), headers.get(SERVER).cloned())
    };
    assert_eq!(changed("/a"), (Some(value("max-age=1")), Some(value("a"))));
    assert_eq!(changed("/a.m4s"), (Some(value("max-age=9")), Some(value("a"))));
    assert_eq!(changed("/quiet/a"), (Some(value("max-age=1")), None));
}

#[test]
fn pages_of_other_origins_are_answered_as_configured() {
    let any = [rule("*", |rule| rule.cors = Some(Cors::default()))];
    let listed = [rule("*", |rule| {
        let origins = vec![HeaderValue::from_static("https://p.example")];
        rule.cors = Some(Cors { origins, credentials: true, ..Cors::default() });
    })];
    let fields = |rules: &[PathRule], origin: &str| {
        let mut headers = HeaderMap::from_iter([(VARY, HeaderValue::from_static("accept-encoding"))]);
        let asked = request("GET", "/a", "192.0.2.1", &[(ORIGIN, origin)]);
        judge(rules, &asked).unwrap().changes.unwrap().apply(&mut headers);
        headers
    };
    assert_eq!(fields(&any, "https://x.example")[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
    let good = fields(&listed, "https://p.example");
    assert_eq!(good[ACCESS_CONTROL_ALLOW_ORIGIN], "https://p.example");
    assert_eq!(good.get_all(VARY).iter().collect::<Vec<_>>(), ["accept-encoding", "origin"]);
    assert!(!fields(&listed, "https://q.example").contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
    let asks = HeaderName::from_static("access-control-request-method");
    let preflight = request("OPTIONS", "/a", "192.0.2.1", &[(ORIGIN, "https://p.example"), (asks, "GET")]);
    let (status, headers) = answer(&listed, &preflight).unwrap();
    assert_eq!((status, headers.contains_key("access-control-max-age")), (204, true));
    assert!(!headers.contains_key("content-length"), "RFC 9110, section 8.6");
    assert!(answer(&any, &request("OPTIONS", "/a", "192.0.2.1", &[])).is_none(), "no preflight");
}

#[test]
fn what_cannot_work_is_refused() {
    let refused = |change: fn(&mut PathRule)| {
        let mut rule = PathRule::new(PathPattern::all());
        change(&mut rule);
        rule.validate().unwrap_err()
    };
    assert!(refused(|rule| rule.set = vec![(CONTENT_LENGTH, 1.into())]).contains("content-length"));
    assert!(refused(|rule| rule.remove = vec![TRANSFER_ENCODING]).contains("transfer-encoding"));
    let to = Template::parse("/a", false).unwrap();
    assert!(refused(|rule| rule.respond = Some(StatusCode::CONTINUE)).contains("100"));
    let mut odd = PathRule::new(PathPattern::all());
    odd.redirect = Some((to, StatusCode::OK));
    assert!(odd.validate().unwrap_err().contains("200"));
    assert!(
        refused(|rule| rule.cors = Some(Cors { credentials: true, ..Cors::default() })).contains("origins")
    );
}
