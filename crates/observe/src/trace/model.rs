//! Combines hops into requests, and computes the duration of their steps.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use expressway_netio::trace::{Channel, Event, Hop};

use super::line::{Control, Line, Recorded};
use super::request::{Receiver, Request, Stamp};
use super::steps::{PACKET_STEPS, Row, STEPS, Steps};

/// Connections, requests under way and bursts that are remembered; what is beyond is counted and left out.
const REMEMBERED: usize = 1 << 16;

/// A burst that has not completed for so long has, and the event is lost: sockets that complete nothing are replaced sooner. In
/// nanoseconds.
const COMPLETED: u64 = 10_000_000_000;

/// Responses of a connection that wait for their first packet; of more, the first packets are not known.
const UNBUILT: usize = 1 << 10;

/// A connection's number and a stream.
type Key = (u64, u64);

/// What is known of a trace so far.
#[derive(Default)]
pub struct Model {
    places: HashMap<(usize, u16), String>,
    connections: HashMap<u64, Connection>,
    open: BTreeMap<Key, Request>,
    /// Bursts that are not known to be completed, by worker and mark, and with that by age; and how many there are.
    bursts: HashMap<usize, BTreeMap<u64, Burst>>,
    burst_count: usize,
    /// First bursts of requests that are not flushed, by worker.
    unflushed: HashMap<usize, Vec<(u64, Key)>>,
    steps: Steps<{ STEPS.len() }>,
    packets: Steps<{ PACKET_STEPS.len() }>,
    slowest: Option<Request>,
    wanted: Option<String>,
    /// Connections that were followed, gone ones included.
    followed: usize,
    /// Requests that have come to their end: acknowledged, given up, or their connection closed.
    pub finished: u64,
    /// Of these, those that were not sent whole.
    pub failed: u64,
    /// Events read, and events that the process lost.
    pub events: u64,
    /// See `events`.
    pub lost: u64,
    /// Connections, requests and bursts left out because there were too many.
    pub left_out: u64,
    /// Bursts that were never told to be completed.
    pub uncompleted: u64,
    /// When the trace began, and the last time known, in nanoseconds of CLOCK_MONOTONIC.
    pub began: u64,
    /// See `began`.
    pub time: u64,
    /// The process has told the end.
    pub ended: bool,
}

struct Connection {
    client: (SocketAddr, Box<str>),
    /// The datagram that was taken last.
    taken: Option<u64>,
    /// Requests whose response has begun and has no packet yet.
    unbuilt: Vec<u64>,
}

struct Burst {
    built: u64,
    first_of: Vec<Key>,
}

impl Model {
    /// Bursts of worker 0 that are not known to be completed, and those of all.
    #[cfg(test)]
    pub(super) fn bursts(&self) -> (usize, usize) {
        (self.bursts.get(&0).map_or(0, BTreeMap::len), self.burst_count)
    }

    /// Of the requests only those whose text contains `wanted` count for [`Model::slowest`].
    pub fn with_wanted(wanted: Option<String>) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Takes in a line, and returns the requests that have ended with it.
    pub fn take(&mut self, line: Line) -> Vec<Request> {
        match line {
            Line::Control(control) => {
                self.take_control(control);
                Vec::new()
            }
            Line::Recorded(Recorded { worker, event }) => {
                self.events += 1;
                self.time = self.time.max(event.time);
                match event.hop {
                    Hop::Closed => self.close(event.connection),
                    _ => self.take_event(worker, event).into_iter().collect(),
                }
            }
        }
    }

    fn take_control(&mut self, control: Control) {
        match control {
            Control::Begin { time, .. } => (self.began, self.time) = (time, time),
            Control::Place { worker, xsk, interface, queue } => {
                self.places.insert((worker, xsk), format!("{interface} queue {queue}"));
            }
            Control::Progress { time, lost } => {
                (self.time, self.lost) = (self.time.max(time), lost);
            }
            Control::End { time, lost, .. } => {
                (self.time, self.lost, self.ended) = (self.time.max(time), lost, true);
            }
        }
    }

