//! The policy file: who may have which addresses, interfaces and queues, and how much memory.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use expressway_netio::xsk::BindMode;
use expressway_settings::{ConfigError, Size, SourceFile};
use nix::unistd::{Group, User};
use serde::Deserialize;
use toml::Spanned;

use crate::message::{Code, Refusal};

/// Default limit on concurrent clients of the whole agent: each is a thread.
const CLIENTS: u32 = 64;
/// The largest buffer that a socket can have: the kernel counts twice as much in an `int` (`__sock_set_rcvbuf` in
/// `net/core/sock.c`).
const MOST_BUFFER: u64 = (i32::MAX / 2) as u64;

/// A checked policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The socket's path; `None` for an agent with a single given connection.
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// Concurrent clients, of all rules.
    pub clients: u32,
    /// The rules; the first that matches a client applies.
    pub rules: Vec<Rule>,
}

/// What certain users may have.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name, for messages.
    pub name: String,
    /// User ids; `None` is everyone.
    pub users: Option<BTreeSet<u32>>,
    /// Primary group ids.
    pub groups: BTreeSet<u32>,
    /// Addresses and ports. A wildcard covers every address of its family except multicast groups.
    pub listen: Vec<SocketAddr>,
    /// Interfaces; `None` is all.
    pub interfaces: Option<BTreeSet<String>>,
    /// Queues; `None` is all.
    pub queues: Option<BTreeSet<u32>>,
    /// Bytes of UMEM at a time, per client.
    pub memory: u64,
    /// Bytes of a UDP socket's buffers, in each direction.
    pub socket_buffer: u64,
    /// Sockets per address.
    pub workers: u32,
    /// Concurrent clients.
    pub clients: u32,
    /// May detach foreign XDP programs.
    pub replace: bool,
    /// May have sockets that poll the device instead of waiting for its interrupts.
    pub busy_poll: bool,
    /// May have AF_XDP sockets that send: any frame, from any address.
    pub transmit: bool,
    /// May have AF_XDP sockets in zero-copy mode, which can read all packets of a queue.
    pub zero_copy: bool,
    /// Of the interfaces, only those that have an address of `listen`.
    pub only_listen: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    agent: RawAgent,
    #[serde(default)]
    allow: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAgent {
    socket: PathBuf,
    #[serde(default = "everyone")]
    socket_mode: Spanned<u32>,
    #[serde(default = "clients")]
    clients: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: Spanned<String>,
    #[serde(default)]
    users: Vec<Spanned<Id>>,
    #[serde(default)]
    groups: Vec<Spanned<Id>>,
    #[serde(default)]
    listen: Vec<Spanned<SocketAddr>>,
    #[serde(default)]
    interfaces: Vec<Spanned<String>>,
    #[serde(default)]
    queues: Option<Spanned<Vec<u32>>>,
    #[serde(default)]
    memory: Option<Size>,
    #[serde(default = "socket_buffer")]
    socket_buffer: Spanned<Size>,
    #[serde(default = "workers")]
    workers: Spanned<u32>,
    #[serde(default = "one")]
    clients: Spanned<u32>,
    #[serde(default)]
    replace: bool,
    #[serde(default)]
    busy_poll: bool,
    #[serde(default = "yes")]
    transmit: bool,
    #[serde(default = "yes")]
    zero_copy: bool,
}

/// A user or group by number or name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u32),
    Name(String),
}

fn everyone() -> Spanned<u32> {
    // Clients are checked by credentials; the socket's permissions may restrict access further.
    Spanned::new(0..0, 0o666)
}

fn clients() -> Spanned<u32> {
    Spanned::new(0..0, CLIENTS)
}

fn socket_buffer() -> Spanned<Size> {
    // Four times what our own programs request by default.
    Spanned::new(0..0, Size(16 << 20))
}

fn yes() -> bool {
    true
}

