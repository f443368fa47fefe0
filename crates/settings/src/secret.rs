//! Files with secrets, as they are opened.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Opens a plain file, and tells the rights to it.
pub(crate) fn open(file: &Path) -> io::Result<(File, u32)> {
    // Before it is opened: opening a pipe would wait.
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    let opened = File::open(file)?;
    let mode = opened.metadata()?.mode();
    Ok((opened, mode))
}
