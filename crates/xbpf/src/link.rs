//! A bpf_link that ends when it is dropped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys;

/// What keeps a program where it is, for as long as this lives or, should the process be killed, a duplicate of its
/// descriptor does. Once dropped, the program is off. Closing the descriptor would do, but not at once: a child
/// between fork and exec holds a duplicate.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl From<OwnedFd> for Link {
    fn from(link: OwnedFd) -> Self {
        Self(link)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Err(error) = sys::link_detach(self.as_fd()) {
            tracing::warn!(%error, "bpf_link not detached; closing it");
        }
    }
}
