//! The subscribers of a fan-out, as its page `/subscribers` has them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use expressway_settings::admin::Address;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::short;

/// The page, as far as it is shown.
#[derive(Deserialize)]
struct Page {
    statistics: Statistics,
}

#[derive(Deserialize)]
struct Statistics {
    uptime_seconds: f64,
    mode: String,
    counters: Map<String, Value>,
    disconnects: Map<String, Value>,
    subscribers: Vec<Subscriber>,
}

#[derive(Deserialize)]
struct Subscriber {
    id: u64,
    peer: String,
    protocol: String,
    age_seconds: f64,
    bytes: u64,
    datagrams: u64,
    gaps: u64,
    skipped: u64,
    lag_bytes: u64,
    lag_datagrams: u64,
    half_closed: bool,
    rtt_seconds: Option<f64>,
    retransmits: Option<u64>,
}

/// Bytes and datagrams a second.
type Rates = (f64, f64);

/// The newest sample, with what it takes to make rates.
pub(super) struct View {
    now: Statistics,
    taken: Instant,
    interval: Duration,
    /// By identifier.
    rates: HashMap<u64, Rates>,
    feed: Rates,
}

fn read(text: &str) -> Result<Statistics, String> {
    let page = serde_json::from_str::<Page>(text);
    page.map(|page| page.statistics).map_err(|error| format!("/subscribers: {error}"))
}

fn counter(statistics: &Statistics, name: &str) -> u64 {
    statistics.counters.get(name).and_then(Value::as_u64).unwrap_or_default()
}

