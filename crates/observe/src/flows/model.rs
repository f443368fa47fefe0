//! Computes tables with rates from samples.
//!
//! It is bounded: 40 seconds of history in slots of about one second, and a maximum number of conversations, of which
//! those with the fewest bytes are evicted. Totals are those of the samples, so they include packets that have no row.

mod history;
mod queues;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::connections::Connections;
use super::conversation::{Address, Conversation};
use super::sample::{Counts, Paths, Sample, Totals};
use history::{Clock, History, Traffic};
use queues::Queues;
pub use queues::{PathRate, QueueRow};

/// Conversations with a history.
const ROWS: usize = 16_384;

/// Over how long a rate is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Window {
    /// 2 seconds.
    Short,
    /// 10 seconds.
    Middle,
    /// 40 seconds.
    Long,
}

impl Window {
    /// All of them, short ones first.
    pub const ALL: [Self; 3] = [Self::Short, Self::Middle, Self::Long];

    /// Its length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Short => 2,
            Self::Middle => 10,
            Self::Long => 40,
        }
    }
}

/// What rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Both directions between two addresses and ports.
    Flow,
    /// All with one remote address.
    Host,
    /// All with one local port.
    Port,
    /// QUIC connections, whatever addresses they came from.
    Connection,
}

/// Which parts of addresses tell rows of [`Group::Flow`] apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Show {
    /// Local addresses.
    pub local: bool,
    /// Remote addresses.
    pub remote: bool,
    /// Local ports.
    pub local_port: bool,
    /// Remote ports.
    pub remote_port: bool,
}

impl Default for Show {
    fn default() -> Self {
        Self { local: true, remote: true, local_port: true, remote_port: true }
    }
}

/// A second's part of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Bits per second received.
    pub received: f64,
    /// Bits per second sent.
    pub sent: f64,
    /// Packets per second received.
    pub received_packets: f64,
    /// Packets per second sent.
    pub sent_packets: f64,
    /// Of both directions' octets, the share that AF_XDP sockets had, 0 to 1.
    pub af_xdp: f64,
    /// Packets per second dropped, by XDP or by the kernel's stack.
    pub dropped: f64,
}

impl Rate {
    /// Bits per second of both directions.
    #[must_use]
    pub fn bits(&self) -> f64 {
        self.received + self.sent
    }

    /// Packets per second of both directions.
    #[must_use]
    pub fn packets(&self) -> f64 {
        self.received_packets + self.sent_packets
    }

    fn of(traffic: &Traffic, seconds: f64) -> Self {
        let (received, sent) = (traffic.received.all(), traffic.sent.all());
        let all = (received.bytes + sent.bytes) as f64;
        let by_xdp = (traffic.received.af_xdp.bytes + traffic.sent.af_xdp.bytes) as f64;
        let a_second = |count: u64| count as f64 / seconds;
        Self {
            received: a_second(received.bytes) * 8.0,
            sent: a_second(sent.bytes) * 8.0,
            received_packets: a_second(received.packets),
            sent_packets: a_second(sent.packets),
            af_xdp: if all > 0.0 { by_xdp / all } else { 0.0 },
            dropped: a_second(
                traffic.dropped + traffic.received.dropped.packets + traffic.sent.dropped.packets,
            ),
        }
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `tcp`, `udp` and so on; `*` for several.
    pub protocol: String,
    /// This host's address; `None` for several.
    pub local: Option<Address>,
    /// Its port; `None` for several and for none.
    pub local_port: Option<u16>,
    /// The other address; of a QUIC connection, the one that it came from last.
    pub remote: Option<Address>,
    /// Its port.
    pub remote_port: Option<u16>,
    /// The connection ID in use, in hexadecimal, of a row that is one QUIC connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cid: Option<String>,
    /// Over 2, 10 and 40 seconds.
    pub rates: [Rate; 3],
    /// Received since the conversation was seen first, by path.
    pub received: Paths,
    /// Sent likewise.
    pub sent: Paths,
    /// Packets that the kernel's stack dropped.
    pub dropped: u64,
    /// Conversations in this row.
    pub conversations: usize,
}

impl Row {
    /// Octets of both directions since the start.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.received.all().bytes.saturating_add(self.sent.all().bytes)
    }
}

/// A conversation's own.
#[derive(Clone, Debug, Default)]
struct Entry {
    history: History,
    total: Traffic,
    cid: String,
    quic: bool,
    connection: Option<u64>,
    /// The slot in which it had packets last.
    active: u64,
}

