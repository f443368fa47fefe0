//! Tests: messages on data channels.

use super::*;

fn channel(label: &str, is_ordered: bool, reliability: Reliability) -> ChannelConfig {
    ChannelConfig { label: label.into(), ordered: is_ordered, reliability, ..Default::default() }
}

fn say(peer: &mut Peer, label: &str, text: &[u8]) -> bool {
    let id = peer.open.iter().find(|(_, open, _)| open == label).unwrap().0;
    peer.rtc.channel(id).unwrap().write(true, text).unwrap()
}

#[test]
fn messages_go_to_all_others_on_channels_like_the_first() {
    let lively = channel("lively", false, Reliability::MaxRetransmits { retransmits: 0 });
    // The player has data, and no channel of that label.
    let other = channel("other", true, Reliability::Reliable);
    let (mut bed, mut publisher, mut player) =
        connected("data = \"publisher\"", [Some(lively.clone()), Some(other)]);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(1));
    let given = player.open.iter().find(|(_, label, _)| label == "lively").expect("it was given the channel");
    let config = given.2.as_ref().unwrap();
    assert_eq!((config.ordered, config.reliability), (lively.ordered, lively.reliability));
    assert!(say(&mut publisher, "lively", b"one"));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(100));
    assert_eq!(player.messages, [b"one".to_vec()]);
    // A player is not heard.
    assert!(say(&mut player, "lively", b"two"));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(100));
    assert!(publisher.messages.is_empty());
    let counters = bed.counters(0);
    assert_eq!((counters.messages, counters.messages_sent, counters.dropped_message), (1, 1, 1));
}

#[test]
fn a_player_that_connects_later_is_given_the_channels_before_anything_is_said() {
    let mut bed = Bed::new(1, "data = \"publisher\"");
    let lively = channel("lively", false, Reliability::MaxRetransmits { retransmits: 0 });
    let mut publisher = Peer::new(5000, Direction::SendOnly, Some(lively), bed.now);
    bed.join(0, Role::Publish, &mut publisher).unwrap();
    bed.run(&mut [&mut publisher], 0, Duration::from_secs(2));
    let other = channel("other", true, Reliability::Reliable);
    let mut player = Peer::new(5001, Direction::RecvOnly, Some(other), bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(2));
    assert!(player.open.iter().any(|(_, label, _)| label == "lively"), "{:?}", player.open);
    assert!(say(&mut publisher, "lively", b"first"));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(100));
    assert_eq!(player.messages, [b"first".to_vec()]);
}

#[test]
fn everybody_is_heard_where_the_room_says_so() {
    let chat = channel("chat", true, Reliability::Reliable);
    let (mut bed, mut publisher, mut player) = connected("data = \"all\"", [Some(chat.clone()), Some(chat)]);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(1));
    assert!(say(&mut player, "chat", b"hello"));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(100));
    assert!(say(&mut publisher, "chat", b"you"));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(100));
    assert_eq!((publisher.messages, player.messages), (vec![b"hello".to_vec()], vec![b"you".to_vec()]));
}

/// Says 600 messages of 4,000 octets on a channel while the player hears nothing; then it hears again.
fn overrun(slow: &str, reliability: Reliability) -> (Bed, Peer, Peer) {
    let all = channel("all", true, reliability);
    let more = format!("data = \"publisher\"\nslow_data = \"{slow}\"");
    let (mut bed, mut publisher, mut player) = connected(&more, [Some(all.clone()), Some(all)]);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(1));
    player.is_deaf = true;
    for number in 0..600u16 {
        let text = number.to_be_bytes().repeat(2000);
        while !say(&mut publisher, "all", &text) {
            bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(20));
        }
        bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(5));
    }
    player.is_deaf = false;
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(10));
    (bed, publisher, player)
}

#[test]
fn a_reliable_channel_that_is_too_slow_is_closed() {
    let (mut bed, _, player) = overrun("close", Reliability::Reliable);
    let counters = bed.counters(0);
    assert!(counters.skipped_messages > 0 && counters.closed_channels == 1, "{counters:?}");
    let numbers: Vec<u16> =
        player.messages.iter().map(|text| u16::from_be_bytes([text[0], text[1]])).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "without a hole to its end: {numbers:?}");
    assert!(!player.open.iter().any(|(_, label, _)| label == "all"));
}

#[test]
fn a_reliable_channel_may_skip_instead() {
    let (mut bed, _, player) = overrun("skip", Reliability::Reliable);
    let counters = bed.counters(0);
    assert!(counters.skipped_messages > 0 && counters.closed_channels == 0, "{counters:?}");
    let last = player.messages.last().unwrap();
    assert_eq!(u16::from_be_bytes([last[0], last[1]]), 599, "what is kept has come");
}

#[test]
fn an_unreliable_channel_drops_what_finds_no_room() {
    let (mut bed, _, player) = overrun("close", Reliability::MaxRetransmits { retransmits: 0 });
    let counters = bed.counters(0);
    assert!(counters.dropped_slow_message > 0 && counters.closed_channels == 0, "{counters:?}");
    assert!(player.open.iter().any(|(_, label, _)| label == "all"));
}

#[test]
fn short_messages_are_bounded_by_their_number() {
    let all = channel("all", true, Reliability::Reliable);
    let more = "data = \"publisher\"\nslow_data = \"skip\"";
    let (mut bed, mut publisher, mut player) = connected(more, [Some(all.clone()), Some(all)]);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(1));
    player.is_deaf = true;
    for number in 0..1000u16 {
        while !say(&mut publisher, "all", &number.to_be_bytes()) {
            bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(20));
        }
        bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(5));
    }
    assert_eq!(bed.counters(0).messages, 1000);
    // 2000 octets would find room, and 1000 messages do not: the room keeps 256, and the session 512.
    let sent = bed.counters(0).messages_sent;
    assert!((500..=512).contains(&sent), "{sent}");
    player.is_deaf = false;
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(10));
    assert!(bed.counters(0).skipped_messages > 0);
    let last = player.messages.last().unwrap();
    assert_eq!(u16::from_be_bytes([last[0], last[1]]), 999, "what is kept has come");
}
