//! Tests: which session a datagram is for, and which session an address belongs to.

use super::*;
use str0m::IceCreds;

use crate::webrtc::addresses::SILENT;
use crate::webrtc::table::Restart;

#[test]
fn datagrams_find_their_session_from_any_worker() {
    let mut bed = Bed::new(2, "");
    let (mut publisher, mut player) = (Peer::publisher(5000, bed.now), Peer::player(5001, bed.now));
    bed.join(0, Role::Publish, &mut publisher).unwrap();
    bed.join(0, Role::Play, &mut player).unwrap();
    // All of it comes to the second worker, which has no session.
    bed.run(&mut [&mut publisher, &mut player], 1, Duration::from_secs(2));
    assert!(publisher.is_connected && player.is_connected);
    for number in 1..10 {
        publisher.send(number, bed.now);
        bed.run(&mut [&mut publisher, &mut player], 1, Duration::from_millis(5));
    }
    assert_eq!(player.packets.len(), 9);
    let counters = bed.demux(1);
    assert_eq!((counters.dropped_fragment, counters.dropped_handover), (0, 0));
}

#[test]
fn what_another_worker_has_no_room_for_is_counted() {
    let mut bed = Bed::with_mailboxes(2, "", 1);
    let mut player = Peer::player(5000, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    player.turn(bed.now);
    let request = std::mem::take(&mut player.out);
    assert!(!request.is_empty());
    for _ in 0..3 {
        let datagrams = request.iter().map(|datagram| (datagram.clone(), player.address, media()));
        bed.workers[1].io_mut().arriving.extend(datagrams);
    }
    bed.workers[1].turn(bed.now).unwrap();
    assert_eq!(bed.demux(1).dropped_handover as usize, 3 * request.len() - 1, "there is room for one");
}

#[test]
fn a_session_cannot_take_the_address_of_another() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    while player.out.iter().all(|datagram| datagram[0] != 0) {
        bed.now += Duration::from_millis(100);
        player.turn(bed.now);
    }
    // A request with the player's password, in the name of the publisher.
    let request = player.out.iter().find(|datagram| datagram[0] == 0).unwrap().clone();
    bed.workers[0].io_mut().arriving.push((request, publisher.address, media()));
    bed.workers[0].turn(bed.now).unwrap();
    assert_eq!(bed.demux(0).dropped_stranger, 1);
    publish(&mut bed, &mut publisher, &mut player, 1..10);
    assert_eq!(player.packets.len(), 9);
}

/// Datagrams with requests of ICE.
fn requests(peer: &mut Peer, bed: &mut Bed) -> Vec<Vec<u8>> {
    while peer.out.iter().all(|datagram| datagram[0] != 0) {
        bed.now += Duration::from_millis(100);
        peer.turn(bed.now);
    }
    let out = std::mem::take(&mut peer.out);
    out.into_iter().filter(|datagram| datagram[0] == 0).collect()
}

#[test]
fn a_session_cannot_take_an_address_of_another_worker() {
    let mut bed = Bed::new(2, "");
    let (mut publisher, mut victim) = (Peer::publisher(5000, bed.now), Peer::player(5001, bed.now));
    bed.join(0, Role::Publish, &mut publisher).unwrap();
    bed.join(0, Role::Play, &mut victim).unwrap();
    bed.run(&mut [&mut publisher, &mut victim], 1, Duration::from_secs(2));
    assert!(victim.is_connected);
    // The attacker knows where the victim is, and has a session of its own on the worker that the victim's datagrams come to.
    let mut attacker = Peer::player(5002, bed.now);
    bed.join(1, Role::Play, &mut attacker).unwrap();
    let forged = requests(&mut attacker, &mut bed);
    let count = forged.len() as u64;
    for worker in 0..2 {
        let datagrams = forged.iter().map(|datagram| (datagram.clone(), victim.address, media()));
        bed.workers[worker].io_mut().arriving.extend(datagrams);
        bed.run(&mut [], worker, Duration::from_millis(5));
    }
    assert_eq!(bed.demux(1).dropped_stranger, 2 * count, "by either way");
    // The victim's datagrams are its own still.
    for number in 1..10 {
        publisher.send(number, bed.now);
        bed.run(&mut [&mut publisher, &mut victim], 1, Duration::from_millis(5));
    }
    bed.run(&mut [&mut publisher, &mut victim], 1, Duration::from_secs(5));
    assert_eq!((victim.packets.len(), bed.counters(0).ended_lost), (9, 0));
    // Once the victim is gone, the address may be another's: NATs give them out again.
    bed.mailboxes[0].try_send(Message::Leave(0, 1)).unwrap();
    bed.run(&mut [&mut publisher], 1, Duration::from_millis(100));
    assert_eq!(bed.counters(0).ended_left, 1);
    let mut next = Peer::player(5001, bed.now);
    bed.join(1, Role::Play, &mut next).unwrap();
    bed.run(&mut [&mut publisher, &mut next], 1, Duration::from_secs(2));
    assert!(next.is_connected);
}

