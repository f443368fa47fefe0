//! The configuration file of `expressway forward`.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use expressway_settings::{ConfigError, SourceFile, admin};
use expressway_xbpf::forward::{FEEDS, INTERFACES, RECEIVERS};
use serde::Deserialize;
use toml::Spanned;

use crate::interfaces::Mode;

/// Hop limit of copies of a multicast feed, as hosts send by default (`net.ipv4.ip_default_ttl`).
const HOP_LIMIT: u8 = 64;
/// Receivers of a feed behind one device: a datagram becomes that many frames at once, and the ring of a veth has 256.
pub const MOST_RECEIVERS: usize = 256;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interfaces that packets are forwarded between, VLANs included.
    pub interfaces: Vec<String>,
    /// Where on the receive path the program runs.
    pub mode: Mode,
    /// Beside other XDP programs, by a libxdp dispatcher.
    pub chain: bool,
    /// Forwarding goes on when the process is killed.
    pub pin: bool,
    /// Feeds.
    pub replicate: Vec<Replicate>,
    /// Where metrics and statistics are served.
    pub admin: Option<admin::Section>,
    /// The file's text.
    pub text: String,
}

/// A feed and who gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicate {
    /// Destination of its datagrams.
    pub listen: SocketAddr,
    /// Interfaces that it comes by, on which its group is joined; empty: all.
    pub interfaces: Vec<String>,
    /// TTL or hop limit of copies; 0: what is left of the datagram's.
    pub hop_limit: u8,
    /// Who gets copies.
    pub to: Vec<To>,
}

