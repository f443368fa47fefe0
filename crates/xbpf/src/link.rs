//! A bpf_link that ends when it is dropped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys;

/// Keeps a program attached while this lives or, if the process is killed, while a duplicate of its descriptor does.
/// Dropping it detaches the program explicitly: closing the descriptor might be delayed by a child between fork and
/// exec, which holds a duplicate.
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