#[test]
fn an_address_that_a_session_has_left_may_be_anothers() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    let left = player.address;
    // A NAT gives the player another port.
    player.address.set_port(6001);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(9));
    publish(&mut bed, &mut publisher, &mut player, 1..10);
    assert_eq!(player.packets.len(), 9, "they go where it is");
    bed.run(&mut [&mut publisher, &mut player], 0, SILENT - Duration::from_secs(8));
    let mut next = Peer::player(left.port(), bed.now);
    bed.join(0, Role::Play, &mut next).unwrap();
    bed.run(&mut [&mut publisher, &mut player, &mut next], 0, Duration::from_secs(2));
    assert!(next.is_connected);
    assert_eq!(bed.counters(0).ended_lost, 0);
}

/// What a worker says to another ICE session of the second session in its room.
fn restart(bed: &mut Bed, session: u64, credentials: (IceCreds, IceCreds)) -> Option<Result<(), Refused>> {
    let (reply, receiver) = ReplySender::new(Wake::new(Arc::new(Silent), 0));
    let restart = Restart { session, credentials, reply };
    bed.mailboxes[0].try_send(Message::Restart(Box::new(restart))).unwrap();
    bed.workers[0].turn(bed.now).unwrap();
    receiver.try_recv()
}

#[test]
fn ice_begins_anew_from_another_network() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut publisher, &mut player, 1..5);
    let own = IceCreds { ufrag: bed.identity.ufrags.issue(0), pass: "0".repeat(32) };
    let theirs = IceCreds { ufrag: "theirs".into(), pass: "1".repeat(32) };
    assert_eq!(restart(&mut bed, 7, (own.clone(), theirs.clone())), Some(Err(Refused::Gone)));
    assert_eq!(restart(&mut bed, 1, (own.clone(), theirs.clone())), Some(Ok(())));
    // It has not heard of that yet, and media goes on.
    publish(&mut bed, &mut publisher, &mut player, 5..10);
    assert_eq!(player.packets.len(), 9);
    player.address.set_port(6001);
    let mut api = player.rtc.direct_api();
    api.set_local_ice_credentials(theirs);
    api.set_remote_ice_credentials(own);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(9));
    publish(&mut bed, &mut publisher, &mut player, 10..20);
    assert_eq!(player.packets.len(), 19);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(40));
    assert_eq!(bed.counters(0).ended_lost, 0, "it is the same session");
}

#[test]
fn ice_is_not_shown_endless_addresses() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    let request = requests(&mut player, &mut bed).remove(0);
    let own = player.address;
    for port in 10_000..11_000 {
        let datagram = (request.clone(), SocketAddr::new(own.ip(), port), media());
        bed.workers[0].io_mut().arriving.push(datagram);
    }
    while bed.workers[0].turn(bed.now).unwrap().has_more() {}
    // It was shown the player's own, eight at once, and one a second since.
    let dropped = bed.counters(0).dropped_new_address;
    assert!((980..1000).contains(&dropped), "{dropped}");
    // The player is where it was, and its own requests say so.
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(10));
    publish(&mut bed, &mut publisher, &mut player, 1..10);
    assert_eq!((player.packets.len(), bed.counters(0).ended_lost), (9, 0));
}
