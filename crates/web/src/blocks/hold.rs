//! How responses hold blocks while they hand out octets of them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::Block;
use crate::memory::{Account, Pin};

/// A slice shorter than this part of its block is copied: it would keep the whole block in memory until the client
/// acknowledges it. Where the block is held anyway, only if memory is short.
const PINNED_SHARE: usize = 16;

/// How a block is held.
#[derive(Debug, Clone)]
pub struct Hold(How);

#[derive(Debug, Clone)]
enum How {
    /// On nobody's account.
    Uncounted,
    Pinned(Arc<Pin>),
}

impl Hold {
    /// On nobody's account.
    pub(crate) fn uncounted() -> Self {
        Self(How::Uncounted)
    }

    /// Whether it counts on an account.
    pub fn is_counted(&self) -> bool {
        matches!(self.0, How::Pinned(_))
    }
}

/// How a block of so many octets is held if so many of it go out; `None` if it may not be.
pub(crate) fn hold_block(memory: usize, taken: usize, account: Option<&Account>) -> Option<Hold> {
    match account {
        None => Some(Hold::uncounted()),
        Some(account) => account.pin(memory, taken).map(|pin| Hold(How::Pinned(pin))),
    }
}

/// Hands out the octets `within` a block: a slice of it, or a copy if it may not be held or that is cheaper. The hold
/// that comes back is for the octets of the block that follow; `is_used_up` says that there are none.
pub fn lend(
    block: &Block,
    hold: Option<Hold>,
    within: Range<usize>,
    is_used_up: bool,
    account: Option<&Account>,
) -> (Bytes, Option<Hold>) {
    let octets = &block[within.clone()];
    let is_small = octets.len() < block.len() / PINNED_SHARE;
    let hold = match (hold, account) {
        (None, _) if is_small && is_used_up => None,
        (None | Some(Hold(How::Uncounted)), account) => hold_block(block.memory(), octets.len(), account),
        (hold, _) => hold,
    };
    let own = |octets: &[u8]| match account {
        None => Bytes::copy_from_slice(octets),
        Some(account) => account.own(Bytes::copy_from_slice(octets)),
    };
    let chunk = match hold.as_ref().map(|hold| &hold.0) {
        None => own(octets),
        Some(How::Uncounted) if is_small => Bytes::copy_from_slice(octets),
        Some(How::Uncounted) => block.slice(within, None),
        Some(How::Pinned(pin)) if !is_small || !account.is_some_and(Account::is_wasting) => {
            block.slice(within.clone(), Some(pin.slice(within.len())))
        }
        Some(How::Pinned(_)) => own(octets),
    };
    (chunk, hold.filter(|_| !is_used_up))
}
