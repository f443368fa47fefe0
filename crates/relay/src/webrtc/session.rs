//! A session: one peer that publishes into a room or receives from it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use expressway_netio::{Flow, IoError, PacketIo};
use str0m::media::KeyframeRequestKind;
use str0m::net::{Protocol, Receive, Transmit};
use str0m::rtp::Ssrc;
use str0m::{Event, IceConnectionState, IceCreds, Input, Output, Rtc, RtcError};

use super::addresses::{Addresses, Newcomers};
use super::answer::{Agreed, Role};
use super::channels::Channels;
use super::message_log::MessageLog;
use super::play::Path;
use super::publish::Incoming;
use super::send_track::SendTrack;
use super::table::Registration;
use crate::config::Data;
use crate::rtp::Room;
use crate::rtp::history::Position;
use crate::status::WebRtcCounters;

/// Packets of the room that a session is shown before another one's turn: a GSO message has at most 64.
pub(super) const BURST: usize = 64;
/// Datagrams that may wait to be sent to a session. Repairs, reports and handshakes that find no room are lost, as on the way.
const WAITING: usize = 512;
/// Looks at the clock of a session in one go: some of what it does is due at once, and each packet that is spread a moment later.
const TIMEOUTS: usize = 2 * BURST;
/// How far a session's clock may be ahead for that.
const AHEAD: Duration = Duration::from_micros(200);
/// How soon to look again at a session whose clock asks for a look at once, again and again.
const SOON: Duration = Duration::from_millis(1);

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its peer, or whoever has its URL, said so.
    Left,
    /// Nothing came of ICE and DTLS in time.
    Handshake,
    /// Nothing was heard from its peer for long.
    Lost,
    /// What it sent was against its protocols.
    Failed,
    /// Another session publishes now.
    Replaced,
}

/// A session's room, and what its sessions share.
pub(super) struct RoomContext<'a> {
    pub(super) room: &'a mut Room,
    pub(super) log: &'a mut MessageLog,
    pub(super) counters: &'a mut WebRtcCounters,
}

/// Where a datagram of a session came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// From an address that it has.
    Known,
    /// From another one, that it has from now on: its password was shown from there.
    New,
    /// From the address of another session.
    Stranger,
    /// It was dropped and counted.
    Dropped,
}

/// `Err`: the session ends, and why.
pub(super) type Alive = Result<(), Ended>;

/// A session.
pub(super) struct Session {
    /// It is the only one of that number in this process.
    pub(super) number: u64,
    pub(super) role: Role,
    /// By index.
    pub(super) room: usize,
    pub(super) ufrag: String,
    /// Keeps it in the table of sessions.
    _registration: Registration,
    pub(super) rtc: Box<Rtc>,
    /// Addresses that it was heard from.
    pub(super) addresses: Addresses,
    newcomers: Newcomers,
    /// When ICE and DTLS have to be done.
    give_up: Option<Instant>,
    /// When its clock is to be looked at.
    timeout: Instant,
    /// As of a publisher: its payload types, and the room's.
    pub(super) types: Vec<(u8, u8)>,
    pub(super) incoming: Vec<Incoming>,
    pub(super) tracks: Vec<SendTrack>,
    pub(super) path: Path,
    /// The next packet of the room for it.
    pub(super) cursor: Position,
    waiting: VecDeque<Transmit>,
    /// Its data channels; `None`: it has none.
    pub(super) channels: Option<Channels>,
    /// It waits for its turn to send.
    pub(super) is_ready: bool,
    /// It is connected since just now: what the room has for it waits, though there is nothing new in the room.
    pub(super) is_new: bool,
}

impl Session {
    pub(super) fn new(
        agreed: Agreed,
        (number, role, room): (u64, Role, usize),
        registration: Registration,
        give_up: Instant,
        now: Instant,
    ) -> Self {
        Self {
            number,
            role,
            room,
            ufrag: agreed.ufrag,
            addresses: registration.addresses(),
            newcomers: Newcomers::new(now),
            _registration: registration,
            rtc: agreed.rtc,
            give_up: Some(give_up),
            timeout: now,
            types: agreed.types,
            incoming: Vec::new(),
            tracks: agreed.tracks,
            path: Path::new(agreed.has_feedback, agreed.highest, now),
            cursor: 0,
            waiting: VecDeque::new(),
            channels: agreed.has_data.then(Channels::default),
            is_ready: false,
            is_new: false,
        }
    }

    /// Whether ICE and DTLS are done.
    pub(super) fn is_connected(&self) -> bool {
        self.give_up.is_none()
    }

