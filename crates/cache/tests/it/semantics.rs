//! RFC 9111, 9110 and 5861 against a scripted origin.

use std::task::Poll;
use std::time::{Duration, Instant};

use expressway_cache::{Purge, SiteOptions, Target};

use crate::common::{self, BLOCK, Bed, Resource, body, options, request};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[test]
fn a_fresh_response_is_asked_for_once() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("hello", "max-age=60").with("link", "<a>").with("link", "<b>"));
    let first = bed.get("/");
    assert_eq!((first.status, first.body.as_slice()), (200, &b"hello"[..]));
    assert!(first.cache().starts_with("fwd=uri-miss"), "{}", first.cache());
    let second = bed.get("/");
    assert_eq!(second.body, b"hello");
    assert!(second.is_hit());
    assert_eq!(second.headers.get_all("link").iter().count(), 2, "repeated fields stay");
    assert_eq!(second.header("age"), "0");
    assert_eq!(second.header("content-length"), "5");
    let head = bed.ask("HEAD", "/", &[]);
    assert!(head.is_hit() && head.body.is_empty());
    assert_eq!(head.header("content-length"), "5");
    assert_eq!(bed.origin.count(), 1);
}

#[test]
fn a_hit_is_copied_beside_its_head() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("hello", "max-age=60"));
    bed.get("/");
    let mut exchange = bed.start(&request("GET", "/", &[])).exchange;
    assert!(exchange.poll_head().is_ready());
    let mut out = b"head ".to_vec();
    assert!(matches!(exchange.poll_copy(3, &mut out), Poll::Ready(Some(Ok(())))));
    assert_eq!((out.as_slice(), exchange.remaining()), (&b"head hel"[..], Some(2)));
    assert!(matches!(exchange.poll_copy(3, &mut out), Poll::Ready(Some(Ok(())))));
    assert_eq!((out.as_slice(), exchange.remaining()), (&b"head hello"[..], Some(0)));
    assert!(matches!(exchange.poll_copy(3, &mut out), Poll::Ready(None)));
}

#[test]
fn head_alone_fills_as_get_does() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("hello", "max-age=60"));
    assert!(bed.ask("HEAD", "/", &[]).body.is_empty());
    assert_eq!(bed.get("/").body, b"hello");
    assert_eq!(bed.origin.count(), 1);
}

#[test]
fn what_must_not_be_stored_is_not() {
    let bed = Bed::new();
    for (at, (cache_control, more)) in [
        ("no-store", None),
        ("private", None),
        ("private=\"x\"", None),
        ("max-age=60", Some(("set-cookie", "a=b"))),
        ("max-age=60", Some(("vary", "*"))),
        ("", None),
        ("max-age=0", None),
        ("max-age=60, no-store", None),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("/{at}");
        let mut resource = Resource::new("x", cache_control);
        if let Some((name, value)) = more {
            resource = resource.with(name, value);
        }
        bed.origin.set(&target, resource);
        for _ in 0..2 {
            let answer = bed.get(&target);
            assert_eq!(
                (answer.status, answer.body.as_slice(), answer.is_hit()),
                (200, &b"x"[..], false),
                "{cache_control}"
            );
        }
        assert_eq!(bed.origin.count(), 2 * (at + 1), "{cache_control}");
    }
}

#[test]
fn credentials_are_stored_only_if_the_response_says_so() {
    let bed = Bed::new();
    bed.origin.set("/a", Resource::new("x", "max-age=60"));
    bed.origin.set("/b", Resource::new("x", "max-age=60, public"));
    for (target, is_hit) in [("/a", false), ("/b", true)] {
        bed.ask("GET", target, &[("authorization", "Basic eDp5")]);
        assert_eq!(bed.ask("GET", target, &[("authorization", "Basic eDp5")]).is_hit(), is_hit, "{target}");
        assert_eq!(bed.get(target).is_hit(), is_hit, "{target}");
    }
}

#[test]
fn a_stale_response_is_revalidated_and_304_updates_its_fields() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("one", "max-age=0").etag("a").with("x-a", "1"));
    bed.get("/");
    bed.origin.set("/", Resource::new("one", "max-age=60").etag("a").with("x-a", "2"));
    let second = bed.get("/");
    assert_eq!(second.body, b"one");
    assert_eq!(second.cache(), "fwd=stale; fwd-status=304");
    assert_eq!(second.header("x-a"), "2");
    assert_eq!(bed.origin.last().headers["if-none-match"], "\"a\"");
    assert!(bed.get("/").is_hit(), "fresh by the 304");
    assert_eq!(bed.metric("cache_revalidated"), 1);
}

