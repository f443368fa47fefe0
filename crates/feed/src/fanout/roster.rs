//! The subscribers of a shard, and which of them have events.
//!
//! ```text
//!   called    has a turn, whether or not the rings have new data
//!   unread    has sent more than was read
//!   waiting   its socket accepts nothing: checked periodically
//! ```
//!
//! Each is at most once in each queue, and finding it costs the same however many there are.

use std::collections::VecDeque;

use slab::Slab;

use super::subscriber::Subscriber;

/// A key with a generation, which identifies one subscriber for good: keys are reused after it is gone.
pub(super) type Token = u64;

/// One of them.
pub(super) struct Entry {
    pub(super) subscriber: Subscriber,
    generation: u32,
    /// It is in the queue of this name.
    is_called: bool,
    is_unread: bool,
    is_waiting: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Roster {
    entries: Slab<Entry>,
    generation: u32,
    called: VecDeque<Token>,
    unread: VecDeque<Token>,
    waiting: Vec<Token>,
}

impl Roster {
    /// Adds one. Its token is of its key and of this one alone.
    pub(super) fn insert(&mut self, subscriber: Subscriber) -> Token {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let key = self.entries.insert(Entry {
            subscriber,
            generation,
            is_called: false,
            is_unread: false,
            is_waiting: false,
        });
        token(generation, key)
    }

    /// The key of a token, whoever holds it.
    pub(super) fn key(token: Token) -> usize {
        (token & u64::from(u32::MAX)) as usize
    }

    /// That of a token, if it is still there.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Subscriber> {
        self.entry(token).map(|entry| &mut entry.subscriber)
    }

    fn entry(&mut self, token: Token) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(Self::key(token))?;
        (u64::from(entry.generation) == token >> 32).then_some(entry)
    }

    /// That of a key which is there.
    pub(super) fn at(&self, key: usize) -> &Entry {
        &self.entries[key]
    }

    /// That of a key which is there, with its token.
    pub(super) fn at_mut(&mut self, key: usize) -> (&mut Subscriber, Token) {
        let entry = &mut self.entries[key];
        let token = token(entry.generation, key);
        (&mut entry.subscriber, token)
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, key: usize) -> Option<Subscriber> {
        self.entries.try_remove(key).map(|entry| entry.subscriber)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Subscriber> {
        self.entries.iter().map(|(_, entry)| &entry.subscriber)
    }

    /// All of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Subscriber> {
        self.entries.iter_mut().map(|(_, entry)| &mut entry.subscriber)
    }

    /// The keys of all of them.
    pub(super) fn keys(&self) -> Vec<usize> {
        self.entries.iter().map(|(key, _)| key).collect()
    }

    /// Gives one a turn, whether or not there is new data.
    pub(super) fn call(&mut self, token: Token) {
        if self.entry(token).is_some_and(|entry| !std::mem::replace(&mut entry.is_called, true)) {
            self.called.push_back(token);
        }
    }

    /// How many are called.
    pub(super) fn called(&self) -> usize {
        self.called.len()
    }

    /// The next that is called, which then is no more.
    pub(super) fn next_called(&mut self) -> Option<usize> {
        while let Some(token) = self.called.pop_front() {
            if let Some(entry) = self.entry(token) {
                entry.is_called = false;
                return Some(Self::key(token));
            }
        }
        None
    }

    /// Notes that one has sent more than was read.
    pub(super) fn note_unread(&mut self, token: Token) {
        if self.entry(token).is_some_and(|entry| !std::mem::replace(&mut entry.is_unread, true)) {
            self.unread.push_back(token);
        }
    }

    /// How many have sent more than was read.
    pub(super) fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Removes and returns the next of those.
    pub(super) fn next_unread(&mut self) -> Option<Token> {
        while let Some(token) = self.unread.pop_front() {
            if let Some(entry) = self.entry(token) {
                entry.is_unread = false;
                return Some(token);
            }
        }
        None
    }

    /// Notes that one's socket takes nothing.
    pub(super) fn note_waiting(&mut self, token: Token) {
        if self.entry(token).is_some_and(|entry| !std::mem::replace(&mut entry.is_waiting, true)) {
            self.waiting.push(token);
        }
    }

    /// Whether there are some whose sockets take nothing.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Calls all of those.
    pub(super) fn call_waiting(&mut self) {
        for token in std::mem::take(&mut self.waiting) {
            if let Some(entry) = self.entry(token) {
                entry.is_waiting = false;
                self.call(token);
            }
        }
    }
}

fn token(generation: u32, key: usize) -> Token {
    u64::from(generation) << 32 | key as u64
}
