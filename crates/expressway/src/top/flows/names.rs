//! Names of addresses and ports by this host's own files; nobody is asked over a network that is being watched.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;

/// Bytes read of a file at most.
const LIMIT: u64 = 1 << 20;

/// What `/etc/hosts` and `/etc/services` say.
#[derive(Debug, Default)]
pub(super) struct Names {
    hosts: HashMap<IpAddr, String>,
    ports: HashMap<u16, String>,
}

impl Names {
    pub(super) fn read() -> Self {
        let text = |path| {
            let mut text = String::new();
            let file = File::open(path).and_then(|file| file.take(LIMIT).read_to_string(&mut text));
            file.map(|_| text).unwrap_or_default()
        };
        Self { hosts: hosts(&text("/etc/hosts")), ports: ports(&text("/etc/services")) }
    }

    pub(super) fn host(&self, address: IpAddr) -> Option<&str> {
        self.hosts.get(&address).map(String::as_str)
    }

    pub(super) fn port(&self, port: u16) -> Option<&str> {
        self.ports.get(&port).map(String::as_str)
    }
}

fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        Some((words.next()?, words.next()?))
    })
}

/// `ADDRESS NAME…`; the first line of an address counts.
fn hosts(text: &str) -> HashMap<IpAddr, String> {
    let mut hosts = HashMap::new();
    for (address, name) in lines(text) {
        if let Ok(address) = address.parse() {
            hosts.entry(address).or_insert_with(|| name.to_owned());
        }
    }
    hosts
}

/// `NAME PORT/PROTOCOL`; the first line of a port counts.
fn ports(text: &str) -> HashMap<u16, String> {
    let mut ports = HashMap::new();
    for (name, port) in lines(text) {
        if let Some(port) = port.split('/').next().and_then(|port| port.parse().ok()) {
            ports.entry(port).or_insert_with(|| name.to_owned());
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_resolvers_read_them() {
        let hosts = hosts("# x\n192.0.2.1 one uno # y\n192.0.2.1 two\nnonsense\n::1 six\n");
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[&IpAddr::from([192, 0, 2, 1])], "one");
        assert_eq!(ports("https 443/tcp\nh3 443/udp\nbad x/udp\n")[&443], "https");
    }
}
