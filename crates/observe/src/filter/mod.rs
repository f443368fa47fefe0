//! Filters: pcap-filter(7) text, compiled by libpcap, run in the kernel.
//!
//! The classic BPF from libpcap is translated, and replaces a stub in the object that is loaded. In the kernel it sees
//! the first 512 bytes of a packet; if these are not enough, libpcap decides in user space.

mod library;
mod translation;

#[cfg(test)]
mod tests;

use std::fmt;

use expressway_xbpf::CaptureFilter;

use library::{Instruction, Pcap};

/// A compiled filter.
#[derive(Clone)]
pub struct Filter {
    text: String,
    classic: Vec<Instruction>,
    kernel: CaptureFilter,
    pcap: &'static Pcap,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").field("text", &self.text).finish_non_exhaustive()
    }
}

/// Why a filter cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap refuses the text.
    #[error("filter `{text}`: {reason}")]
    Text {
        /// The filter.
        text: String,
        /// libpcap's words.
        reason: String,
    },
    /// libpcap is not installed, or too old.
    #[error("filters need libpcap: {0}; on Debian: apt-get install libpcap0.8")]
    Library(String),
    /// It cannot be run in the kernel.
    #[error("filter `{text}`: not in the kernel: {reason}")]
    Kernel {
        /// The filter.
        text: String,
        /// What is too much.
        reason: String,
    },
}

impl Filter {
    /// Compiles the `text` of a filter for Ethernet.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn compile(text: &str, snaplen: u32) -> Result<Self, FilterError> {
        let pcap = Pcap::load()?;
        let classic = pcap
            .compile(text, snaplen)
            .map_err(|reason| FilterError::Text { text: text.to_owned(), reason })?;
        let kernel = translation::translate(&classic)
            .map_err(|reason| FilterError::Kernel { text: text.to_owned(), reason })?;
        Ok(Self { text: text.to_owned(), classic, kernel, pcap })
    }

    /// The text that it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The kernel's form.
    #[must_use]
    pub fn kernel(&self) -> &CaptureFilter {
        &self.kernel
    }

    /// Whether a packet of `length` octets, of which `data` was captured, matches: libpcap's own judgement.
    #[must_use]
    pub fn matches(&self, data: &[u8], length: u32) -> bool {
        self.pcap.matches(&self.classic, data, length)
    }
}
