//! Metrics pushed to an OpenTelemetry collector: OTLP over HTTP, in JSON (OpenTelemetry Protocol 1.x, "OTLP/HTTP").
//!
//! A separate thread reads the [`Registry`] once per interval and posts its values, as the metrics page would show
//! them. Values are totals since the start, so failed posts need no queue: the next one includes them. There is one
//! request at a time, each with a deadline. A slow, absent or hostile collector only costs that thread's time and a
//! bounded answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use expressway_netio::priority;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::{Value as Json, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::metrics::{Histogram, Kind, Registry, Sample, Value};

/// What the thread is set back by, as the admin listener's.
const NICE: i32 = 10;

/// Octets of an answer that are looked at.
const MAX_ANSWER: usize = 64 << 10;

/// The longest time that a collector may ask for by `retry-after`.
const MOST_PATIENCE: Duration = Duration::from_secs(3600);

/// AGGREGATION_TEMPORALITY_CUMULATIVE of opentelemetry/proto/metrics/v1/metrics.proto.
const CUMULATIVE: u32 = 2;

/// Where to push, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The collector.
    pub collector: SocketAddr,
    /// The path of metrics there, such as `/v1/metrics`.
    pub path: String,
    /// Time between the beginnings of two pushes.
    pub interval: Duration,
    /// For all of a push: connecting, sending, the answer.
    pub timeout: Duration,
    /// Attributes of the resource (OpenTelemetry semantic conventions), such as `service.name`.
    pub resource: Vec<(&'static str, String)>,
}

/// What came of pushes.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    rejected_points: AtomicU64,
    failed: [AtomicU64; Failure::REASONS.len()],
}

/// Why a push came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Connect,
    Timeout,
    Protocol,
    /// The collector wants no more for this long.
    Busy(Duration),
    Status(StatusCode),
}

