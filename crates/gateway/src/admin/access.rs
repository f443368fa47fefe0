//! Who may use the admin listener, and for what.
//!
//! Anyone who can reach a listener without tokens may use it, but must address it by a name of this machine
//! ([`Names`]). Access to a unix socket is limited by its permissions. With tokens (`[admin] token_file`), a request
//! needs one of them (RFC 6750, section 2.1) but may use any name, because a page of a foreign domain has no token.
//! Pages that contain no data of the process, and those listed in `[admin] open`, need no token.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use boring::memcmp;
use boring::sha::sha256;
use expressway_settings::admin::{Address, Open, Section, Token, read_tokens};
use expressway_web::bearer;
use http::Request;

use super::host::Names;

/// The rules.
pub(super) struct Access {
    names: Names,
    /// Whether it is a unix socket, which no browser reaches.
    is_local: bool,
    tokens: Option<Tokens>,
    open: Vec<Open>,
}

/// What a request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// What it asks for.
    Granted,
    /// Nothing: it is addressed to somebody else.
    Misdirected,
    /// Nothing: it has no token.
    NoToken,
    /// Nothing: its token is none of ours.
    WrongToken,
}

/// Tokens of a file, by their hashes: neither their lengths nor their order tells in how long a comparison takes.
struct Tokens {
    file: PathBuf,
    hashes: RwLock<Vec<[u8; 32]>>,
}

impl Tokens {
    fn read(file: PathBuf) -> Result<Self, String> {
        let hashes = RwLock::new(hashes(&file)?);
        Ok(Self { file, hashes })
    }

    fn know(&self, token: &[u8]) -> bool {
        let asked = sha256(token);
        let hashes = self.hashes.read().unwrap_or_else(PoisonError::into_inner);
        // All of them, whichever it is.
        hashes.iter().fold(false, |known, hash| known | memcmp::eq(hash, &asked))
    }
}

fn hashes(file: &std::path::Path) -> Result<Vec<[u8; 32]>, String> {
    let tokens = read_tokens(file).map_err(|problem| format!("{}: {problem}", file.display()))?;
    Ok(tokens.iter().map(Token::as_str).map(|token| sha256(token.as_bytes())).collect())
}

impl Access {
    /// Those of a section; reads its tokens.
    pub(super) fn of(section: &Section) -> Result<Self, String> {
        let file = section.token_file.as_ref().map(|file| file.get_ref().clone());
        Ok(Self {
            names: Names::of_system(),
            is_local: matches!(section.listen.get_ref(), Address::Unix(_)),
            tokens: file.map(Tokens::read).transpose()?,
            open: section.open.clone(),
        })
    }

    /// Reads the tokens again. Whether there are any. An error leaves the earlier ones.
    pub(super) fn reload(&self) -> Result<bool, String> {
        let Some(tokens) = &self.tokens else { return Ok(false) };
        let hashes = hashes(&tokens.file)?;
        *tokens.hashes.write().unwrap_or_else(PoisonError::into_inner) = hashes;
        Ok(true)
    }

    /// Whether everybody who reaches it may ask.
    pub(super) fn is_for_everybody(&self) -> bool {
        self.tokens.is_none() && !self.is_local
    }