    /// When [`Self::handle_timeout`] is due.
    pub(super) fn deadline(&self) -> Instant {
        self.give_up.map_or(self.timeout, |give_up| give_up.min(self.timeout))
    }

    /// A datagram for it has come.
    pub(super) fn handle_datagram(
        &mut self,
        datagram: &[u8],
        (remote, announced): (SocketAddr, SocketAddr),
        context: &mut RoomContext<'_>,
        now: Instant,
    ) -> Result<Heard, Ended> {
        let Ok(received) = Receive::new(Protocol::Udp, remote, announced, datagram) else {
            context.counters.dropped_malformed += 1;
            return Ok(Heard::Dropped);
        };
        let input = Input::Receive(now, received);
        let mut heard = Heard::Known;
        if !self.addresses.hear(remote, now) {
            if !self.rtc.accepts(&input) {
                context.counters.dropped_password += 1;
                return Ok(Heard::Dropped);
            }
            if !self.newcomers.admit(remote, now) {
                context.counters.dropped_new_address += 1;
                return Ok(Heard::Dropped);
            }
            if !self.addresses.claim(remote, now) {
                return Ok(Heard::Stranger);
            }
            heard = Heard::New;
        }
        self.input(input)?;
        self.advance(context, now)?;
        Ok(heard)
    }

    /// Its clock is to be looked at.
    pub(super) fn handle_timeout(&mut self, context: &mut RoomContext<'_>, now: Instant) -> Alive {
        if self.give_up.is_some_and(|give_up| give_up <= now) {
            return Err(Ended::Handshake);
        }
        if self.timeout <= now {
            self.input(Input::Timeout(now))?;
        }
        self.advance(context, now)
    }

    /// The publisher is to send a key frame of that stream.
    pub(super) fn request_keyframe(
        &mut self,
        ssrc: u32,
        context: &mut RoomContext<'_>,
        now: Instant,
    ) -> Alive {
        if let Some(stream) = self.rtc.direct_api().stream_rx(&Ssrc::from(ssrc)) {
            stream.request_keyframe(KeyframeRequestKind::Pli);
        }
        self.input(Input::Timeout(now))?;
        self.advance(context, now)
    }

    /// ICE begins anew, with these credentials of both sides: its peer has another network, or will have. What goes on goes on.
    pub(super) fn restart(&mut self, (own, theirs): (IceCreds, IceCreds), now: Instant) {
        self.ufrag.clone_from(&own.ufrag);
        self.addresses.restart(now);
        self.newcomers.restart(now);
        let mut api = self.rtc.direct_api();
        api.set_local_ice_credentials(own);
        api.set_remote_ice_credentials(theirs);
    }

    /// Says goodbye; what is to be sent for that waits.
    pub(super) fn close(&mut self) {
        if guarded(|| self.rtc.close()).is_ok() {
            for _ in 0..WAITING {
                match guarded(|| self.rtc.poll_output()) {
                    Ok(Output::Transmit(transmit)) => self.waiting.push_back(transmit),
                    Ok(Output::Event(_)) => {}
                    Ok(Output::Timeout(_)) | Err(_) => break,
                }
            }
        }
    }

    pub(super) fn input(&mut self, input: Input<'_>) -> Alive {
        guarded(|| self.rtc.handle_input(input)).map_err(|()| Ended::Failed)
    }

    /// Takes out what it has to say, until it waits for time or datagrams.
    pub(super) fn advance(&mut self, context: &mut RoomContext<'_>, now: Instant) -> Alive {
        let mut clock = now;
        for _ in 0..TIMEOUTS {
            loop {
                match guarded(|| self.rtc.poll_output()).map_err(|()| Ended::Failed)? {
                    Output::Timeout(at) => {
                        self.timeout = at;
                        break;
                    }
                    Output::Transmit(_) if self.waiting.len() >= WAITING => {
                        context.counters.dropped_waiting += 1
                    }
                    Output::Transmit(mut transmit) => {
                        transmit.destination = self.addresses.current(transmit.destination);
                        self.waiting.push_back(transmit);
                    }
                    Output::Event(event) => self.handle_event(event, context, now)?,
                }
            }
            if self.timeout > now + AHEAD {
                return Ok(());
            }
            clock = clock.max(self.timeout);
            self.input(Input::Timeout(clock))?;
        }
        self.timeout = now + SOON;
        Ok(())
    }