#[test]
fn a_304_updates_the_type_but_neither_coding_nor_range() {
    let bed = Bed::new();
    let with = |control: &str, kind: &str, coding: &str, range: &str| {
        let resource = Resource::new("one", control).etag("a").with("content-type", kind);
        resource.with("content-encoding", coding).with("content-range", range)
    };
    bed.origin.set("/", with("max-age=0", "text/plain", "x-a", "bytes 0-2/3"));
    assert_eq!(bed.get("/").header("content-range"), "bytes 0-2/3", "a whole response may say so too");
    bed.origin.set("/", with("max-age=60", "text/html", "x-b", "bytes 0-2/9"));
    let second = bed.get("/");
    assert_eq!(second.cache(), "fwd=stale; fwd-status=304");
    assert_eq!(
        ["content-type", "content-encoding", "content-range"].map(|name| second.header(name)),
        ["text/html", "x-a", "bytes 0-2/3"]
    );
}

#[test]
fn a_stale_response_that_changed_is_replaced() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("one", "max-age=0").with("last-modified", DATE));
    bed.get("/");
    bed.origin
        .set("/", Resource::new("two", "max-age=60").with("last-modified", "Mon, 07 Nov 1994 08:49:37 GMT"));
    let second = bed.get("/");
    assert_eq!((second.body.as_slice(), second.cache()), (&b"two"[..], "fwd=stale; fwd-status=200; stored"));
    assert_eq!(bed.origin.last().headers["if-modified-since"], DATE);
    assert_eq!(bed.get("/").body, b"two");
    assert_eq!(bed.origin.count(), 2);
}

#[test]
fn variants_are_told_apart_and_bounded() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=60").with("vary", "Accept-Language, accept"));
    let ask = |language: &str| bed.ask("GET", "/", &[("accept-language", language)]);
    ask("en");
    assert!(ask("en").is_hit());
    let other = ask("de");
    assert!(other.cache().starts_with("fwd=vary-miss"), "{}", other.cache());
    assert!(ask("en").is_hit() && ask("de").is_hit());
    assert!(!bed.get("/").is_hit(), "an absent field is a value of its own");
    for language in 0..20 {
        ask(&language.to_string());
    }
    assert!(!ask("en").is_hit(), "the first variants gave way");
    assert!(ask("19").is_hit());
}

#[test]
fn variants_are_the_same_however_their_fields_are_written() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=60").with("vary", "Accept-Encoding, x"));
    let ask = |headers: &[(&str, &str)]| bed.ask("GET", "/", headers).is_hit();
    assert!(!ask(&[("accept-encoding", "gzip, br"), ("x", "a, \"b , c\"")]));
    assert!(ask(&[("accept-encoding", "GZIP,br"), ("x", "a,\"b , c\"")]));
    assert!(ask(&[("accept-encoding", "gzip"), ("accept-encoding", "br"), ("x", "a"), ("x", "\"b , c\"")]));
    assert!(!ask(&[("accept-encoding", "br, gzip"), ("x", "a, \"b , c\"")]), "order may tell");
    assert!(!ask(&[("accept-encoding", "gzip, br"), ("x", "a, \"b,c\"")]), "quoted white space tells");
    assert!(!ask(&[("accept-encoding", "gzip, br"), ("x", "A, \"b , c\"")]), "case tells");
}

#[test]
fn clients_may_ask_for_less_age() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=60").etag("a").with("age", "30"));
    assert_eq!(bed.get("/").header("age"), "30");
    assert!(bed.get("/").is_hit());
    for control in ["no-cache", "max-age=10", "min-fresh=40"] {
        let answer = bed.ask("GET", "/", &[("cache-control", control)]);
        assert!(!answer.is_hit(), "{control}");
    }
    assert!(!bed.ask("GET", "/", &[("pragma", "no-cache")]).is_hit());
    assert!(bed.ask("GET", "/", &[("cache-control", "max-age=40, min-fresh=10")]).is_hit());
    assert_eq!(bed.ask("GET", "/other", &[("cache-control", "only-if-cached")]).status, 504);

    let site = SiteOptions { ignore_client: true, ..SiteOptions::default() };
    let bed = Bed::with(options(), site, 1 << 20);
    bed.origin.set("/", Resource::new("x", "max-age=60"));
    bed.get("/");
    assert!(bed.ask("GET", "/", &[("cache-control", "no-cache")]).is_hit());
}

