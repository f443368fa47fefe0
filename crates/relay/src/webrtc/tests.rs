//! Tests with sessions of str0m and our workers, in one thread and on a simulated clock: what no peer does by
//! itself.

use std::collections::VecDeque;
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
use str0m::crypto::CryptoProvider;
use str0m::media::{Direction, MediaKind, Mid, Rid, Simulcast, SimulcastLayer};
use str0m::net::{Protocol, Receive};
use str0m::rtp::RtpWrite;
use str0m::{Candidate, Event, Input, Output, Rtc};

use super::answer::{Agreed, Identity, Role, Wanted, answer};
use super::crypto::{certificate, provider};
use super::table::{Join, Refused, ReplyReceiver, ReplySender, SessionTable};
use crate::config::Config;
use crate::service::{Message, Relay, status};
use crate::status::{DemuxCounters, RoomCounters, WebRtcCounters, WebRtcGauges};
use listed::Listed;

mod addresses;
mod channels;
mod costs;
mod layers;
#[path = "../../tests/support/listed.rs"]
mod listed;
mod offers;
mod packets;
mod strangers;

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
    /// How time goes on.
    step: Duration,
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
        let limits = config.webrtc.as_ref().unwrap().limits;
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
        let step = Duration::from_millis(5);
        Self {
            now,
            step,
            identity,
            table: SessionTable::new(limits),
            workers,
            mailboxes,
            status,
            demux,
            config,
        }
    }

    /// The counters of a room.
    fn counters(&mut self, room: usize) -> WebRtcCounters {
        self.workers.iter_mut().for_each(|worker| worker.service_mut().publish());
        let status = self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        status[room].webrtc.as_ref().unwrap().counters.load()
    }

    fn room_counters(&mut self, room: usize) -> RoomCounters {
        self.counters(room);
        self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[room].counters.load()
    }

    fn gauges(&mut self, room: usize) -> WebRtcGauges {
        self.counters(room);
        let status = self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        status[room].webrtc.as_ref().unwrap().gauges.load()
    }

    fn demux(&mut self, worker: usize) -> DemuxCounters {
        self.workers[worker].service_mut().publish();
        self.demux[worker].load()
    }

    /// A peer's session in a room, if the worker has a place.
    fn join(&mut self, room: usize, role: Role, peer: &mut Peer) -> Result<(), Refused> {
        let (offer, pending) = peer.offer.take().unwrap();
        let config = &self.config.rooms[room];
        let wanted = Wanted { role, worker: room, room: config, announce: &[media()], highest: None };
        let agreed: Agreed = answer(&self.identity, &offer, wanted).unwrap();
        let sdp = SdpAnswer::from_sdp_string(&agreed.sdp).unwrap();
        peer.rtc.sdp_api().accept_answer(pending, sdp).unwrap();
        let registration = self.table.admit(room, role, peer.address.ip()).unwrap();
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
            self.now += self.step;
            for peer in peers.iter_mut() {
                peer.deliver(self.now);
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
                        peer.arrive(datagram, self.now);
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
    /// What came: numbers, timestamps and payloads.
    received: Vec<(u64, u32, Vec<u8>)>,
    keyframes: usize,
    /// Layers that a key frame was asked of.
    asked: Vec<String>,
    /// Bits per second that come to it, of which 100 ms may wait; `None`: all.
    bottleneck: Option<u32>,
    /// What is on its way to it, and when it comes.
    coming: VecDeque<(Instant, Vec<u8>)>,
    out: Vec<Vec<u8>>,
    /// It hears nothing.
    is_deaf: bool,
}

impl Peer {
    fn new(port: u16, direction: Direction, channel: Option<ChannelConfig>, now: Instant) -> Self {
        Self::with_layers(port, direction, channel, &[], now)
    }

    fn layered(port: u16, rids: &[&str], now: Instant) -> Self {
        Self::with_layers(port, Direction::SendOnly, None, rids, now)
    }

    fn with_layers(
        port: u16,
        direction: Direction,
        channel: Option<ChannelConfig>,
        rids: &[&str],
        now: Instant,
    ) -> Self {
        Self::with_crypto(provider(), (port, direction), channel, rids, now)
    }

    fn with_crypto(
        crypto: Arc<CryptoProvider>,
        (port, direction): (u16, Direction),
        channel: Option<ChannelConfig>,
        rids: &[&str],
        now: Instant,
    ) -> Self {
        let simulcast = (!rids.is_empty()).then(|| {
            let mut simulcast = Simulcast::new();
            rids.iter().for_each(|rid| simulcast.add_send_layer(SimulcastLayer::new(rid)));
            simulcast
        });
        let address = SocketAddr::new("192.0.2.9".parse().unwrap(), port);
        let mut rtc = Rtc::builder()
            .set_crypto_provider(crypto)
            .set_dtls_cert(certificate().unwrap())
            .set_rtp_mode(true)
            .clear_codecs()
            .enable_vp8(true)
            .build(now);
        rtc.add_local_candidate(Candidate::host(address, "udp").unwrap());
        let mut change = rtc.sdp_api();
        let mid = change.add_media(MediaKind::Video, direction, None, None, simulcast);
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
            received: Vec::new(),
            keyframes: 0,
            asked: Vec::new(),
            bottleneck: None,
            coming: VecDeque::new(),
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
                    // Padding that probes its path has no payload.
                    Event::RtpPacket(packet) if !packet.payload.is_empty() => {
                        self.packets.push((*packet.seq_no, packet.payload[0]));
                        let payload = packet.payload.to_vec();
                        self.received.push((*packet.seq_no, packet.header.timestamp, payload));
                    }
                    Event::KeyframeRequest(request) => {
                        self.keyframes += 1;
                        self.asked.extend(request.rid.map(|rid| rid.to_string()));
                    }
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

    /// A datagram is on its way to it.
    fn arrive(&mut self, datagram: Vec<u8>, now: Instant) {
        let Some(rate) = self.bottleneck else { return self.receive(&datagram, now) };
        let free = self.coming.back().map_or(now, |(at, _)| (*at).max(now));
        if free.saturating_duration_since(now) <= Duration::from_millis(100) {
            let takes = Duration::from_secs_f64(datagram.len() as f64 * 8.0 / f64::from(rate));
            self.coming.push_back((free + takes, datagram));
        }
    }

    /// What was on its way has come.
    fn deliver(&mut self, now: Instant) {
        while self.coming.front().is_some_and(|(at, _)| *at <= now || self.bottleneck.is_none()) {
            let (_, datagram) = self.coming.pop_front().unwrap();
            self.receive(&datagram, now);
        }
    }

    fn ssrc(&mut self, rid: &str) -> u32 {
        let mut api = self.rtc.direct_api();
        *api.stream_tx_by_mid(self.mid, Some(Rid::from(rid))).unwrap().ssrc()
    }

    fn send_layer(
        &mut self,
        rid: &str,
        (sequence, timestamp): (u64, u32),
        payload: Vec<u8>,
        marker: bool,
        now: Instant,
    ) {
        let pt = self.rtc.media(self.mid).unwrap().remote_pts()[0];
        let mut api = self.rtc.direct_api();
        let stream = api.stream_tx_by_mid(self.mid, Some(Rid::from(rid))).unwrap();
        let packet = RtpWrite::new(pt, sequence.into(), timestamp, now, payload);
        stream.write_rtp(packet.nackable(true).marker(marker));
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
