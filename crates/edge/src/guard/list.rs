//! Lists of addresses and prefixes, one per line.

use std::fs::Metadata;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use expressway_settings::ConfigError;
use expressway_xbpf::GuardPrefix;

use super::lines::{Lines, unreadable};

/// Bytes of a line at most: an address, a prefix length and a comment.
const LINE: u64 = 1024;
/// Entries of a list at most: four times what the largest public lists hold.
pub(super) const ENTRIES: usize = 4 << 20;

/// By which a file is told from what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: Option<SystemTime>,
    size: u64,
    inode: u64,
}

impl Stamp {
    /// Of the file of that name; `None` if there is none.
    pub fn of(file: &Path) -> Option<Self> {
        std::fs::metadata(file).ok().map(|found| Self::from(&found))
    }
}

impl From<&Metadata> for Stamp {
    fn from(found: &Metadata) -> Self {
        Self { modified: found.modified().ok(), size: found.len(), inode: found.ino() }
    }
}

/// Reads `192.0.2.0/24`, `2001:db8::/32` or a single address.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn prefix(text: &str) -> Result<GuardPrefix, String> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let wrong = || format!("`{text}` is not an address or prefix, such as 192.0.2.0/24");
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Ok(most), |length| length.parse::<u8>().map_err(|_| wrong()))?;
    if length > most {
        return Err(format!(
            "`{text}`: an {} has {most} bits",
            if most == 32 { "IPv4 address" } else { "IPv6 address" }
        ));
    }
    Ok(GuardPrefix { address: masked(address, length), length })
}

/// The address without the bits behind the first `length`.
pub fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

/// Reads a file, as [`parse`], and by what to tell whether it has changed since.
///
/// # Errors
/// With file and line.
pub fn read(file: &Path) -> Result<(Vec<GuardPrefix>, Stamp), ConfigError> {
    let failed = |error| unreadable(file, &error);
    let open = std::fs::File::open(file).map_err(failed)?;
    // Before it is read: what changes meanwhile is another stamp.
    let stamp = Stamp::from(&open.metadata().map_err(failed)?);
    Ok((parse(&mut BufReader::new(open), file)?, stamp))
}

/// Reads one entry a line; what follows `#` or `;` is a comment. The last line has to end, so that what is being written is
/// not taken for a whole list. `file` is its name.
///
/// # Errors
/// With file and line.
pub fn parse(reader: &mut dyn BufRead, file: &Path) -> Result<Vec<GuardPrefix>, ConfigError> {
    let (mut entries, mut lines) = (Vec::new(), Lines::new(reader, file, LINE));
    while let Some(line) = lines.next()? {
        if !line.is_complete {
            return Err(line.error("the last line is incomplete: the file is probably still being written"));
        }
        let text = line.text.split(['#', ';']).next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        if entries.len() == ENTRIES {
            return Err(line.error(format!("more than {ENTRIES} entries")));
        }
        entries.push(prefix(text).map_err(|problem| line.error(problem))?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, text: &str) -> std::path::PathBuf {
        let file = std::env::temp_dir().join(format!("expressway-list-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn comments_and_single_addresses_are_read() {
        let file = written("good", "# a list\n192.0.2.77/24 ; dropped\n\n2001:db8::1\r\n");
        let list = read(&file).unwrap().0;
        std::fs::remove_file(&file).unwrap();
        assert_eq!(list, ["192.0.2.0/24", "2001:db8::1/128"].map(|text| prefix(text).unwrap()));
    }

    #[test]
    fn a_file_that_is_being_written_is_refused() {
        let file = written("half", "192.0.2.0/24\n198.51.10");
        let error = read(&file).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(error.line, 2);
        assert!(error.problem.contains("is incomplete"), "{error}");
    }

    #[test]
    fn wrong_lines_are_named() {
        for (name, text) in
            [("word", "here\n"), ("bits", "192.0.2.1/33\n"), ("long", &format!("{:2000}\n", "#"))]
        {
            let file = written(name, text);
            let error = read(&file).unwrap_err();
            std::fs::remove_file(&file).unwrap();
            assert_eq!(error.line, 1, "{error}");
        }
    }
}
