//! Sessions of str0m with workers of ours, in one thread and by a clock of the test: what no peer does by itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::slice::SliceLimit;
use expressway_netio::worker::WorkerOptions;
use expressway_netio::{Inbox, Mailbox, Service, Worker, mailbox};
use expressway_settings::SourceFile;
use expressway_web::{Notify, Wake};
use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::channel::{ChannelConfig, ChannelId, Reliability};
use str0m::media::{Direction, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::RtpWrite;
use str0m::{Candidate, Event, Input, Output, Rtc};

use super::answer::{Agreed, Identity, Role, Wanted, answer};
use super::crypto::{certificate, provider};
use super::table::{Join, Refused, ReplyReceiver, ReplySender, SessionTable};
use crate::config::Config;
use crate::rtp::header::{Header, packet};
use crate::service::{Message, Relay, status};
use crate::status::{DemuxCounters, WebRtcCounters};
use listed::Listed;

#[path = "../../tests/support/listed.rs"]
mod listed;

const MEDIA: &str = "192.0.2.1:3478";

fn media() -> SocketAddr {
    MEDIA.parse().unwrap()
}

struct Silent;

impl Notify for Silent {
    fn notify(&self, _: u64) {}
}

/// Workers with one room each, and what they count.
struct Bed {
    now: Instant,
    config: Config,
    identity: Arc<Identity>,
    table: Arc<SessionTable>,
    workers: Vec<Worker<Relay, Listed>>,
    mailboxes: Arc<[Mailbox<Message>]>,
    status: crate::service::Status,
    demux: Vec<Arc<expressway_netio::stats::Published<DemuxCounters>>>,
}

impl Bed {
    fn new(rooms: usize, more: &str) -> Self {
        Self::with_mailboxes(rooms, more, 64)
    }

    fn with_mailboxes(rooms: usize, more: &str, size: usize) -> Self {
        let room = |number| {
            format!(
                "[[room]]\nname = \"{number}\"\nwhip = true\nwhep = true\nhistory = 64\ncodecs = {{ 96 = \"vp8\", 97 = \"h264\" }}\n{more}\n"
            )
        };
        let text = format!(
            "workers = {rooms}\n[webrtc]\nlisten = [\"{MEDIA}\"]\nhttp = \"192.0.2.1:80\"\n{}",
            (0..rooms).map(room).collect::<String>()
        );
        let config = Config::parse(&SourceFile { file: "relay.toml".into(), text }).unwrap();
        let now = Instant::now();
        let identity = Arc::new(Identity::new().unwrap());
        let (mailboxes, inboxes): (Vec<_>, Vec<Inbox<Message>>) =
            (0..rooms).map(|_| mailbox(size).unwrap()).unzip();
        let (mailboxes, status): (Arc<[_]>, _) = (mailboxes.into(), status(&config));
        let mut demux = Vec::new();
        let mut make = |(index, inbox)| {
            let mut relay = Relay::new(&config, index, rooms, Arc::clone(&status), now);
            demux.extend(relay.set_sessions(&config, Arc::clone(&identity)));
            let options = WorkerOptions { index, slice: SliceLimit::Pieces(100), ..WorkerOptions::default() };
            let io = Listed::new(usize::MAX);
            Worker::new(options, now, relay, io, inbox, Arc::clone(&mailboxes))
        };
        let workers = inboxes.into_iter().enumerate().map(&mut make).collect();
        Self { now, identity, table: SessionTable::new(100), workers, mailboxes, status, demux, config }
    }

    /// The counters of a room.
    fn counters(&mut self, room: usize) -> WebRtcCounters {
        self.workers.iter_mut().for_each(|worker| worker.service_mut().publish());
        let status = self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        status[room].webrtc.as_ref().unwrap().counters.load()
    }

    fn demux(&mut self, worker: usize) -> DemuxCounters {
        self.workers[worker].service_mut().publish();
        self.demux[worker].load()
    }

    /// A peer's session in a room, if the worker has a place.
    fn join(&mut self, room: usize, role: Role, peer: &mut Peer) -> Result<(), Refused> {
        let (offer, pending) = peer.offer.take().unwrap();
        let config = &self.config.rooms[room];
        let wanted = Wanted { role, worker: room, room: config, announce: &[media()] };
        let agreed: Agreed = answer(&self.identity, &offer, wanted).unwrap();
        let sdp = SdpAnswer::from_sdp_string(&agreed.sdp).unwrap();
        peer.rtc.sdp_api().accept_answer(pending, sdp).unwrap();
        let registration = self.table.admit(room, role).unwrap();
        let (reply, receiver): (ReplySender, ReplyReceiver) =
            ReplySender::new(Wake::new(Arc::new(Silent), 0));
        let join = Join { room, role, agreed, registration, reply };
        self.mailboxes[room].try_send(Message::Join(Box::new(join))).unwrap();
        self.workers[room].turn(self.now).unwrap();
        receiver.try_recv().expect("it was heard at once")
    }

    /// Time goes on, in small steps, with peers whose datagrams come to that worker.
    fn run(&mut self, peers: &mut [&mut Peer], worker: usize, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(5);
            for peer in peers.iter_mut() {
                peer.turn(self.now);
                let (from, out) = (peer.address, std::mem::take(&mut peer.out));
                let arriving = &mut self.workers[worker].io_mut().arriving;
                arriving.extend(out.into_iter().map(|datagram| (datagram, from, media())));
            }
            for _ in 0..3 {
                for worker in &mut self.workers {
                    while worker.turn(self.now).unwrap().has_more() {}
                }
            }
            for worker in &mut self.workers {
                for (flow, datagram) in std::mem::take(&mut worker.io_mut().sent) {
                    let to = flow.remote;
                    if let Some(peer) = peers.iter_mut().find(|peer| peer.address == to) {
                        peer.receive(&datagram, self.now);
                    }
                }
            }
        }
    }
}

