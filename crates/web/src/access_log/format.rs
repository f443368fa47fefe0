//! Records as lines.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::cmcd::Cmcd;
use super::{Format, Record};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The last second that four-digit years can name.
const LAST_SECOND: u64 = 253_402_300_799;

/// Appends `record` and a newline to `line`.
pub(super) fn append(format: Format, record: &Record<'_>, line: &mut Vec<u8>) {
    match format {
        Format::Json => append_json(record, line),
        Format::Combined => append_combined(record, line),
    }
    line.push(b'\n');
}

#[derive(Serialize)]
struct Json<'a> {
    time: String,
    remote_addr: std::net::IpAddr,
    remote_port: u16,
    method: &'a str,
    scheme: &'static str,
    host: &'a str,
    target: &'a str,
    protocol: &'static str,
    status: u16,
    body_bytes: u64,
    duration_us: u64,
    complete: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    range: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    referer: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tls_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tls_cipher: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    client_subject: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    io_mode: &'a str,
    worker: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    cache: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    upstream: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_us: Option<u64>,
    #[serde(skip_serializing_if = "Cmcd::is_empty")]
    cmcd: Cmcd,
}

fn append_json(record: &Record<'_>, line: &mut Vec<u8>) {
    let start = line.len();
    let asked = !record.upstream.is_empty();
    let json = Json {
        time: Date::new(record.time).rfc3339(),
        remote_addr: record.remote.ip(),
        remote_port: record.remote.port(),
        method: record.method,
        scheme: record.scheme.as_str(),
        host: record.host,
        target: record.target,
        protocol: record.protocol.as_str(),
        status: record.status,
        body_bytes: record.body_bytes,
        duration_us: u64::try_from(record.duration.as_micros()).unwrap_or(u64::MAX),
        complete: record.complete,
        range: record.range,
        referer: record.referer,
        user_agent: record.user_agent,
        tls_version: record.tls_version,
        tls_cipher: record.tls_cipher,
        client_subject: record.client_subject,
        io_mode: record.io_mode,
        worker: record.worker,
        cache: record.cache,
        upstream: record.upstream,
        upstream_status: asked.then_some(record.upstream_status),
        upstream_us: asked.then(|| u64::try_from(record.upstream_time.as_micros()).unwrap_or(u64::MAX)),
        cmcd: record.cmcd.map_or_else(Cmcd::default, |fields| Cmcd::parse(record.target, &fields)),
    };
    if let Err(error) = serde_json::to_writer(&mut *line, &json) {
        // Cannot happen for strings and numbers into memory; a whole line or none all the same.
        line.truncate(start);
        tracing::error!(%error, "cannot format an access log record as JSON");
    }
}

