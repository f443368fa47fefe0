//! Tests: which simulcast layer a session sees, and how it changes to another.

use super::*;
use crate::service::Message;

/// The time from picture to picture.
const PICTURE: Duration = Duration::from_millis(40);

/// A publisher of layers in VP8, each of which has numbers of its own.
struct Camera {
    peer: Peer,
    /// By RID: the next sequence number, timestamp and PictureID, and the octets of a picture.
    layers: Vec<(&'static str, u64, u32, u16, usize)>,
}

impl Camera {
    fn new(now: Instant) -> Self {
        let peer = Peer::layered(5000, &["h", "l"], now);
        Self { peer, layers: vec![("h", 100, 5000, 0x7ff0, 3000), ("l", 7000, 900_000, 3, 400)] }
    }

    /// A picture of each layer: a key frame where one was asked for, and first.
    fn take(&mut self, now: Instant) {
        for (rid, sequence, timestamp, picture, octets) in &mut self.layers {
            let asked = self.peer.asked.iter().position(|asked| asked == rid);
            let is_key = asked.map(|index| self.peer.asked.remove(index)).is_some();
            let [high, low] = (*picture | 0x8000).to_be_bytes();
            let mut left = *octets;
            while left > 0 {
                let length = left.min(1000);
                left -= length;
                let is_first = left + length == *octets;
                let begin = if is_first { 0x90 } else { 0x80 };
                let mut payload = vec![begin, 0x80, high, low, u8::from(!is_key), rid.as_bytes()[0]];
                payload.resize(length, 0);
                self.peer.send_layer(rid, (*sequence, *timestamp), payload, left == 0, now);
                *sequence += 1;
            }
            *timestamp = timestamp.wrapping_add(3600);
            *picture = (*picture + 1) & 0x7fff;
        }
    }
}

/// What a player was sent: number, timestamp, PictureID, whether it begins a key frame, and the layer.
fn seen(player: &Peer) -> Vec<(u64, u32, u16, bool, u8)> {
    let read = |(sequence, timestamp, payload): &(u64, u32, Vec<u8>)| {
        let picture = u16::from_be_bytes([payload[2], payload[3]]) & 0x7fff;
        (*sequence, *timestamp, picture, payload[0] == 0x90 && payload[4] == 0, payload[5])
    };
    player.received.iter().map(read).collect()
}

/// Numbers, timestamps and pictures go on without a hole, and another layer begins with a key frame. The layers, in their order.
fn layers_of(player: &Peer) -> Vec<char> {
    let seen = seen(player);
    let mut layers = Vec::new();
    for (index, (sequence, timestamp, picture, is_key, layer)) in seen.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| seen[before]);
        let is_new = before.is_none_or(|(.., before)| before != *layer);
        if is_new {
            assert!(*is_key, "packet {index} begins a layer: {:?}", &seen[index.saturating_sub(3)..=index]);
            layers.push(char::from(*layer));
        }
        if let Some((last, time, shown, ..)) = before {
            assert_eq!(*sequence, last + 1, "packet {index}");
            let is_next = *picture == (shown + 1) & 0x7fff;
            assert!(is_next || *picture == shown, "packet {index}: picture {shown}, then {picture}");
            let passed = timestamp.wrapping_sub(time);
            assert_eq!(passed == 0, !is_next, "packet {index}: a picture has one timestamp");
            assert!(passed < 180_000, "packet {index}: timestamp {time}, then {timestamp}");
        }
    }
    layers
}

/// Pictures for that long.
fn film(bed: &mut Bed, camera: &mut Camera, player: &mut Peer, time: Duration) {
    let end = bed.now + time;
    while bed.now < end {
        camera.take(bed.now);
        bed.run(&mut [&mut camera.peer, player], 0, PICTURE);
    }
}

fn ready() -> (Bed, Camera, Peer) {
    let mut bed = Bed::new(1, "");
    // Finer than packets are spread, from which the estimate is made.
    bed.step = Duration::from_millis(1);
    let (mut camera, mut player) = (Camera::new(bed.now), Peer::player(5001, bed.now));
    bed.join(0, Role::Publish, &mut camera.peer).unwrap();
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.run(&mut [&mut camera.peer, &mut player], 0, Duration::from_secs(2));
    assert!(camera.peer.is_connected && player.is_connected);
    (bed, camera, player)
}