#[test]
fn stale_while_revalidate_answers_at_once_and_updates_behind() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("one", "max-age=0, stale-while-revalidate=60").etag("a"));
    bed.get("/");
    bed.origin.set("/", Resource::new("two", "max-age=60").etag("b"));
    bed.origin.hold();
    let stale = bed.get("/");
    assert!(stale.is_hit() && stale.body == b"one", "{stale:?}");
    bed.origin.wait_for(2);
    bed.origin.release();
    while bed.get("/").body != b"two" {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bed.origin.count(), 2);
}

#[test]
fn stale_if_error_outlives_the_origin() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("one", "max-age=0, stale-if-error=60").etag("a"));
    bed.get("/");
    for status in [500, 502, 503, 504] {
        bed.origin.set("/", Resource::new("broken", "").status(status));
        let answer = bed.get("/");
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"one"[..]));
        assert!(answer.cache().ends_with("detail=stale-if-error"), "{}", answer.cache());
    }
    bed.origin.set("/", Resource::new("gone", "").status(404));
    assert_eq!(bed.get("/").status, 404, "404 is an answer");
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("one", "max-age=0, stale-if-error=60, must-revalidate").etag("a"));
    bed.get("/");
    bed.origin.set("/", Resource::new("broken", "").status(503));
    assert_eq!(bed.get("/").status, 503);
}

#[test]
fn errors_are_cached_by_their_own_time() {
    let negative = [(http::StatusCode::NOT_FOUND, Duration::from_secs(10))].into();
    let bed = Bed::with(options(), SiteOptions { negative, ..SiteOptions::default() }, 1 << 20);
    bed.origin.set("/", Resource::new("x", "").status(404));
    bed.origin.set("/5", Resource::new("x", "").status(500));
    bed.get("/");
    assert!(bed.get("/").is_hit());
    bed.get("/5");
    assert!(!bed.get("/5").is_hit());
}

#[test]
fn a_site_may_have_a_default_time() {
    let bed = Bed::with(
        options(),
        SiteOptions { default_ttl: Some(Duration::from_secs(60)), ..SiteOptions::default() },
        1 << 20,
    );
    bed.origin.set("/", Resource::new("x", ""));
    bed.origin.set("/404", Resource::new("x", "").status(404));
    bed.get("/");
    assert!(bed.get("/").is_hit());
    bed.get("/404");
    assert!(!bed.get("/404").is_hit(), "not of errors");
}

#[test]
fn conditions_of_clients_are_answered_from_the_cache() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("hello", "max-age=60").etag("a").with("last-modified", DATE));
    bed.get("/");
    for (name, value, status) in [
        ("if-none-match", "\"a\"", 304),
        ("if-none-match", "\"b\"", 200),
        ("if-match", "\"b\"", 412),
        ("if-match", "\"a\"", 200),
        ("if-modified-since", DATE, 304),
        ("if-unmodified-since", DATE, 200),
    ] {
        let answer = bed.ask("GET", "/", &[(name, value)]);
        assert_eq!((answer.status, answer.is_hit()), (status, true), "{name}: {value}");
        assert_eq!(answer.header("etag"), "\"a\"");
    }
    assert_eq!(bed.origin.count(), 1);
    // Also on a miss: what is fetched is the whole.
    bed.origin.set("/b", Resource::new("hello", "max-age=60").etag("a"));
    assert_eq!(bed.ask("GET", "/b", &[("if-none-match", "\"a\"")]).status, 304);
    // Who asks before the whole has come waits for it, and is no hit.
    while !bed.get("/b").is_hit() {
        assert_eq!(bed.origin.count(), 2);
    }
}

#[test]
fn an_entity_tag_counts_for_more_than_a_date_and_a_later_date_will_do() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=60").etag("a").with("last-modified", DATE));
    bed.get("/");
    let (earlier, later) = ("Sat, 05 Nov 1994 08:49:37 GMT", "Mon, 07 Nov 1994 08:49:37 GMT");
    for (fields, status) in [
        (&[("if-none-match", "\"a\""), ("if-modified-since", earlier)][..], 304),
        (&[("if-none-match", "\"b\""), ("if-modified-since", later)], 200),
        (&[("if-modified-since", later)], 304),
        (&[("if-modified-since", earlier)], 200),
    ] {
        assert_eq!(bed.ask("GET", "/", fields).status, status, "{fields:?}");
    }
}

