//! Files with bearer tokens (RFC 6750).

use std::fmt;
use std::path::Path;

use crate::secret::{Access, read_text};

/// Tokens of a file at most: those of several clients, and earlier ones while they change.
pub const TOKENS: usize = 16;

/// Characters of a token at least: what cannot be guessed by asking has more than this of hexadecimal digits.
const SHORTEST: usize = 16;

/// Characters of a token at most.
const LONGEST: usize = 256;

/// More than a file of tokens has, with comments.
const LARGEST: u64 = 64 << 10;

/// A token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Its characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Reads tokens, one a line, 1 to [`TOKENS`] of them. Lines that are empty or begin with `#` are not read.
///
/// # Errors
/// What is wrong, and what to do, without the file's name.
pub fn read_tokens(path: &Path) -> Result<Vec<Token>, String> {
    let text = read_text(path, LARGEST, Access::Group)?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        check(line).map_err(|problem| format!("line {}: {problem}", number + 1))?;
        tokens.push(Token(line.to_owned()));
    }
    match tokens.len() {
        1..=TOKENS => Ok(tokens),
        0 => Err("has no token: `openssl rand -hex 32` makes one".to_owned()),
        more => Err(format!("has {more} tokens: {TOKENS} at most")),
    }
}

/// Whether it can be sent (`b64token`, RFC 6750, section 2.1) and not guessed.
fn check(token: &str) -> Result<(), String> {
    if !(SHORTEST..=LONGEST).contains(&token.len()) {
        return Err(format!(
            "a token has {SHORTEST} to {LONGEST} characters: `openssl rand -hex 32` makes one"
        ));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    match token.trim_end_matches('=').bytes().all(allowed) {
        true => Ok(()),
        false => {
            Err("a token has letters, digits and -._~+/ only: `openssl rand -hex 32` makes one".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn one_a_line_long_enough_and_fit_to_be_sent() {
        let tokens = parse("# monitoring\n0123456789abcdef\n\n  c29tZSB0b2tlbiB0aGVyZQ==  \n").unwrap();
        let text: Vec<&str> = tokens.iter().map(Token::as_str).collect();
        assert_eq!(text, ["0123456789abcdef", "c29tZSB0b2tlbiB0aGVyZQ=="]);
        assert_eq!(format!("{:?}", tokens[0]), "Token(…)");
        for (text, says) in [
            (String::new(), "has no token"),
            ("# only this\n".into(), "has no token"),
            ("short".into(), "line 1: a token has 16 to 256"),
            (format!("\n{}", "a".repeat(257)), "line 2: a token has 16 to 256"),
            ("sixteen letters and spaces".into(), "letters, digits and"),
            ("0123456789abcde\u{fc}".into(), "letters, digits and"),
            ("0123456789abcdef\n".repeat(TOKENS + 1), "has 17 tokens"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_everybody_may_read_is_no_secret() {
        let path = std::env::temp_dir().join(format!("expressway-token-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let with = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_tokens(&path)
        };
        assert!(with(0o644).unwrap_err().contains("chmod"));
        assert_eq!(with(0o640).unwrap().len(), 1);
        std::fs::write(&path, "#".repeat(1 << 20)).unwrap();
        assert!(with(0o600).unwrap_err().contains("more than 65536 bytes"));
        std::fs::remove_file(&path).unwrap();
        assert!(read_tokens(&path).unwrap_err().contains("cannot be read"));
        assert!(read_tokens(Path::new("/dev/null")).unwrap_err().contains("not a plain file"));
    }
}
