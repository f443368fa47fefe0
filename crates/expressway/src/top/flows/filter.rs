//! Which rows are shown: words, all of which must be true of a row.

use std::net::IpAddr;

use expressway_observe::flows::{Address, Row};
use ipnet::IpNet;

/// Words at most, each of which is tried on each row.
const WORDS: usize = 16;

/// Words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    text: String,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    not: bool,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Protocol(String),
    Port(u16),
    Network(IpNet),
    /// Part of an address or a connection ID.
    Part(String),
}

/// Names that are protocols rather than parts of something.
const PROTOCOLS: [&str; 10] = ["tcp", "udp", "icmp", "igmp", "sctp", "gre", "esp", "arp", "lldp", "quic"];

impl Filter {
    /// `udp 443 192.0.2.0/24 !198.51.100.7`; nothing lets everything pass.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.len() > WORDS {
            return Err(format!("filter: {} words; at most {WORDS}", words.len()));
        }
        let terms = words
            .into_iter()
            .map(|word| {
                let (not, word) = word.strip_prefix('!').map_or((false, word), |rest| (true, rest));
                Ok(Term { not, what: What::parse(word)? })
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { text: text.trim().to_owned(), terms })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn takes(&self, row: &Row) -> bool {
        self.terms.iter().all(|term| term.what.is_true(row) != term.not)
    }
}

impl What {
    fn parse(word: &str) -> Result<Self, String> {
        let word = word.to_lowercase();
        if word.is_empty() {
            return Err("filter: missing term after `!`".to_owned());
        }
        if PROTOCOLS.contains(&word.as_str()) {
            return Ok(Self::Protocol(word));
        }
        if let Ok(port) = word.trim_start_matches(':').parse() {
            return Ok(Self::Port(port));
        }
        if let Ok(network) = word.parse() {
            return Ok(Self::Network(network));
        }
        if let Ok(address) = word.parse::<IpAddr>() {
            return Ok(Self::Network(IpNet::from(address)));
        }
        if word.contains('/') {
            return Err(format!("filter: `{word}` is not a network"));
        }
        Ok(Self::Part(word))
    }

    fn is_true(&self, row: &Row) -> bool {
        match self {
            Self::Protocol(name) => row.protocol == *name || name == "udp" && row.protocol == "quic",
            Self::Port(port) => row.local_port == Some(*port) || row.remote_port == Some(*port),
            Self::Network(network) => [row.local, row.remote]
                .into_iter()
                .flatten()
                .any(|address| matches!(address, Address::Ip(address) if network.contains(&address))),
            Self::Part(part) => {
                let address = |address: Option<Address>| {
                    address.is_some_and(|address| address.to_string().contains(part.as_str()))
                };
                address(row.local)
                    || address(row.remote)
                    || row.cid.as_deref().is_some_and(|cid| cid.contains(part.as_str()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            protocol: "udp".to_owned(),
            local: Some(Address::Ip([192, 0, 2, 1].into())),
            local_port: Some(443),
            remote: Some(Address::Ip([198, 51, 100, 7].into())),
            remote_port: Some(5000),
            cid: Some("c0ffee".to_owned()),
            rates: Default::default(),
            received: Default::default(),
            sent: Default::default(),
            dropped: 0,
            conversations: 1,
        }
    }

    #[test]
    fn all_words_must_be_true() {
        for (text, takes) in [
            ("", true),
            ("udp 443", true),
            ("UDP :5000 192.0.2.0/24", true),
            ("tcp", false),
            ("!tcp 198.51.100.7", true),
            ("!198.51.100.0/24", false),
            ("ffee", true),
            ("51.100", true),
            ("udp 444", false),
        ] {
            assert_eq!(Filter::parse(text).unwrap().takes(&row()), takes, "{text}");
        }
        for wrong in ["!", "10.0.0.0/99", &"a ".repeat(17)] {
            assert!(Filter::parse(wrong).is_err(), "{wrong}");
        }
    }
}