/// A peer of a session.
struct Peer {
    rtc: Rtc,
    address: SocketAddr,
    offer: Option<(String, SdpPendingOffer)>,
    mid: Mid,
    is_connected: bool,
    packets: Vec<(u64, u8)>,
    open: Vec<(ChannelId, String, Option<ChannelConfig>)>,
    messages: Vec<Vec<u8>>,
    keyframes: usize,
    out: Vec<Vec<u8>>,
    /// It hears nothing.
    is_deaf: bool,
}

impl Peer {
    fn new(port: u16, direction: Direction, channel: Option<ChannelConfig>, now: Instant) -> Self {
        let address = SocketAddr::new("192.0.2.9".parse().unwrap(), port);
        let mut rtc = Rtc::builder()
            .set_crypto_provider(provider())
            .set_dtls_cert(certificate().unwrap())
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_vp8(true)
            .build(now);
        rtc.add_local_candidate(Candidate::host(address, "udp").unwrap());
        let mut change = rtc.sdp_api();
        let mid = change.add_media(MediaKind::Video, direction, None, None, None);
        if let Some(channel) = channel {
            change.add_channel_with_config(channel);
        }
        let (offer, pending) = change.apply().unwrap();
        Self {
            rtc,
            address,
            offer: Some((offer.to_sdp_string(), pending)),
            mid,
            is_connected: false,
            packets: Vec::new(),
            open: Vec::new(),
            messages: Vec::new(),
            keyframes: 0,
            out: Vec::new(),
            is_deaf: false,
        }
    }

    fn publisher(port: u16, now: Instant) -> Self {
        Self::new(port, Direction::SendOnly, None, now)
    }

    fn player(port: u16, now: Instant) -> Self {
        Self::new(port, Direction::RecvOnly, None, now)
    }