/// A receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct To {
    /// Its address.
    pub address: SocketAddr,
    /// Source address of its copies; `None`: what the route says.
    pub source: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    interfaces: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    chain: bool,
    #[serde(default)]
    pin: Option<Spanned<bool>>,
    #[serde(default)]
    replicate: Vec<ReplicateTable>,
    admin: Option<admin::Section>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicateTable {
    listen: Spanned<SocketAddr>,
    #[serde(default)]
    interfaces: Vec<Spanned<String>>,
    hop_limit: Option<Spanned<u8>>,
    to: Spanned<Vec<ToTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToTable {
    address: Spanned<SocketAddr>,
    source: Option<Spanned<IpAddr>>,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::of(&SourceFile::read(file)?)
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn of(source: &SourceFile) -> Result<Self, ConfigError> {
        let document: Document = source.parse()?;
        let interfaces = interfaces(source, &document.interfaces)?;
        let mut listens = HashSet::new();
        let mut replicate = Vec::new();
        for table in &document.replicate {
            if !listens.insert(*table.listen.get_ref()) {
                return Err(source.at(table.listen.span(), "listed twice"));
            }
            replicate.push(feed(source, table, &interfaces)?);
        }
        if replicate.len() > FEEDS as usize {
            return Err(SourceFile::whole(&source.file, format!("more than {FEEDS} feeds")));
        }
        if replicate.iter().map(|feed| feed.to.len()).sum::<usize>() > RECEIVERS as usize {
            return Err(SourceFile::whole(&source.file, format!("more than {RECEIVERS} receivers in all")));
        }
        if let Some(first) = document.replicate.first().filter(|_| document.mode == Mode::Generic) {
            let problem =
                "`mode = \"generic\"` cannot copy feeds: its copies would share their bytes; remove `mode`";
            return Err(source.at(first.listen.span(), problem));
        }
        for table in &document.replicate {
            for to in table.to.get_ref() {
                if listens.contains(to.address.get_ref()) {
                    return Err(
                        source.at(to.address.span(), "is the `listen` address of a feed: this would loop")
                    );
                }
            }
        }
        let pin = document.pin.as_ref().is_some_and(|pin| *pin.get_ref());
        if let Some(pin) = document.pin.filter(|pin| *pin.get_ref() && document.chain) {
            return Err(source.at(
                pin.span(),
                "cannot be combined with `chain`: a dispatcher's programs end with their process",
            ));
        }
        let (mode, chain, admin) = (document.mode, document.chain, source.admin(document.admin)?);
        Ok(Self { interfaces, mode, chain, pin, replicate, admin, text: source.text.clone() })
    }
}

fn interfaces(
    source: &SourceFile,
    names: &Spanned<Vec<Spanned<String>>>,
) -> Result<Vec<String>, ConfigError> {
    let mut seen = HashSet::new();
    for name in names.get_ref() {
        if name.get_ref().is_empty() || name.get_ref().contains('/') {
            return Err(source.at(name.span(), "is not the name of an interface"));
        }
        if !seen.insert(name.get_ref().clone()) {
            return Err(source.at(name.span(), format!("`{}` is listed twice", name.get_ref())));
        }
    }
    match names.get_ref().len() {
        0 => Err(source.at(names.span(), "name at least one interface")),
        length if length > INTERFACES as usize => {
            Err(source.at(names.span(), format!("{length} interfaces; {INTERFACES} at most")))
        }
        _ => Ok(names.get_ref().iter().map(|name| name.get_ref().clone()).collect()),
    }
}

fn feed(source: &SourceFile, table: &ReplicateTable, known: &[String]) -> Result<Replicate, ConfigError> {
    let listen = *table.listen.get_ref();
    let at = |problem: &str| source.at(table.listen.span(), problem);
    if listen.port() == 0 {
        return Err(at("needs a port"));
    }
    if listen.ip().is_unspecified() || is_link_local(listen.ip()) {
        return Err(at("name the group or address that the datagrams are sent to"));
    }
    let multicast = listen.ip().is_multicast();
    for name in &table.interfaces {
        if !known.contains(name.get_ref()) {
            let problem = format!("`{}` is not among `interfaces` of this file", name.get_ref());
            return Err(source.at(name.span(), problem));
        }
        if !multicast {
            return Err(source.at(name.span(), "only a multicast group is joined on interfaces"));
        }
    }
    let hop_limit = match &table.hop_limit {
        Some(limit) if *limit.get_ref() == 0 => {
            return Err(source.at(limit.span(), "from 1 to 255"));
        }
        // A unicast feed may come from another replicator: a loop has to end.
        Some(limit) if !multicast => {
            return Err(
                source.at(limit.span(), "only for multicast feeds; unicast copies keep their remaining TTL")
            );
        }
        Some(limit) => *limit.get_ref(),
        None if multicast => HOP_LIMIT,
        None => 0,
    };
    let to = receivers(source, table, listen)?;
    let interfaces = table.interfaces.iter().map(|name| name.get_ref().clone()).collect();
    Ok(Replicate { listen, interfaces, hop_limit, to })
}

fn receivers(
    source: &SourceFile,
    table: &ReplicateTable,
    listen: SocketAddr,
) -> Result<Vec<To>, ConfigError> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for to in table.to.get_ref() {
        let address = *to.address.get_ref();
        let at = |problem: &str| Err(source.at(to.address.span(), problem));
        if address.port() == 0 {
            return at("needs a port");
        }
        if address.is_ipv4() != listen.is_ipv4() {
            return at("is not of the same address family as `listen`");
        }
        let ip = address.ip();
        if ip.is_multicast()
            || ip.is_unspecified()
            || ip.is_loopback()
            || is_link_local(ip)
            || is_broadcast(ip)
        {
            return at("is not a unicast address: give one for each receiver");
        }
        if !seen.insert(address) {
            return at("listed twice");
        }
        if let Some(own) = &to.source
            && own.get_ref().is_ipv4() != address.is_ipv4()
        {
            return Err(source.at(own.span(), "is not of the same address family as `address`"));
        }
        all.push(To { address, source: to.source.as_ref().map(|own| *own.get_ref()) });
    }
    match all.len() {
        0 => Err(source.at(table.to.span(), "name at least one receiver")),
        length if length > MOST_RECEIVERS => {
            Err(source.at(table.to.span(), format!("{length} receivers of a feed; {MOST_RECEIVERS} at most")))
        }
        _ => Ok(all),
    }
}

