//! The messages of a room's data channels, in order of arrival. Each session reads them at its own position, as it
//! reads media.

use std::collections::VecDeque;
use std::sync::Arc;

use str0m::channel::ChannelConfig;

/// Messages that are kept, and their octets together.
const MESSAGES: usize = 256;
const OCTETS: usize = 1 << 20;
/// Octets of a message at most; what browsers agree on by default (RFC 8841, section 6.1).
pub(super) const LONGEST: usize = 64 << 10;
/// Channels of a room, and of a session, by label.
pub(super) const CHANNELS: usize = 16;
/// Octets of a label at most.
pub(super) const LONGEST_LABEL: usize = 128;

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    /// The number of the session that sent it.
    pub(super) from: u64,
    /// The label of its channel.
    pub(super) label: Arc<str>,
    /// Binary, or else text.
    pub(super) is_binary: bool,
    pub(super) data: Vec<u8>,
}

/// The messages and channels of a room.
#[derive(Debug, Default)]
pub(super) struct MessageLog {
    messages: VecDeque<Arc<Message>>,
    /// The position of the oldest message.
    tail: u64,
    octets: usize,
    channels: Vec<ChannelConfig>,
}

impl MessageLog {
    /// Where the next message will be.
    pub(super) fn head(&self) -> u64 {
        self.tail + self.messages.len() as u64
    }

    /// Where the oldest one is.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// The message there, while it is kept.
    pub(super) fn at(&self, position: u64) -> Option<&Arc<Message>> {
        self.messages.get(usize::try_from(position.checked_sub(self.tail)?).ok()?)
    }

    /// Keeps a message, in the place of the oldest if there are too many.
    pub(super) fn push(&mut self, message: Message) {
        self.octets += message.data.len();
        self.messages.push_back(Arc::new(message));
        while self.messages.len() > MESSAGES || self.octets > OCTETS {
            let Some(oldest) = self.messages.pop_front() else { return };
            self.octets -= oldest.data.len();
            self.tail += 1;
        }
    }

    /// The channels that everybody is to have, in the order in which they came up.
    pub(super) fn channels(&self) -> &[ChannelConfig] {
        &self.channels
    }

    /// Somebody who is heard has opened a channel. False: there are too many.
    pub(super) fn open(&mut self, channel: &ChannelConfig) -> bool {
        if self.channels.iter().any(|one| one.label == channel.label) {
            return true;
        }
        if self.channels.len() == CHANNELS {
            return false;
        }
        self.channels.push(ChannelConfig { negotiated: None, ..channel.clone() });
        true
    }

    /// Nobody is left.
    pub(super) fn clear(&mut self) {
        self.tail = self.head();
        self.messages = VecDeque::new();
        self.octets = 0;
        self.channels.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Message {
        Message { from: 1, label: "a".into(), is_binary: true, data: vec![7; length] }
    }

    #[test]
    fn old_messages_give_way_by_number_and_by_octets() {
        let mut log = MessageLog::default();
        (0..MESSAGES + 5).for_each(|_| log.push(message(1)));
        assert_eq!((log.tail(), log.head()), (5, 5 + MESSAGES as u64));
        assert!(log.at(4).is_none() && log.at(5).is_some() && log.at(log.head()).is_none());
        (0..OCTETS / LONGEST + 1).for_each(|_| log.push(message(LONGEST)));
        assert_eq!(log.head() - log.tail(), (OCTETS / LONGEST) as u64);
        let head = log.head();
        log.clear();
        assert_eq!((log.tail(), log.head()), (head, head));
        assert!(log.at(head).is_none());
    }

    #[test]
    fn channels_are_bounded_and_known_by_label() {
        let mut log = MessageLog::default();
        let channel = |label: String| ChannelConfig { label, ..Default::default() };
        for number in 0..CHANNELS {
            assert!(log.open(&channel(number.to_string())));
        }
        assert!(log.open(&channel("3".into())), "it is there");
        assert!(!log.open(&channel("one more".into())));
        assert_eq!(log.channels().len(), CHANNELS);
    }
}