    fn turn(&mut self, now: Instant) {
        self.rtc.handle_input(Input::Timeout(now)).unwrap();
        loop {
            match self.rtc.poll_output().unwrap() {
                Output::Timeout(_) => return,
                Output::Transmit(transmit) => self.out.push(transmit.contents.to_vec()),
                Output::Event(event) => match event {
                    Event::Connected => self.is_connected = true,
                    Event::RtpPacket(packet) => self.packets.push((*packet.seq_no, packet.payload[0])),
                    Event::KeyframeRequest(_) => self.keyframes += 1,
                    Event::ChannelOpen(id, label) => {
                        let config = self.rtc.channel(id).and_then(|channel| channel.config().cloned());
                        self.open.push((id, label, config));
                    }
                    Event::ChannelClose(id) => self.open.retain(|(open, ..)| *open != id),
                    Event::ChannelData(data) => self.messages.push(data.data),
                    _ => {}
                },
            }
        }
    }

    fn receive(&mut self, datagram: &[u8], now: Instant) {
        if self.is_deaf {
            return;
        }
        let local = self.address;
        let received = Receive::new(Protocol::Udp, media(), local, datagram).unwrap();
        self.rtc.handle_input(Input::Receive(now, received)).unwrap();
        self.turn(now);
    }

    fn send(&mut self, sequence: u64, now: Instant) {
        let pt = self.rtc.media(self.mid).unwrap().remote_pts()[0];
        let mut api = self.rtc.direct_api();
        let stream = api.stream_tx_by_mid(self.mid, None).unwrap();
        let packet =
            RtpWrite::new(pt, sequence.into(), sequence as u32 * 3000, now, vec![sequence as u8; 100]);
        stream.write_rtp(packet.nackable(true).marker(true));
    }
}

/// A room with a publisher and a player, both connected.
fn connected(more: &str, channels: [Option<ChannelConfig>; 2]) -> (Bed, Peer, Peer) {
    let mut bed = Bed::new(1, more);
    let [first, second] = channels;
    let mut publisher = Peer::new(5000, Direction::SendOnly, first, bed.now);
    let mut player = Peer::new(5001, Direction::RecvOnly, second, bed.now);
    bed.join(0, Role::Publish, &mut publisher).unwrap();
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(2));
    assert!(publisher.is_connected && player.is_connected);
    (bed, publisher, player)
}

/// Publishes packets of these numbers.
fn publish(bed: &mut Bed, publisher: &mut Peer, player: &mut Peer, numbers: std::ops::Range<u64>) {
    for number in numbers {
        publisher.send(number, bed.now);
        bed.run(&mut [publisher, player], 0, Duration::from_millis(5));
    }
    bed.run(&mut [publisher, player], 0, Duration::from_millis(200));
}

#[test]
fn packets_go_through_and_a_key_frame_is_asked_for() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut publisher, &mut player, 65_530..65_560);
    let payloads: Vec<u8> = player.packets.iter().map(|(_, payload)| *payload).collect();
    assert_eq!(payloads, (65_530..65_560).map(|number: u64| number as u8).collect::<Vec<_>>());
    assert!(player.packets.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{:?}", player.packets);
    assert_eq!(publisher.keyframes, 1);
    assert_eq!(bed.counters(0).packets, 30);
}

#[test]
fn another_publisher_goes_on_where_the_first_was() {
    let (mut bed, mut first, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut first, &mut player, 100..110);
    let mut second = Peer::publisher(5002, bed.now);
    assert_eq!(bed.join(0, Role::Publish, &mut second), Err(Refused::Conflict));
    bed.run(&mut [&mut player], 0, Duration::from_secs(6));
    let mut second = Peer::publisher(5003, bed.now);
    bed.join(0, Role::Publish, &mut second).unwrap();
    bed.run(&mut [&mut second, &mut player], 0, Duration::from_secs(1));
    publish(&mut bed, &mut second, &mut player, 7000..7010);
    assert_eq!(player.packets.len(), 20);
    assert!(player.packets.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "{:?}", player.packets);
    assert_eq!(bed.counters(0).ended_replaced, 1);
}

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
fn a_session_that_never_comes_expires() {
    let mut bed = Bed::new(1, "");
    let mut player = Peer::player(5000, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    assert_eq!(bed.table.len(), 1);
    bed.run(&mut [], 0, Duration::from_secs(11));
    assert_eq!((bed.table.len(), bed.counters(0).ended_handshake), (0, 1));
    assert_eq!(bed.workers[0].next_deadline(), None, "no timer is left");
}

#[test]
fn who_is_not_heard_from_is_gone() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    bed.run(&mut [&mut publisher], 0, Duration::from_secs(40));
    assert_eq!(bed.counters(0).ended_lost, 1);
    assert_eq!(bed.table.len(), 1);
    // It comes back with datagrams of a session that is no more.
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(3));
    assert!(
        bed.demux(0).dropped_fragment > 0 && bed.demux(0).dropped_stranger == 0
            || bed.demux(0).dropped_fragment > 0
    );
}

