//! From a configuration to what QUIC and request handling are given.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use expressway_cache::{Cache, SiteOptions};
use expressway_dataplane::Config as PathConfig;
use expressway_gateway::otlp;
use expressway_gateway::quic::cid::WORKER_OFFSET;
use expressway_gateway::quic::{CongestionControl, Instance, RetryPolicy, Settings};
use expressway_netio::udp::{Steering, UdpConfig};
use expressway_origin::{Control, HlsOrigin, Origin, Origins};
use expressway_tls::Tls;
use expressway_web::access_log::AccessLog;
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig, Symlinks};
use expressway_web::{Exchange, Handler, RequestBody, RequestHead, SiteConfig, SiteContent, Sites, Wake};
use http::Method;

use super::config::{self, Config, LEAST_BESIDE_CACHE};
use super::keys;
use super::logs::{Logs, Previous};
use super::tcp;
use super::tls::{self, Fixed};
use crate::fail::Failure;
use crate::limits;

/// What a reload replaces: settings, sites and access log; the same for TCP.
pub(crate) struct Reloadable {
    pub(crate) settings: Settings,
    pub(crate) handler: Arc<dyn Handler>,
    /// What sites pass requests on to, to be adopted when all else is.
    pub(crate) origins: Vec<Origin>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) tcp: Arc<expressway_tcp::Setup>,
}

/// File descriptors that the process itself has, and a worker's: sockets, rings, mailboxes, logs.
const DESCRIPTORS: usize = 128;
const WORKER_DESCRIPTORS: usize = 64;

/// Where the worker's number stands in a short-header packet: in the connection ID, behind the first byte of the packet;
/// long headers (0x80) are left to the kernel's hash.
const STEERING: Steering = Steering::ByteAt { offset: 1 + WORKER_OFFSET as u16, clear_mask: 0x80 };

/// The data path of a gateway.
pub(crate) fn data_path(config: &Config) -> PathConfig {
    let io = config.io.config();
    let udp = UdpConfig { steering: STEERING, ..io.udp(config.listen()) };
    PathConfig::with(io, udp)
}

/// The store of open files and hot blocks, one a process; a reload keeps it. `available` is the memory that there is.
pub(crate) fn file_store(config: &Config, workers: usize, available: u64) -> Result<Arc<FileStore>, Failure> {
    let files = &config.files;
    let most = limits::file_limit().saturating_sub(DESCRIPTORS + workers * WORKER_DESCRIPTORS).max(32);
    let options = FileOptions {
        cache_bytes: files.cache.0,
        memory_bytes: memory(config, available) - files.cache.0,
        reader_threads: usize::from(*files.readers.get_ref()),
        open_files: kept_files(files.open_files as usize, most),
        open_file_valid: files.revalidate.0,
        ..FileOptions::default()
    };
    options.validate().map_err(|problem| Failure::usage(format!("[files]: {problem}")))?;
    let store =
        FileStore::new(options).map_err(|error| Failure::run_time(format!("reader threads: {error}")))?;
    store.memory().limit_files(most);
    Ok(store)
}

/// Memory that clients may make the server hold, the block cache included, in bytes.
fn memory(config: &Config, available: u64) -> u64 {
    let least = config.files.cache.0 + LEAST_BESIDE_CACHE;
    let memory =
        config.server.memory.as_ref().map_or((available / 2).max(least), |memory| memory.get_ref().0);
    if memory > available {
        tracing::warn!(
            "[server] memory: {memory} bytes, but the machine or the cgroup has {available}: lower it, or [files] \
             cache"
        );
    }
    memory
}

/// Files that may stay open to be found again, where `most` may be open: half at most, for the others are for responses.
fn kept_files(configured: usize, most: usize) -> usize {
    let kept = configured.min(most / 2);
    if kept < configured {
        tracing::warn!(
            "[files] open_files: {kept} instead of {configured}: RLIMIT_NOFILE leaves {most} descriptors for files; raise \
             it (ulimit -Hn, LimitNOFILE of systemd)"
        );
    }
    kept
}

/// The runtime for what waits for other servers, and no origins yet.
pub(crate) fn origins(config: &Config) -> Result<Arc<Origins>, Failure> {
    let control = Control::start(*config.control.threads.get_ref() as usize)
        .map_err(|error| Failure::run_time(format!("control threads: {error}")))?;
    Ok(Arc::new(Origins::new(control)))
}

