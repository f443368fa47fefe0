//! `[[site.rule]]`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use expressway_settings::{Size, Span};
use expressway_web::{
    Cors as CorsRule, LimitRate, PathPattern, PathRule, RateLimit, Template, TokenKey, TokenKeys, TokenRule,
};
use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::Problem;

/// The lowest `limit_rate`, in bytes a second: what is slower keeps responses for too long.
const LEAST_RATE: u64 = 1 << 10;

/// `[[site.rule]]`: what holds for some paths of a site.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The paths: one, or those that begin or end in something, with a `*`; absent: all.
    path: Option<Spanned<String>>,
    /// Networks whose clients may ask; all others may not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<IpNet>,
    /// Networks whose clients may not ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<IpNet>,
    /// Requests a second of one client.
    rate: Option<Spanned<Rate>>,
    /// Only requests with a token that one of these keys signed.
    pub(super) token: Option<Spanned<Token>>,
    /// Answer with this status.
    pub(super) respond: Option<Spanned<u16>>,
    /// Redirect to this URL or path.
    pub(super) redirect: Option<Spanned<String>>,
    /// Status of the redirect.
    status: Option<Spanned<u16>>,
    /// Serve this path instead.
    rewrite: Option<Spanned<String>>,
    /// Header fields of responses: a value, or false to take it out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<Spanned<String>, HeaderSetting>,
    /// Which pages of other origins may read responses: true for any.
    cors: Option<Spanned<CorsSetting>>,
    /// Bytes a second of each response; 0: as fast as it goes.
    limit_rate: Option<Spanned<Size>>,
    /// Bytes of it that go first, as fast as they go.
    limit_rate_after: Option<Spanned<Size>>,
    /// A player that names the throughput that it can use (CMCD `rtp`) gets no more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cmcd_rtp: bool,
}

/// Requests a second of one client, such as `"10/s"`, and how many may come at once.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "a rate such as \"10/s\" or \"30/m\", or { rate = \"10/s\", burst = 50 }")]
pub(crate) enum Rate {
    Plain(String),
    Table(RateTable),
}

/// A rate, and how many requests may come at once.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateTable {
    rate: String,
    burst: u32,
}

impl Rate {
    fn limit(&self) -> Option<RateLimit> {
        let (text, burst) = match self {
            Self::Plain(text) => (text, None),
            Self::Table(table) => (&table.rate, Some(table.burst)),
        };
        let (number, unit) = text.split_once('/')?;
        let number = number.trim().parse::<u32>().ok().filter(|number| (1..=1_000_000).contains(number))?;
        let seconds = match unit.trim() {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        // By default what comes in one second, or one.
        let rate = f64::from(number) / seconds;
        let burst = burst.unwrap_or(rate.ceil() as u32);
        (1..=1_000_000).contains(&burst).then(|| RateLimit::new(rate, burst))
    }
}

/// Signed URLs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    /// File with the keys, hexadecimal, one a line.
    pub(super) keys: Option<Spanned<PathBuf>>,
    /// The keys are those of `[keys]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared_keys: bool,
    /// Name of the query parameter and of the cookie.
    #[serde(default = "hdnts")]
    name: String,
    /// Answer a token in a query with a cookie.
    #[serde(default)]
    cookie: bool,
}

/// A header field's value, or `false`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "a header value, or false to remove the field")]
pub(crate) enum HeaderSetting {
    Set(String),
    Keep(bool),
}

/// `cors`: true, or what is allowed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "true, or a table with origins, methods, headers, expose, max_age, credentials"
)]
pub(crate) enum CorsSetting {
    Any(bool),
    Table(Cors),
}

/// Who may read responses from other origins.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cors {
    /// Origins such as `https://player.example`; absent: any.
    origins: Vec<String>,
    /// Methods of preflighted requests.
    methods: Option<Vec<String>>,
    /// Request header fields.
    headers: Option<Vec<String>>,
    /// Response header fields that scripts may read.
    expose: Option<Vec<String>>,
    /// How long a preflight's answer holds.
    max_age: Option<Span>,
    /// Requests may carry cookies.
    credentials: bool,
}

impl Token {
    pub(super) fn rule(spanned: &Spanned<Self>, shared: Option<&TokenKeys>) -> Result<TokenRule, Problem> {
        let token = spanned.get_ref();
        let keys = match (&token.keys, shared) {
            (Some(file), _) => TokenKeys::new(
                TokenKey::load(file.get_ref()).map_err(|error| (file.span(), error.to_string()))?,
            ),
            (None, Some(shared)) => shared.clone(),
            (None, None) => return Err((spanned.span(), super::KEYS_AFTER_RESTART.to_owned())),
        };
        Ok(TokenRule { name: token.name.clone(), keys, set_cookie: token.cookie })
    }

