//! Signed URLs: tokens in the format of Akamai's EdgeAuth 2.0, for which generators exist in every language.
//!
//! A token is `ip=192.0.2.1~st=1700000000~exp=1700003600~acl=/vod/7/*~hmac=0a1b…`: fields joined by `~`, and the
//! HMAC-SHA256 of all before `~hmac=`. `exp` and `hmac` are required. `acl` has patterns of paths joined by `!`, in which `*` stands
//! for any octets and `?` for one; a token without it is for one path, which is signed as `~url=PATH` behind the
//! fields and not part of the token. `id`, `data` and unknown fields are signed and otherwise ignored.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_settings::secret;
use hmac::{Hmac, KeyInit, Mac};
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use sha2::Sha256;

use crate::scan::looked_at;

/// Octets of a token; longer ones are invalid.
const MAX_TOKEN: usize = 1024;

/// Bytes of a file of keys at most, comments included.
const LARGEST: u64 = 64 << 10;

/// Keys at once: previous, current, next, and some more.
pub(super) const MAX_KEYS: usize = 8;

/// Who may ask: those with a token that one of the keys has signed.
#[derive(Clone)]
pub struct TokenRule {
    /// Name of the query parameter, and of the cookie, that carries it.
    pub name: String,
    /// The keys that are accepted.
    pub keys: TokenKeys,
    /// Answers a token in a query with a cookie, so that the relative URLs of a playlist need none.
    pub set_cookie: bool,
}

impl fmt::Debug for TokenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenRule")
            .field("name", &self.name)
            .field("keys", &self.keys.0.load().len())
            .finish_non_exhaustive()
    }
}

/// A key that signs tokens.
#[derive(Clone)]
pub struct TokenKey(Vec<u8>);

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

/// Keys that are accepted. Clones are the same: what replaces the keys of one replaces those of all.
#[derive(Clone)]
pub struct TokenKeys(Arc<ArcSwap<Vec<TokenKey>>>);

/// The keys are not printed.
impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenKeys({})", self.0.load().len())
    }
}

impl TokenKeys {
    /// Accepts those; a rule takes 1 to 8.
    pub fn new(keys: Vec<TokenKey>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(keys)))
    }

    /// Accepts others from the next request on; nothing changes if there are none, or more than 8.
    pub fn replace(&self, keys: Vec<TokenKey>) {
        if (1..=MAX_KEYS).contains(&keys.len()) {
            self.0.store(Arc::new(keys));
        }
    }
}

/// Why a file of keys is not one.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeyError {
    /// It cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Read(std::path::PathBuf, std::io::Error),
    /// A line is no key.
    #[error("{}:{}: a key is 32 to 128 hexadecimal digits on a line of its own", .0.display(), .1)]
    Line(std::path::PathBuf, usize),
    /// There are too few or too many.
    #[error("{}: {} keys; give 1 to 8", .0.display(), .1)]
    Count(std::path::PathBuf, usize),
}

impl TokenKey {
    /// A key of 32 octets.
    pub fn from_bytes(key: &[u8; 32]) -> Self {
        Self(key.to_vec())
    }

    /// The key written as hexadecimal digits, 16 to 64 octets of it.
    pub fn from_hex(text: &str) -> Option<Self> {
        let is_long_enough = (32..=128).contains(&text.len());
        is_long_enough.then(|| HEX.decode(text.as_bytes()).ok()).flatten().map(Self)
    }

    /// The keys in a file, one a line; empty lines and those that begin with `#` are skipped.
    pub fn load(file: &Path) -> Result<Vec<Self>, TokenKeyError> {
        let bytes = secret::read(file, LARGEST);
        let text = bytes.and_then(|(bytes, _)| String::from_utf8(bytes).map_err(io::Error::other));
        let text = text.map_err(|error| TokenKeyError::Read(file.to_owned(), error))?;
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            keys.push(Self::from_hex(line).ok_or_else(|| TokenKeyError::Line(file.to_owned(), index + 1))?);
        }
        match keys.len() {
            1..=MAX_KEYS => Ok(keys),
            count => Err(TokenKeyError::Count(file.to_owned(), count)),
        }
    }

    fn verifies(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return false };
        parts.iter().for_each(|part| mac.update(part));
        mac.verify_slice(signature).is_ok()
    }
}

/// A token that is good for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The cookie to answer with.
    pub(super) cookie: Option<HeaderValue>,
    /// The query without the token, if it was there.
    pub(super) query: Option<String>,
}