fn workers() -> Spanned<u32> {
    Spanned::new(0..0, 64)
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

impl Policy {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(&SourceFile::read(file)?)
    }

    /// Checks the text of a file. A relative socket path is relative to the file's directory.
    ///
    /// # Errors
    /// As [`Policy::load`].
    pub fn parse(source: &SourceFile) -> Result<Self, ConfigError> {
        let raw: Raw = source.parse()?;
        if raw.allow.is_empty() {
            return Err(SourceFile::whole(
                &source.file,
                "no [[allow]] section: add one for each kind of client",
            ));
        }
        let bounded = |value: &Spanned<u32>, low: u32, high: u32| match value.get_ref() {
            inside if (low..=high).contains(inside) => Ok(*inside),
            outside => Err(source.at(value.span(), format!("{outside} is not between {low} and {high}"))),
        };
        let mut names = BTreeSet::new();
        let mut rules = Vec::new();
        for rule in raw.allow {
            if rule.name.get_ref().is_empty() || !names.insert(rule.name.get_ref().clone()) {
                return Err(source.at(rule.name.span(), "rule names must be unique and not empty"));
            }
            if rule.users.is_empty() && rule.groups.is_empty() {
                return Err(source.at(rule.name.span(), "a rule needs at least one of users and groups"));
            }
            rules.push(Rule {
                users: Some(ids(source, &rule.users, "user", |name| {
                    User::from_name(name).map(|found| found.map(|user| user.uid.as_raw()))
                })?),
                groups: ids(source, &rule.groups, "group", |name| {
                    Group::from_name(name).map(|found| found.map(|group| group.gid.as_raw()))
                })?,
                listen: listen(source, &rule.listen)?,
                interfaces: interfaces(source, &rule.interfaces)?,
                queues: queues(source, rule.queues)?,
                memory: rule.memory.map_or(64 << 20, |size| size.0),
                socket_buffer: match rule.socket_buffer.get_ref().0 {
                    bytes @ 4096..=MOST_BUFFER => bytes,
                    bytes => {
                        let what = format!("{bytes} bytes is not between 4096 and {MOST_BUFFER}");
                        return Err(source.at(rule.socket_buffer.span(), what));
                    }
                },
                workers: bounded(&rule.workers, 1, 256)?,
                clients: bounded(&rule.clients, 1, 1024)?,
                replace: rule.replace,
                busy_poll: rule.busy_poll,
                transmit: rule.transmit,
                zero_copy: rule.zero_copy,
                only_listen: false,
                name: rule.name.into_inner(),
            });
        }
        Ok(Self {
            socket: Some(source.file.parent().unwrap_or(Path::new("")).join(raw.agent.socket)),
            socket_mode: bounded(&raw.agent.socket_mode, 0, 0o777)?,
            clients: bounded(&raw.agent.clients, 1, 1024)?,
            rules,
        })
    }

    /// A policy for one known client: it may have these addresses, the interfaces that have them, and
    /// whatever it requests there.
    pub fn for_own(listen: Vec<SocketAddr>, replace: bool) -> Self {
        let rule = Rule {
            name: "own".to_owned(),
            users: None,
            groups: BTreeSet::new(),
            listen,
            interfaces: None,
            queues: None,
            memory: u64::MAX,
            socket_buffer: MOST_BUFFER,
            workers: 256,
            clients: 1,
            replace,
            busy_poll: true,
            transmit: true,
            zero_copy: true,
            only_listen: true,
        };
        Self { socket: None, socket_mode: 0, clients: 1, rules: vec![rule] }
    }

    /// The first rule for a user with that primary group.
    pub fn rule(&self, uid: u32, gid: u32) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.is_for(uid, gid))
    }
}