#[test]
fn unsafe_requests_invalidate() {
    let bed = Bed::new();
    for target in ["/", "/b", "/c"] {
        bed.origin.set(target, Resource::new("x", "max-age=60"));
        bed.get(target);
    }
    bed.origin.set(
        "/",
        Resource::new("x", "max-age=60")
            .with("location", "/b")
            .with("content-location", "https://edge.example/c"),
    );
    assert_eq!(bed.ask("POST", "/", &[]).cache(), "fwd=method");
    for target in ["/", "/b", "/c"] {
        assert!(!bed.get(target).is_hit(), "{target}");
    }
    bed.origin.set("/", Resource::new("x", "").status(500));
    bed.ask("POST", "/", &[]);
    assert!(bed.get("/b").is_hit());
    bed.ask("OPTIONS", "/b", &[]);
    assert!(bed.get("/b").is_hit());
}

#[test]
fn purges_take_out_what_they_name() {
    let bed = Bed::new();
    let purge = |target: Target, soft: bool| {
        bed.cache.purge(&Purge { target, soft }, |_| SiteOptions::default()).unwrap().objects
    };
    for target in ["/a/1", "/a/2", "/b/1"] {
        bed.origin.set(target, Resource::new("x", "max-age=60").etag("a").with("surrogate-key", "all first"));
        bed.get(target);
    }
    assert_eq!(purge(Target::Url("https://edge.example/a/1".into()), false), 1);
    assert!(!bed.get("/a/1").is_hit() && bed.get("/a/2").is_hit());
    assert_eq!(purge(Target::Prefix("https://edge.example/a/".into()), false), 2);
    assert!(!bed.get("/a/1").is_hit() && !bed.get("/a/2").is_hit() && bed.get("/b/1").is_hit());
    assert_eq!(purge(Target::Key("first".into()), true), 3);
    let answer = bed.get("/b/1");
    assert_eq!(answer.cache(), "fwd=stale; fwd-status=304");
    assert!(bed.get("/b/1").is_hit());
    assert_eq!(purge(Target::Key("fir".into()), false), 0);
    assert!(
        bed.cache
            .purge(&Purge { target: Target::Url("/x".into()), soft: false }, |_| SiteOptions::default())
            .is_err()
    );
}

#[test]
fn what_is_being_fetched_while_it_is_purged_is_not_kept() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=60").with("cache-tag", "t"));
    for target in [Target::Url("https://edge.example/".into()), Target::Key("t".into())] {
        bed.origin.hold();
        let before = bed.origin.count();
        let client = bed.start(&common::request("GET", "/", &[]));
        bed.origin.wait_for(before + 1);
        bed.cache.purge(&Purge { target, soft: false }, |_| SiteOptions::default()).unwrap();
        bed.origin.release();
        assert_eq!(client.finish().body, b"x");
        assert!(!bed.get("/").is_hit());
        bed.cache
            .purge(&Purge { target: Target::Key("t".into()), soft: false }, |_| SiteOptions::default())
            .unwrap();
    }
}