fn is_broadcast(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let source = SourceFile { file: "f.toml".into(), text: text.to_owned() };
        Config::of(&source).map_err(|error| error.to_string())
    }

    #[test]
    fn the_smallest_file_is_enough() {
        let config = parse("interfaces = [\"eth0\", \"eth1\"]").unwrap();
        assert_eq!(config.interfaces, ["eth0", "eth1"]);
        assert_eq!((config.mode, config.chain, config.pin, config.admin), (Mode::Auto, false, false, None));
        assert!(config.replicate.is_empty());
    }

    #[test]
    fn feeds_have_their_defaults() {
        let config = parse(
            "interfaces = [\"eth0\"]\n[[replicate]]\nlisten = \"239.1.1.1:5000\"\n[[replicate.to]]\naddress = \
             \"192.0.2.50:5000\"\n[[replicate]]\nlisten = \"192.0.2.1:6000\"\nto = [{ address = \"192.0.2.50:6000\", \
             source = \"192.0.2.1\" }]",
        )
        .unwrap();
        assert_eq!(config.replicate[0].hop_limit, 64);
        assert_eq!(config.replicate[0].to, [To { address: ([192, 0, 2, 50], 5000).into(), source: None }]);
        assert_eq!(config.replicate[1].hop_limit, 0, "what is left of the datagram's");
    }

    #[test]
    fn errors_name_line_and_key() {
        let feed = |body: &str| format!("interfaces = [\"eth0\"]\n[[replicate]]\n{body}");
        for (text, line, part) in [
            ("interfaces = []".to_owned(), 1, "at least one"),
            ("interfaces = [\"a\", \"a\"]".to_owned(), 1, "listed twice"),
            ("interfaces = [\"a/b\"]".to_owned(), 1, "not the name"),
            ("interface = [\"eth0\"]".to_owned(), 1, "interfaces"),
            ("interfaces = [\"eth0\"]\nmode = \"hardware\"".to_owned(), 2, "auto, native, generic"),
            ("interfaces = [\"eth0\"]\nchain = true\npin = true".to_owned(), 3, "cannot be combined"),
            (feed("listen = \"239.1.1.1:5000\"\nto = []"), 4, "at least one receiver"),
            (
                format!(
                    "mode = \"generic\"\n{}",
                    feed("listen = \"239.1.1.1:5\"\nto = [{ address = \"192.0.2.5:1\" }]")
                ),
                4,
                "generic",
            ),
            (feed("listen = \"239.1.1.1:0\"\nto = [{ address = \"192.0.2.5:1\" }]"), 3, "port"),
            (feed("listen = \"0.0.0.0:5\"\nto = [{ address = \"192.0.2.5:1\" }]"), 3, "group or address"),
            (feed("listen = \"239.1.1.1:5\"\nto = [{ address = \"[2001:db8::1]:1\" }]"), 4, "family"),
            (feed("listen = \"239.1.1.1:5\"\nto = [{ address = \"239.1.1.2:1\" }]"), 4, "unicast"),
            (feed("listen = \"239.1.1.1:5\"\nto = [{ address = \"192.0.2.5:0\" }]"), 4, "port"),
            (
                feed(
                    "listen = \"239.1.1.1:5\"\nto = [{ address = \"192.0.2.5:1\" }, { address = \"192.0.2.5:1\" }]",
                ),
                4,
                "listed twice",
            ),
            (feed("listen = \"192.0.2.1:5\"\nto = [{ address = \"192.0.2.1:5\" }]"), 4, "loop"),
            (
                feed("listen = \"192.0.2.1:5\"\nhop_limit = 9\nto = [{ address = \"192.0.2.9:5\" }]"),
                4,
                "multicast",
            ),
            (
                feed(
                    "listen = \"239.1.1.1:5\"\ninterfaces = [\"eth9\"]\nto = [{ address = \"192.0.2.9:5\" }]",
                ),
                4,
                "eth9",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(&format!("f.toml:{line}:")) && error.contains(part), "{text}: {error}");
        }
    }
}
