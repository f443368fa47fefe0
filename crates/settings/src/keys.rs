//! Files with secret keys that several programs share.

use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;

use crate::secret::{Access, read_text};

/// Bytes of a key.
pub const KEY_LENGTH: usize = 32;

/// Keys of a file at most: the one in use, and the one before it.
pub const KEYS: usize = 2;

/// A file of two keys has about 130 bytes.
const LARGEST: u64 = 4096;

/// Reads keys of 64 hexadecimal digits, one a line; the first is the one in use. Lines that are empty or begin with `#` are
/// not read.
///
/// # Errors
/// What is wrong, and what to do, without the file's name.
pub fn read_keys(path: &Path) -> Result<Vec<[u8; KEY_LENGTH]>, String> {
    let text = read_text(path, LARGEST, Access::Group)?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<[u8; KEY_LENGTH]>, String> {
    let mut keys = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = HEX.decode(line.as_bytes()).ok().and_then(|key| key.try_into().ok());
        let key = key.ok_or_else(|| {
            format!(
                "line {}: not a key of 64 hexadecimal digits, as `openssl rand -hex 32` makes them",
                number + 1
            )
        })?;
        keys.push(key);
    }
    match keys.len() {
        1..=KEYS => Ok(keys),
        0 => Err("has no key: `openssl rand -hex 32` makes one".to_owned()),
        more => {
            Err(format!("has {more} keys; at most two are allowed: the current one, then the previous one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_key_or_two() {
        let (one, two) = ("0a".repeat(32), "FF".repeat(32));
        assert_eq!(parse(&format!("{one}\n")), Ok(vec![[10; 32]]));
        assert_eq!(parse(&format!("# in use\n{one}\n\n# before\n{two}")), Ok(vec![[10; 32], [255; 32]]));
        for (text, words) in [
            (String::new(), "no key"),
            (format!("{one}\n{one}\n{two}\n"), "3 keys"),
            (one[1..].to_owned(), "line 1: not a key"),
            (format!("{one}0a"), "line 1"),
            (format!("\n{}", "0x".repeat(32)), "line 2"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_everybody_may_read_is_no_secret() {
        let path = std::env::temp_dir().join(format!("expressway-keys-{}", std::process::id()));
        std::fs::write(&path, "0a".repeat(32)).unwrap();
        let with = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_keys(&path)
        };
        assert!(with(0o644).unwrap_err().contains("chmod"));
        assert_eq!(with(0o640), Ok(vec![[10; 32]]));
        std::fs::remove_file(&path).unwrap();
        assert!(read_keys(&path).unwrap_err().contains("cannot be read"));
        assert!(read_keys(Path::new("/dev/null")).unwrap_err().contains("not a plain file"));
    }
}