#[test]
fn one_octet_of_a_large_object_takes_one_slice() {
    let bed = Bed::new();
    let content = body(1, 40 * BLOCK + 17);
    bed.origin.set("/", Resource::new(content.clone(), "max-age=60").etag("a").ranged());
    let answer = bed.ask("GET", "/", &[("range", "bytes=100000-100000")]);
    assert_eq!((answer.status, answer.body.as_slice()), (206, &content[100_000..100_001]));
    assert_eq!(answer.header("content-range"), format!("bytes 100000-100000/{}", content.len()));
    assert_eq!(bed.origin.count(), 1);
    // The answer does not wait for the rest of its slice.
    let deadline = Instant::now() + Duration::from_secs(20);
    while bed.metric("cache_fill_bytes") < 4 * BLOCK as u64 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(bed.metric("cache_fill_bytes"), 4 * BLOCK as u64);
    assert_eq!(bed.origin.last().headers["range"], format!("bytes={}-{}", 24 * BLOCK, 28 * BLOCK - 1));
    assert_eq!(bed.ask("GET", "/", &[("range", "bytes=100001-100010")]).body, &content[100_001..100_011]);
    assert_eq!(bed.origin.count(), 1);
    let all = bed.get("/");
    assert!(all.cache().starts_with("fwd=partial") && all.error.is_none());
    assert_eq!(all.body, content);
    assert_eq!(bed.metric("cache_fill_bytes"), content.len() as u64, "no slice twice");
    assert_eq!(bed.get("/").body, content);
    assert_eq!(bed.origin.last().headers["if-range"], "\"a\"");
    for (range, expected) in
        [("bytes=-5", &content[content.len() - 5..]), ("bytes=163840-", &content[40 * BLOCK..])]
    {
        assert_eq!(bed.ask("GET", "/", &[("range", range)]).body, expected);
    }
    let answer = bed.ask("GET", "/", &[("range", "bytes=900000-")]);
    assert_eq!(
        (answer.status, answer.header("content-range")),
        (416, format!("bytes */{}", content.len()).as_str())
    );
    let answer = bed.ask("GET", "/", &[("range", "bytes=0-1,8-9")]);
    assert!(answer.header("content-type").starts_with("multipart/byteranges"));
    assert_eq!(bed.ask("GET", "/", &[("range", "bytes=0-1"), ("if-range", "\"b\"")]).status, 200);
}

#[test]
fn slices_of_two_versions_never_meet() {
    let bed = Bed::new();
    let (one, two) = (body(1, 20 * BLOCK), body(2, 20 * BLOCK));
    bed.origin.set("/", Resource::new(one.clone(), "max-age=60").etag("a").ranged());
    assert_eq!(bed.ask("GET", "/", &[("range", "bytes=0-9")]).body, &one[..10]);
    bed.origin.set("/", Resource::new(two.clone(), "max-age=60").etag("b").ranged());
    let answer = bed.get("/");
    assert!(answer.error.is_some(), "what was announced is not to be had any more");
    assert!(one.starts_with(&answer.body));
    assert_eq!(bed.get("/").body, two);
}

#[test]
fn origins_without_ranges_or_validators_are_fetched_whole() {
    let bed = Bed::new();
    let content = body(3, 20 * BLOCK + 1);
    bed.origin.set("/plain", Resource::new(content.clone(), "max-age=60").etag("a"));
    bed.origin.set("/weak", Resource::new(content.clone(), "max-age=60").with("etag", "W/\"a\"").ranged());
    bed.origin.set("/none", Resource::new(content.clone(), "max-age=60").ranged());
    let mut chunked = Resource::new(content.clone(), "max-age=60");
    chunked.chunked = true;
    bed.origin.set("/chunked", chunked);
    for target in ["/plain", "/weak", "/none"] {
        assert_eq!(
            bed.ask("GET", target, &[("range", "bytes=50000-50009")]).body,
            &content[50_000..50_010],
            "{target}"
        );
    }
    for target in ["/plain", "/weak", "/none", "/chunked"] {
        assert_eq!(bed.get(target).body, content, "{target}");
        while !bed.get(target).is_hit() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = bed.get(target);
        assert!(answer.is_hit() && answer.body == content, "{target}");
        assert_eq!(answer.header("content-length"), content.len().to_string());
        assert_eq!(bed.ask("GET", target, &[("range", "bytes=-3")]).body, &content[content.len() - 3..]);
    }
}

#[test]
fn an_empty_object_is_an_object() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("", "max-age=60").etag("a").ranged());
    for _ in 0..2 {
        let answer = bed.get("/");
        assert_eq!((answer.status, answer.header("content-length")), (200, "0"));
    }
    assert!(bed.get("/").is_hit());
}

#[test]
fn an_object_beyond_the_limit_is_passed_on_whole() {
    let bed = Bed::with(
        expressway_cache::CacheOptions { max_whole: 10_000, ..options() },
        SiteOptions::default(),
        1 << 20,
    );
    let content = body(4, 50_000);
    bed.origin.set("/", Resource::new(content.clone(), "max-age=60"));
    let mut chunked = Resource::new(content.clone(), "max-age=60");
    chunked.chunked = true;
    bed.origin.set("/chunked", chunked);
    for target in ["/", "/chunked"] {
        for _ in 0..3 {
            let answer = bed.get(target);
            assert!(!answer.is_hit() && answer.error.is_none());
            assert_eq!(answer.body, content, "{target}");
        }
    }
}
