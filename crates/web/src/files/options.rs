//! Options: per process ([`FileOptions`]) and per site ([`FilesConfig`]).

use std::path::PathBuf;
use std::time::Duration;

use super::HlsOptions;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE,
    ETAG, HeaderName, HeaderValue, LAST_MODIFIED, LOCATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Fields that describe the message or the representation, and connection-specific ones (RFC 9114, 4.2).
const RESERVED: [HeaderName; 15] = [
    ACCEPT_RANGES,
    ALLOW,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    DATE,
    ETAG,
    LAST_MODIFIED,
    LOCATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Options of the process-wide [`FileStore`](super::FileStore).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// Octets a block of the block cache, a power of two of at least 4096. A block is read by one system
    /// call and is the unit of caching and of reading ahead. A body in progress holds its current block
    /// (see [`Exchange::rest`](crate::Exchange::rest)), and chunks hold the blocks that they lie in.
    pub block_bytes: usize,
    /// Octets that the block cache may hold. 0 caches nothing.
    pub cache_bytes: u64,
    /// Octets for all that is pinned outside the cache: blocks that responses hold, and what connections own. See
    /// [`Memory`](crate::memory::Memory).
    pub memory_bytes: u64,
    /// Whether workers try the kernel's directory and page caches themselves before they ask the reader
    /// threads. To be turned off for file systems that wait in spite of RESOLVE_CACHED and RWF_NOWAIT, as
    /// some network file systems do.
    pub try_on_worker: bool,
    /// Reader threads, which take what the page cache cannot answer at once.
    pub reader_threads: usize,
    /// Reads and lookups that may queue for the reader threads; more wait in their exchanges.
    pub reader_queue: usize,
    /// Blocks read ahead by the reader threads when a body's blocks come from the disk. 0 turns it off.
    pub readahead_blocks: usize,
    /// Open files kept for the next request of the same path; each holds a file descriptor. 0 keeps none.
    pub open_files: usize,
    /// How long a kept open file is used without looking at the path again. Within this time a file that
    /// was renamed over is still served in its old version, whole and consistent. Zero looks at the path
    /// on every request, as nginx does by default.
    pub open_file_valid: Duration,
}

impl Default for FileOptions {
    /// 256 KiB blocks, 256 MiB of cache and as much outside it, 4 readers with a queue of 512, 2 blocks read ahead, 1024 open
    /// files kept for 100 ms: long enough that a hot file costs no system call, too short to matter to a
    /// live playlist, which changes at segment pace.
    fn default() -> Self {
        Self {
            block_bytes: 256 * 1024,
            cache_bytes: 256 * 1024 * 1024,
            memory_bytes: 256 * 1024 * 1024,
            try_on_worker: true,
            reader_threads: 4,
            reader_queue: 512,
            readahead_blocks: 2,
            open_files: 1024,
            open_file_valid: Duration::from_millis(100),
        }
    }
}

impl FileOptions {
    /// What is wrong with the options, naming the one to change.
    pub fn validate(&self) -> Result<(), String> {
        if !self.block_bytes.is_power_of_two() || !(4096..=1 << 24).contains(&self.block_bytes) {
            return Err(format!(
                "block_bytes is {}: use a power of two from 4096 to 16777216",
                self.block_bytes
            ));
        }
        if self.cache_bytes > 0 && self.cache_bytes < 2 * self.block_bytes as u64 {
            return Err(format!(
                "cache_bytes is {}: use 0 to cache nothing, or at least two blocks of {}",
                self.cache_bytes, self.block_bytes
            ));
        }
        for (name, value, range) in [
            ("reader_threads", self.reader_threads, 1..=1024),
            ("reader_queue", self.reader_queue, 1..=1 << 20),
            ("readahead_blocks", self.readahead_blocks, 0..=64),
            ("open_files", self.open_files, 0..=1 << 24),
        ] {
            if !range.contains(&value) {
                return Err(format!("{name} is {value}: use {} to {}", range.start(), range.end()));
            }
        }
        Ok(())
    }
}

/// What to do about symbolic links under a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Symlinks {
    /// Any symbolic link in a path is refused with 403, as nginx's `disable_symlinks on` does.
    #[default]
    Deny,
    /// Links are followed while they stay beneath the root; a link that leaves it is refused with 403.
    Beneath,
    /// Links are followed wherever they lead, as nginx does by default.
    Follow,
}

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
pub enum Encoding {
    /// Brotli (RFC 7932), files named `*.br`.
    #[serde(rename = "br")]
    Brotli,
    /// Zstandard (RFC 8878), files named `*.zst`.
    #[serde(rename = "zstd")]
    Zstd,
    /// gzip (RFC 1952), files named `*.gz`.
    #[serde(rename = "gzip")]
    Gzip,
}

impl Encoding {
    /// The name in `content-encoding`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// What is appended to a file's name for its sibling.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }
}

/// A site that is a directory tree.
#[derive(Debug, Clone)]
pub struct FilesConfig {
    /// The directory that the URL path `/` means. May itself be or contain symbolic links: it is opened
    /// once, so a link that is switched to another directory counts from the next reload on.
    pub root: PathBuf,
    /// Names tried in order when a directory is asked for.
    pub index: Vec<String>,
    /// What to do about symbolic links beneath the root.
    pub symlinks: Symlinks,
    /// Whether names that begin with a dot are served, as nginx serves them. If not they are answered with 404 as if
    /// they were not there, except `/.well-known/` (RFC 8615). What lies in a root by mistake begins with a dot more
    /// often than not: `.git`, `.env`, `.htpasswd`.
    pub hidden: bool,
    /// Precompressed siblings to look for, in order of preference among equal `q` values.
    pub precompressed: Vec<Encoding>,
    /// The media type of files whose extension says nothing.
    pub default_type: String,
    /// Ranges a request may ask for; the whole file is sent to a request for more. 0 ignores `range` and
    /// sends no `accept-ranges`.
    pub max_ranges: usize,
    /// Header fields added to successful responses, redirections, 304 and 416, such as `cache-control`.
    /// Fields that the server sets itself are refused.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Requests for playlists and parts of low-latency HLS that are held until these are there; none are without.
    pub hls: Option<HlsOptions>,
}

impl FilesConfig {
    /// The defaults for `root`: `index.html`, symbolic links denied, dot files not served, no precompressed
    /// siblings, `application/octet-stream`, at most 200 ranges, no added headers, nothing held.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            index: vec!["index.html".to_owned()],
            symlinks: Symlinks::default(),
            hidden: false,
            precompressed: Vec::new(),
            default_type: "application/octet-stream".to_owned(),
            max_ranges: 200,
            headers: Vec::new(),
            hls: None,
        }
    }

    /// What is wrong with the options, naming the one to change.
    pub(crate) fn validate(&self) -> Result<(), String> {
        for index in &self.index {
            if index.is_empty() || index.contains(['/', '\0']) || index == "." || index == ".." {
                return Err(format!("index {index:?} is not a file name"));
            }
        }
        for (name, _) in &self.headers {
            if RESERVED.contains(name) {
                return Err(format!("the header field {name} is set by the server; remove it from headers"));
            }
        }
        for (position, encoding) in self.precompressed.iter().enumerate() {
            if self.precompressed[..position].contains(encoding) {
                return Err(format!("precompressed lists {:?} twice", encoding.as_str()));
            }
        }
        Ok(())
    }
}
