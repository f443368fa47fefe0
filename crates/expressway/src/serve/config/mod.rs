//! The configuration file of `expressway serve`: TOML, strict, and checked before anything is opened.
//!
//! [`Config::load`] reads and checks; it opens nothing but the file. What the file names (certificates,
//! roots) is checked by [`Config::check_files`], so that `--check` and a reload see the same errors.

mod acme;
mod cache;
mod compress;
mod origin;
mod otlp;
mod rule;
mod sections;
mod site;
mod tcp;
mod tls;
mod value;
mod video;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;

pub(crate) use acme::Acme;
pub(crate) use cache::Cache;
use expressway_dataplane::IoSection;
use expressway_gateway::quic::FilterKey;
use expressway_gateway::quic::cid::Routable;
use expressway_keys::Document;
use expressway_origin::OriginOptions;
use expressway_settings::{ConfigError, SourceFile, admin};
pub(crate) use origin::{Control, Named, Origin};
pub(crate) use otlp::Otlp;
pub(crate) use sections::{Files, Log, Quic, Server};
pub(crate) use site::{Problem, Site};
pub(crate) use tcp::{Action, Http, Tcp};
pub(crate) use tls::{Certificate, Tls};
pub(crate) use value::{Congestion, LogFormat, Retry, Seccomp, Workers};

const KEYS_AFTER_RESTART: &str = "[keys] takes effect after a restart";

/// Memory required in addition to the block cache, in bytes: enough for a few hundred busy connections.
pub(crate) const LEAST_BESIDE_CACHE: u64 = 64 << 20;

/// Memory required per connection in addition to its send window, in bytes.
const LEAST_BESIDE_WINDOW: u64 = 64 << 10;

/// A whole configuration, defaults filled in. Relative paths are relative to the file's folder.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Config {
    /// `[server]`
    pub(crate) server: Server,
    /// `[io]`
    pub(crate) io: IoSection,
    /// `[tls]`
    pub(crate) tls: Tls,
    /// `[[certificate]]`, beside that of `[tls]`.
    #[serde(rename = "certificate", skip_serializing_if = "Vec::is_empty")]
    pub(crate) certificates: Vec<Certificate>,
    /// `[acme]`, absent when there is none.
    pub(crate) acme: Option<Acme>,
    /// `[keys]`, absent when the server shares none.
    pub(crate) keys: Option<expressway_keys::Section>,
    /// `[quic]`
    pub(crate) quic: Quic,
    /// `[tcp]`
    pub(crate) tcp: Tcp,
    /// `[[http]]`, listeners without TLS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) http: Vec<Http>,
    /// `[files]`
    pub(crate) files: Files,
    /// `[log]`
    pub(crate) log: Log,
    /// `[control]`
    pub(crate) control: Control,
    /// `[cache]`
    pub(crate) cache: Cache,
    /// `[[origin]]`
    #[serde(rename = "origin", skip_serializing_if = "Vec::is_empty")]
    pub(crate) origins: Vec<Spanned<Origin>>,
    /// `[[site]]`, at least one; the first is the default.
    #[serde(rename = "site")]
    pub(crate) sites: Vec<Site>,
    /// `[otlp]`, absent when nothing is pushed.
    pub(crate) otlp: Option<Otlp>,
    /// `[admin]`, absent when there is no admin listener.
    pub(crate) admin: Option<admin::Section>,
    #[serde(skip)]
    source: SourceFile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    server: Server,
    #[serde(default)]
    io: IoSection,
    #[serde(default)]
    tls: Tls,
    #[serde(default)]
    certificate: Vec<Certificate>,
    acme: Option<Acme>,
    keys: Option<expressway_keys::Section>,
    #[serde(default)]
    quic: Quic,
    #[serde(default)]
    tcp: Tcp,
    #[serde(default)]
    http: Vec<Http>,
    #[serde(default)]
    files: Files,
    #[serde(default)]
    log: Log,
    #[serde(default)]
    control: Control,
    #[serde(default)]
    cache: Cache,
    #[serde(default)]
    origin: Vec<Spanned<Origin>>,
    #[serde(default)]
    site: Vec<Site>,
    otlp: Option<Otlp>,
    admin: Option<admin::Section>,
}