    /// Whether its keys come from one place; `has_section` says whether there is `[keys]`.
    pub(super) fn check(&self, has_section: bool) -> Result<(), &'static str> {
        match (&self.keys, self.shared_keys) {
            (Some(_), true) => Err("give keys or shared_keys, not both"),
            (None, false) => Err("give keys, or shared_keys = true"),
            (None, true) if !has_section => Err(expressway_keys::Section::MISSING),
            _ => Ok(()),
        }
    }
}

impl Rule {
    pub(super) fn rule(&self) -> Result<PathRule, Problem> {
        let pattern = match &self.path {
            None => PathPattern::all(),
            Some(path) => {
                PathPattern::parse(path.get_ref()).map_err(|error| (path.span(), error.to_string()))?
            }
        };
        let mut rule = PathRule::new(pattern);
        rule.allow.clone_from(&self.allow);
        rule.deny.clone_from(&self.deny);
        if let Some(rate) = &self.rate {
            let problem = || (rate.span(), "give a rate such as \"10/s\", \"30/m\" or \"5/h\"".to_owned());
            rule.rate = Some(Arc::new(rate.get_ref().limit().ok_or_else(problem)?));
        }
        rule.respond = self.respond.as_ref().map(|code| status(code, 200..=599)).transpose()?;
        if let Some(to) = &self.redirect {
            let code = match &self.status {
                Some(code) => status(code, 301..=308)?,
                None => StatusCode::PERMANENT_REDIRECT,
            };
            rule.redirect = Some((template(to, false)?, code));
        } else if let Some(code) = &self.status {
            return Err((code.span(), "status is a redirect; add redirect, or use respond".to_owned()));
        }
        rule.rewrite = self.rewrite.as_ref().map(|to| template(to, true)).transpose()?;
        for (name, setting) in &self.headers {
            let problem = |what: &str| (name.span(), format!("`{}` {what}", name.get_ref()));
            let field = HeaderName::try_from(name.get_ref()).map_err(|_| problem("is not a header field"))?;
            match setting {
                HeaderSetting::Keep(false) => rule.remove.push(field),
                HeaderSetting::Keep(true) => return Err(problem("needs a value, or false to be removed")),
                HeaderSetting::Set(value) => {
                    let value = HeaderValue::try_from(value).map_err(|_| problem("has an invalid value"))?;
                    rule.set.push((field, value));
                }
            }
        }
        rule.cors = match &self.cors {
            None => None,
            Some(setting) => match setting.get_ref() {
                CorsSetting::Any(true) => Some(CorsRule::default()),
                CorsSetting::Any(false) => None,
                CorsSetting::Table(table) => Some(
                    table.rule().ok_or_else(|| (setting.span(), "cors has an invalid value".to_owned()))?,
                ),
            },
        };
        rule.limit = self.limit()?;
        Ok(rule)
    }

    /// How fast responses go.
    fn limit(&self) -> Result<Option<LimitRate>, Problem> {
        let after = self.limit_rate_after.as_ref();
        if self.limit_rate.is_none() && !self.cmcd_rtp {
            let problem = |after: &Spanned<Size>| (after.span(), "needs limit_rate or cmcd_rtp".to_owned());
            return after.map_or(Ok(None), |after| Err(problem(after)));
        }
        let rate = self.limit_rate.as_ref().map_or(0, |rate| rate.get_ref().0);
        if let Some(limit) = self.limit_rate.as_ref().filter(|_| (1..LEAST_RATE).contains(&rate)) {
            return Err((limit.span(), "give 0 (no limit) or at least \"1KiB\" a second".to_owned()));
        }
        let after = after.map_or(0, |after| after.get_ref().0);
        Ok(Some(LimitRate { rate, after, cmcd_rtp: self.cmcd_rtp }))
    }
}

impl Cors {
    pub(super) fn rule(&self) -> Option<CorsRule> {
        let list = |names: &Option<Vec<String>>, default: HeaderValue| match names {
            Some(names) => HeaderValue::try_from(names.join(", ")).ok(),
            None => Some(default),
        };
        let default = CorsRule::default();
        let max_age = self.max_age.map_or(default.max_age, |age| age.0.as_secs().min(u32::MAX.into()) as u32);
        Some(CorsRule {
            origins: self.origins.iter().map(HeaderValue::try_from).collect::<Result<_, _>>().ok()?,
            methods: list(&self.methods, default.methods)?,
            headers: list(&self.headers, default.headers)?,
            expose: list(&self.expose, default.expose)?,
            max_age,
            credentials: self.credentials,
        })
    }
}

fn status(code: &Spanned<u16>, range: RangeInclusive<u16>) -> Result<StatusCode, Problem> {
    let problem = || (code.span(), format!("give a status from {} to {}", range.start(), range.end()));
    if !range.contains(code.get_ref()) {
        return Err(problem());
    }
    StatusCode::from_u16(*code.get_ref()).map_err(|_| problem())
}

fn template(to: &Spanned<String>, local: bool) -> Result<Template, Problem> {
    Template::parse(to.get_ref(), local).map_err(|error| (to.span(), error.to_string()))
}

fn hdnts() -> String {
    "hdnts".into()
}
