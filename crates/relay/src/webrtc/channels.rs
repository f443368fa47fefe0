//! The data channels of a session.
//!
//! A slow session only harms itself: messages wait in the room's log, and it falls behind alone. On an unreliable channel, a message for
//! which there is no room is dropped. On a reliable channel it waits until the log has no place for it any more. Then the channel is
//! closed, or continues with a gap, as the room's configuration says.

use std::sync::Arc;

use str0m::channel::{ChannelConfig, ChannelData, ChannelId, Reliability};
use str0m::error::{ProtoError, SctpError};
use str0m::{Rtc, RtcError};

use super::message_log::{CHANNELS, LONGEST, LONGEST_LABEL, Message, MessageLog};
use super::session::{Alive, Ended};
use crate::config::SlowData;
use crate::status::WebRtcCounters;

/// Messages that are written before another session's turn.
const BURST: usize = 32;

#[derive(Debug)]
struct Open {
    label: Arc<str>,
    id: ChannelId,
    is_reliable: bool,
    /// It was given to the session, which had none of that label.
    is_ours: bool,
}

/// The data channels of a session.
#[derive(Debug, Default)]
pub(super) struct Channels {
    open: Vec<Open>,
    /// Those that were given and have yet to open.
    ours: Vec<ChannelId>,
    /// Channels of the room that it was given, by number.
    given: usize,
    /// The next message for it.
    cursor: u64,
    /// The next message waits for room.
    is_blocked: bool,
}

impl Channels {
    /// Hears what is said from now on.
    pub(super) fn begin(&mut self, log: &MessageLog) {
        self.cursor = log.head();
    }

    /// Whether there is more to write at once.
    pub(super) fn has_more(&self, log: &MessageLog) -> bool {
        !self.is_blocked && self.cursor < log.head()
    }

    /// Whether the next message waits for room.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// A channel is open. `log` is that of a session that is heard: others get the channel too. Where both sides have opened one of that
    /// label, the session's own is taken.
    pub(super) fn opened(
        &mut self,
        rtc: &mut Rtc,
        (id, label): (ChannelId, &str),
        config: Option<ChannelConfig>,
        log: Option<&mut MessageLog>,
    ) -> Alive {
        if label.len() > LONGEST_LABEL || self.open.len() >= 2 * CHANNELS {
            return Err(Ended::Failed);
        }
        let is_ours = self.ours.contains(&id);
        self.ours.retain(|one| *one != id);
        if let Some(before) = self.open.iter().position(|one| *one.label == *label) {
            if is_ours {
                rtc.direct_api().close_data_channel(id);
                return Ok(());
            }
            let before = self.open.swap_remove(before);
            if before.is_ours {
                rtc.direct_api().close_data_channel(before.id);
            }
        }
        let is_reliable = config.as_ref().is_none_or(|config| config.reliability == Reliability::Reliable);
        self.open.push(Open { label: label.into(), id, is_reliable, is_ours });
        let config = config.unwrap_or(ChannelConfig { label: label.into(), ..Default::default() });
        let is_given = log.is_none_or(|log| log.open(&config));
        if is_given { Ok(()) } else { Err(Ended::Failed) }
    }

    /// A channel is open no more.
    pub(super) fn closed(&mut self, id: ChannelId) {
        self.open.retain(|one| one.id != id);
    }

    /// What has come, as a message for others.
    pub(super) fn message(&self, from: u64, data: ChannelData) -> Option<Message> {
        let channel = self.open.iter().find(|one| one.id == data.id)?;
        let label = Arc::clone(&channel.label);
        (data.data.len() <= LONGEST).then_some(Message {
            from,
            label,
            is_binary: data.binary,
            data: data.data,
        })
    }

    /// Writes what is new, as far as there is room. Whether something was done.
    pub(super) fn write(
        &mut self,
        rtc: &mut Rtc,
        (number, slow): (u64, SlowData),
        log: &MessageLog,
        counters: &mut WebRtcCounters,
    ) -> bool {
        let mut is_something = self.catch_up(rtc, slow, log, counters);
        for channel in log.channels().iter().skip(self.given) {
            // Whoever opened it has it.
            if !self.open.iter().any(|one| *one.label == channel.label) {
                self.ours.push(rtc.direct_api().create_data_channel(channel.clone()));
                is_something = true;
            }
        }
        self.given = log.channels().len();
        self.is_blocked = false;
        for _ in 0..BURST {
            let Some(message) = log.at(self.cursor) else { break };
            let channel = self.open.iter().find(|one| one.label == message.label && message.from != number);
            if let Some(open) = channel
                && let Some(mut channel) = rtc.channel(open.id)
            {
                // A session has room for so many octets, and for so many messages: short ones take more than their octets.
                match channel.write(message.is_binary, &message.data) {
                    Ok(true) => {
                        counters.messages_sent += 1;
                        is_something = true;
                    }
                    Ok(false) | Err(RtcError::Sctp(SctpError::Proto(ProtoError::ErrOutboundQueueFull)))
                        if open.is_reliable =>
                    {
                        self.is_blocked = true;
                        break;
                    }
                    // A peer that takes shorter messages only is as one that has no room.
                    Ok(false) | Err(_) => counters.dropped_slow_message += 1,
                }
            }
            self.cursor += 1;
        }
        is_something
    }

    /// Goes on with the oldest message that is kept. Whether something was done.
    fn catch_up(
        &mut self,
        rtc: &mut Rtc,
        slow: SlowData,
        log: &MessageLog,
        counters: &mut WebRtcCounters,
    ) -> bool {
        let missed = log.tail().saturating_sub(self.cursor);
        if missed == 0 {
            return false;
        }
        counters.skipped_messages += missed;
        self.cursor = log.tail();
        if slow == SlowData::Skip {
            return false;
        }
        let (reliable, others) = std::mem::take(&mut self.open).into_iter().partition(|one| one.is_reliable);
        self.open = others;
        let reliable: Vec<Open> = reliable;
        counters.closed_channels += reliable.len() as u64;
        reliable.iter().for_each(|one| rtc.direct_api().close_data_channel(one.id));
        !reliable.is_empty()
    }
}
