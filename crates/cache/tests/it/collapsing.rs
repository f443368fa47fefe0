//! Many requests at once.

use std::time::Duration;

use expressway_cache::{CacheOptions, SiteOptions};

use crate::common::{self, BLOCK, Bed, Resource, body, options, request};

fn together(bed: &Bed, target: &str, count: usize) -> Vec<common::Answer> {
    bed.origin.hold();
    let before = bed.origin.count();
    let clients: Vec<_> = (0..count).map(|_| bed.start(&request("GET", target, &[]))).collect();
    bed.origin.wait_for(before + 1);
    bed.origin.release();
    clients.into_iter().map(common::Client::finish).collect()
}

#[test]
fn a_thousand_requests_are_one_to_the_origin() {
    let bed = Bed::new();
    let content = body(1, 3 * BLOCK + 5);
    bed.origin.set("/", Resource::new(content.clone(), "max-age=60").etag("a"));
    let answers = together(&bed, "/", 1000);
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.body == content));
    assert_eq!(bed.origin.count(), 1);
    assert_eq!(bed.metric("cache_collapsed"), 999);
    assert!(answers[999].cache().contains("collapsed"));
    assert!(!answers[0].cache().contains("collapsed"));
}

#[test]
fn slices_are_fetched_once_each_however_many_want_them() {
    let bed = Bed::new();
    let content = body(2, 40 * BLOCK);
    bed.origin.set("/", Resource::new(content.clone(), "max-age=60").etag("a").ranged());
    let answers = together(&bed, "/", 100);
    assert!(answers.iter().all(|answer| answer.body == content));
    assert_eq!(bed.origin.count(), 10);
}

#[test]
fn revalidation_is_collapsed_too() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=0").etag("a"));
    bed.get("/");
    let answers = together(&bed, "/", 100);
    assert!(answers.iter().all(|answer| answer.body == b"x"));
    assert!(bed.origin.count() <= 2, "{}", bed.origin.count());
}

#[test]
fn what_cannot_be_shared_goes_to_its_own_client_and_to_the_others_a_few_at_a_time() {
    let bed = Bed::with(CacheOptions { release: 7, ..options() }, SiteOptions::default(), 1 << 20);
    for (target, resource) in
        [("/", Resource::new("x", "private")), ("/5", Resource::new("x", "").status(503))]
    {
        bed.origin.set(target, resource);
        let before = bed.origin.count();
        bed.origin.most_active.store(0, std::sync::atomic::Ordering::SeqCst);
        let answers = together(&bed, target, 100);
        assert!(answers.iter().all(|answer| answer.body == b"x"));
        assert_eq!(bed.origin.count() - before, 100, "nobody gets what is another's");
        let most = bed.origin.most_active.load(std::sync::atomic::Ordering::SeqCst);
        assert!(most <= 8, "{most} at once");
    }
    assert_eq!(bed.metric("cache_released"), 198);
    // For a while the URL is not waited for.
    let answers = together(&bed, "/", 20);
    assert!(answers.iter().all(|answer| answer.cache() == "fwd=bypass"));
}

#[test]
fn the_first_client_may_go_and_the_others_get_the_object() {
    let bed = Bed::new();
    let content = body(3, 30 * BLOCK);
    bed.origin.set("/", Resource::new(content.clone(), "max-age=60").etag("a"));
    bed.origin.hold();
    let first = bed.start(&request("GET", "/", &[]));
    bed.origin.wait_for(1);
    let second = bed.start(&request("GET", "/", &[]));
    drop(first);
    bed.origin.release();
    assert_eq!(second.finish().body, content);
    assert_eq!(bed.origin.count(), 1);
}

#[test]
fn a_fetch_that_nobody_waits_for_ends() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new(body(3, 300 * BLOCK), "max-age=60").etag("a"));
    bed.origin.hold();
    let first = bed.start(&request("GET", "/", &[]));
    bed.origin.wait_for(1);
    drop(first);
    bed.origin.release();
    while bed.metric("cache_fills_active") > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bed.metric("cache_fill_abandoned"), 1);
    assert_eq!(bed.metric("cache_fill_held_bytes"), 0);
}

#[test]
fn a_fetch_that_breaks_off_ends_its_readers_and_is_not_kept() {
    let bed = Bed::new();
    let content = body(4, 10 * BLOCK);
    let mut resource = Resource::new(content.clone(), "max-age=60").etag("a");
    resource.breaks_at = Some(6 * BLOCK);
    bed.origin.set("/", resource);
    let answer = bed.get("/");
    assert!(answer.error.is_some() && content.starts_with(&answer.body));
    bed.origin.set("/", Resource::new(content.clone(), "max-age=60").etag("a"));
    let answer = bed.get("/");
    assert!(!answer.is_hit() && answer.body == content);
}

#[test]
fn a_fetch_that_stalls_is_bounded_by_time() {
    let options = CacheOptions { fill_timeout: Duration::from_millis(50), ..options() };
    let bed = Bed::with(options, SiteOptions::default(), 1 << 20);
    let mut resource = Resource::new(body(5, 10 * BLOCK), "max-age=60");
    resource.stalls_at = Some(6 * BLOCK);
    bed.origin.set("/", resource);
    assert!(bed.get("/").error.is_some());
    bed.origin.hold();
    assert_eq!(bed.get("/other").status, 504);
}

#[test]
fn what_waits_is_bounded() {
    let bounded = CacheOptions { max_waiters: 3, max_fills: 2, ..options() };
    let bed = Bed::with(bounded, SiteOptions::default(), 1 << 20);
    for target in ["/a", "/b", "/c"] {
        bed.origin.set(target, Resource::new("x", "max-age=60"));
    }
    bed.origin.hold();
    let clients: Vec<_> = (0..5).map(|_| bed.start(&request("GET", "/a", &[]))).collect();
    bed.origin.wait_for(3);
    let more: Vec<_> = ["/b", "/c"].map(|target| bed.start(&request("GET", target, &[]))).into();
    bed.origin.wait_for(5);
    assert_eq!(bed.metric("cache_fills_active"), 2);
    bed.origin.release();
    let mut caches = Vec::new();
    for client in clients.into_iter().chain(more) {
        let answer = client.finish();
        assert_eq!(answer.body, b"x");
        caches.push(answer.cache().to_owned());
    }
    assert_eq!(caches.iter().filter(|cache| *cache == "fwd=bypass").count(), 3, "{caches:?}");
}

#[test]
fn requests_of_other_variants_do_not_get_the_first_ones_answer() {
    let bed = Bed::new();
    bed.origin.set("/", Resource::new("x", "max-age=60").with("vary", "accept"));
    bed.origin.hold();
    let ask = |accept: &str| bed.start(&request("GET", "/", &[("accept", accept)]));
    let clients: Vec<_> = ["a", "b", "a", "b", "c"].into_iter().map(ask).collect();
    bed.origin.wait_for(1);
    bed.origin.release();
    for client in clients {
        assert_eq!(client.finish().body, b"x");
    }
    assert_eq!(bed.origin.count(), 3, "one a variant");
}
