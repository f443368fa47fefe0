//! Keys in files of their own, which only their owner may read.

use std::fmt;
use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;

use crate::secret::{Access, read_text};

/// More than a key takes, with white space around it.
const MOST: u64 = 256;

/// A key of 128 bits. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Reads a key from a file: 32 hexadecimal digits, white space around them aside.
    ///
    /// # Errors
    /// With the file, if it cannot be read, is no plain file, others than its owner have rights to it, or it holds no key.
    pub fn read(file: &Path) -> Result<Self, String> {
        let wrong = |problem: String| format!("{}: {problem}", file.display());
        let text = read_text(file, MOST, Access::Owner).map_err(wrong)?;
        let key = HEX.decode(text.trim().as_bytes()).ok().and_then(|key| key.try_into().ok());
        let problem = "no key of 32 hexadecimal digits: make one with `openssl rand -hex 16`";
        key.map(Self).ok_or_else(|| wrong(problem.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A file of this test, which is gone with it.
    struct Temporary(std::path::PathBuf);

    impl Temporary {
        fn new(name: &str, text: &str, mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("expressway-key-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const TEXT: &str = "8f95f09245765f80256934e50c66207f";

    #[test]
    fn a_key_is_read_and_not_printed() {
        let file = Temporary::new("good", &format!("  {TEXT}\n"), 0o600);
        let key = Key::read(&file.0).unwrap();
        assert_eq!((key.0[0], key.0[15]), (0x8f, 0x7f));
        assert_eq!(format!("{key:?}"), "Key(…)");
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (name, text, mode, problem) in [
            ("group", TEXT, 0o640, "mode 640): run chmod 600"),
            ("others", TEXT, 0o604, "mode 604): run chmod 600"),
            ("short", "8f95", 0o600, "no key of 32 hexadecimal digits"),
            ("sign", "+f95f09245765f80256934e50c66207f", 0o600, "no key of 32 hexadecimal digits"),
            ("twice", &TEXT.repeat(2), 0o600, "no key of 32 hexadecimal digits"),
            ("long", &TEXT.repeat(100), 0o600, "more than 256 bytes"),
        ] {
            let file = Temporary::new(name, text, mode);
            let error = Key::read(&file.0).unwrap_err();
            assert!(error.starts_with(&file.0.display().to_string()) && error.contains(problem), "{error}");
        }
        assert!(Key::read(Path::new("/dev/null")).unwrap_err().contains("not a plain file"));
        assert!(Key::read(Path::new("/nonexistent")).unwrap_err().contains("No such file"));
    }
}