impl View {
    /// The first sample.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let now = read(text)?;
        Ok(Self {
            now,
            taken: Instant::now(),
            interval: Duration::ZERO,
            rates: HashMap::new(),
            feed: (0.0, 0.0),
        })
    }

    /// The next one.
    pub(super) fn update(&mut self, text: &str) -> Result<(), String> {
        let interval = self.taken.elapsed();
        self.apply(read(text)?, interval);
        Ok(())
    }

    fn apply(&mut self, now: Statistics, interval: Duration) {
        let before: HashMap<u64, (u64, u64)> =
            self.now.subscribers.iter().map(|one| (one.id, (one.bytes, one.datagrams))).collect();
        let a_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / interval.as_secs_f64();
        self.rates = now
            .subscribers
            .iter()
            .map(|one| {
                // Who has come since began with nothing.
                let (bytes, datagrams) = before.get(&one.id).copied().unwrap_or_default();
                (one.id, (a_second(one.bytes, bytes), a_second(one.datagrams, datagrams)))
            })
            .collect();
        let fed = |name: &str| a_second(counter(&now, name), counter(&self.now, name));
        self.feed = (fed("datagram_bytes"), fed("datagrams"));
        self.now = now;
        self.taken = Instant::now();
        self.interval = interval;
    }

    fn rates_of(&self, one: &Subscriber) -> Rates {
        self.rates.get(&one.id).copied().unwrap_or_default()
    }

    /// For people: those furthest behind first.
    pub(super) fn lines(&self, admin: &Address) -> Vec<String> {
        let Statistics { uptime_seconds, mode, disconnects, subscribers, .. } = &self.now;
        let gone: Vec<String> = disconnects
            .iter()
            .filter(|(_, count)| count.as_u64() != Some(0))
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let mut lines = vec![
            format!(
                "fanout {admin}  mode {mode}  up {uptime_seconds:.0} s  subscribers {}  feed {}/s, {} B/s",
                subscribers.len(),
                short(self.feed.1),
                short(self.feed.0),
            ),
            format!(
                "gaps {}  skipped {}  gone: {}",
                counter(&self.now, "gaps"),
                counter(&self.now, "skipped_frames"),
                if gone.is_empty() { "none".to_owned() } else { gone.join(", ") },
            ),
            String::new(),
            format!(
                "{:>7} {:<5} {:>8} {:>8} {:>9} {:>7} {:>6} {:>8} {:>8} {:>7} {:>8}  PEER",
                "ID",
                "PROTO",
                "B/s",
                "DGRAM/s",
                "LAG B",
                "LAG D",
                "GAPS",
                "SKIPPED",
                "RTT us",
                "RETRANS",
                "AGE s"
            ),
        ];
        let mut order: Vec<&Subscriber> = subscribers.iter().collect();
        order.sort_by_key(|one| (std::cmp::Reverse(one.lag_bytes), one.id));
        lines.extend(order.into_iter().map(|one| self.line(one)));
        lines
    }

    fn line(&self, one: &Subscriber) -> String {
        let (bytes, datagrams) = self.rates_of(one);
        let rtt = one.rtt_seconds.map_or_else(|| "-".to_owned(), |rtt| format!("{:.0}", rtt * 1e6));
        let retransmits = one.retransmits.map_or_else(|| "-".to_owned(), |count| count.to_string());
        format!(
            "{:>7} {:<5} {:>8} {:>8} {:>9} {:>7} {:>6} {:>8} {rtt:>8} {retransmits:>7} {:>8.0}  {}{}",
            one.id,
            one.protocol,
            short(bytes),
            short(datagrams),
            short(one.lag_bytes as f64),
            short(one.lag_datagrams as f64),
            one.gaps,
            one.skipped,
            one.age_seconds,
            one.peer,
            if one.half_closed { " (half-closed)" } else { "" },
        )
    }

    /// For programs.
    pub(super) fn document(&self, admin: &Address) -> Value {
        let subscribers: Vec<Value> = self.now.subscribers.iter().map(|one| self.subscriber(one)).collect();
        json!({
            "admin": admin,
            "interval_seconds": self.interval.as_secs_f64(),
            "uptime_seconds": self.now.uptime_seconds,
            "mode": self.now.mode,
            "feed": {"bytes_per_second": self.feed.0, "datagrams_per_second": self.feed.1},
            "counters": self.now.counters,
            "disconnects": self.now.disconnects,
            "subscribers": subscribers,
        })
    }

    fn subscriber(&self, one: &Subscriber) -> Value {
        let (bytes, datagrams) = self.rates_of(one);
        json!({
            "id": one.id,
            "peer": one.peer,
            "protocol": one.protocol,
            "age_seconds": one.age_seconds,
            "bytes": one.bytes,
            "datagrams": one.datagrams,
            "bytes_per_second": bytes,
            "datagrams_per_second": datagrams,
            "lag_bytes": one.lag_bytes,
            "lag_datagrams": one.lag_datagrams,
            "gaps": one.gaps,
            "skipped": one.skipped,
            "half_closed": one.half_closed,
            "rtt_seconds": one.rtt_seconds,
            "retransmits": one.retransmits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(datagrams: u64, subscribers: &[(u64, u64, u64)]) -> String {
        let one = |(id, bytes, lag): &(u64, u64, u64)| {
            json!({"id": id, "peer": "192.0.2.1:1", "protocol": "tcp", "age_seconds": 1.0, "bytes": bytes,
                "datagrams": bytes / 100, "gaps": 0, "skipped": 0, "lag_bytes": lag, "lag_datagrams": 0,
                "half_closed": false, "rtt_seconds": 0.000_05, "retransmits": null, "unknown": 1})
        };
        let subscribers: Vec<Value> = subscribers.iter().map(one).collect();
        json!({"statistics": {"uptime_seconds": 1.0, "mode": "user",
            "counters": {"datagrams": datagrams, "gaps": 7}, "disconnects": {"reset": 2, "closed": 0},
            "subscribers": subscribers}})
        .to_string()
    }

    #[test]
    fn rates_are_of_the_interval_and_who_lags_comes_first() {
        let mut view = View::of(&page(100, &[(1, 1000, 0), (2, 1000, 0)])).unwrap();
        view.apply(
            read(&page(300, &[(1, 5000, 0), (2, 1000, 4096), (3, 200, 0)])).unwrap(),
            Duration::from_secs(2),
        );
        let lines = view.lines(&"127.0.0.1:9180".parse().unwrap());
        assert!(lines[0].contains("subscribers 3  feed 100/s"), "{}", lines[0]);
        assert!(lines[1].contains("gaps 7") && lines[1].ends_with("gone: reset 2"), "{}", lines[1]);
        let ids: Vec<&str> = lines[4..].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(ids, ["2", "1", "3"]);
        let document = view.document(&"127.0.0.1:9180".parse().unwrap());
        assert_eq!(document["subscribers"][0]["bytes_per_second"], 2000.0);
        assert_eq!(document["subscribers"][2]["datagrams_per_second"], 1.0);
    }

    #[test]
    fn another_page_is_an_error() {
        assert!(View::of("{}").is_err() && View::of("metrics").is_err());
    }
}
