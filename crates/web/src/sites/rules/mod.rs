//! Rules by path: who has access, where paths have moved, which header fields responses get.
//!
//! All rules of a site that match a request apply, in their order, up to the first that answers it (refusal, redirect,
//! status). Later rules see a rewritten path. Paths are matched in their normal form, so no other spelling of a path
//! evades a rule.

mod cors;
mod limit;
mod pattern;
mod rate;
mod token;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, DATE, HeaderName, LOCATION, RETRY_AFTER, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use ipnet::IpNet;

pub use self::cors::Cors;
pub use self::limit::LimitRate;
pub use self::pattern::{PathPattern, PatternError, Template};
pub use self::rate::RateLimit;
pub use self::token::{TokenKey, TokenKeyError, TokenKeys, TokenRule};
use crate::target::{Target, encode_path};
use crate::{Exchange, RequestHead};

/// Fields that frame a message or say what a part is of; no rule sets or removes them.
const FRAMING: [HeaderName; 8] =
    [CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, DATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Rules that a site may have.
pub(super) const MAX_RULES: usize = 1000;

/// Octets of a rewritten target.
const MAX_REWRITTEN: usize = 16 << 10;

/// What holds for some paths of a site.
#[derive(Clone, Debug)]
pub struct PathRule {
    /// The paths.
    pub path: PathPattern,
    /// Addresses that may ask; if there are any, all others are refused (403).
    pub allow: Vec<IpNet>,
    /// Addresses that may not, unless `allow` has them.
    pub deny: Vec<IpNet>,
    /// Requests of one client; more are refused (429).
    pub rate: Option<Arc<RateLimit>>,
    /// Only requests with a token that one of its keys signed are admitted; others are refused (403).
    pub token: Option<TokenRule>,
    /// Answers with this status.
    pub respond: Option<StatusCode>,
    /// Answers with a redirect to there.
    pub redirect: Option<(Template, StatusCode)>,
    /// Goes on with another path.
    pub rewrite: Option<Template>,
    /// Header fields that responses get, in place of what they have.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Header fields that are taken out of responses.
    pub remove: Vec<HeaderName>,
    /// Pages of other origins may read responses.
    pub cors: Option<Cors>,
    /// How fast responses go; the last rule that says so counts.
    pub limit: Option<LimitRate>,
}

impl PathRule {
    /// A rule for `path` that does nothing yet.
    pub fn new(path: PathPattern) -> Self {
        Self {
            path,
            allow: Vec::new(),
            deny: Vec::new(),
            rate: None,
            token: None,
            respond: None,
            redirect: None,
            rewrite: None,
            set: Vec::new(),
            remove: Vec::new(),
            cors: None,
            limit: None,
        }
    }

    /// What is wrong with it.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let names = self.set.iter().map(|(name, _)| name).chain(&self.remove);
        for name in names {
            if FRAMING.contains(name) {
                return Err(format!("path {}: the header field {name} is the server's own", self.path));
            }
        }
        if let Some((_, status)) = &self.redirect
            && !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
        {
            return Err(format!(
                "path {}: {} is not a redirect; use 301, 302, 303, 307 or 308",
                self.path,
                status.as_u16()
            ));
        }
        if let Some(status) = &self.respond
            && status.is_informational()
        {
            return Err(format!("path {}: {} is not a final status", self.path, status.as_u16()));
        }
        if let Some(token) = &self.token {
            token.validate().map_err(|problem| format!("path {}: {problem}", self.path))?;
        }
        if let Some(cors) = &self.cors {
            cors.validate().map_err(|problem| format!("path {}: {problem}", self.path))?;
        }
        Ok(())
    }

    fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let has = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        has(&self.allow) || self.allow.is_empty() && !has(&self.deny)
    }

    fn changes_headers(&self) -> bool {
        !self.set.is_empty() || !self.remove.is_empty() || self.cors.is_some()
    }
}

/// Changes to the header fields of a response.
#[derive(Debug, Default)]
pub(crate) struct HeaderChanges {
    remove: Vec<HeaderName>,
    set: HeaderMap,
    cors: HeaderMap,
    add: HeaderMap,
}

