//! `[[site]]` and `[[site.rule]]`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use expressway_settings::Span;
use expressway_web::{Cors as CorsRule, PathPattern, PathRule, Template, TokenKey, TokenRule};
use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::sections::yes;

/// Where in the file something is wrong, and what.
pub(crate) type Problem = (Range<usize>, String);

/// `[[site]]`: what some hosts serve.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Site {
    /// Host names without ports, lower case; `*.example` matches any name below `example`.
    pub(crate) hosts: Spanned<Vec<String>>,
    /// Folder that files come from.
    pub(crate) root: Option<Spanned<PathBuf>>,
    /// An origin server to proxy and cache.
    pub(crate) origin: Option<Spanned<String>>,
    /// Files that answer for a folder, in order.
    #[serde(default = "index_html")]
    pub(crate) index: Vec<String>,
    /// Follow symbolic links as long as they stay under the root.
    #[serde(default)]
    pub(crate) symlinks: bool,
    /// Serve names that begin with a dot; without it only those under `/.well-known/` are.
    #[serde(default)]
    pub(crate) hidden: bool,
    /// Answer with `.br` and `.gz` siblings where the client takes them.
    #[serde(default = "yes")]
    pub(crate) precompressed: bool,
    /// Paths whose content is sent with an error, by status.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) error_pages: BTreeMap<Spanned<String>, String>,
    /// What holds for some of its paths, in order.
    #[serde(default)]
    pub(crate) rule: Vec<Rule>,
}

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
    /// Only requests with a token that one of these keys signed.
    token: Option<Token>,
    /// Answer with this status.
    respond: Option<Spanned<u16>>,
    /// Redirect to this URL or path.
    redirect: Option<Spanned<String>>,
    /// Status of the redirect.
    status: Option<Spanned<u16>>,
    /// Serve this path instead.
    rewrite: Option<Spanned<String>>,
    /// Header fields of responses: a value, or false to take it out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<Spanned<String>, HeaderSetting>,
    /// Which pages of other origins may read responses: true for any.
    cors: Option<Spanned<CorsSetting>>,
}

/// Signed URLs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    /// File with the keys, hexadecimal, one a line.
    pub(crate) keys: Spanned<PathBuf>,
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

impl Site {
    /// It answers without files: all that it has are rules.
    pub(crate) fn is_only_rules(&self) -> bool {
        let answers = |rule: &Rule| rule.respond.is_some() || rule.redirect.is_some();
        self.root.is_none() && self.rule.iter().any(answers)
    }

    /// Its rules, as far as they can be read without other files.
    pub(crate) fn check_rules(&self) -> Result<(), Problem> {
        self.rule.iter().try_for_each(|rule| rule.rule().map(|_| ()))
    }

    /// Its rules.
    pub(crate) fn rules(&self) -> Result<Vec<PathRule>, Problem> {
        let rule = |rule: &Rule| {
            Ok(PathRule { token: rule.token.as_ref().map(Token::rule).transpose()?, ..rule.rule()? })
        };
        self.rule.iter().map(rule).collect()
    }

    /// Files with keys of tokens.
    pub(crate) fn token_keys(&self) -> impl Iterator<Item = &Spanned<PathBuf>> {
        self.rule.iter().filter_map(|rule| Some(&rule.token.as_ref()?.keys))
    }

    /// Makes relative paths relative to `base`.
    pub(crate) fn resolve_paths(&mut self, base: &std::path::Path) {
        let keys = self.rule.iter_mut().filter_map(|rule| Some(&mut rule.token.as_mut()?.keys));
        for path in self.root.iter_mut().chain(keys) {
            *path.get_mut() = base.join(path.get_ref());
        }
    }

    /// Its error pages.
    pub(crate) fn error_pages(&self) -> Result<Vec<(StatusCode, String)>, Problem> {
        let page = |(status, page): (&Spanned<String>, &String)| {
            let code = status.get_ref().parse::<u16>().ok().filter(|code| (400..600).contains(code));
            let code = code.and_then(|code| StatusCode::from_u16(code).ok());
            let code = code.ok_or_else(|| (status.span(), "give a status from 400 to 599".to_owned()))?;
            match page.starts_with('/') {
                true => Ok((code, page.clone())),
                false => Err((status.span(), format!("`{page}` is not a path; begin it with /"))),
            }
        };
        self.error_pages.iter().map(page).collect()
    }
}

impl Token {
    fn rule(&self) -> Result<TokenRule, Problem> {
        let keys =
            TokenKey::load(self.keys.get_ref()).map_err(|error| (self.keys.span(), error.to_string()))?;
        Ok(TokenRule { name: self.name.clone(), keys, set_cookie: self.cookie })
    }
}

impl Rule {
    fn rule(&self) -> Result<PathRule, Problem> {
        let pattern = match &self.path {
            None => PathPattern::all(),
            Some(path) => {
                PathPattern::parse(path.get_ref()).map_err(|error| (path.span(), error.to_string()))?
            }
        };
        let mut rule = PathRule::new(pattern);
        rule.allow.clone_from(&self.allow);
        rule.deny.clone_from(&self.deny);
        rule.respond = self.respond.as_ref().map(|code| status(code, 200..=599)).transpose()?;
        if let Some(to) = &self.redirect {
            let code = match &self.status {
                Some(code) => status(code, 301..=308)?,
                None => StatusCode::PERMANENT_REDIRECT,
            };
            rule.redirect = Some((template(to, false)?, code));
        } else if let Some(code) = &self.status {
            return Err((
                code.span(),
                "status is that of a redirect; add redirect, or use respond".to_owned(),
            ));
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
        Ok(rule)
    }
}

impl Cors {
    fn rule(&self) -> Option<CorsRule> {
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

fn status(code: &Spanned<u16>, range: std::ops::RangeInclusive<u16>) -> Result<StatusCode, Problem> {
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

fn index_html() -> Vec<String> {
    vec!["index.html".into()]
}
