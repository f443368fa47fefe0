//! Options and limits of a fan-out.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::framing::Framing;
use super::ring::BLOCK_BYTES;
use super::tls::TlsIdentity;

/// What subscribers of a listen address speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The framed stream over TCP.
    Tcp,
    /// The framed stream over TLS.
    Tls,
    /// WebSocket over TCP.
    WebSocket,
    /// WebSocket over TLS.
    SecureWebSocket,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Tls, Self::WebSocket, Self::SecureWebSocket];

    /// The word in statistics: `tcp`, `tls`, `ws` or `wss`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::WebSocket => "ws",
            Self::SecureWebSocket => "wss",
        }
    }

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::SecureWebSocket)
    }

    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::SecureWebSocket)
    }
}

/// An address that subscribers connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listen {
    /// What they speak there.
    pub protocol: Protocol,
    /// The address; port 0 takes a free one. An IPv6 wildcard takes IPv6 only.
    pub address: SocketAddr,
}

/// Where in the stream a subscriber starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the next datagram.
    #[default]
    Next,
    /// With the last so many datagrams, as far as they are retained.
    Last(u32),
    /// With the newest snapshot and everything after it; see [`Options::snapshot`].
    Snapshot,
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "next" => Ok(Self::Next),
            None if text == "snapshot" => Ok(Self::Snapshot),
            Some(("last", count)) => count
                .parse()
                .map(Self::Last)
                .map_err(|_| format!("`{text}`: `{count}` is not a number of datagrams")),
            _ => Err(format!("`{text}` is not one of next, last:N, snapshot")),
        }
    }
}

/// Who says where a subscriber starts. WebSocket subscribers may always ask, by `?start=` in their request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPolicy {
    /// All start so.
    Fixed(Start),
    /// The first line of a TCP or TLS subscriber says it: `next`, `last:N` or `snapshot`, ended by a line feed.
    Ask,
}

impl FromStr for StartPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "ask" {
            return Ok(Self::Ask);
        }
        text.parse().map(Self::Fixed).map_err(|error: String| format!("{error}, ask"))
    }
}

/// What becomes of a subscriber that falls behind the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowClient {
    /// It finishes its current frame and then skips to the newest, with a gap marker.
    Drop,
    /// It is disconnected.
    Disconnect,
}

impl SlowClient {
    /// The policies by name.
    pub const NAMES: [(&'static str, Self); 2] = [("drop", Self::Drop), ("disconnect", Self::Disconnect)];
}

impl FromStr for SlowClient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, policy)| *policy).ok_or_else(|| format!("`{text}` is neither drop nor disconnect"))
    }
}

/// Addresses with a common prefix: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Whether `address` has the prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr =
            address.parse().map_err(|_| format!("`{text}` is not an address or ADDRESS/PREFIX"))?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => longest,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|prefix| *prefix <= longest)
                .ok_or_else(|| format!("`{text}`: the prefix must be 0 to {longest}"))?,
        };
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// What one subscriber may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A subscriber with more stream bytes pending than this counts as slow.
    pub lag_bytes: usize,
    /// A subscriber whose oldest pending datagram is older than this counts as slow.
    pub lag_age: Duration,
    /// A subscriber whose socket takes nothing for so long is disconnected, whatever the policy; also the
    /// TCP_USER_TIMEOUT of its connection.
    pub stall: Duration,
    /// Bytes of the kernel's send buffer of a subscriber (SO_SNDBUF, which the kernel doubles for its
    /// bookkeeping). They come before the lag is counted.
    pub send_buffer: usize,
    /// Subscribers at once, those in a handshake included.
    pub subscribers: usize,
    /// Those of one address at once, of an IPv6 /64 respectively; `None`: as many as there may be.
    pub subscribers_per_address: Option<usize>,
    /// How long TLS and WebSocket handshakes and the line that says the start may take, from the connection on.
    pub handshake: Duration,
    /// Concurrent handshakes. Beyond it the oldest is ended if it is at least a second old; otherwise the
    /// new one is refused.
    pub handshakes: usize,
    /// Those of one address at once, of an IPv6 /64 respectively, likewise.
    pub handshakes_per_address: usize,
    /// Bytes of the head of a WebSocket request.
    pub request: usize,
    /// Bytes that a TLS or WebSocket subscriber may send per second. Each read, TLS record and WebSocket
    /// frame counts another 64.
    pub input: usize,
}