    fn handle_event(&mut self, event: Event, context: &mut RoomContext<'_>, now: Instant) -> Alive {
        match event {
            Event::Connected => {
                (self.give_up, self.is_new) = (None, true);
                if let Some(channels) = &mut self.channels {
                    channels.begin(context.log);
                }
                // What came before is old by now.
                self.cursor = context.room.history().head();
                context.counters.connected += 1;
                Ok(())
            }
            Event::RtpPacket(packet) => {
                self.publish(&packet, context, now);
                Ok(())
            }
            Event::EgressBitrateEstimate(estimate) => {
                self.handle_estimate(estimate);
                Ok(())
            }
            Event::KeyframeRequest(request) => {
                let track = self.tracks.iter().find(|track| track.mid == request.mid);
                if let Some(source) = track.and_then(|track| track.source) {
                    context.room.want_session_keyframe(source);
                }
                Ok(())
            }
            Event::IceConnectionStateChange(IceConnectionState::Disconnected) if self.is_connected() => {
                Err(Ended::Lost)
            }
            Event::Closed => Err(Ended::Left),
            Event::ChannelOpen(id, label) => {
                let Some(channels) = &mut self.channels else { return Ok(()) };
                let config = self.rtc.channel(id).and_then(|channel| channel.config().cloned());
                let is_heard = is_heard(self.role, context.room.config().data);
                channels.opened(&mut self.rtc, (id, &label), config, is_heard.then_some(&mut *context.log))
            }
            Event::ChannelClose(id) => {
                if let Some(channels) = &mut self.channels {
                    channels.closed(id);
                }
                Ok(())
            }
            Event::ChannelData(data) => {
                let Some(channels) = &self.channels else { return Ok(()) };
                match channels.message(self.number, data) {
                    Some(message) if is_heard(self.role, context.room.config().data) => {
                        context.counters.messages += 1;
                        context.log.push(message);
                    }
                    _ => context.counters.dropped_message += 1,
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether something waits to be sent to it.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes the next messages of data channels, as far as there is room for them.
    pub(super) fn write_messages(&mut self, context: &mut RoomContext<'_>, now: Instant) -> Alive {
        let Some(channels) = self.channels.as_mut().filter(|_| self.give_up.is_none()) else { return Ok(()) };
        let slow = context.room.config().slow_data;
        let wrote =
            guarded(|| Ok(channels.write(&mut self.rtc, (self.number, slow), context.log, context.counters)));
        if wrote.map_err(|()| Ended::Failed)? {
            self.input(Input::Timeout(now))?;
            self.advance(context, now)?;
        }
        Ok(())
    }

    /// Sends what waits, in bursts to one address. False: there was no room for all.
    pub(super) fn send(
        &mut self,
        io: &mut dyn PacketIo,
        flow: &impl Fn(&Transmit) -> Flow,
        counters: &mut WebRtcCounters,
    ) -> Result<bool, IoError> {
        while let Some(first) = self.waiting.front() {
            let (to, longest_ever) = (flow(first), io.max_payload(&flow(first)));
            if first.contents.len() > longest_ever {
                counters.dropped_too_long += 1;
                self.waiting.pop_front();
                continue;
            }
            let same = |one: &&Transmit| {
                one.destination == first.destination
                    && one.source == first.source
                    && one.contents.len() <= longest_ever
            };
            let burst = self.waiting.iter().take(BURST).take_while(same);
            let (count, longest) =
                burst.fold((0, 0), |(count, longest), one| (count + 1, one.contents.len().max(longest)));
            let (mut left, waiting) = (count, &mut self.waiting);
            let sent = io.transmit(&to, longest, &mut |slot| {
                let Some(next) = waiting.front().filter(|_| left > 0) else { return 0 };
                let length = next.contents.len();
                slot[..length].copy_from_slice(&next.contents);
                waiting.pop_front();
                left -= 1;
                length
            })?;
            counters.datagrams += sent.packets as u64;
            counters.bytes += sent.bytes as u64;
            if sent.blocked {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether others hear what a session of that role says.
fn is_heard(role: Role, data: Data) -> bool {
    match data {
        Data::Off => false,
        Data::Publisher => role == Role::Publish,
        Data::All => true,
    }
}

/// What str0m makes of input. It means to return errors for whatever a peer sends; if it does not, the peer's session alone is to
/// end.
fn guarded<T>(act: impl FnOnce() -> Result<T, RtcError>) -> Result<T, ()> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result.map_err(|error| tracing::debug!(%error, "a WebRTC session failed")),
        Err(_) => {
            tracing::error!("a WebRTC session panicked, and was ended");
            Err(())
        }
    }
}