impl Failure {
    const REASONS: [&'static str; 5] = ["connect", "timeout", "protocol", "busy", "status"];

    fn index(self) -> usize {
        match self {
            Self::Connect => 0,
            Self::Timeout => 1,
            Self::Protocol => 2,
            Self::Busy(_) => 3,
            Self::Status(_) => 4,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect => f.write_str("connection failed"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Protocol => f.write_str("the connection broke, or the answer is not HTTP"),
            Self::Busy(_) => f.write_str("collector asked to retry later"),
            Self::Status(status) => write!(f, "collector answered {status}"),
        }
    }
}

/// A running exporter, which ends with this.
pub struct Exporter {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Exporter {
    /// Pushes what `registry` says, and registers what comes of that.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(options: Options, registry: Registry) -> io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        registry.register(move |out: &mut Vec<Sample>| counted.samples(out));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let start = SystemTime::now();
        let run = move || {
            if let Err(error) = priority::stand_back(NICE) {
                tracing::debug!(%error, "the exporter's priority stays");
            }
            runtime.block_on(async {
                tokio::select! {
                    () = push_for_ever(&options, &registry, &counts, start) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("expressway-otlp".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Counts {
    fn samples(&self, out: &mut Vec<Sample>) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let help = "Pushes of metrics that the OpenTelemetry collector has accepted.";
        out.push(Sample::counter("otlp_pushes", help, value(&self.sent)));
        let help = "Values in these that it rejected (partial success).";
        out.push(Sample::counter("otlp_rejected_points", help, value(&self.rejected_points)));
        let help = "Pushes that failed; the next one includes all that they had.";
        for (reason, counter) in Failure::REASONS.into_iter().zip(&self.failed) {
            out.push(Sample::counter("otlp_failures", help, value(counter)).label("reason", reason));
        }
    }
}

async fn push_for_ever(options: &Options, registry: &Registry, counts: &Counts, start: SystemTime) {
    let mut next = tokio::time::Instant::now() + options.interval;
    // What failed is told once, until something else happens.
    let mut told: Option<Failure> = None;
    loop {
        tokio::time::sleep_until(next).await;
        next = tokio::time::Instant::now() + options.interval;
        let document = document(&registry.samples(), &options.resource, start, SystemTime::now());
        let pushed = tokio::time::timeout(options.timeout, push(options, document)).await;
        match pushed.unwrap_or(Err(Failure::Timeout)) {
            Ok(rejected) => {
                counts.sent.fetch_add(1, Ordering::Relaxed);
                counts.rejected_points.fetch_add(rejected, Ordering::Relaxed);
                if told.take().is_some() {
                    tracing::info!(collector = %options.collector, "metrics are accepted again");
                }
            }
            Err(failure) => {
                counts.failed[failure.index()].fetch_add(1, Ordering::Relaxed);
                if told.is_none_or(|before| before.index() != failure.index()) {
                    tracing::warn!(collector = %options.collector, "metrics not pushed: {failure}");
                }
                told = Some(failure);
                if let Failure::Busy(pause) = failure {
                    next = next.max(tokio::time::Instant::now() + pause);
                }
            }
        }
    }
}

/// Posts a document; how many values of it the collector has rejected.
async fn push(options: &Options, document: Vec<u8>) -> Result<u64, Failure> {
    let stream = TcpStream::connect(options.collector).await.map_err(|_| Failure::Connect)?;
    let protocol = |_: hyper::Error| Failure::Protocol;
    let builder = hyper::client::conn::http1::Builder::new();
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(protocol)?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&options.path)
        .header(header::HOST, options.collector.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("expressway/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(document)))
        .map_err(|_| Failure::Protocol)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(protocol)?;
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::OK => {}
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let seconds = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
                let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(0);
                return Err(Failure::Busy(Duration::from_secs(seconds).min(MOST_PATIENCE)));
            }
            status => return Err(Failure::Status(status)),
        }
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|_| Failure::Protocol)?;
        Ok(rejected(&body.to_bytes()))
    };
    // Ends with this, whatever becomes of the connection.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    answer.await
}

/// `partialSuccess.rejectedDataPoints`, a number or, as protobuf's JSON has 64 bits, text.
fn rejected(answer: &[u8]) -> u64 {
    let Ok(document) = serde_json::from_slice::<Json>(answer) else { return 0 };
    let count = &document["partialSuccess"]["rejectedDataPoints"];
    count.as_u64().or_else(|| count.as_str()?.parse().ok()).unwrap_or(0)
}

/// An ExportMetricsServiceRequest (opentelemetry/proto/collector/metrics/v1) in protobuf's JSON.
fn document(
    samples: &[Sample],
    resource: &[(&'static str, String)],
    start: SystemTime,
    now: SystemTime,
) -> Vec<u8> {
    let times = (nanoseconds(start), nanoseconds(now));
    let mut order: Vec<&str> = Vec::new();
    let mut families: std::collections::HashMap<&str, Vec<&Sample>> = std::collections::HashMap::new();
    for sample in samples {
        families
            .entry(&sample.name)
            .or_insert_with(|| {
                order.push(&sample.name);
                Vec::new()
            })
            .push(sample);
    }
    let metrics: Vec<Json> = order.iter().map(|name| metric(name, &families[name], &times)).collect();
    let resource: Vec<Json> = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    let document = json!({ "resourceMetrics": [{
        "resource": { "attributes": resource },
        "scopeMetrics": [{
            "scope": { "name": "expressway", "version": env!("CARGO_PKG_VERSION") },
            "metrics": metrics,
        }],
    }]});
    document.to_string().into_bytes()
}

/// A family. Collectors add `_total` themselves where their format has it.
fn metric(name: &str, members: &[&Sample], times: &(String, String)) -> Json {
    let points: Vec<Json> = members.iter().map(|sample| point(sample, times)).collect();
    let is_time = members.iter().all(|sample| !matches!(sample.value, Value::Number(_)));
    let mut metric = json!({ "name": format!("expressway_{name}"), "description": members[0].help });
    if is_time {
        metric["unit"] = "s".into();
    }
    let (kind, data) = match members[0].kind {
        Kind::Counter => (
            "sum",
            json!({ "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points }),
        ),
        Kind::Gauge => ("gauge", json!({ "dataPoints": points })),
        Kind::Histogram => {
            ("histogram", json!({ "aggregationTemporality": CUMULATIVE, "dataPoints": points }))
        }
    };
    metric[kind] = data;
    metric
}

fn point(sample: &Sample, (start, now): &(String, String)) -> Json {
    let attributes: Vec<Json> = sample.labels.iter().map(|(key, value)| attribute(key, value)).collect();
    let mut point = json!({ "attributes": attributes, "timeUnixNano": now });
    if sample.kind != Kind::Gauge {
        point["startTimeUnixNano"] = start.as_str().into();
    }
    match &sample.value {
        Value::Number(value) => point["asInt"] = i64::try_from(*value).unwrap_or(i64::MAX).to_string().into(),
        Value::Time(time) => point["asDouble"] = time.as_secs_f64().into(),
        Value::Histogram(Histogram { bounds, buckets, sum }) => {
            let count: u64 = buckets.iter().sum();
            point["count"] = count.to_string().into();
            point["sum"] = sum.as_secs_f64().into();
            point["bucketCounts"] = buckets.iter().map(u64::to_string).collect::<Vec<_>>().into();
            point["explicitBounds"] = bounds.iter().map(Duration::as_secs_f64).collect::<Vec<_>>().into();
        }
    }
    point
}

fn attribute(key: &str, value: &str) -> Json {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    fn registry() -> Registry {
        let registry = Registry::default();
        registry.register(|out: &mut Vec<Sample>| {
            const BOUNDS: &[Duration] = &[Duration::from_micros(50), Duration::from_millis(1)];
            let (buckets, sum) = (vec![3, 0, 2], Duration::from_micros(7500));
            out.push(Sample::counter("rx_packets", "Datagrams.", u64::MAX).label("worker", "0"));
            out.push(Sample::gauge("connections", "Open.", 2));
            out.push(Sample::counter("rx_packets", "Datagrams.", 8).label("worker", "a\"\n"));
            out.push(Sample::histogram("turn_seconds", "Turns.", Histogram { bounds: BOUNDS, buckets, sum }));
        });
        registry
    }

    #[test]
    fn the_document_has_families_as_protobufs_json_has_them() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let bytes = document(&registry().samples(), &[("service.name", "expressway".into())], at(1), at(2));
        let document: Json = serde_json::from_slice(&bytes).unwrap();
        let scope = &document["resourceMetrics"][0]["scopeMetrics"][0];
        let metrics = scope["metrics"].as_array().unwrap();
        let names: Vec<_> = metrics.iter().map(|metric| metric["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["expressway_rx_packets", "expressway_connections", "expressway_turn_seconds"]);
        let points = &metrics[0]["sum"]["dataPoints"];
        assert_eq!(points[0]["asInt"], "9223372036854775807", "as much as the format has");
        assert_eq!(
            (&points[1]["asInt"], &points[1]["startTimeUnixNano"]),
            (&json!("8"), &json!("1000000000"))
        );
        assert_eq!(points[1]["attributes"], json!([attribute("worker", "a\"\n")]));
        assert_eq!(metrics[1]["gauge"]["dataPoints"][0]["startTimeUnixNano"], Json::Null);
        let histogram = &metrics[2]["histogram"]["dataPoints"][0];
        assert_eq!(histogram["bucketCounts"], json!(["3", "0", "2"]));
        assert_eq!(histogram["explicitBounds"], json!([0.00005, 0.001]));
        assert_eq!((&histogram["count"], &metrics[2]["unit"]), (&json!("5"), &json!("s")));
    }

    #[test]
    fn what_was_rejected_is_a_number_or_text_or_nothing() {
        let of = |text: &str| rejected(text.as_bytes());
        assert_eq!(of(r#"{"partialSuccess":{"rejectedDataPoints":"7"}}"#), 7);
        assert_eq!(of(r#"{"partialSuccess":{"rejectedDataPoints":7}}"#), 7);
        assert_eq!([of("{}"), of(""), of("[]"), of("\"x\"")], [0; 4]);
    }

    /// What a page says of a failure, once it has been counted.
    fn wait_for(registry: &Registry, line: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while !registry.page().lines().any(|one| one == line) {
            assert!(Instant::now() < until, "{line}\n{}", registry.page());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn start(collector: SocketAddr, registry: &Registry) -> Exporter {
        let options = Options {
            collector,
            path: "/v1/metrics".to_owned(),
            interval: Duration::from_millis(20),
            timeout: Duration::from_millis(300),
            resource: Vec::new(),
        };
        Exporter::start(options, registry.clone()).unwrap()
    }

    #[test]
    fn a_collector_that_is_not_there_or_does_not_answer_is_counted_and_waits_for_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let silent = registry();
        let exporter = start(address, &silent);
        wait_for(&silent, "expressway_otlp_failures_total{reason=\"timeout\"} 1");
        drop(exporter);
        drop(listener);
        let absent = registry();
        let exporter = start(address, &absent);
        wait_for(&absent, "expressway_otlp_failures_total{reason=\"connect\"} 2");
        drop(exporter);
    }

    #[test]
    fn answers_are_counted_by_what_they_say() {
        let long = format!("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
        for (answer, line) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "expressway_otlp_pushes_total 1"),
            (
                "HTTP/1.1 200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedDataPoints\":\"3\"}}",
                "expressway_otlp_rejected_points_total 3",
            ),
            (
                "HTTP/1.1 429 Too Many Requests\r\nretry-after: 99999999\r\ncontent-length: 0\r\n\r\n",
                "expressway_otlp_failures_total{reason=\"busy\"} 1",
            ),
            (
                "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
                "expressway_otlp_failures_total{reason=\"status\"} 1",
            ),
            ("SSH-2.0-OpenSSH\r\n", "expressway_otlp_failures_total{reason=\"protocol\"} 1"),
            (&long, "expressway_otlp_failures_total{reason=\"protocol\"} 1"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (registry, answer) = (registry(), answer.to_owned());
            let exporter = start(listener.local_addr().unwrap(), &registry);
            let collector = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"]}]}]}") {
                    let mut chunk = [0; 4096];
                    let length = stream.read(&mut chunk).unwrap();
                    assert!(length > 0, "{}", String::from_utf8_lossy(&request));
                    request.extend_from_slice(&chunk[..length]);
                }
                let _ = stream.write_all(answer.as_bytes());
                String::from_utf8(request).unwrap()
            });
            let request = collector.join().unwrap();
            assert!(request.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{request}");
            assert!(request.contains("content-type: application/json\r\n"));
            wait_for(&registry, line);
            drop(exporter);
        }
    }
}