    /// What a request may have.
    pub(super) fn judge<B>(&self, request: &Request<B>) -> Verdict {
        let path = request.uri().path();
        let Some(tokens) = &self.tokens else {
            // What scrapers and health checks ask for, by whatever name, tells nothing of clients and changes nothing.
            let is_named = self.is_local || matches!(path, "/metrics" | "/healthz");
            return match is_named || self.names.allow(request) {
                true => Verdict::Granted,
                false => Verdict::Misdirected,
            };
        };
        if path.parse().is_ok_and(|open| self.open.contains(&open)) {
            return Verdict::Granted;
        }
        match bearer(request.headers()) {
            Some(token) if tokens.know(token) => Verdict::Granted,
            Some(_) => Verdict::WrongToken,
            None => Verdict::NoToken,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use http::header;

    use super::*;

    const FIRST: &str = "0123456789abcdef0123456789abcdef";
    const SECOND: &str = "another-token-of-somebody";

    fn request(path: &str, fields: &[&str]) -> Request<()> {
        let request = Request::builder().uri(path).header(header::HOST, "rebound.example");
        fields
            .iter()
            .fold(request, |request, field| request.header(header::AUTHORIZATION, *field))
            .body(())
            .unwrap()
    }

    fn with_tokens(folder: &std::path::Path, open: &[Open]) -> Access {
        let file = folder.join("tokens");
        std::fs::write(&file, format!("{FIRST}\n{SECOND}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut section = Section::at("127.0.0.1:0".parse().unwrap());
        section.token_file = Some(toml::Spanned::new(0..0, file));
        section.open = open.to_vec();
        Access::of(&section).unwrap()
    }

    #[test]
    fn one_of_the_tokens_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let access = with_tokens(folder.path(), &[Open::Health]);
        let verdict = |fields: &[&str]| access.judge(&request("/config", fields));
        for good in [format!("Bearer {FIRST}"), format!("bearer {SECOND} "), format!("BEARER  {SECOND}")] {
            assert_eq!(verdict(&[&good]), Verdict::Granted, "{good}");
        }
        let half = &FIRST[..16];
        for wrong in [
            format!("Bearer {half}"),
            format!("Bearer {FIRST}0"),
            "Bearer ".into(),
            format!("Bearer {FIRST},"),
        ] {
            assert_eq!(verdict(&[&wrong]), Verdict::WrongToken, "{wrong}");
        }
        for none in
            [format!("Basic {FIRST}"), FIRST.to_owned(), String::new(), "Bearer".into(), "Bearer:".into()]
        {
            assert_eq!(verdict(&[&none]), Verdict::NoToken, "{none}");
        }
        let good = format!("Bearer {FIRST}");
        assert_eq!(verdict(&[&good, &good]), Verdict::NoToken, "which of two is meant is anybody's guess");
        assert_eq!(verdict(&[]), Verdict::NoToken);
        assert!(!access.is_for_everybody());
    }

    #[test]
    fn what_is_open_takes_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let access = with_tokens(folder.path(), &[Open::Health]);
        assert_eq!(access.judge(&request("/healthz", &[])), Verdict::Granted);
        assert_eq!(access.judge(&request("/metrics", &[])), Verdict::NoToken);
        let access = with_tokens(folder.path(), &[Open::Metrics]);
        assert_eq!(access.judge(&request("/metrics", &[])), Verdict::Granted);
        assert_eq!(access.judge(&request("/healthz", &[])), Verdict::NoToken);
        assert_eq!(access.judge(&request("/metrics/", &[])), Verdict::NoToken);
    }

    #[test]
    fn tokens_are_read_again_and_wrong_ones_leave_the_earlier() {
        let folder = tempfile::tempdir().unwrap();
        let access = with_tokens(folder.path(), &[]);
        let granted =
            |token: &str| access.judge(&request("/", &[&format!("Bearer {token}")])) == Verdict::Granted;
        let file = folder.path().join("tokens");
        std::fs::write(&file, "a-new-token-that-is-long\n").unwrap();
        assert!(granted(FIRST) && !granted("a-new-token-that-is-long"));
        assert_eq!(access.reload(), Ok(true));
        assert!(!granted(FIRST) && granted("a-new-token-that-is-long"));
        std::fs::write(&file, "short\n").unwrap();
        let error = access.reload().unwrap_err();
        assert!(error.contains("tokens: line 1: a token has"), "{error}");
        assert!(granted("a-new-token-that-is-long"));
    }

    #[test]
    fn without_tokens_names_count_for_tcp_alone() {
        let access = |listen: &str| Access::of(&Section::at(listen.parse().unwrap())).unwrap();
        let (tcp, unix) = (access("127.0.0.1:0"), access("unix:/run/a"));
        assert_eq!(tcp.judge(&request("/config", &[])), Verdict::Misdirected);
        assert_eq!(tcp.judge(&request("/metrics", &[])), Verdict::Granted);
        assert_eq!(unix.judge(&request("/config", &[])), Verdict::Granted);
        assert!(tcp.is_for_everybody() && !unix.is_for_everybody());
        assert_eq!(tcp.reload(), Ok(false));
    }
}