/// A name in lower case without port, or `*.` in front of one.
fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    name.split('.').all(|label| !label.is_empty()) && name.bytes().all(allowed)
}

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, SourceFile::read(file)?.text)
    }

    /// Checks the text of a file; `file` is for messages and for relative paths.
    pub(crate) fn parse(file: &Path, text: String) -> Result<Self, ConfigError> {
        let source = SourceFile { file: file.to_owned(), text };
        let raw: Raw = source.parse()?;
        let mut config = Self {
            server: raw.server,
            io: raw.io,
            tls: raw.tls,
            certificates: raw.certificate,
            acme: raw.acme,
            keys: raw.keys,
            quic: raw.quic,
            tcp: raw.tcp,
            http: raw.http,
            files: raw.files,
            log: raw.log,
            control: raw.control,
            cache: raw.cache,
            origins: raw.origin,
            sites: raw.site,
            otlp: raw.otlp,
            admin: raw.admin,
            source,
        };
        config.check_values()?;
        config.resolve_paths(file.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    /// UDP addresses to listen on.
    pub(crate) fn listen(&self) -> Vec<SocketAddr> {
        self.server.listen.get_ref().iter().map(|address| *address.get_ref()).collect()
    }

    /// Checks that what the file names is there and readable: certificate, key and roots.
    pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
        self.check_tls_files()?;
        for path in self.origins.iter().flat_map(|origin| origin.get_ref().files()) {
            std::fs::File::open(path.get_ref())
                .map_err(|error| self.at(path.span(), format!("{}: {error}", path.get_ref().display())))?;
        }
        for root in self.sites.iter().filter_map(|site| site.root.as_ref()) {
            let path = root.get_ref();
            let found = std::fs::metadata(path)
                .map_err(|error| self.at(root.span(), format!("{}: {error}", path.display())))?;
            if !found.is_dir() {
                return Err(self.at(root.span(), format!("{} is not a directory", path.display())));
            }
        }
        if let Some(disk) = &self.cache.disk
            && !disk.get_ref().is_dir()
        {
            return Err(self.at(disk.span(), format!("{} is not a directory", disk.get_ref().display())));
        }
        if let Some(admin) = &self.admin {
            self.source.check_tokens(admin)?;
        }
        self.filter_keys()?;
        if !self.shares_routable() {
            self.routable(None).map_err(|(span, problem)| self.at(span, problem))?;
        }
        self.check_qlog(cfg!(feature = "qlog"))
    }

    /// The keys that filters in front of the server have too.
    pub(crate) fn filter_keys(&self) -> Result<Vec<FilterKey>, ConfigError> {
        let Some(path) = &self.server.guard_keys else { return Ok(Vec::new()) };
        let keys = expressway_settings::read_keys(path.get_ref())
            .map_err(|problem| self.at(path.span(), format!("{} {problem}", path.get_ref().display())))?;
        Ok(keys.into_iter().map(FilterKey).collect())
    }

    /// What connection IDs say to load balancers; reads the key, unless it is the one in `shared`.
    pub(crate) fn routable(&self, shared: Option<&Document>) -> Result<Option<Routable>, Problem> {
        let Some(spanned) = &self.quic.load_balancing else { return Ok(None) };
        let section = spanned.get_ref();
        match shared {
            _ if !section.shared_keys => Ok(section.routable(section.key()?)),
            Some(Document { current, .. }) => Ok(section.with(current.config, Some(current.connection_ids))),
            None => Err((spanned.span(), KEYS_AFTER_RESTART.to_owned())),
        }
    }

    /// Whether the key of connection IDs is one of `[keys]`.
    pub(crate) fn shares_routable(&self) -> bool {
        self.quic.load_balancing.as_ref().is_some_and(|section| section.get_ref().shared_keys)
    }

    /// Whether each kind of key comes from one place.
    fn check_keys(&self) -> Result<(), ConfigError> {
        let is_shared = self.keys.is_some();
        if let (Some(tickets), true) = (&self.tls.ticket_keys, is_shared) {
            return Err(self.at(tickets.span(), "give ticket_keys or [keys], not both"));
        }
        if let Some(section) = self.quic.load_balancing.as_ref().filter(|one| one.get_ref().shared_keys) {
            let (span, section) = (section.span(), section.get_ref());
            if !is_shared {
                return Err(self.at(span, expressway_keys::Section::MISSING));
            }
            if section.config != 0 || section.key_file.is_some() {
                let problem = "with shared_keys leave out config and key_file: the document contains both";
                return Err(self.at(span, problem));
            }
        }
        self.sites
            .iter()
            .try_for_each(|site| site.check_tokens(is_shared))
            .map_err(|(span, problem)| self.at(span, problem))
    }

    /// Checks the folder of qlog files; `writes_qlog` says whether this build writes any.
    fn check_qlog(&self, writes_qlog: bool) -> Result<(), ConfigError> {
        let Some(qlog) = &self.quic.qlog else { return Ok(()) };
        if !writes_qlog {
            let what =
                "this build does not support qlog; build with the feature `qlog`, as `make build` does";
            return Err(self.at(qlog.span(), what.to_owned()));
        }
        if !qlog.get_ref().is_dir() {
            return Err(self.at(qlog.span(), format!("{} is not a directory", qlog.get_ref().display())));
        }
        Ok(())
    }

    /// The file, as it was named.
    pub(crate) fn file(&self) -> &Path {
        &self.source.file
    }

    /// The file's text.
    pub(crate) fn text(&self) -> &str {
        &self.source.text
    }

    /// What is in force: the file with its defaults and absolute paths, itself a configuration.
    ///
    /// # Errors
    /// A path that is no text.
    pub(crate) fn effective(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| error.to_string())
    }

    /// Sections that differ from `running` and that only a restart applies.
    pub(crate) fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let mut sections = Vec::new();
        if self.server != running.server {
            sections.push("server");
        }
        if self.io != running.io {
            sections.push("io");
        }
        if self.files != running.files {
            sections.push("files");
        }
        if self.acme != running.acme {
            sections.push("acme");
        }
        if self.tcp.needs_restart(&running.tcp) {
            sections.push("tcp");
        }
        if self.http != running.http {
            sections.push("http");
        }
        if self.keys != running.keys {
            sections.push("keys");
        }
        if self.control != running.control {
            sections.push("control");
        }
        if self.cache != running.cache {
            sections.push("cache");
        }
        if self.otlp != running.otlp {
            sections.push("otlp");
        }
        if self.admin != running.admin {
            sections.push("admin");
        }
        sections
    }

    /// Takes over what a reload applies, and keeps the sections that need a restart.
    pub(crate) fn adopt(&mut self, new: Self) {
        self.tls = new.tls;
        self.certificates = new.certificates;
        self.quic = new.quic;
        // Its listeners stay as they are until a restart.
        let (workers, proxy_protocol) = (self.tcp.workers, self.tcp.proxy_protocol.take());
        self.tcp = Tcp { workers, proxy_protocol, ..new.tcp };
        self.log = new.log;
        self.origins = new.origins;
        self.sites = new.sites;
        self.source = new.source;
    }

    /// An error about the user or group, found later than parsing.
    pub(crate) fn user_error(&self, problem: impl Into<String>) -> ConfigError {
        self.at(self.server.user.as_ref().map_or(0..0, Spanned::span), problem)
    }

    pub(crate) fn at(&self, span: std::ops::Range<usize>, problem: impl Into<String>) -> ConfigError {
        self.source.at(span, problem)
    }

    fn check_values(&self) -> Result<(), ConfigError> {
        self.check_server()?;
        self.origins().map_err(|(span, problem)| self.at(span, problem))?;
        self.check_sites()?;
        self.check_tls()?;
        self.check_acme()?;
        self.check_keys()?;
        let idle = self.quic.idle_timeout.get_ref().0;
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&idle) {
            return Err(self.at(self.quic.idle_timeout.span(), "give a time between \"1s\" and \"24h\""));
        }
        let bounds = [
            (
                self.quic.max_connections.span(),
                u64::from(*self.quic.max_connections.get_ref()),
                1,
                16_000_000,
            ),
            (self.quic.max_requests.span(), u64::from(*self.quic.max_requests.get_ref()), 1, 10_000),
            (self.quic.send_window.span(), self.quic.send_window.get_ref().0, 64 << 10, 1 << 30),
            (self.quic.response_rate.span(), self.quic.response_rate.get_ref().0, 0, 1 << 30),
            (self.quic.request_rate.span(), self.quic.request_rate.get_ref().0, 0, 1 << 30),
            (self.quic.max_open_files.span(), u64::from(*self.quic.max_open_files.get_ref()), 1, 10_000),
            (self.files.readers.span(), u64::from(*self.files.readers.get_ref()), 1, 64),
            (self.control.threads.span(), u64::from(*self.control.threads.get_ref()), 1, 64),
        ];
        for (span, value, low, high) in bounds {
            if !(low..=high).contains(&value) {
                return Err(self.at(span, format!("{value} is not between {low} and {high}")));
            }
        }
        for timeout in [&self.quic.response_timeout, &self.quic.request_timeout, &self.quic.missing_timeout] {
            let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
            if !range.contains(&timeout.get_ref().0) {
                return Err(self.at(timeout.span(), "give a time between \"1s\" and \"24h\""));
            }
        }
        if let Some(wrong) =
            self.quic.load_balancing.as_ref().filter(|one| one.get_ref().routable(None).is_none())
        {
            let problem = "give a `config` of 0 to 6 and a `server_id` of 1 to 4 bytes in hexadecimal";
            return Err(self.at(wrong.span(), problem));
        }
        self.check_memory()?;
        if let Some(payload) = &self.quic.max_payload
            && !(1200..=16_383).contains(payload.get_ref())
        {
            return Err(self.at(
                payload.span(),
                "give 1200 to 16383: QUIC needs datagrams of 1200 bytes at least (RFC 9000, section 14)",
            ));
        }
        if let Some(admin) = &self.admin {
            admin.check().map_err(|(span, problem)| self.at(span, problem))?;
        }
        if let Some(otlp) = &self.otlp {
            otlp.check().map_err(|(span, problem)| self.at(span, problem))?;
        }
        self.tcp.check().map_err(|(span, problem)| self.at(span, problem))?;
        for http in &self.http {
            http.check().map_err(|(span, problem)| self.at(span, problem))?;
        }
        self.cache.check().map_err(|(span, problem)| self.at(span, problem))?;
        self.io.check().map_err(|(span, problem)| self.at(span, problem))?;
        Ok(())
    }

    fn check_memory(&self) -> Result<(), ConfigError> {
        let (window, cache) = (self.quic.send_window.get_ref().0, self.files.cache.0);
        if let Some(memory) = &self.quic.connection_memory
            && !(window + LEAST_BESIDE_WINDOW..=4 << 30).contains(&memory.get_ref().0)
        {
            let problem = "must be at least send_window and 64 KiB, and at most 4 GiB";
            return Err(self.at(memory.span(), problem));
        }
        if let Some(memory) = &self.server.memory
            && memory.get_ref().0 < cache + LEAST_BESIDE_CACHE
        {
            let problem = format!("must be at least [files] cache ({cache} bytes) and 64 MiB");
            return Err(self.at(memory.span(), problem));
        }
        Ok(())
    }

    fn check_server(&self) -> Result<(), ConfigError> {
        let listen = &self.server.listen;
        if listen.get_ref().is_empty() {
            return Err(self.at(listen.span(), "give at least one address, such as \"192.0.2.1:443\""));
        }
        for (index, address) in listen.get_ref().iter().enumerate() {
            if address.get_ref().port() == 0 {
                return Err(self.at(address.span(), "port 0 is not allowed; use a port such as 443"));
            }
            if listen.get_ref()[..index].iter().any(|other| other.get_ref() == address.get_ref()) {
                return Err(self.at(address.span(), format!("{} is listed twice", address.get_ref())));
            }
        }
        if let Some(node) = &self.server.node
            && !(1..=255).contains(&node.get_ref().len())
        {
            return Err(self.at(node.span(), "give a unique name of 1 to 255 bytes, or leave the key out"));
        }
        Ok(())
    }

    fn check_sites(&self) -> Result<(), ConfigError> {
        if self.sites.is_empty() {
            return Err(SourceFile::whole(
                &self.source.file,
                "no [[site]] section: add one with hosts and a root",
            ));
        }
        let mut seen = std::collections::HashSet::new();
        for site in &self.sites {
            if let (Some(origin), Some(_)) = (&site.origin, &site.root) {
                return Err(self.at(origin.span(), "a site has a root or an origin, not both"));
            }
            site.check_rules().and(site.error_pages()).map_err(|(span, problem)| self.at(span, problem))?;
            if let Some(cache) = &site.cache {
                let options = site.cache_options().map_err(|(span, problem)| self.at(span, problem))?;
                if options.is_some() && site.origin.is_none() {
                    return Err(self.at(cache.span(), "a site without an origin has nothing to cache"));
                }
            }
            site.compress_options().map_err(|(span, problem)| self.at(span, problem))?;
            if site.root.is_none() && site.origin.is_none() && !site.is_only_rules() {
                return Err(self.at(site.hosts.span(), "missing root or origin"));
            }
            for host in site.hosts.get_ref() {
                if !is_host(host) {
                    return Err(self.at(
                        site.hosts.span(),
                        format!(
                            "`{host}` is not a host name; use lower case, without scheme or port; `*.` may \
                             precede it; the first site serves all other hosts"
                        ),
                    ));
                }
                if !seen.insert(host) {
                    return Err(
                        self.at(site.hosts.span(), format!("`{host}` is already served by another site"))
                    );
                }
            }
        }
        Ok(())
    }

    /// All origins: the sections, and the URLs that sites name.
    pub(crate) fn origins(&self) -> Result<Vec<OriginOptions>, Problem> {
        let mut origins: Vec<OriginOptions> = Vec::new();
        for section in &self.origins {
            let options = section.get_ref().options(section.span())?;
            if origins.iter().any(|origin| origin.name == options.name) {
                return Err((section.get_ref().name.span(), format!("`{}` is defined twice", options.name)));
            }
            origins.push(options);
        }
        for named in self.sites.iter().filter_map(|site| site.origin.as_ref()) {
            let text = named.get_ref();
            let is_known = origins.iter().any(|origin| origin.name == *text);
            match Named::of(text) {
                _ if is_known => {}
                Named::Url(endpoint) => {
                    let endpoint = endpoint.map_err(|problem| (named.span(), problem))?;
                    origins.push(OriginOptions::new(text.clone(), endpoint));
                }
                Named::Section(name) => {
                    let problem = format!("no [[origin]] is named `{name}`; a server is http://HOST:PORT");
                    return Err((named.span(), problem));
                }
            }
        }
        Ok(origins)
    }

    fn resolve_paths(&mut self, base: &Path) {
        let join = |path: &mut Spanned<PathBuf>| *path.get_mut() = base.join(path.get_ref());
        self.quic.qlog.iter_mut().for_each(join);
        self.server.guard_keys.iter_mut().for_each(join);
        self.keys.iter_mut().for_each(|keys| keys.resolve(base));
        let balancing = self.quic.load_balancing.iter_mut();
        balancing.flat_map(|one| one.get_mut().key_file.iter_mut()).for_each(join);
        self.cache.disk.iter_mut().for_each(join);
        self.sites.iter_mut().for_each(|site| site.resolve_paths(base));
        self.resolve_tls_paths(base);
        self.resolve_acme_paths(base);
        self.origins.iter_mut().for_each(|origin| origin.get_mut().resolve_paths(base));
        self.io.resolve_paths(base);
        self.http.iter_mut().for_each(|http| http.resolve_path(base));
        self.admin.iter_mut().for_each(|admin| admin.resolve_paths(base));
        for path in [&mut self.tls.keylog, &mut self.log.access].into_iter().flatten() {
            if path.as_os_str() != "-" {
                *path = base.join(&*path);
            }
        }
    }
}

#[cfg(test)]
mod tests;