/// The tables.
#[derive(Clone, Debug, Default)]
pub struct Model {
    clock: Clock,
    entries: HashMap<Conversation, Entry>,
    all: History,
    before: Option<Totals>,
    connections: Connections,
    queues: Queues,
    quic_ports: HashSet<u16>,
    last: Sample,
    highest: f64,
}

impl Model {
    /// An empty one, to which short headers on these local UDP ports are QUIC's even if no handshake has been seen.
    #[must_use]
    pub fn new(quic_ports: &[u16]) -> Self {
        Self { quic_ports: quic_ports.iter().copied().collect(), ..Self::default() }
    }

    /// Takes a sample, in the order of their time.
    pub fn add(&mut self, sample: Sample) {
        self.clock.advance(sample.elapsed);
        let slot = self.clock.slot();
        let before = self.before.unwrap_or_default();
        let traffic = Traffic {
            received: sample.totals.received.without(&before.received),
            sent: sample.totals.sent.without(&before.sent),
            dropped: 0,
        };
        self.all.add(slot, &traffic);
        self.before = Some(sample.totals);
        self.queues.add(&self.clock, &sample.queues);
        for flow in &sample.flows {
            let entry = self.entries.entry(flow.conversation).or_default();
            let traffic = Traffic { received: flow.received, sent: flow.sent, dropped: flow.dropped };
            entry.history.add(slot, &traffic);
            entry.total += traffic;
            entry.active = slot;
            entry.quic |= flow.quic;
            let is_quic = entry.quic || self.quic_ports.contains(&flow.conversation.local_port);
            if flow.conversation.protocol == 17 && is_quic && !flow.cid.is_empty() {
                entry.connection = Some(self.connections.learn(&flow.conversation, &flow.cid));
                entry.cid.clone_from(&flow.cid);
            }
        }
        self.shrink();
        self.last = Sample { flows: Vec::new(), ..sample };
        self.highest = self.highest.max(self.rate(Window::Short).bits());
    }

    /// Forgets conversations beyond the bound, those with fewest octets first.
    fn shrink(&mut self) {
        if self.entries.len() <= ROWS {
            return;
        }
        let first = self.clock.first(Window::Long).0;
        // An eighth of room, so that not every sample of a flood does this.
        let keep = ROWS - ROWS / 8;
        let mut weights: Vec<(u64, Conversation)> = self
            .entries
            .iter()
            .map(|(conversation, entry)| (entry.history.since(first).bytes(), *conversation))
            .collect();
        let leave = weights.len() - keep;
        weights.select_nth_unstable(leave);
        for (_, conversation) in &weights[..leave] {
            self.entries.remove(conversation);
        }
    }

    /// The last sample, without its flows.
    #[must_use]
    pub fn last(&self) -> &Sample {
        &self.last
    }

    /// All packets of the interface.
    #[must_use]
    pub fn rate(&self, window: Window) -> Rate {
        let (first, seconds) = self.clock.first(window);
        Rate::of(&self.all.since(first), seconds)
    }

    /// The highest rate over two seconds so far, in bits per second of both directions.
    #[must_use]
    pub fn highest(&self) -> f64 {
        self.highest
    }

    /// All packets of the interface by path over a window, received and sent, a second.
    #[must_use]
    pub fn paths(&self, window: Window) -> ([Rate; 4], f64) {
        let (first, seconds) = self.clock.first(window);
        let traffic = self.all.since(first);
        let of = |received: Counts, sent: Counts| Rate {
            received: received.bytes as f64 * 8.0 / seconds,
            sent: sent.bytes as f64 * 8.0 / seconds,
            received_packets: received.packets as f64 / seconds,
            sent_packets: sent.packets as f64 / seconds,
            ..Rate::default()
        };
        let (received, sent) = (&traffic.received, &traffic.sent);
        let rates = [
            of(received.af_xdp, sent.af_xdp),
            of(received.kernel, sent.kernel),
            of(received.xdp, sent.xdp),
            of(received.dropped, sent.dropped),
        ];
        (rates, seconds)
    }

