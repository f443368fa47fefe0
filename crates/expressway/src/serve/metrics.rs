//! Every layer's counters on the metrics page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use arc_swap::{ArcSwap, ArcSwapOption};
use expressway_cache::Cache;
use expressway_dataplane::DataPath;
use expressway_gateway::quic::Shared;
use expressway_metrics::{Histogram, Registry, Sample, TIME_BOUNDS};
use expressway_origin::{Origins, ServerReport};
use expressway_tls::Tls;
use expressway_web::access_log::AccessLog;
use expressway_web::files::FileStore;

use super::confine::Confinement;
use crate::metrics::data_path;

/// Registers what belongs to the process as a whole.
pub(crate) fn register(
    registry: &Registry,
    shared: &Arc<Shared>,
    files: &Arc<FileStore>,
    path: &Arc<Mutex<DataPath>>,
    log: &Arc<ArcSwapOption<AccessLog>>,
    workers: usize,
) {
    let (shared, files, path, log) = (shared.clone(), files.clone(), path.clone(), log.clone());
    registry.register(move |out: &mut Vec<Sample>| {
        out.push(
            Sample::gauge("info", "Always 1; its labels describe the process.", 1)
                .label("version", env!("CARGO_PKG_VERSION"))
                .label("workers", workers.to_string()),
        );
        data_path(&path, out);
        for worker in 0..workers {
            crate::metrics::quic(&shared, worker, out);
        }
        out.extend(files.metrics().into_iter().map(Sample::from));
        if let Some(log) = &*log.load() {
            out.extend(log.metrics().into_iter().map(Sample::from));
        }
    });
}

/// Registers what the cache counts.
pub(crate) fn register_cache(registry: &Registry, cache: Option<&Cache>) {
    if let Some(cache) = cache.cloned() {
        registry.register(move |out: &mut Vec<Sample>| {
            out.extend(cache.metrics().into_iter().map(Sample::from));
            out.extend(cache.times().map(|(name, help, times)| {
                let (buckets, sum) = (times.buckets(), times.sum());
                Sample::histogram(name, help, Histogram { bounds: &TIME_BOUNDS, buckets, sum })
            }));
        });
    }
}

/// Registers what origins count, for each of their servers.
pub(crate) fn register_origins(registry: &Registry, origins: &Arc<Origins>) {
    let origins = origins.clone();
    registry.register(move |out: &mut Vec<Sample>| {
        for origin in origins.report() {
            let help = "Requests answered with 503 because max_requests were in progress at the origin.";
            out.push(Sample::counter("origin_refused", help, origin.refused).label("origin", &origin.name));
            for server in origin.servers {
                let samples = server_samples(&server);
                let labelled =
                    |sample: Sample| sample.label("origin", &origin.name).label("server", &server.name);
                out.extend(samples.into_iter().map(labelled));
            }
        }
    });
}

fn server_samples(server: &ServerReport) -> Vec<Sample> {
    let mut out = vec![
        Sample::counter(
            "origin_requests",
            "Requests sent to a server of an origin, retries included.",
            server.requests,
        ),
        Sample::counter("origin_retries", "Retries after another server failed.", server.retries),
        Sample::counter(
            "origin_connections",
            "Connections made to a server of an origin.",
            server.connections,
        ),
        Sample::gauge("origin_connections_open", "Of these, open now.", server.open),
        Sample::gauge("origin_connections_idle", "Of these, without a request.", server.idle),
        Sample::gauge(
            "origin_requests_active",
            "Requests under way at a server of an origin.",
            server.active,
        ),
        Sample::gauge("origin_up", "1 if a server of an origin is in service.", server.is_available.into()),
    ];
    let help = "Requests to a server of an origin that failed, and response bodies that broke off.";
    let failure = |(reason, count): &(&'static str, u64)| {
        Sample::counter("origin_failures", help, *count).label("reason", *reason)
    };
    out.extend(server.failures.iter().map(failure));
    let histogram =
        Histogram { bounds: &TIME_BOUNDS, buckets: server.latency.clone(), sum: server.latency_sum };
    let help = "Time from a request to a server of an origin until the head of its response.";
    out.push(Sample::histogram("origin_response_seconds", help, histogram));
    out
}

/// Registers what the process is confined by.
pub(crate) fn register_confinement(registry: &Registry, confinement: Confinement) {
    registry.register(move |out: &mut Vec<Sample>| {
        for (by, on) in [("landlock", confinement.landlock), ("seccomp", confinement.seccomp)] {
            let help = "1 if the process is confined: files by Landlock, system calls by seccomp.";
            out.push(Sample::gauge("confined", help, on.into()).label("by", by));
        }
    });
}

/// Registers when certificates end.
pub(crate) fn register_tls(registry: &Registry, tls: Arc<ArcSwap<Tls>>) {
    registry.register(move |out: &mut Vec<Sample>| {
        let mut ends = BTreeMap::new();
        for identity in tls.load().identities() {
            let end = identity.not_after().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            // A name may have several certificates: the first to end of each kind counts.
            let first = ends.entry((identity.label().to_owned(), identity.key_type())).or_insert(end);
            *first = end.min(*first);
        }
        out.extend(ends.into_iter().map(|((name, key), end)| {
            let help = "Certificate expiry (Unix time), by first name and key type.";
            Sample::gauge("certificate_expires_seconds", help, end).label("name", name).label("key", key)
        }));
    });
}
