//! Tests: what those cost who have shown no password, and DTLS in the name of a peer.

use super::*;

/// A record of DTLS 1.2 (RFC 6347, section 4.1).
fn record(kind: u8, epoch: u16, number: u64, fragment: &[u8]) -> Vec<u8> {
    let mut record = vec![kind, 0xfe, 0xfd];
    record.extend_from_slice(&epoch.to_be_bytes());
    record.extend_from_slice(&number.to_be_bytes()[2..]);
    record.extend_from_slice(&(fragment.len() as u16).to_be_bytes());
    record.extend_from_slice(fragment);
    record
}

/// The message of a handshake, of which that is all, or the beginning (section 4.2.2).
fn handshake(kind: u8, length: u16, number: u16, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0];
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&number.to_be_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&(body.len() as u16).to_be_bytes());
    message.extend_from_slice(body);
    message
}

/// What anybody can send of DTLS: all kinds of records, whole handshakes and parts of them, encrypted by no key.
fn dtls() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for number in 0..40u16 {
        for kind in 20..=25 {
            all.push(record(kind, 0, 1000 + u64::from(number), &[2, 40]));
            all.push(record(kind, 1, 1000 + u64::from(number), &[7; 60]));
            all.push(record(kind, 2, u64::from(number), &[7; 60]));
        }
        for kind in [0, 1, 11, 16, 20] {
            let (whole, part) =
                (handshake(kind, 50, number, &[7; 50]), handshake(kind, 5000, number, &[7; 1000]));
            all.extend([whole, part].map(|message| record(22, 0, 2000 + u64::from(number), &message)));
        }
        all.push(record(22, 0, 3000, &handshake(1, 50, 0, &[7; 50])).repeat(8));
    }
    all
}

fn arrive(bed: &mut Bed, datagrams: Vec<Vec<u8>>, from: SocketAddr) {
    let arriving = &mut bed.workers[0].io_mut().arriving;
    arriving.extend(datagrams.into_iter().map(|datagram| (datagram, from, media())));
    while bed.workers[0].turn(bed.now).unwrap().has_more() {}
}

#[test]
fn who_has_shown_no_password_is_not_listened_to() {
    let mut bed = Bed::new(1, "");
    let mut player = Peer::player(5001, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.workers[0].io_mut().sent.clear();
    let stranger = "192.0.2.66:7000".parse().unwrap();
    let count = dtls().len() as u64;
    arrive(&mut bed, dtls(), stranger);
    assert_eq!(bed.demux(0).dropped_stranger, count);
    // It has seen a request with the username, and does not know the password: each is looked at once, and nothing is kept.
    player.turn(bed.now);
    let request = player.out.iter().find(|datagram| datagram[0] == 0).unwrap().clone();
    let mut forged = request;
    let integrity = forged.len() - 8 - 20;
    forged[integrity] ^= 1;
    arrive(&mut bed, vec![forged; 100], stranger);
    arrive(&mut bed, dtls(), stranger);
    assert_eq!((bed.demux(0).dropped_stranger, bed.counters(0).dropped_password), (2 * count, 100));
    assert!(bed.workers[0].io_mut().sent.is_empty(), "nothing is answered");
    // Nor does its DTLS reach the session when that has begun.
    bed.run(&mut [&mut player], 0, Duration::from_secs(2));
    assert!(player.is_connected);
    arrive(&mut bed, dtls(), stranger);
    assert_eq!((bed.demux(0).dropped_stranger, bed.counters(0).ended_failed), (3 * count, 0));
}

#[test]
fn dtls_in_the_name_of_a_peer_neither_ends_its_session_nor_is_answered_by_more() {
    for (more, channel) in
        [("", None), ("data = \"all\"", Some(ChannelConfig { label: "all".into(), ..Default::default() }))]
    {
        let (mut bed, mut publisher, mut player) = connected(more, [None, channel]);
        publish(&mut bed, &mut publisher, &mut player, 1..5);
        for _ in 0..3 {
            bed.workers[0].io_mut().sent.clear();
            let (from, came) = (player.address, dtls());
            let octets: usize = came.iter().map(Vec::len).sum();
            arrive(&mut bed, came, from);
            let sent: usize = bed.workers[0].io_mut().sent.iter().map(|(_, datagram)| datagram.len()).sum();
            assert!(sent <= 4000 && sent < octets / 10, "{sent} octets for {octets}");
            bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(100));
        }
        publish(&mut bed, &mut publisher, &mut player, 5..10);
        assert_eq!((player.packets.len(), bed.counters(0).ended_failed), (9, 0));
    }
}

#[test]
fn a_handshake_that_never_ends_has_its_time_and_holds_a_few_datagrams() {
    let mut bed = Bed::new(1, "");
    let mut player = Peer::player(5001, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    // ICE is done, and of DTLS there are beginnings of later messages alone.
    player.turn(bed.now);
    let requests: Vec<_> = player.out.drain(..).filter(|datagram| datagram[0] == 0).collect();
    arrive(&mut bed, requests, player.address);
    for number in 1..60u16 {
        let part = record(22, 0, u64::from(number), &handshake(11, 5000, number, &[7; 1000]));
        arrive(&mut bed, vec![part], player.address);
    }
    let counters = bed.counters(0);
    bed.run(&mut [], 0, Duration::from_secs(11));
    let ended = bed.counters(0).ended_handshake + counters.ended_failed;
    assert_eq!((ended, bed.table.len(), bed.workers[0].next_deadline()), (1, 0, None));
}