    /// The queues of the interface's devices, with and without packets.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueRow> {
        self.queues.rows(&self.clock)
    }

    /// What no row has: flows that the kernel's table or this one had no room for.
    #[must_use]
    pub fn others(&self, window: Window) -> Rate {
        let (first, seconds) = self.clock.first(window);
        let mut held = Traffic::default();
        for entry in self.entries.values() {
            held += entry.history.since(first);
        }
        Rate::of(&self.all.since(first).without(&held), seconds)
    }

    /// The rows of a table, in no order. A conversation that had no packets for 40 seconds has none.
    #[must_use]
    pub fn rows(&self, group: Group, show: Show) -> Vec<Row> {
        let windows = Window::ALL.map(|window| self.clock.first(window));
        let mut rows: HashMap<Key, (Row, [Traffic; 3], u64)> = HashMap::new();
        for (conversation, entry) in &self.entries {
            let Some(key) = Key::of(group, show, conversation, entry) else { continue };
            let traffic = windows.map(|(first, _)| entry.history.since(first));
            if traffic[2].is_zero() {
                continue;
            }
            let (row, sums, active) = rows.entry(key).or_insert_with(|| (row(), [Traffic::default(); 3], 0));
            merge(row, conversation, entry, group, show, &mut *active);
            for (sum, traffic) in sums.iter_mut().zip(traffic) {
                *sum += traffic;
            }
        }
        rows.into_values()
            .map(|(mut row, sums, _)| {
                row.rates = [0, 1, 2].map(|at| Rate::of(&sums[at], windows[at].1));
                row
            })
            .collect()
    }
}

/// What conversations of one row have in common.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Flow(Conversation),
    Host(Address),
    Port(u8, u16),
    Connection(u64),
}

impl Key {
    fn of(group: Group, show: Show, conversation: &Conversation, entry: &Entry) -> Option<Self> {
        match group {
            Group::Flow => {
                let none = Address::Mac([0; 6]);
                Some(Self::Flow(Conversation {
                    local: if show.local { conversation.local } else { none },
                    remote: if show.remote { conversation.remote } else { none },
                    local_port: if show.local_port { conversation.local_port } else { 0 },
                    remote_port: if show.remote_port { conversation.remote_port } else { 0 },
                    ..*conversation
                }))
            }
            Group::Host => Some(Self::Host(conversation.remote)),
            Group::Port => (conversation.local_port != 0)
                .then_some(Self::Port(conversation.protocol, conversation.local_port)),
            Group::Connection => entry.connection.map(Self::Connection),
        }
    }
}

fn row() -> Row {
    Row {
        protocol: String::new(),
        local: None,
        local_port: None,
        remote: None,
        remote_port: None,
        cid: None,
        rates: [Rate::default(); 3],
        received: Paths::default(),
        sent: Paths::default(),
        dropped: 0,
        conversations: 0,
    }
}

/// Adds a conversation to its row.
fn merge(row: &mut Row, other: &Conversation, entry: &Entry, group: Group, show: Show, active: &mut u64) {
    let first = row.conversations == 0;
    row.conversations += 1;
    row.received += entry.total.received;
    row.sent += entry.total.sent;
    row.dropped += entry.total.dropped;
    let port = |port: u16| (port != 0).then_some(port);
    let (mut local, mut remote) = (Some(other.local), Some(other.remote));
    let (mut local_port, mut remote_port) = (port(other.local_port), port(other.remote_port));
    if group == Group::Flow {
        local = local.filter(|_| show.local);
        remote = remote.filter(|_| show.remote);
        local_port = local_port.filter(|_| show.local_port);
        remote_port = remote_port.filter(|_| show.remote_port);
    }
    let protocol = other.protocol_name();
    if group == Group::Connection {
        // The address that it comes from now.
        if first || entry.active >= *active {
            *active = entry.active;
            row.protocol = "quic".to_owned();
            (row.local, row.local_port, row.remote, row.remote_port) =
                (local, local_port, remote, remote_port);
            row.cid = Some(entry.cid.clone());
        }
        return;
    }
    if first {
        row.protocol = protocol;
        (row.local, row.local_port, row.remote, row.remote_port) = (local, local_port, remote, remote_port);
        return;
    }
    // What they do not have in common is left out.
    if row.protocol != protocol {
        row.protocol = "*".to_owned();
    }
    row.local = row.local.filter(|known| Some(*known) == local);
    row.remote = row.remote.filter(|known| Some(*known) == remote);
    row.local_port = row.local_port.filter(|known| Some(*known) == local_port);
    row.remote_port = row.remote_port.filter(|known| Some(*known) == remote_port);
}