impl TokenRule {
    /// What is wrong with it.
    pub(super) fn validate(&self) -> Result<(), &'static str> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if self.name.is_empty() || !self.name.bytes().all(is_name) {
            return Err("token: its name has letters, digits, - and _ only");
        }
        match self.keys.0.load().len() {
            1..=MAX_KEYS => Ok(()),
            _ => Err("token: give 1 to 8 keys"),
        }
    }

    /// Looks for a token that is good for `path` (in its normal form), in the query first, then in cookies.
    pub(super) fn admit(
        &self,
        path: &[u8],
        query: Option<&str>,
        headers: &HeaderMap,
        remote: IpAddr,
    ) -> Option<Admitted> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs());
        let mut rest = Vec::new();
        let mut found = None;
        for parameter in query.unwrap_or_default().split('&') {
            match parameter.split_once('=') {
                Some((name, value)) if name == self.name && found.is_none() => found = Some(value),
                _ => rest.push(parameter),
            }
        }
        looked_at(query.map_or(0, str::len) + path.len());
        if let Some(value) = found {
            let token: Vec<u8> = percent_decode_str(value).take(MAX_TOKEN + 1).collect();
            let token = std::str::from_utf8(&token).ok()?;
            let expires = self.check(token, path, remote, now)?;
            let cookie = self.set_cookie.then(|| {
                let (name, age) = (&self.name, expires - now);
                HeaderValue::try_from(format!(
                    "{name}={token}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=None"
                ))
            });
            let query = rest.join("&");
            return Some(Admitted { cookie: cookie.and_then(Result::ok), query: Some(query) });
        }
        let token = cookies(headers).find_map(|(name, value)| (name == self.name).then_some(value))?;
        self.check(token, path, remote, now).map(|_| Admitted { cookie: None, query: None })
    }

    /// Whether a token that came by itself, as a bearer token (RFC 6750) does, is good for `path` now.
    pub fn permits(&self, token: &str, path: &str, remote: IpAddr) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs());
        self.check(token, path.as_bytes(), remote, now).is_some()
    }

    /// When a token ends that is good for `path` now, in seconds since 1970.
    fn check(&self, token: &str, path: &[u8], remote: IpAddr, now: u64) -> Option<u64> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        looked_at(token.len());
        let (signed, signature) = token.rsplit_once("~hmac=")?;
        let signature = (signature.len() == 64).then(|| HEX.decode(signature.as_bytes()).ok()).flatten()?;
        let field = |name: &str| {
            signed
                .split('~')
                .find_map(|field| field.split_once('=').filter(|(key, _)| *key == name))
                .map(|(_, value)| value)
        };
        let acl = field("acl");
        let parts: &[&[u8]] = match acl {
            Some(_) => &[signed.as_bytes()],
            None => &[signed.as_bytes(), b"~url=", path],
        };
        // Nothing that it says is believed, or costs more than this, before it is known to be signed.
        if !self.keys.0.load().iter().any(|key| key.verifies(parts, &signature)) {
            return None;
        }
        let number = |name| field(name).map(|text| text.parse::<u64>());
        let expires = number("exp")?.ok()?;
        let begins = number("st").map_or(Ok(0), |begins| begins).ok()?;
        let is_address = match field("ip") {
            Some(address) => address.parse() == Ok(remote.to_canonical()),
            None => true,
        };
        let is_path = acl.is_none_or(|acl| acl.split('!').any(|pattern| is_like(pattern.as_bytes(), path)));
        (is_address && is_path && (begins..expires).contains(&now)).then_some(expires)
    }
}

/// Names and values of cookies (RFC 6265, 4.2.1).
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| {
        looked_at(line.len());
        line.split(';').filter_map(|pair| pair.trim_ascii().split_once('='))
    })
}

