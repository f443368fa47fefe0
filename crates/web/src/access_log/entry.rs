//! A record on its way to the log's thread: one allocation.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use super::Record;
use crate::{Protocol, Scheme};

/// Texts of a record.
const TEXTS: usize = 15;

impl<'a> Record<'a> {
    fn texts(&self) -> [&'a str; TEXTS] {
        let [object, request, session, status] = self.cmcd.unwrap_or_default();
        [
            self.method,
            self.host,
            self.target,
            self.range,
            self.referer,
            self.user_agent,
            self.tls_version,
            self.tls_cipher,
            self.io_mode,
            self.client_subject,
            self.upstream,
            object,
            request,
            session,
            status,
        ]
    }

    /// Octets of text that the record holds.
    pub(super) fn text_length(&self) -> usize {
        self.texts().iter().map(|text| text.len()).sum()
    }
}

/// An owned [`Record`].
#[derive(Debug)]
pub(super) struct Entry {
    time: SystemTime,
    duration: Duration,
    body_bytes: u64,
    /// All texts, one after the other.
    text: Box<str>,
    /// Where each text ends.
    ends: [u32; TEXTS],
    remote: SocketAddr,
    status: u16,
    worker: u16,
    scheme: Scheme,
    protocol: Protocol,
    complete: bool,
    has_cmcd: bool,
    upstream_status: u16,
    cache: &'static str,
    upstream_time: Duration,
}

impl Entry {
    pub(super) fn new(record: &Record<'_>) -> Self {
        let mut text = String::with_capacity(record.text_length());
        let mut ends = [0; TEXTS];
        for (end, part) in ends.iter_mut().zip(record.texts()) {
            text.push_str(part);
            *end = u32::try_from(text.len()).unwrap_or(u32::MAX);
        }
        Self {
            time: record.time,
            duration: record.duration,
            body_bytes: record.body_bytes,
            text: text.into_boxed_str(),
            ends,
            remote: record.remote,
            status: record.status,
            worker: record.worker,
            scheme: record.scheme,
            protocol: record.protocol,
            complete: record.complete,
            has_cmcd: record.cmcd.is_some(),
            upstream_status: record.upstream_status,
            cache: record.cache,
            upstream_time: record.upstream_time,
        }
    }

    /// Octets of text that the entry holds.
    pub(super) fn text_length(&self) -> usize {
        self.text.len()
    }

    fn part(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.text.get(start..self.ends[index] as usize).unwrap_or_default()
    }

    pub(super) fn record(&self) -> Record<'_> {
        Record {
            time: self.time,
            duration: self.duration,
            remote: self.remote,
            method: self.part(0),
            scheme: self.scheme,
            host: self.part(1),
            target: self.part(2),
            protocol: self.protocol,
            status: self.status,
            body_bytes: self.body_bytes,
            complete: self.complete,
            range: self.part(3),
            referer: self.part(4),
            user_agent: self.part(5),
            tls_version: self.part(6),
            tls_cipher: self.part(7),
            io_mode: self.part(8),
            client_subject: self.part(9),
            cmcd: self.has_cmcd.then(|| [11, 12, 13, 14].map(|index| self.part(index))),
            worker: self.worker,
            upstream: self.part(10),
            upstream_status: self.upstream_status,
            cache: self.cache,
            upstream_time: self.upstream_time,
        }
    }
}
