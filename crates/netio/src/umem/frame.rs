//! Frames: the fixed pieces of a UMEM, each with exactly one owner.
//!
//! A [`Frame`] is the program's ownership of one frame. It can be moved but not copied. Only [`super::Umem`] creates
//! it, after its own record has confirmed that the kernel has the frame. Handing a frame to a ring consumes the handle.
//! A frame with two owners therefore does not compile in the program, and the kernel cannot make one up.
//!
//! [`FramePool`] keeps frames that wait for work, last in first out: the frame that was used last is the one
//! still in the cache.

/// Who may touch a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The program: a [`Frame`] handle exists.
    Program,
    /// The kernel, to receive into: from that socket's fill ring until its RX entry is popped.
    Receive(XskId),
    /// The kernel, to send from: from that socket's TX ring until the completion is popped.
    Transmit(XskId),
    /// Readers in other processes, who cannot write it: until the last of them has returned it or is gone.
    Readers,
}

/// Which of the sockets on a UMEM has a frame: each has rings of its own, and returns what went into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XskId(pub(crate) u16);

/// The program's ownership of one frame. Move-only; given up by handing it to a ring.
#[derive(Debug)]
#[must_use = "a frame that is dropped is lost to its UMEM: give it to a ring or to a pool"]
pub(crate) struct Frame {
    index: u32,
    umem: u32,
}

impl Frame {
    /// Called by the UMEM alone, which has just recorded that the frame is the program's.
    pub(crate) fn new(index: u32, umem: u32) -> Self {
        Self { index, umem }
    }

    /// Place of the frame within its UMEM.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Identity of the UMEM that the frame is a part of.
    #[inline]
    pub(crate) fn umem(&self) -> u32 {
        self.umem
    }
}

/// A stack of idle frames, sized once and never grown.
#[derive(Debug)]
pub(crate) struct FramePool {
    frames: Vec<Frame>,
}

impl FramePool {
    /// An empty pool with room for `capacity` frames.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { frames: Vec::with_capacity(capacity) }
    }

    /// Keeps a frame. The pool is sized for all frames that can come, so this never allocates.
    #[inline]
    pub(crate) fn push(&mut self, frame: Frame) {
        debug_assert!(self.frames.len() < self.frames.capacity(), "a pool holds every frame of its UMEM");
        self.frames.push(frame);
    }

    /// The frame that was kept last.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        self.frames.pop()
    }

    /// Frames waiting.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }
}