impl Default for Limits {
    /// 4 MiB or 1 s behind, 30 s without progress, 256 KiB in the kernel, 4096 subscribers; 10 s for handshakes, of which
    /// 1024 at once and 256 of an address; requests of 8 KiB, 64 KiB a second of input.
    fn default() -> Self {
        Self {
            lag_bytes: 4 << 20,
            lag_age: Duration::from_secs(1),
            stall: Duration::from_secs(30),
            send_buffer: 256 << 10,
            subscribers: 4096,
            subscribers_per_address: None,
            handshake: Duration::from_secs(10),
            handshakes: 1024,
            handshakes_per_address: 256,
            request: 8 << 10,
            input: 64 << 10,
        }
    }
}

/// What a fan-out is to do.
#[derive(Clone)]
pub struct Options {
    /// Where subscribers connect; at least one.
    pub listen: Vec<Listen>,
    /// How datagrams stand in TCP and TLS streams.
    pub framing: Framing,
    /// What becomes of slow subscribers.
    pub slow_client: SlowClient,
    /// Limits of a subscriber.
    pub limits: Limits,
    /// Bytes of stream that are retained, at least twice [`Limits::lag_bytes`] and 512 KiB.
    pub ring: usize,
    /// Where subscribers start.
    pub start: StartPolicy,
    /// Datagrams beginning with these bytes are snapshots: the newest is kept for subscribers that start
    /// with it.
    pub snapshot: Option<Vec<u8>>,
    /// Who may subscribe; empty: everybody.
    pub allow: Vec<Cidr>,
    /// Pages of these origins (`https://host`) may subscribe by WebSocket, in addition to the server's own;
    /// `*`: all.
    pub origins: Vec<String>,
    /// Certificate and key of TLS listeners.
    pub tls: Option<Arc<TlsIdentity>>,
    /// Threads that send, 1 to 64; the first also receives.
    pub threads: usize,
    /// Datagrams from other addresses are dropped and counted; empty: none are.
    pub sources: Vec<IpAddr>,
}

impl Options {
    /// The defaults: no framing, slow subscribers disconnected, 16 MiB retained, start at the next datagram,
    /// one thread.
    pub fn new(listen: Vec<Listen>) -> Self {
        Self {
            listen,
            framing: Framing::None,
            slow_client: SlowClient::Disconnect,
            limits: Limits::default(),
            ring: 16 << 20,
            start: StartPolicy::Fixed(Start::Next),
            snapshot: None,
            allow: Vec::new(),
            origins: Vec::new(),
            tls: None,
            threads: 1,
            sources: Vec::new(),
        }
    }

