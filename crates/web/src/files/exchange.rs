//! A file being served.

use std::task::Poll;

use bytes::Bytes;

use crate::{BodyError, ResponseHead};

pub(crate) struct FileExchange {
    pub(crate) head: Option<ResponseHead>,
    pub(crate) body: Bytes,
}

impl FileExchange {
    pub(crate) fn poll_head(&mut self) -> Poll<ResponseHead> {
        self.head.take().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.body.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.body.len().min(max);
        Poll::Ready(Some(Ok(self.body.split_to(length))))
    }

    pub(crate) fn remaining(&self) -> Option<u64> {
        Some(self.body.len() as u64)
    }
}