/// The cache of what origins answer, if a site has one or there is a place for it; one a process, a reload keeps it.
pub(crate) fn cache(
    config: &Config,
    files: &Arc<FileStore>,
    origins: &Origins,
) -> Result<Option<Cache>, Failure> {
    let is_wanted = config.cache.disk.is_some() || config.sites.iter().any(|site| site.cache.is_some());
    let open = || {
        Cache::open(config.cache.options(), files, origins.control().handle().clone())
            .map_err(|error| Failure::run_time(format!("[cache]: {error}")))
    };
    is_wanted.then(open).transpose()
}

/// How metrics are pushed, if they are.
pub(crate) fn otlp(config: &Config) -> Result<Option<otlp::Options>, Failure> {
    let Some(section) = &config.otlp else { return Ok(None) };
    let (collector, path) =
        section.target().map_err(|(span, problem)| Failure::usage(config.at(span, problem)))?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let node = config.server.node.as_ref().map_or(&host, |node| node.get_ref());
    let resource = vec![
        ("service.name", "expressway".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", node.clone()),
        ("host.name", host.clone()),
    ];
    let (interval, timeout) = (section.interval.get_ref().0, section.timeout());
    Ok(Some(otlp::Options { collector, path, interval, timeout, resource }))
}

/// What tells this process from others that serve with the same key. It holds its place, so there is one a process, that of the process
/// `before` if that was the same server.
pub(crate) fn instance(config: &Config, fixed: &Fixed, before: Option<OwnedFd>) -> Result<Instance, Failure> {
    let node = config.server.node.as_ref().map(|node| node.get_ref().as_str());
    Instance::after(before, &*fixed.identity(config)?, node, &config.listen()).map_err(Failure::run_time)
}

/// Opens everything that a configuration names. `previous` lends its access log if that stays the same.
pub(crate) fn build(
    config: &Config,
    fixed: &Fixed,
    files: &Arc<FileStore>,
    (origins, cache): (&Origins, Option<&Cache>),
    logs: &mut Logs,
    previous: Option<&Previous>,
) -> Result<Reloadable, Failure> {
    let tls = Arc::new(tls::build(config, fixed)?);
    let wrong = |(span, problem)| Failure::usage(config.at(span, problem));
    let shared = fixed.keys.as_ref().map(|keys| keys.document());
    let settings = Settings {
        routable: config.routable(shared.as_deref()).map_err(wrong)?,
        retry_keys: shared.as_deref().map(keys::retry).transpose()?,
        ..settings(config, Arc::clone(&tls))
    };
    settings.check().map_err(|error| Failure::usage(format!("[quic]: {error}")))?;
    let origins = origins.build(config.origins().map_err(wrong)?).map_err(Failure::usage)?;
    let sites: Result<Vec<SiteConfig>, _> =
        config.sites.iter().map(|one| site(one, fixed, &origins, cache)).collect();
    let sites = sites.map_err(wrong)?;
    if previous.is_some() && cache.is_none() && config.sites.iter().any(|site| site.cache.is_some()) {
        tracing::warn!("reload: this is the first site with a cache; caching starts after a restart");
    }
    let sites = Sites::new(&sites, files).map_err(Failure::usage)?;
    let sites = Arc::new(sites);
    let access_log = logs.open(&config.log, previous)?;
    let handler = fixed.behind_answers(sites);
    let tcp = tcp::setup(config, &tls, handler.clone(), access_log.clone())?;
    Ok(Reloadable { settings, handler, origins, access_log, tcp })
}

fn settings(config: &Config, tls: Arc<Tls>) -> Settings {
    let quic = &config.quic;
    let defaults = Settings::new(tls);
    Settings {
        idle_timeout: quic.idle_timeout.get_ref().0,
        max_connections: *quic.max_connections.get_ref() as usize,
        max_requests: u64::from(*quic.max_requests.get_ref()),
        send_window: quic.send_window.get_ref().0 as usize,
        connection_memory: quic.connection_memory.as_ref().map(|memory| memory.get_ref().0 as usize),
        max_open_files: *quic.max_open_files.get_ref() as usize,
        response_timeout: quic.response_timeout.get_ref().0,
        response_rate: quic.response_rate.get_ref().0,
        request_timeout: quic.request_timeout.get_ref().0,
        missing_timeout: quic.missing_timeout.get_ref().0,
        request_rate: quic.request_rate.get_ref().0,
        retry: match quic.retry {
            config::Retry::Never => RetryPolicy::Never,
            config::Retry::Always => RetryPolicy::Always,
            config::Retry::UnderLoad => RetryPolicy::UnderLoad { handshaking: quic.retry_threshold as usize },
        },
        congestion: match quic.congestion {
            config::Congestion::Cubic => CongestionControl::Cubic,
            config::Congestion::Bbr2 => CongestionControl::Bbr2,
            config::Congestion::Reno => CongestionControl::Reno,
        },
        pacing: quic.pacing,
        early_data: quic.early_data,
        max_udp_payload: quic
            .max_payload
            .as_ref()
            .map_or(defaults.max_udp_payload, |p| usize::from(*p.get_ref())),
        qlog: quic.qlog.as_ref().map(|path| path.get_ref().clone()),
        keylog: config.tls.keylog.clone(),
        ..defaults
    }
}

fn site(
    site: &config::Site,
    fixed: &Fixed,
    origins: &[Origin],
    cache: Option<&Cache>,
) -> Result<SiteConfig, config::Problem> {
    let named = |name: &str| origins.iter().find(|origin| origin.options().name == name);
    let content = match (&site.root, &site.origin) {
        (Some(root), _) => files(site, root.get_ref()).into(),
        (None, Some(origin)) => match named(origin.get_ref()) {
            Some(origin) => {
                let tells_subject = origin.options().client_subject.is_some();
                let origin: Arc<dyn Handler> = match site.video().hls_hold {
                    Some(hold) => Arc::new(HlsOrigin(origin.clone(), hold.0)),
                    None => Arc::new(origin.clone()),
                };
                let cached = cached(site, origin.clone(), cache)?;
                SiteContent::Other(if tells_subject { Arc::new(Personal { origin, cached }) } else { cached })
            }
            None => return Err((origin.span(), "no such origin".to_owned())),
        },
        (None, None) => SiteContent::Nothing,
    };
    let (rules, error_pages) =
        (site.rules(fixed.keys.as_ref().map(|keys| keys.tokens()))?, site.error_pages()?);
    let compress = site.compress_options()?;
    let media_urgency = site.video().urgency;
    Ok(SiteConfig {
        rules,
        error_pages,
        compress,
        media_urgency,
        ..SiteConfig::new(site.hosts.get_ref().clone(), content)
    })
}

/// An origin that is told whose certificate a request came with: what it answers is that client's, and not for a cache, which does
/// not see what the origin is told.
struct Personal {
    origin: Arc<dyn Handler>,
    cached: Arc<dyn Handler>,
}

impl Handler for Personal {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        // Others only pass the cache, and make it forget.
        let is_safe = matches!(request.method, Method::GET | Method::HEAD);
        let handler = if request.client_subject.is_some() && is_safe { &self.origin } else { &self.cached };
        handler.start(request, body, wake)
    }
}

