//! What is said on the data channels of a room: messages in order of arrival, of which each session has its own next one, as of media.

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
    /// The session that it is of, by number.
    pub(super) from: u64,
    /// The label of its channel.
    pub(super) label: Arc<str>,
    /// Whether it is octets, or else text.
    pub(super) is_binary: bool,
    pub(super) data: Vec<u8>,
}

/// The messages and channels of a room.
#[derive(Debug, Default)]
pub(super) struct Board {
    messages: VecDeque<Arc<Message>>,
    /// The place of the oldest message, counted from the first ever.
    tail: u64,
    octets: usize,
    channels: Vec<ChannelConfig>,
}

impl Board {
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
        let mut board = Board::default();
        (0..MESSAGES + 5).for_each(|_| board.push(message(1)));
        assert_eq!((board.tail(), board.head()), (5, 5 + MESSAGES as u64));
        assert!(board.at(4).is_none() && board.at(5).is_some() && board.at(board.head()).is_none());
        (0..OCTETS / LONGEST + 1).for_each(|_| board.push(message(LONGEST)));
        assert_eq!(board.head() - board.tail(), (OCTETS / LONGEST) as u64);
        let head = board.head();
        board.clear();
        assert_eq!((board.tail(), board.head()), (head, head));
        assert!(board.at(head).is_none());
    }

    #[test]
    fn channels_are_bounded_and_known_by_label() {
        let mut board = Board::default();
        let channel = |label: String| ChannelConfig { label, ..Default::default() };
        for number in 0..CHANNELS {
            assert!(board.open(&channel(number.to_string())));
        }
        assert!(board.open(&channel("3".into())), "it is there");
        assert!(!board.open(&channel("one more".into())));
        assert_eq!(board.channels().len(), CHANNELS);
    }
}
