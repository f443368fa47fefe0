//! Tests: offers that no worker takes.

use std::task::Poll;

use bytes::Bytes;
use expressway_web::{Exchange, Handler, Protocol, RequestBody, RequestHead, Scheme, pipe};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::*;
use crate::webrtc::http::{HttpCounters, Whip};

/// Posts an offer to publish in the first room.
fn post(whip: &Whip, offer: &str, peer: SocketAddr) -> Exchange {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/sdp"));
    let head = RequestHead {
        method: Method::POST,
        scheme: Scheme::Http,
        authority: "192.0.2.1".to_owned(),
        target: "/whip/0".to_owned(),
        headers,
        protocol: Protocol::Http11,
        remote: peer,
        client_subject: None,
    };
    let (mut writer, reader) = pipe(offer.len() + 1);
    writer.write(Bytes::copy_from_slice(offer.as_bytes()));
    writer.finish(None);
    whip.start(&head, RequestBody::new(reader, None), Wake::new(Arc::new(Silent), 0))
}

#[test]
fn an_offer_for_a_worker_that_is_behind_is_refused_and_counted() {
    let bed = Bed::with_mailboxes(1, "", 1);
    let counters = Arc::new(HttpCounters::default());
    let parts = (Arc::clone(&bed.identity), Arc::clone(&bed.table), Arc::clone(&bed.mailboxes));
    let whip = Whip::new(&bed.config, parts.0, parts.1, parts.2, Arc::clone(&counters)).unwrap();
    let mut offers = [5000, 5001].map(|port| {
        let mut peer = Peer::publisher(port, bed.now);
        (peer.offer.take().unwrap().0, peer.address)
    });
    // The peers have addresses of their own, so that only the worker is in the way.
    offers[1].1 = "198.51.100.1:5001".parse().unwrap();
    // The worker hears nothing: its mailbox is full with the first.
    let mut first = post(&whip, &offers[0].0, offers[0].1);
    assert!(first.poll_head().is_pending());
    let mut second = post(&whip, &offers[1].0, offers[1].1);
    let Poll::Ready(head) = second.poll_head() else { panic!("it waits") };
    assert_eq!(head.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(head.headers.contains_key(RETRY_AFTER));
    let refused: Vec<_> = counters.fields().filter(|(_, _, value)| *value > 0).collect();
    let [("refused_busy", _, 1)] = refused[..] else { panic!("{refused:?}") };
    assert_eq!(bed.table.len(), 1, "the one that waits");
}
