//! From a configuration to what QUIC and request handling are given.

use std::sync::Arc;

use expressway_gateway::config::{self, Config};
use expressway_gateway::quic::{CongestionControl, Identity, Instance, RetryPolicy, Settings};
use expressway_web::access_log::AccessLog;
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig, Symlinks};
use expressway_web::{SiteConfig, Sites};

use super::logs::{Logs, Previous};
use crate::fail::Failure;

/// What a reload replaces: settings, sites and access log.
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    pub(crate) sites: Arc<Sites>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
}

/// The store of open files and hot blocks, one a process; a reload keeps it.
pub(crate) fn file_store(config: &Config) -> Result<Arc<FileStore>, Failure> {
    let files = &config.files;
    let options = FileOptions {
        cache_bytes: files.cache.0,
        reader_threads: usize::from(*files.readers.get_ref()),
        open_files: files.open_files as usize,
        open_file_valid: files.revalidate.0,
        ..FileOptions::default()
    };
    options.validate().map_err(|problem| Failure::usage(format!("[files]: {problem}")))?;
    FileStore::new(options).map_err(|error| Failure::run_time(format!("reader threads: {error}")))
}

/// Certificate and private key.
fn identity(config: &Config) -> Result<Identity, Failure> {
    Identity::load(config.tls.certificate.get_ref(), config.tls.private_key.get_ref())
        .map_err(|error| Failure::usage(config.tls_error(error.to_string())))
}

/// What tells this process from others that serve with the same key. It holds its place, so there is one a process.
pub(crate) fn instance(config: &Config) -> Result<Instance, Failure> {
    let node = config.server.node.as_ref().map(|node| node.get_ref().as_str());
    Instance::of(&identity(config)?, node, &config.listen()).map_err(Failure::run_time)
}

/// Opens everything that a configuration names. `previous` lends its access log if that stays the same.
pub(crate) fn build(
    config: &Config,
    files: &Arc<FileStore>,
    logs: &mut Logs,
    previous: Option<&Previous>,
) -> Result<Parts, Failure> {
    let settings = settings(config, Arc::new(identity(config)?));
    settings.check().map_err(|error| Failure::usage(format!("[quic]: {error}")))?;
    let sites: Vec<SiteConfig> = config.sites.iter().map(site).collect();
    let sites = Sites::new(&sites, files).map_err(Failure::usage)?;
    let access_log = logs.open(&config.log, previous)?;
    Ok(Parts { settings, sites: Arc::new(sites), access_log })
}

fn settings(config: &Config, identity: Arc<Identity>) -> Settings {
    let quic = &config.quic;
    let defaults = Settings::new(identity);
    Settings {
        idle_timeout: quic.idle_timeout.get_ref().0,
        max_connections: *quic.max_connections.get_ref() as usize,
        max_requests: u64::from(*quic.max_requests.get_ref()),
        send_window: quic.send_window.get_ref().0 as usize,
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

fn site(site: &config::Site) -> SiteConfig {
    let root = site.root.as_ref().map(|root| root.get_ref().clone()).unwrap_or_default();
    SiteConfig {
        hosts: site.hosts.get_ref().clone(),
        files: FilesConfig {
            index: site.index.clone(),
            symlinks: if site.symlinks { Symlinks::Beneath } else { Symlinks::Deny },
            hidden: site.hidden,
            precompressed: if site.precompressed {
                vec![Encoding::Brotli, Encoding::Gzip]
            } else {
                Vec::new()
            },
            ..FilesConfig::new(root)
        },
    }
}
