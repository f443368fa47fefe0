//! Which paths a rule matches, and where it redirects them.

use std::fmt;

use crate::scan::looked_at;
use crate::target::encode_path;

/// The longest pattern or template, in octets.
const MAX_LENGTH: usize = 1024;

/// Paths that a rule is for, in their normal form (percent-decoded, without dot segments): `/a/b` is that path,
/// `/a/*` all that begin with `/a/`, `*.m3u8` all that end in `.m3u8`, `/live/*.m3u8` both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    before: Vec<u8>,
    /// What comes after the `*`, if there is one.
    after: Option<Vec<u8>>,
}

/// Why a text is no pattern or template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(&'static str);

impl PathPattern {
    /// Of all paths.
    pub fn all() -> Self {
        Self { before: Vec::new(), after: Some(Vec::new()) }
    }

    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_LENGTH {
            return Err(PatternError("a path has at most 1024 bytes"));
        }
        if !text.starts_with(['/', '*']) {
            return Err(PatternError("begin the path with / or *"));
        }
        let (before, after) = match text.split_once('*') {
            None => (text, None),
            Some((_, after)) if after.contains('*') => {
                return Err(PatternError("a path has at most one *"));
            }
            Some((before, after)) => (before, Some(after)),
        };
        Ok(Self { before: before.into(), after: after.map(Into::into) })
    }

    /// What the `*` stands for in `path`, nothing where there is none; `None` if the path is another.
    pub(crate) fn matches<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        looked_at(self.before.len().min(path.len()));
        match &self.after {
            None => (path == self.before).then_some(&[][..]),
            Some(after) => path.strip_prefix(&self.before[..])?.strip_suffix(&after[..]),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.before))?;
        match &self.after {
            None => Ok(()),
            Some(after) => write!(f, "*{}", String::from_utf8_lossy(after)),
        }
    }
}

/// Where a path is sent: a path or an absolute URL, in which `*` stands for what the pattern's stood for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: String,
    after: Option<String>,
}

impl Template {
    /// Reads a template. A rewritten path is one of this server: `local` asks for that.
    pub fn parse(text: &str, local: bool) -> Result<Self, PatternError> {
        if text.len() > MAX_LENGTH {
            return Err(PatternError("a target has at most 1024 bytes"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(PatternError("percent-encode spaces and characters outside of ASCII"));
        }
        let is_absolute = text.starts_with("https://") || text.starts_with("http://");
        if !(text.starts_with('/') || is_absolute && !local) {
            return Err(PatternError(match local {
                true => "begin the target with /",
                false => "begin the target with /, https:// or http://",
            }));
        }
        // A location that begins with two slashes names another host.
        if text.starts_with("//") || text == "/*" && !local {
            return Err(PatternError("this target can name any host; put something between / and *"));
        }
        let (before, after) = match text.split_once('*') {
            None => (text, None),
            Some((_, after)) if after.contains('*') => {
                return Err(PatternError("a target has at most one *"));
            }
            // What the client chooses must not go on the host's name.
            Some((before, _)) if is_absolute && before.matches('/').count() < 3 => {
                return Err(PatternError("the * belongs behind the host's /"));
            }
            Some((before, after)) => (before, Some(after.to_owned())),
        };
        Ok(Self { before: before.to_owned(), after })
    }

    /// The target for a path of which `matched` is what the `*` stood for; `query` is appended.
    pub(crate) fn fill(&self, matched: &[u8], query: Option<&str>) -> String {
        let mut target = self.before.clone();
        if let Some(after) = &self.after {
            target.push_str(&encode_path(matched));
            target.push_str(after);
        }
        if let Some(query) = query {
            target.push(if target.contains('?') { '&' } else { '?' });
            target.push_str(query);
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(pattern: &str, path: &str) -> Option<String> {
        let pattern = PathPattern::parse(pattern).unwrap();
        pattern.matches(path.as_bytes()).map(|rest| String::from_utf8(rest.to_vec()).unwrap())
    }

    #[test]
    fn patterns() {
        for (pattern, path, expected) in [
            ("/a", "/a", Some("")),
            ("/a", "/a/", None),
            ("/a/*", "/a/", Some("")),
            ("/a/*", "/a/b/c", Some("b/c")),
            ("/a/*", "/a", None),
            ("/*", "/", Some("")),
            ("*", "/x", Some("/x")),
            ("*.m3u8", "/live/a.m3u8", Some("/live/a")),
            ("*.m3u8", "/live/a.m4s", None),
            ("/live/*.m3u8", "/live/a.m3u8", Some("a")),
            ("/aba*ba", "/aba", None),
        ] {
            assert_eq!(matched(pattern, path).as_deref(), expected, "{pattern} {path}");
            assert_eq!(PathPattern::parse(pattern).unwrap().to_string(), pattern);
        }
        for wrong in ["", "a", "/a/*/*", &"/a".repeat(600)] {
            assert!(PathPattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn templates_keep_what_the_star_stood_for_and_the_query() {
        for (template, matched, query, expected) in [
            ("/new/*", "a b/c", None, "/new/a%20b/c"),
            ("/new", "", Some("x=1"), "/new?x=1"),
            ("/new?y=2", "", Some("x=1"), "/new?y=2&x=1"),
            ("https://b.example/*", "a\r\nb", None, "https://b.example/a%0D%0Ab"),
            ("/n/*/index.html", "v", None, "/n/v/index.html"),
        ] {
            let template = Template::parse(template, false).unwrap();
            assert_eq!(template.fill(matched.as_bytes(), query), expected);
        }
    }

    #[test]
    fn no_template_lets_a_client_choose_the_host() {
        for wrong in
            ["//*", "/*", "https://*", "https://a.*/x", "https://a*", "ftp://a/", "a", "/a b", "/*/*"]
        {
            assert!(Template::parse(wrong, false).is_err(), "{wrong}");
        }
        assert!(Template::parse("/*", true).is_ok(), "a rewritten path stays here");
        assert!(Template::parse("https://a/", true).is_err());
    }
}