#[test]
fn what_finds_no_room_is_skipped_or_dropped_and_counted() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    publish(&mut bed, &mut publisher, &mut player, 1..5);
    bed.workers[0].io_mut().room = 0;
    publish(&mut bed, &mut publisher, &mut player, 5..205);
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_secs(9));
    bed.workers[0].io_mut().room = usize::MAX;
    publish(&mut bed, &mut publisher, &mut player, 205..210);
    let counters = bed.counters(0);
    assert!(counters.skipped > 0, "{counters:?}");
    let last = player.packets.last().unwrap().1;
    assert_eq!(last, 209, "it goes on with what is new");
    bed.workers[0].io_mut().longest = 60;
    publish(&mut bed, &mut publisher, &mut player, 210..212);
    assert!(bed.counters(0).dropped_too_long >= 2);
}

#[test]
fn datagrams_beyond_what_may_wait_for_a_session_are_dropped() {
    let (mut bed, _, mut player) = connected("", [None, None]);
    // Its next request of ICE, again and again, each of which is answered.
    while player.out.iter().all(|datagram| datagram[0] != 0) {
        bed.now += Duration::from_millis(100);
        player.turn(bed.now);
    }
    let request = player.out.iter().find(|datagram| datagram[0] == 0).unwrap().clone();
    bed.workers[0].io_mut().room = 0;
    bed.workers[0].io_mut().arriving = vec![(request, player.address, media()); 600];
    for _ in 0..20 {
        bed.workers[0].turn(bed.now).unwrap();
    }
    let waiting = bed.counters(0).dropped_waiting;
    assert!((88..=100).contains(&waiting), "{waiting}: 512 of 600 may wait");
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

#[test]
fn what_cannot_be_read_is_counted() {
    let (mut bed, mut publisher, mut player) = connected("", [None, None]);
    bed.workers[0].io_mut().arriving.push((vec![0x80], player.address, media()));
    bed.run(&mut [&mut publisher, &mut player], 0, Duration::from_millis(5));
    assert_eq!(bed.counters(0).dropped_malformed, 1);
}

#[test]
fn what_a_session_cannot_play_is_counted() {
    let mut bed = Bed::new(1, "rtp_in = \"192.0.2.1:5004\"");
    let mut player = Peer::player(5001, bed.now);
    bed.join(0, Role::Play, &mut player).unwrap();
    bed.run(&mut [&mut player], 0, Duration::from_secs(2));
    // RTP of two codecs, of which it plays the first.
    for (number, kind) in [(1, 96), (1, 97), (2, 96)] {
        let header = Header { payload_type: kind, sequence: number, timestamp: 0, ssrc: kind.into() };
        let (from, to) = ("192.0.2.8:5000".parse().unwrap(), "192.0.2.1:5004".parse().unwrap());
        bed.workers[0].io_mut().arriving.push((packet(header, b"x"), from, to));
    }
    bed.run(&mut [&mut player], 0, Duration::from_millis(100));
    assert_eq!(player.packets.iter().map(|(_, payload)| *payload).collect::<Vec<_>>(), b"xx");
    assert_eq!(bed.counters(0).dropped_codec, 1);
}

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