/// Pictures until the player sees that layer.
fn reach(bed: &mut Bed, camera: &mut Camera, player: &mut Peer, layer: char) {
    for _ in 0..60 {
        film(bed, camera, player, Duration::from_millis(500));
        if layers_of(player).last() == Some(&layer) {
            return;
        }
    }
    panic!("no {layer} in half a minute: {:?} {:?}", layers_of(player), bed.gauges(0));
}

fn ask(bed: &mut Bed, rid: Option<&str>) {
    bed.mailboxes[0].try_send(Message::Layer(1, rid.map(Into::into))).unwrap();
}

#[test]
fn a_session_sees_the_layer_that_it_asks_for_from_a_key_frame_on() {
    let (mut bed, mut camera, mut player) = ready();
    reach(&mut bed, &mut camera, &mut player, 'h');
    ask(&mut bed, Some("l"));
    film(&mut bed, &mut camera, &mut player, Duration::from_secs(3));
    assert_eq!(layers_of(&player).last(), Some(&'l'));
    ask(&mut bed, None);
    reach(&mut bed, &mut camera, &mut player, 'h');
    let layers = layers_of(&player);
    assert_eq!(layers[layers.len() - 3..], ['h', 'l', 'h']);
    assert_eq!(bed.counters(0).layer_changes as usize, layers.len() - 1);
    let asked = bed.room_counters(0).keyframes_asked as usize;
    assert!((layers.len()..=2 * layers.len()).contains(&asked), "{asked} key frames for {layers:?}");
}

#[test]
fn a_layer_that_pauses_is_left_for_one_that_goes_on() {
    let (mut bed, mut camera, mut player) = ready();
    reach(&mut bed, &mut camera, &mut player, 'h');
    let high = camera.layers.remove(0);
    film(&mut bed, &mut camera, &mut player, Duration::from_secs(3));
    assert_eq!(layers_of(&player).last(), Some(&'l'));
    camera.layers.push(high);
    reach(&mut bed, &mut camera, &mut player, 'h');
}

#[test]
fn the_path_decides_which_layer_comes() {
    let (mut bed, mut camera, mut player) = ready();
    reach(&mut bed, &mut camera, &mut player, 'h');
    // 600 kbit/s and a little for headers do not go through 300 kbit/s.
    player.bottleneck = Some(300_000);
    film(&mut bed, &mut camera, &mut player, Duration::from_secs(10));
    let low = bed.gauges(0);
    assert_eq!(seen(&player).last().unwrap().4, b'l', "{low:?}");
    assert!(low.estimate_lowest < 600_000, "{low:?}");
    player.bottleneck = None;
    for _ in 0..60 {
        film(&mut bed, &mut camera, &mut player, Duration::from_secs(1));
        if seen(&player).last().unwrap().4 == b'h' {
            break;
        }
    }
    let high = bed.gauges(0);
    assert_eq!(seen(&player).last().unwrap().4, b'h', "{high:?}");
    assert!(high.estimate_lowest > 720_000, "{high:?}");
}

#[test]
fn what_is_lost_of_a_layer_that_nobody_sees_is_not_asked_for() {
    let (mut bed, mut camera, mut player) = ready();
    reach(&mut bed, &mut camera, &mut player, 'h');
    let pictures = |bed: &mut Bed| bed.room_counters(0).packets;
    let lose = |bed: &mut Bed, camera: &mut Camera, player: &mut Peer, rid: &str| {
        let before = pictures(bed);
        camera.take(bed.now);
        let ssrc = camera.peer.ssrc(rid).to_be_bytes();
        // str0m sends packets of a picture one by one.
        for _ in 0..8 {
            bed.now += Duration::from_micros(1);
            camera.peer.turn(bed.now);
        }
        camera.peer.out.retain(|datagram| datagram.get(8..12) != Some(&ssrc[..]));
        film(bed, camera, player, Duration::from_secs(1));
        pictures(bed) - before
    };
    // 26 pictures of 3 packets and of 1.
    assert_eq!(lose(&mut bed, &mut camera, &mut player, "h"), 26 * 4, "repaired");
    assert_eq!(lose(&mut bed, &mut camera, &mut player, "l"), 26 * 4 - 1, "not repaired");
    ask(&mut bed, Some("l"));
    film(&mut bed, &mut camera, &mut player, Duration::from_secs(2));
    assert_eq!(lose(&mut bed, &mut camera, &mut player, "l"), 26 * 4, "repaired");
    assert_eq!(lose(&mut bed, &mut camera, &mut player, "h"), 26 * 4 - 3, "not repaired");
}