fn ids(
    source: &SourceFile,
    given: &[Spanned<Id>],
    kind: &str,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<BTreeSet<u32>, ConfigError> {
    let resolve = |id: &Spanned<Id>| match id.get_ref() {
        Id::Number(number) => Ok(*number),
        Id::Name(name) => match find(name) {
            Ok(Some(number)) => Ok(number),
            Ok(None) => Err(source.at(id.span(), format!("no such {kind}: `{name}`"))),
            Err(error) => Err(source.at(id.span(), format!("looking up {kind} `{name}`: {error}"))),
        },
    };
    given.iter().map(resolve).collect()
}

fn listen(source: &SourceFile, given: &[Spanned<SocketAddr>]) -> Result<Vec<SocketAddr>, ConfigError> {
    let check = |address: &Spanned<SocketAddr>| match address.get_ref().port() {
        0 => Err(source.at(address.span(), "port 0 is not allowed; use a port such as 443")),
        _ => Ok(*address.get_ref()),
    };
    given.iter().map(check).collect()
}

fn interfaces(
    source: &SourceFile,
    given: &[Spanned<String>],
) -> Result<Option<BTreeSet<String>>, ConfigError> {
    if given.iter().any(|name| name.get_ref() == "*") {
        return Ok(None);
    }
    let check = |name: &Spanned<String>| match name.get_ref().len() {
        1..=15 => Ok(name.get_ref().clone()),
        _ => Err(source.at(name.span(), "interface names have 1 to 15 characters")),
    };
    given.iter().map(check).collect::<Result<_, _>>().map(Some)
}

/// At most as many as fit a message to a client.
fn queues(
    source: &SourceFile,
    given: Option<Spanned<Vec<u32>>>,
) -> Result<Option<BTreeSet<u32>>, ConfigError> {
    match given {
        Some(queues) if queues.get_ref().len() > 256 => {
            Err(source.at(queues.span(), "at most 256 queues may be listed; omit the key to allow all"))
        }
        given => Ok(given.map(|queues| queues.into_inner().into_iter().collect())),
    }
}

/// A list for a message.
fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

impl Rule {
    fn is_for(&self, uid: u32, gid: u32) -> bool {
        self.users.as_ref().is_none_or(|users| users.contains(&uid)) || self.groups.contains(&gid)
    }

    fn refuse<T>(&self, code: Code, what: impl fmt::Display) -> Result<T, Refusal> {
        Err(Refusal::new(code, format!("rule `{}`: {what}", self.name)))
    }

    /// Whether an address may be bound, or a pair added. A multicast group is not an address of this machine
    /// and not covered by a wildcard: it must be listed.
    pub(crate) fn check_listen(&self, address: SocketAddr) -> Result<(), Refusal> {
        let covers = |allowed: &SocketAddr| {
            allowed.port() == address.port()
                && allowed.is_ipv4() == address.is_ipv4()
                && (allowed.ip() == address.ip()
                    || (allowed.ip().is_unspecified() && !address.ip().is_multicast()))
        };
        match self.listen.iter().any(covers) {
            true => Ok(()),
            false => {
                self.refuse(Code::Listen, format!("{address} is not in listen ({})", list(&self.listen)))
            }
        }
    }

    pub(crate) fn check_interface(&self, interface: &str) -> Result<(), Refusal> {
        match &self.interfaces {
            Some(allowed) if !allowed.contains(interface) => self.refuse(
                Code::Interface,
                format!("interface {interface} is not in interfaces ({})", list(allowed)),
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_queue(&self, interface: &str, queue: u32) -> Result<(), Refusal> {
        match &self.queues {
            Some(allowed) if !allowed.contains(&queue) => self.refuse(
                Code::Queue,
                format!("queue {queue} of {interface} is not in queues ({})", list(allowed)),
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_memory(&self, wanted: u64) -> Result<(), Refusal> {
        match wanted <= self.memory {
            true => Ok(()),
            false => self.refuse(
                Code::Memory,
                format!("a total of {wanted} bytes of UMEM exceeds memory ({})", self.memory),
            ),
        }
    }

    pub(crate) fn check_socket_buffer(&self, wanted: u32) -> Result<(), Refusal> {
        match u64::from(wanted) <= self.socket_buffer {
            true => Ok(()),
            false => self.refuse(
                Code::Buffer,
                format!("a socket buffer of {wanted} bytes exceeds socket_buffer ({})", self.socket_buffer),
            ),
        }
    }

    pub(crate) fn check_transmit(&self, wanted: bool) -> Result<(), Refusal> {
        match wanted && !self.transmit {
            true => self.refuse(Code::Transmit, "AF_XDP sockets are receive-only (`transmit = false`)"),
            false => Ok(()),
        }
    }

    /// The bind mode for a client's request.
    pub(crate) fn bind_mode(&self, wanted: BindMode) -> Result<BindMode, Refusal> {
        match wanted {
            BindMode::ZeroCopy if !self.zero_copy => {
                self.refuse(Code::ZeroCopy, "zero-copy is not allowed (`zero_copy = false`)")
            }
            BindMode::Auto if !self.zero_copy => Ok(BindMode::Copy),
            wanted => Ok(wanted),
        }
    }

    pub(crate) fn check_workers(&self, wanted: u32) -> Result<(), Refusal> {
        match (1..=self.workers).contains(&wanted) {
            true => Ok(()),
            false => self
                .refuse(Code::Workers, format!("{wanted} workers requested, 1 to {} allowed", self.workers)),
        }
    }

    pub(crate) fn check_busy_poll(&self, wanted: bool) -> Result<(), Refusal> {
        match wanted && !self.busy_poll {
            true => self
                .refuse(Code::BusyPoll, "busy polling is not allowed (set `busy_poll = true` to allow it)"),
            false => Ok(()),
        }
    }

    pub(crate) fn check_replace(&self, wanted: bool) -> Result<(), Refusal> {
        match wanted && !self.replace {
            true => self.refuse(Code::Replace, "replacing foreign XDP programs is not allowed"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[agent]
socket = "agent.sock"

[[allow]]
name = "edge"
users = ["root", 1000]
listen = ["192.0.2.1:443", "[::]:443"]
interfaces = ["eth0"]
queues = [0, 1]
memory = "8MiB"
socket_buffer = "1MiB"
workers = 2
transmit = false
zero_copy = false

[[allow]]
name = "others"
groups = [100]
"#;

    fn parse(text: &str) -> Result<Policy, ConfigError> {
        Policy::parse(&SourceFile { file: "/etc/agent.toml".into(), text: text.to_owned() })
    }

    #[test]
    fn the_first_rule_with_the_user_or_group_counts() {
        let policy = parse(GOOD).unwrap();
        assert_eq!(policy.socket.as_deref(), Some(Path::new("/etc/agent.sock")));
        let name = |uid, gid| policy.rule(uid, gid).map(|(_, rule)| rule.name.clone());
        assert_eq!(name(0, 100).as_deref(), Some("edge"), "by name, and before the group's");
        assert_eq!(name(1000, 5).as_deref(), Some("edge"));
        assert_eq!(name(1001, 100).as_deref(), Some("others"));
        assert_eq!(name(1001, 101), None);
    }

    #[test]
    fn every_limit_refuses_by_its_name() {
        let policy = parse(GOOD).unwrap();
        let rule = &policy.rules[0];
        for address in ["192.0.2.1:443", "[2001:db8::1]:443", "[::]:443"] {
            rule.check_listen(address.parse().unwrap()).unwrap();
        }
        rule.check_interface("eth0").unwrap();
        rule.check_queue("eth0", 1).unwrap();
        rule.check_memory(8 << 20).unwrap();
        rule.check_socket_buffer(1 << 20).unwrap();
        rule.check_transmit(false).unwrap();
        assert_eq!(rule.bind_mode(BindMode::Auto).unwrap(), BindMode::Copy);
        assert_eq!(policy.rules[1].bind_mode(BindMode::Auto).unwrap(), BindMode::Auto);
        policy.rules[1].check_transmit(true).unwrap();
        policy.rules[1].check_socket_buffer(16 << 20).unwrap();
        assert!(policy.rules[1].check_socket_buffer((16 << 20) + 1).is_err());
        rule.check_workers(2).unwrap();
        rule.check_replace(false).unwrap();
        for (result, code, part) in [
            (rule.check_listen("192.0.2.2:443".parse().unwrap()), Code::Listen, "192.0.2.2:443"),
            (rule.check_listen("0.0.0.0:443".parse().unwrap()), Code::Listen, "0.0.0.0:443"),
            (rule.check_listen("[::1]:444".parse().unwrap()), Code::Listen, "[::1]:444"),
            (rule.check_listen("[ff15::7]:443".parse().unwrap()), Code::Listen, "[ff15::7]:443"),
            (rule.check_interface("eth1"), Code::Interface, "eth1"),
            (rule.check_queue("eth0", 2), Code::Queue, "queue 2"),
            (rule.check_memory((8 << 20) + 1), Code::Memory, "8388609"),
            (rule.check_socket_buffer((1 << 20) + 1), Code::Buffer, "1048577"),
            (rule.check_transmit(true), Code::Transmit, "receive-only"),
            (rule.bind_mode(BindMode::ZeroCopy).map(drop), Code::ZeroCopy, "zero-copy"),
            (rule.check_workers(3), Code::Workers, "3 workers"),
            (rule.check_workers(0), Code::Workers, "0 workers"),
            (rule.check_replace(true), Code::Replace, "foreign"),
        ] {
            let refusal = result.unwrap_err();
            assert_eq!(refusal.code, code);
            assert!(refusal.message.contains("rule `edge`") && refusal.message.contains(part), "{refusal}");
        }
        // A rule grants nothing that it does not list.
        assert_eq!(policy.rules[1].check_interface("eth0").unwrap_err().code, Code::Interface);
        assert_eq!(policy.rules[1].check_listen("[::]:443".parse().unwrap()).unwrap_err().code, Code::Listen);
    }

    #[test]
    fn mistakes_name_file_line_and_key() {
        for (from, to, parts) in [
            ("queues =", "queue =", &["agent.toml:10", "did you mean `queues`?"][..]),
            ("socket =", "sokcet =", &["agent.toml:3", "did you mean `socket`?"]),
            ("users = [\"root\", 1000]", "", &["agent.toml:6", "at least one of users and groups"]),
            ("\"root\"", "\"no-such-user\"", &["agent.toml:7", "no such user: `no-such-user`"]),
            (":443\", \"[", ":0\", \"[", &["agent.toml:8", "port 0"]),
            ("\"eth0\"", "\"a-name-beyond-15\"", &["agent.toml:9", "15 characters"]),
            ("\"1MiB\"", "\"1KiB\"", &["agent.toml:12", "between 4096 and"]),
            ("\"1MiB\"", "\"2GiB\"", &["agent.toml:12", "between 4096 and"]),
            ("workers = 2", "workers = 300", &["agent.toml:13", "between 1 and 256"]),
            ("transmit = false", "transmits = false", &["agent.toml:14", "did you mean `transmit`?"]),
            ("\"others\"", "\"edge\"", &["agent.toml:18", "must be unique"]),
            ("\"8MiB\"", "\"8 parsecs\"", &["agent.toml:11", "parsecs"]),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD);
            let message = parse(&text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            assert_eq!(message.lines().count(), 1);
        }
        assert!(parse("[agent]\nsocket = \"s\"\n").unwrap_err().to_string().contains("no [[allow]]"));
    }
}