/// Whether `pattern`, in which `*` stands for any octets and `?` for one, is like `text`. Signed by us, so that its cost is
/// the signer's: up to the product of both lengths.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // Where to go on if what follows the last `*` does not match: the `*` stands for one octet more.
    let mut again: Option<(usize, usize)> = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                again = Some((at, read));
                at += 1;
            }
            Some(octet) if *octet == b'?' || *octet == text[read] => {
                at += 1;
                read += 1;
            }
            _ => match again {
                Some((star, from)) => {
                    again = Some((star, from + 1));
                    (at, read) = (star + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at.min(pattern.len())..].iter().all(|octet| *octet == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `akamai-edgeauth` 0.3.2 of PyPI with the key [`KEY`], `end_time` 4102444800, `acl` "/vod/7/*" or `url`
    /// "/vod/8/a.mp4".
    const ACL: &str =
        "exp=4102444800~acl=/vod/7/*~hmac=0e58856b49b00eebae142995afd42fb73037d8a51101af9e19bdbb67bf2ac994";
    const URL: &str = "exp=4102444800~hmac=f6d657f16c2c18b09d2f8a485045de7dd86273d677ee3f9e6e427904995e8207";
    const LISTED: &str = "ip=192.0.2.1~st=1700000000~exp=4102444800~acl=/a/*!/b/?.m3u8~id=me~data=x=y~hmac=cdf3ff365ae4cacf5b2193b2114394a29e72e68aae60a3cf3c315d27de78ce4b";
    const PAST: &str =
        "exp=1700000000~acl=/*~hmac=a5da8b2162c7f4f711214131a4f9e90fa7cc1c5701d92e8630ed69ecf6252e07";
    const KEY: &str = "00112233445566778899aabbccddeeff";

    fn rule(keys: &[&str]) -> TokenRule {
        let keys = keys.iter().map(|key| TokenKey::from_hex(key).unwrap()).collect();
        TokenRule { name: "hdnts".to_owned(), keys: TokenKeys::new(keys), set_cookie: true }
    }

    fn admit(token: &str, path: &str, remote: &str) -> Option<Admitted> {
        let query = format!("a=1&hdnts={token}&b");
        rule(&[KEY]).admit(path.as_bytes(), Some(&query), &HeaderMap::new(), remote.parse().unwrap())
    }

    #[test]
    fn tokens_of_another_generator_are_good_for_what_they_say() {
        let here = "192.0.2.1";
        let admitted = admit(ACL, "/vod/7/a/b.m4s", here).unwrap();
        assert_eq!(admitted.query.as_deref(), Some("a=1&b"));
        let cookie = admitted.cookie.unwrap();
        assert!(
            cookie.to_str().unwrap().starts_with(&format!("hdnts={ACL}; Path=/; Max-Age=")),
            "{cookie:?}"
        );
        assert!(admit(ACL, "/vod/8/a.mp4", here).is_none());
        assert!(admit(URL, "/vod/8/a.mp4", here).is_some());
        assert!(admit(URL, "/vod/8/b.mp4", here).is_none());
        assert!(admit(LISTED, "/a/x", here).is_some() && admit(LISTED, "/b/1.m3u8", here).is_some());
        assert!(admit(LISTED, "/a/x", "::ffff:192.0.2.1").is_some());
        assert!(admit(LISTED, "/b/12.m3u8", here).is_none() && admit(LISTED, "/a/x", "192.0.2.2").is_none());
        assert!(admit(PAST, "/a", here).is_none());
        assert!(admit(&ACL.replace('/', "%2F"), "/vod/7/a", here).is_some(), "percent-encoded");
        let permits = |path| rule(&[KEY]).permits(ACL, path, here.parse().unwrap());
        assert!(permits("/vod/7/a") && !permits("/vod/8/a"), "without a request around it");
    }

    #[test]
    fn what_is_changed_is_not_signed() {
        let here = "192.0.2.1";
        for index in 0..ACL.len() {
            let mut changed = ACL.as_bytes().to_vec();
            changed[index] ^= 1;
            let Ok(changed) = String::from_utf8(changed) else { continue };
            assert!(admit(&changed.replace('%', "%25"), "/vod/7/a", here).is_none(), "{changed}");
        }
        let long = format!("{}~{ACL}", "x".repeat(MAX_TOKEN));
        for token in ["", "exp=1", "~hmac=", "exp=4102444800~acl=/*", &long] {
            assert!(admit(token, "/vod/7/a", here).is_none(), "{token}");
        }
    }

    #[test]
    fn any_of_the_keys_will_do_and_cookies_too() {
        let other = "ffeeddccbbaa99887766554433221100";
        let cookie =
            HeaderMap::from_iter([(COOKIE, HeaderValue::try_from(format!("x=y; hdnts={ACL}")).unwrap())]);
        let admits =
            |keys: &[&str]| rule(keys).admit(b"/vod/7/a", Some("q"), &cookie, "::1".parse().unwrap());
        assert_eq!(admits(&[other, KEY]), Some(Admitted { cookie: None, query: None }));
        assert_eq!(admits(&[other]), None);
    }

    #[test]
    fn keys_are_replaced_for_all_rules_that_have_them() {
        let other = "ffeeddccbbaa99887766554433221100";
        let of = |key: &str| TokenKey::from_hex(key).unwrap();
        let rule = rule(&[other]);
        let keys = rule.keys.clone();
        let permits = || rule.permits(ACL, "/vod/7/a", "::1".parse().unwrap());
        assert!(!permits());
        keys.replace(vec![of(other), of(KEY)]);
        assert!(permits());
        keys.replace(Vec::new());
        assert!(permits(), "no keys are no keys to take");
        keys.replace(vec![of(other)]);
        assert!(!permits());
        assert_eq!(format!("{keys:?}"), "TokenKeys(1)");
    }

    #[test]
    fn patterns_of_acls() {
        for (pattern, text, expected) in [
            ("/a/*", "/a/b/c", true),
            ("/a/*", "/a", false),
            ("/a/*.m4s", "/a/b.m4s/c.m4s", true),
            ("/a/?/c", "/a/b/c", true),
            ("/a/?/c", "/a/bb/c", false),
            ("*b*", "abc", true),
            ("a", "ab", false),
            ("", "", true),
        ] {
            assert_eq!(is_like(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn files_of_keys() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token.keys");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            TokenKey::load(&file).map(|keys| keys.len()).map_err(|error| error.to_string())
        };
        assert_eq!(load(&format!("# current\n{KEY}\n\n{KEY}\n")), Ok(2));
        assert!(load("xyz").unwrap_err().contains("token.keys:1: a key is"));
        assert!(load("").unwrap_err().contains("0 keys"));
        assert!(load(&format!("{KEY}\n").repeat(9)).unwrap_err().contains("9 keys"));
        std::fs::remove_file(&file).unwrap();
        assert!(TokenKey::load(&file).unwrap_err().to_string().contains("No such file"));
    }
}