impl HeaderChanges {
    /// Makes them.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in self.cors.iter().chain(&self.add) {
            headers.append(name, value.clone());
        }
    }

    fn follow(&mut self, rule: &PathRule, request: &RequestHead) {
        for name in &rule.remove {
            self.set.remove(name);
            self.remove.push(name.clone());
        }
        for (name, value) in &rule.set {
            self.set.insert(name, value.clone());
        }
        if let Some(cors) = &rule.cors {
            // The last rule that says who may read responses is the one that counts.
            self.cors = cors.fields(&request.headers);
        }
    }
}

/// What the rules make of a request.
pub(crate) struct Verdict {
    /// Its answer, if they have one.
    pub(crate) answer: Option<Exchange>,
    /// The target that takes the place of the request's.
    pub(crate) target: Option<String>,
    /// What its response is to be changed by.
    pub(crate) changes: Option<Box<HeaderChanges>>,
    /// How fast it goes.
    pub(crate) limit: Option<LimitRate>,
}

impl Verdict {
    /// Octets a second, and those that go first.
    pub(crate) fn pace(&self, request: &RequestHead) -> Option<(u64, u64)> {
        let limit = self.limit?;
        Some((limit.rate(request)?, limit.after))
    }
}

/// Goes through `rules` for a request. `None`: its target is malformed.
pub(crate) fn judge(rules: &[PathRule], request: &RequestHead) -> Option<Verdict> {
    let mut verdict = Verdict { answer: None, target: None, changes: None, limit: None };
    let Target { path, query } = Target::parse(&request.target).ok()?;
    let (mut path, mut query) = (path.into_owned(), query.map(Cow::Borrowed));
    for rule in rules {
        let Some(matched) = rule.path.matches(&path) else { continue };
        if rule.changes_headers() {
            verdict.changes.get_or_insert_default().follow(rule, request);
        }
        verdict.limit = rule.limit.or(verdict.limit);
        let status = |status| Exchange::error(&request.method, status, HeaderMap::new());
        if !rule.admits(request.remote.ip()) {
            verdict.answer = Some(status(StatusCode::FORBIDDEN));
            break;
        }
        if let Some(rate) = &rule.rate
            && let Err(after) = rate.take(request.remote.ip())
        {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from(after))]);
            verdict.answer = Some(Exchange::error(&request.method, StatusCode::TOO_MANY_REQUESTS, headers));
            break;
        }
        if let Some(fields) = rule.cors.as_ref().and_then(|cors| cors.preflight(request)) {
            verdict.answer = Some(Exchange::bodyless(StatusCode::NO_CONTENT, fields));
            break;
        }
        if let Some(token) = &rule.token {
            let Some(admitted) = token.admit(&path, query.as_deref(), &request.headers, request.remote.ip())
            else {
                verdict.answer = Some(status(StatusCode::FORBIDDEN));
                break;
            };
            if let Some(cookie) = admitted.cookie {
                verdict.changes.get_or_insert_default().add.append(SET_COOKIE, cookie);
            }
            if let Some(rest) = admitted.query {
                query = Some(rest.into()).filter(|rest: &Cow<'_, str>| !rest.is_empty());
                // What answers, and what caches, does not see the token.
                verdict.target = Some(with_query(encode_path(&path), query.as_deref()));
            }
        }
        if let Some((template, code)) = &rule.redirect {
            let location = HeaderValue::try_from(template.fill(matched, query.as_deref()));
            let headers = location.into_iter().map(|location| (LOCATION, location)).collect();
            verdict.answer = Some(Exchange::error(&request.method, *code, headers));
            break;
        }
        if let Some(code) = rule.respond {
            verdict.answer = Some(status(code));
            break;
        }
        if let Some(template) = &rule.rewrite {
            let target = template.fill(matched, query.as_deref());
            if target.len() > MAX_REWRITTEN {
                verdict.answer = Some(status(StatusCode::URI_TOO_LONG));
                break;
            }
            let rewritten = Target::parse(&target).ok()?;
            path = rewritten.path.into_owned();
            query = rewritten.query.map(|query| query.to_owned().into());
            verdict.target = Some(target);
        }
    }
    Some(verdict)
}

fn with_query(mut path: String, query: Option<&str>) -> String {
    if let Some(query) = query {
        path.push('?');
        path.push_str(query);
    }
    path
}

#[cfg(test)]
mod tests;