    fn take_event(&mut self, worker: usize, Event { time, connection, hop }: Event) -> Option<Request> {
        match hop {
            Hop::Connection { remote, id } => self.connect(connection, remote, id),
            Hop::Taken { arrived, .. } => {
                if let Some(arrived) = arrived {
                    self.packets.add(0, arrived, time);
                }
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.taken = Some(time);
                }
            }
            Hop::Opened => {
                let taken = self.connections.get_mut(&connection).and_then(|known| known.taken.take());
                if let Some(taken) = taken {
                    self.packets.add(1, taken, time);
                }
            }
            Hop::Request { stream, request, datagram } => {
                let mut new = Request::new(worker, (connection, stream), request);
                new.client = self.connections.get(&connection).map(|known| known.client.clone());
                new.way_in = datagram.way.map_or_else(String::new, |way| self.way(worker, way));
                if let Some(arrived) = datagram.arrived {
                    new.set(Stamp::Arrived, arrived);
                    new.receiver = datagram.way.and_then(Receiver::of);
                }
                // A connection that is followed since has had no datagram.
                if datagram.taken != 0 {
                    new.set(Stamp::Taken, datagram.taken);
                    new.set(Stamp::Opened, datagram.opened.max(datagram.taken));
                }
                new.set(Stamp::Request, time);
                if self.open.len() < REMEMBERED {
                    self.open.insert((connection, stream), new);
                } else {
                    self.left_out += 1;
                }
            }
            Hop::Started { stream } => self.stamp((connection, stream), Stamp::Started, time),
            Hop::Answered { stream, status, source } => {
                if let Some(request) = self.open.get_mut(&(connection, stream)) {
                    (request.status, request.source) = (status, source);
                    request.set(Stamp::Answered, time);
                    let known = self.connections.get_mut(&connection);
                    if let Some(known) = known.filter(|known| known.unbuilt.len() < UNBUILT) {
                        known.unbuilt.push(stream);
                    }
                }
            }
            Hop::Body { stream } => self.stamp((connection, stream), Stamp::Body, time),
            Hop::Written { stream, bytes, complete } => {
                let request = self.open.get_mut(&(connection, stream))?;
                (request.bytes, request.complete) = (bytes, complete);
                request.set(Stamp::Written, time);
                if !complete {
                    return self.finish((connection, stream));
                }
            }
            Hop::Acknowledged { stream } => {
                self.stamp((connection, stream), Stamp::Acknowledged, time);
                return self.finish((connection, stream));
            }
            Hop::Sent { began } => self.send(worker, connection, (began, time)),
            Hop::Ended { stream } => return self.finish((connection, stream)),
            Hop::Burst { mark, began, way, .. } => {
                self.packets.add(2, began, time);
                self.build(worker, connection, (mark, time), way);
            }
            Hop::Flushed { mark, began } => {
                self.packets.add(3, began, time);
                self.flush(worker, mark, time);
            }
            Hop::Completed { mark } => self.complete(worker, mark, time),
            Hop::Closed => {}
        }
        None
    }

    fn connect(&mut self, number: u64, remote: SocketAddr, id: Box<str>) {
        if let Some(known) = self.connections.get_mut(&number) {
            known.client = (remote, id);
        } else if self.connections.len() < REMEMBERED {
            let connection = Connection { client: (remote, id), taken: None, unbuilt: Vec::new() };
            self.connections.insert(number, connection);
            self.followed += 1;
        } else {
            self.left_out += 1;
        }
    }

    fn stamp(&mut self, key: Key, stamp: Stamp, time: u64) {
        if let Some(request) = self.open.get_mut(&key) {
            request.set(stamp, time);
        }
    }

    /// Packets were built: for responses that have begun these are the first.
    fn build(&mut self, worker: usize, number: u64, (mark, time): (u64, u64), way: Channel) {
        let unbuilt = self.connections.get_mut(&number).map(|known| std::mem::take(&mut known.unbuilt));
        let way_out = self.way(worker, way);
        let mut first_of = Vec::new();
        for stream in unbuilt.unwrap_or_default() {
            let Some(request) = self.open.get_mut(&(number, stream)) else { continue };
            request.set(Stamp::Built, time);
            request.way_out.clone_from(&way_out);
            request.mark = mark;
            self.unflushed.entry(worker).or_default().push((mark, (number, stream)));
            first_of.push((number, stream));
        }
        if matches!(way, Channel::Xsk(_)) {
            let bursts = self.bursts.entry(worker).or_default();
            while let Some(oldest) = bursts.first_entry().filter(|one| one.get().built + COMPLETED < time) {
                oldest.remove();
                self.burst_count -= 1;
                self.uncompleted += 1;
            }
            if self.burst_count < REMEMBERED {
                let before = bursts.insert(mark, Burst { built: time, first_of });
                self.burst_count += usize::from(before.is_none());
            } else {
                self.left_out += 1;
            }
        }
    }

    /// TCP: octets were written, the first for responses that have begun.
    fn send(&mut self, worker: usize, number: u64, (began, time): (u64, u64)) {
        let unbuilt = self.connections.get_mut(&number).map(|known| std::mem::take(&mut known.unbuilt));
        let way_out = self.way(worker, Channel::Tcp);
        for stream in unbuilt.unwrap_or_default() {
            let Some(request) = self.open.get_mut(&(number, stream)) else { continue };
            request.set(Stamp::Built, began);
            request.set(Stamp::Flushed, time);
            request.way_out.clone_from(&way_out);
        }
    }

    fn flush(&mut self, worker: usize, mark: u64, time: u64) {
        let Some(unflushed) = self.unflushed.get_mut(&worker) else { return };
        for (_, key) in unflushed.extract_if(.., |(built, _)| *built <= mark) {
            if let Some(request) = self.open.get_mut(&key) {
                request.set(Stamp::Flushed, time);
            }
        }
    }

    fn complete(&mut self, worker: usize, mark: u64, time: u64) {
        let Some(burst) = self.bursts.get_mut(&worker).and_then(|bursts| bursts.remove(&mark)) else {
            return;
        };
        self.burst_count -= 1;
        self.packets.add(4, burst.built, time);
        for key in burst.first_of {
            self.stamp(key, Stamp::Completed, time);
        }
    }

    /// A connection is over, and with it its requests: what has not been acknowledged will not be.
    fn close(&mut self, number: u64) -> Vec<Request> {
        self.connections.remove(&number);
        let keys: Vec<Key> = self.open.range((number, 0)..=(number, u64::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.finish(key)).collect()
    }

    /// A request has come to its end.
    fn finish(&mut self, key: Key) -> Option<Request> {
        let request = self.open.remove(&key)?;
        self.finished += 1;
        self.failed += u64::from(!request.complete);
        self.settle(&request);
        Some(request)
    }

    fn settle(&mut self, request: &Request) {
        self.steps.take(request);
        let is_wanted = self.wanted.as_ref().is_none_or(|wanted| request.text.contains(wanted.as_str()));
        let before = self.slowest.as_ref().map_or(0, Request::duration);
        if is_wanted && (self.slowest.is_none() || request.duration() > before) {
            self.slowest = Some(request.clone());
        }
    }

    /// The trace is over: what is under way counts as far as it has come. Returns these requests.
    pub fn end(&mut self) -> Vec<Request> {
        let mut rest: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        rest.sort_by_key(Request::began);
        rest.iter().for_each(|request| self.settle(request));
        rest
    }

    fn way(&self, worker: usize, way: Channel) -> String {
        match way {
            Channel::Xsk(index) => {
                self.places.get(&(worker, index)).cloned().unwrap_or_else(|| format!("AF_XDP socket {index}"))
            }
            Channel::Kernel => "kernel socket".to_owned(),
            Channel::Worker => "another worker".to_owned(),
            Channel::Tcp => "TCP".to_owned(),
            Channel::Simulated => "simulated".to_owned(),
        }
    }

    /// How a burst or datagram of a worker moved, in words.
    pub(super) fn way_of(&self, worker: usize, way: Channel) -> String {
        self.way(worker, way)
    }

    /// Who a connection is of.
    pub(super) fn client(&self, connection: u64) -> Option<&(SocketAddr, Box<str>)> {
        self.connections.get(&connection).map(|known| &known.client)
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// Connections that were followed.
    pub fn connections(&self) -> usize {
        self.followed
    }

    /// The request that took longest.
    pub fn slowest(&self) -> Option<&Request> {
        self.slowest.as_ref()
    }

    /// How long steps of requests took; those that were never measured are left out.
    pub fn steps(&self) -> Vec<Row> {
        self.steps.rows(STEPS.map(|step| step.name))
    }

    /// The same of packets.
    pub fn packets(&self) -> Vec<Row> {
        self.packets.rows(PACKET_STEPS)
    }
}
