//! What the kernel tells of XDP programs that come, for whichever interface.

use std::fmt;
use std::mem::offset_of;
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{RingBuffer, RingBufferBuilder};

use crate::capture::CapturePrograms;
use crate::error::Error;
use crate::skeleton::capture_types::{capture_change, capture_change_kind};

/// Changes that are kept until they are asked for.
const KEPT: usize = 256;

/// What has become of an XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramChange {
    /// When, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// Its kernel-wide id; 0: an interface has none any more.
    pub program: u32,
    /// It is on an interface; otherwise it was only loaded.
    pub placed: bool,
}

impl ProgramChange {
    fn read(data: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?));
        let time = offset_of!(capture_change, time);
        Some(Self {
            time: u64::from_ne_bytes(data.get(time..time + 8)?.try_into().ok()?),
            program: word(offset_of!(capture_change, program))?,
            placed: word(offset_of!(capture_change, kind))? == capture_change_kind::CAPTURE_PLACED.0,
        })
    }
}

/// The changes since they were asked for last, while [`CaptureHook::Placed`](crate::CaptureHook::Placed) and
/// [`CaptureHook::Loaded`](crate::CaptureHook::Loaded) are attached.
pub struct ProgramChanges {
    ring: RingBuffer<'static>,
    come: Arc<Mutex<Vec<ProgramChange>>>,
}

impl fmt::Debug for ProgramChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramChanges").finish_non_exhaustive()
    }
}

impl ProgramChanges {
    /// Those that have come, in their order; of a storm of them, the first.
    pub fn take(&mut self) -> Vec<ProgramChange> {
        // Fails only where the callback does.
        let _ = self.ring.consume();
        std::mem::take(&mut self.come.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Is readable when there are some; open as long as this.
    pub(crate) fn descriptor(&self) -> i32 {
        self.ring.epoll_fd()
    }
}

impl CapturePrograms {
    /// Where changes are told.
    ///
    /// # Errors
    /// [`Error::Layout`], [`Error::Map`].
    pub fn changes(&self) -> Result<ProgramChanges, Error> {
        const MAP: &str = "changes_map";
        let failed = |source| Error::Map { map: MAP, source };
        let come = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&come);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(self.map(MAP)?, move |data: &[u8]| {
                let mut come = into.lock().unwrap_or_else(PoisonError::into_inner);
                if come.len() < KEPT {
                    come.extend(ProgramChange::read(data));
                }
                0
            })
            .map_err(failed)?;
        Ok(ProgramChanges { ring: builder.build().map_err(failed)?, come })
    }
}
