//! HTTP/2.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::stage::octets;
use crate::world::{Build, ask, get, request, speak, take};

#[test]
fn bodies_of_every_kind_arrive_whole() {
    let world = Build::default().world();
    for (target, length) in
        [("/bytes/0", 0), ("/bytes/1", 1), ("/bytes/65536", 65_536), ("/stream/5000000", 5_000_000)]
    {
        let (response, body, _) = get(&world, target);
        assert_eq!(response.status(), 200);
        assert_eq!(body, octets(length), "{target}");
    }
    let (response, body, _) = get(&world, "/head");
    assert_eq!(body, b"GET https edge.test /head HTTP/2.0");
    assert_eq!(response.headers()["alt-svc"], "h3=\":443\"; ma=60");
    assert_eq!(get(&world, "/nothing").0.status(), 404);
    assert_eq!(world.count("tcp_requests", "HTTP/2.0"), 6);
}

#[test]
fn a_request_body_goes_through_with_its_trailers() {
    let world = Build::default().world();
    let (body, trailers) = speak(&world, |mut send| async move {
        let (response, mut stream) = send.send_request(request("POST", "/echo"), false).unwrap();
        let task = tokio::spawn(async move { take(response.await.unwrap()).await.unwrap() });
        let mut left = Bytes::from(octets(1_000_000));
        while !left.is_empty() {
            stream.reserve_capacity(left.len());
            let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await.unwrap().unwrap();
            stream.send_data(left.split_to(room.min(left.len())), false).unwrap();
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", HeaderValue::from_static("yes"));
        stream.send_trailers(trailers).unwrap();
        let (_, body, trailers) = task.await.unwrap();
        (body, trailers)
    });
    assert_eq!(body, octets(1_000_000));
    assert_eq!(trailers.unwrap()["x-end"], "yes");
}

#[test]
fn many_streams_share_a_connection() {
    let world = Build::default().world();
    speak(&world, |mut send| async move {
        // By its answer the client knows how many streams it may open.
        ask(&mut send, request("GET", "/bytes/1")).await.unwrap();
        let tasks: Vec<_> = (0..200)
            .map(|number| {
                let mut send = send.clone();
                tokio::spawn(async move {
                    let target = format!("/stream/{}", number * 1000);
                    let (_, body, _) = ask(&mut send, request("GET", &target)).await.unwrap();
                    assert_eq!(body, octets(number * 1000));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    world.until("all complete", || world.count("tcp_responses", "complete") == 201);
    world.until("nothing is under way", || world.count("tcp_requests_active", "") == 0);
}

#[test]
fn requests_beyond_the_files_that_may_be_open_wait_for_others() {
    let world = Build::limited(|limits| limits.max_open_files = 1);
    speak(&world, |send| async move {
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let mut send = send.clone();
                tokio::spawn(async move { ask(&mut send, request("GET", "/stream/50000")).await.unwrap().1 })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), octets(50_000));
        }
    });
}

#[test]
fn a_body_that_nobody_wants_costs_no_more_than_a_window() {
    let world = Build::default().world();
    let (response, _, _) = speak(&world, |mut send| async move {
        let (response, mut stream) = send.send_request(request("POST", "/bytes/1"), false).unwrap();
        stream.reserve_capacity(1 << 20);
        let _ = stream.send_data(Bytes::from(octets(1 << 20)), false);
        let answer = take(response.await.unwrap()).await.unwrap();
        assert_eq!(ask(&mut send, request("GET", "/bytes/5")).await.unwrap().1, octets(5));
        answer
    });
    assert_eq!(response.status(), 405);
}

#[test]
fn what_is_too_large_is_said_to_be() {
    let world = Build::default().world();
    let status = |size: usize| {
        speak(&world, |mut send| async move {
            let mut request = request("GET", "/bytes/1");
            let value = HeaderValue::try_from("x".repeat(size)).unwrap();
            request.headers_mut().insert("x-large", value);
            ask(&mut send, request).await.unwrap().0.status().as_u16()
        })
    };
    assert_eq!(status(20_000), 200);
    assert_eq!(status(40_000), 431);
    assert_eq!(world.count("tcp_refused", "header-size"), 1);
    world.serves();
}