    /// Checks every field against the others.
    ///
    /// # Errors
    /// One line that names the field, the problem and the allowed values.
    pub fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        let within = |name: &str, value: usize, low: usize, high: usize| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(format!("{name} is {value}: must be {low} to {high}"))
        };
        if self.listen.is_empty() {
            return Err("no listen address: give at least one of tcp, tls, ws, wss".into());
        }
        if self.listen.iter().any(|listen| listen.protocol.is_tls()) && self.tls.is_none() {
            return Err("tls and wss need a certificate and a private key".into());
        }
        within("threads", self.threads, 1, 64)?;
        within("max-lag", limits.lag_bytes, 1 << 16, 1 << 30)?;
        within("send-buffer", limits.send_buffer, 1 << 12, 1 << 28)?;
        within("max-subscribers", limits.subscribers, 1, 1 << 20)?;
        within("max-subscribers-per-address", limits.subscribers_per_address.unwrap_or(1), 1, 1 << 20)?;
        within("max-handshakes", limits.handshakes, 1, 1 << 20)?;
        within("max-handshakes-per-address", limits.handshakes_per_address, 1, 1 << 20)?;
        within("max-request", limits.request, 512, 64 << 10)?;
        within("max-input", limits.input, 1 << 10, 1 << 30)?;
        // The ring must outlast every subscriber that is within its limit, and the turn in which it is found out.
        within("ring", self.ring, limits.lag_bytes.max(BLOCK_BYTES) * 2, 1 << 34)?;
        for (name, value) in
            [("max-age", limits.lag_age), ("stall", limits.stall), ("handshake", limits.handshake)]
        {
            if value < Duration::from_millis(10) || value > Duration::from_secs(86_400) {
                return Err(format!("{name} is {value:?}: must be 10ms to 24h"));
            }
        }
        if matches!(self.start, StartPolicy::Fixed(Start::Snapshot)) && self.snapshot.is_none() {
            return Err("start is snapshot, but snapshot-prefix is not set".into());
        }
        if self.snapshot.as_ref().is_some_and(Vec::is_empty) {
            return Err("snapshot-prefix is empty: every datagram would be a snapshot".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_what_they_should() {
        let within =
            |cidr: &str, address: &str| cidr.parse::<Cidr>().unwrap().contains(address.parse().unwrap());
        assert!(within("192.0.2.0/24", "192.0.2.255") && !within("192.0.2.0/24", "192.0.3.0"));
        assert!(within("0.0.0.0/0", "8.8.8.8") && !within("0.0.0.0/0", "2001:db8::1"));
        assert!(within("10.0.0.1", "10.0.0.1") && !within("10.0.0.1", "10.0.0.2"));
        assert!(within("2001:db8::/33", "2001:db8:7fff::1") && !within("2001:db8::/33", "2001:db8:8000::1"));
        assert!(within("::/0", "::1") && within("10.0.0.0/8", "::ffff:10.1.2.3"));
        for bad in ["10.0.0.0/33", "::/129", "here", "10.0.0.0/-1", "10.0.0.0/"] {
            assert!(bad.parse::<Cidr>().unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn starts_parse() {
        assert_eq!("next".parse(), Ok(Start::Next));
        assert_eq!("last:7".parse(), Ok(Start::Last(7)));
        assert_eq!("snapshot".parse(), Ok(StartPolicy::Fixed(Start::Snapshot)));
        assert_eq!("ask".parse(), Ok(StartPolicy::Ask));
        for bad in ["", "last", "last:", "last:-1", "first", "next:1"] {
            assert!(bad.parse::<StartPolicy>().is_err(), "{bad}");
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let listen = Listen { protocol: Protocol::Tcp, address: "127.0.0.1:0".parse().unwrap() };
        let good = Options::new(vec![listen]);
        assert_eq!(good.check(), Ok(()));
        let complaint = |change: &dyn Fn(&mut Options)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert!(complaint(&|o| o.listen.clear()).contains("no listen address"));
        assert!(complaint(&|o| o.listen[0].protocol = Protocol::Tls).contains("certificate"));
        assert!(complaint(&|o| o.ring = 4 << 20).contains("ring is 4194304: must be 8388608"));
        assert!(complaint(&|o| o.threads = 0).contains("threads is 0"));
        assert!(complaint(&|o| o.limits.handshakes = 0).contains("max-handshakes is 0: must be 1"));
        assert!(
            complaint(&|o| o.limits.handshakes_per_address = 0).contains("max-handshakes-per-address is 0")
        );
        assert!(
            complaint(&|o| o.limits.subscribers_per_address = Some(0))
                .contains("max-subscribers-per-address")
        );
        assert!(complaint(&|o| o.limits.request = 100).contains("max-request is 100: must be 512 to 65536"));
        assert!(complaint(&|o| o.limits.input = 0).contains("max-input is 0"));
        assert!(complaint(&|o| o.limits.lag_age = Duration::ZERO).contains("max-age"));
        assert!(complaint(&|o| o.start = StartPolicy::Fixed(Start::Snapshot)).contains("snapshot-prefix"));
        assert!(complaint(&|o| o.snapshot = Some(Vec::new())).contains("empty"));
    }
}