fn append_combined(record: &Record<'_>, line: &mut Vec<u8>) {
    let date = Date::new(record.time).common_log();
    // Writing into a Vec does not fail.
    let _ = write!(line, "{} - - [{date}] \"", record.remote.ip());
    escape(record.method, line);
    line.push(b' ');
    escape(record.target, line);
    let _ = write!(line, " {}\" {:03} {} \"", record.protocol, record.status, record.body_bytes);
    escape(or_dash(record.referer), line);
    line.extend_from_slice(b"\" \"");
    escape(or_dash(record.user_agent), line);
    line.push(b'"');
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// nginx's `escape=default`: `"`, `\`, controls and everything beyond ASCII as `\xXX`.
fn escape(text: &str, line: &mut Vec<u8>) {
    for &byte in text.as_bytes() {
        if matches!(byte, b'"' | b'\\' | ..0x20 | 0x7f..) {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            line.extend([b'\\', b'x', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        } else {
            line.push(byte);
        }
    }
}

/// A time in UTC, taken apart.
struct Date {
    /// `Sun, 06 Nov 1994 08:49:37 GMT`
    http: String,
    milliseconds: u32,
}

impl Date {
    fn new(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = Duration::from_secs(since.as_secs().min(LAST_SECOND));
        Self { http: httpdate::fmt_http_date(UNIX_EPOCH + seconds), milliseconds: since.subsec_millis() }
    }

    fn common_log(&self) -> String {
        let http = &self.http;
        format!("{}/{}/{}:{} +0000", &http[5..7], &http[8..11], &http[12..16], &http[17..25])
    }

    fn rfc3339(&self) -> String {
        let http = &self.http;
        let month = 1 + MONTHS.iter().position(|month| *month == &http[8..11]).unwrap_or(0);
        let (year, day, time) = (&http[12..16], &http[5..7], &http[17..25]);
        format!("{year}-{month:02}-{day}T{time}.{:03}Z", self.milliseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::entry::Entry;
    use crate::{Protocol, Scheme};

    fn record() -> Record<'static> {
        Record {
            time: UNIX_EPOCH + Duration::from_millis(784_111_777_042),
            duration: Duration::from_micros(1234),
            remote: "[2001:db8::1]:4433".parse().unwrap(),
            method: "GET",
            scheme: Scheme::Https,
            host: "edge.example",
            target: "/a?b=\"c\"",
            protocol: Protocol::H3,
            status: 206,
            body_bytes: 1024,
            complete: true,
            range: "bytes=0-1023",
            referer: "",
            user_agent: "k\u{fc}rl\\1\n",
            tls_version: "TLSv1.3",
            tls_cipher: "",
            client_subject: "CN=alice",
            io_mode: "zerocopy",
            cmcd: None,
            worker: 3,
            cache: "",
            upstream: "",
            upstream_status: 0,
            upstream_time: Duration::ZERO,
        }
    }

    fn line(format: Format, record: &Record<'_>) -> String {
        let mut line = Vec::new();
        append(format, &Entry::new(record).record(), &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn combined() {
        assert_eq!(
            line(Format::Combined, &record()),
            "2001:db8::1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=\\x22c\\x22 HTTP/3.0\" 206 1024 \"-\" \
             \"k\\xC3\\xBCrl\\x5C1\\x0A\"\n"
        );
        let reset = Record { status: 0, ..record() };
        assert!(line(Format::Combined, &reset).contains("\" 000 "));
    }

    #[test]
    fn json() {
        let text = line(Format::Json, &record());
        assert_eq!(text.matches('\n').count(), 1, "one line");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "time": "1994-11-06T08:49:37.042Z", "remote_addr": "2001:db8::1", "remote_port": 4433,
                "method": "GET", "scheme": "https", "host": "edge.example", "target": "/a?b=\"c\"",
                "protocol": "HTTP/3.0", "status": 206, "body_bytes": 1024, "duration_us": 1234, "complete": true,
                "range": "bytes=0-1023", "user_agent": "k\u{fc}rl\\1\n", "tls_version": "TLSv1.3",
                "client_subject": "CN=alice", "io_mode": "zerocopy", "worker": 3,
            })
        );
    }

    #[test]
    fn what_a_player_says_stands_there_if_it_is_wanted() {
        let said = Record { target: "/a?CMCD=br%3D1", cmcd: Some(["d=4", "", "", "bs"]), ..record() };
        let value: serde_json::Value = serde_json::from_str(&line(Format::Json, &said)).unwrap();
        assert_eq!(value["cmcd"], serde_json::json!({ "br": 1, "d": 4, "bs": true }));
        for without in [Record { cmcd: None, ..said }, Record { cmcd: Some([""; 4]), ..record() }] {
            assert!(!line(Format::Json, &without).contains("cmcd\":"));
        }
    }

    #[test]
    fn what_an_origin_answered_stands_there_too() {
        let time = Duration::from_millis(7);
        let proxied = Record {
            cache: "miss",
            upstream: "192.0.2.9:80",
            upstream_status: 502,
            upstream_time: time,
            ..record()
        };
        let value: serde_json::Value = serde_json::from_str(&line(Format::Json, &proxied)).unwrap();
        assert_eq!((&value["cache"], &value["upstream"]), (&"miss".into(), &"192.0.2.9:80".into()));
        assert_eq!((&value["upstream_status"], &value["upstream_us"]), (&502.into(), &7000.into()));
        assert_eq!(value["worker"], 3);
    }
}