/// The origin behind the cache, if the site has one.
fn cached(
    site: &config::Site,
    origin: Arc<dyn Handler>,
    cache: Option<&Cache>,
) -> Result<Arc<dyn Handler>, config::Problem> {
    let Some(options) = site.cache_options()? else { return Ok(origin) };
    Ok(match cache {
        Some(cache) => Arc::new(cache.site(options, origin)),
        None => origin,
    })
}

/// The hosts of each site, and how its responses are kept.
pub(crate) fn kept(config: &Config) -> Vec<(Vec<String>, Option<SiteOptions>)> {
    let options = |site: &config::Site| site.cache_options().ok()?;
    config.sites.iter().map(|site| (site.hosts.get_ref().clone(), options(site))).collect()
}

fn files(site: &config::Site, root: &Path) -> FilesConfig {
    FilesConfig {
        index: site.index.clone(),
        symlinks: if site.symlinks { Symlinks::Beneath } else { Symlinks::Deny },
        hidden: site.hidden,
        precompressed: if site.precompressed { vec![Encoding::Brotli, Encoding::Gzip] } else { Vec::new() },
        hls: site.video().hls(),
        ..FilesConfig::new(root)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        let text = format!(
            "[server]\nlisten = [\"192.0.2.1:443\"]\n{text}\n[tls]\ncertificate = \"c\"\nprivate_key = \"k\"\n\
             [[site]]\nhosts = [\"a.example\"]\nroot = \"r\"\n[files]\ncache = \"256MiB\"\n"
        );
        Config::parse(Path::new("edge.toml"), text).unwrap()
    }

    #[test]
    fn memory_is_what_is_said_or_half_of_what_there_is() {
        assert_eq!(memory(&config(""), 8 << 30), 4 << 30);
        assert_eq!(memory(&config("memory = \"1GiB\""), 8 << 30), 1 << 30);
        assert_eq!(memory(&config(""), 512 << 20), (256 + 64) << 20, "the cache and some more in any case");
    }

    #[test]
    fn the_open_file_cache_leaves_half_of_the_descriptors() {
        assert_eq!(kept_files(4096, 1_000_000), 4096);
        assert_eq!(kept_files(4096, 1024), 512);
    }
}
