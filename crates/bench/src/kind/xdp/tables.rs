//! Configurations and tables for the programs at the edge of a network: rules, prefixes and routes of a given size,
//! the same in every run, and the sources and destinations of what is sent to them.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::bed::{FAR, FAR_ADDRESS};
use super::service;
use crate::peers::Placeholders;
use crate::scenario::{Case, Form, Parameter, Value};
use crate::{BenchError, io_error};

/// Rules of the filter, of which the last drops what is sent.
pub(super) const RULES: Parameter = Parameter::new("rules", Form::Count(1, 1024), Value::Count(1));
/// Prefixes of its block list, in none of which is what is sent.
pub(super) const PREFIXES: Parameter = Parameter::new("prefixes", Form::Count(0, 4_000_000), Value::Count(0));
/// Routes by the second link: the one that is taken, and others.
pub(super) const ROUTES: Parameter = Parameter::new("routes", Form::Count(1, 2_000_000), Value::Count(1));

/// Sources of frames.
pub(super) const SOURCES: Parameter = Parameter::new("sources", Form::Count(1, 65_536), Value::Count(1));
/// Destinations of frames, each with a route of its own as far as there are such routes.
pub(super) const DESTINATIONS: Parameter =
    Parameter::new("destinations", Form::Count(1, 65_536), Value::Count(1));

/// Configures one, as `tables` in the file of its path says.
pub(super) fn write(program: &str, case: &Case, places: &Placeholders) -> Result<(), BenchError> {
    let folder = std::path::Path::new(&places["work"]);
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(io_error(file.display().to_string()))
    };
    match program {
        "guard" => {
            write("blocked.txt", &blocked(case.count("prefixes")))?;
            write("guard.toml", &guard(case.count("rules"), &places["interface"]))
        }
        "balance" => {
            service::write_key(folder)?;
            write("nodes.batch", &service::neighbours(case, places))?;
            write("balance.toml", &service::configuration(case, places))
        }
        // The router, or whoever routes.
        _ => {
            let (interface, out) = (&places["interface"], &places["out"]);
            write(
                "forward.toml",
                &format!("interfaces = [\"{interface}\", \"{out}\"]\nmode = \"native\"\n"),
            )?;
            write("routes.batch", &routes(case.count("routes") - 1))
        }
    }
}

/// Rules of five fields, none of which matches a frame before the last.
fn guard(rules: u64, interface: &str) -> String {
    let mut text =
        format!("interfaces = [\"{interface}\"]\nmode = \"native\"\nblock_file = \"blocked.txt\"\n");
    for number in 1..rules {
        let (network, host) = (number / 250, number % 250);
        let _ = write!(
            text,
            "[[rule]]\nname = \"{number}\"\nprotocol = \"udp\"\nsource = \"10.{network}.{host}.0/24\"\n\
             destination = \"198.18.0.0/15\"\nsource_port = {}\ndestination_port = \"4000-5000\"\naction = \"drop\"\n",
            5000 + number
        );
    }
    text + "[[rule]]\nname = \"last\"\nprotocol = \"udp\"\naction = \"drop\"\n"
}

/// Listed addresses and lengths: single addresses and, of eight entries, a /24. They are spread over all networks by a step that
/// is prime to them, but that for benchmarks, where frames come from and go to.
fn listed() -> impl Iterator<Item = (u32, u32)> {
    let spread =
        (0u32..).map(|number| (number, number.wrapping_mul(2_654_435_761).wrapping_add(0x1234_5678)));
    spread.filter(|(_, address)| address >> 17 != 0xc612 >> 1).map(|(number, address)| {
        let (mask, length) = if number % 8 == 1 { (!0xff, 24) } else { (!0, 32) };
        (address & mask, length)
    })
}

fn blocked(prefixes: u64) -> String {
    let mut text = String::new();
    for (address, length) in listed().take(prefixes as usize) {
        let _ = writeln!(text, "{}/{length}", Ipv4Addr::from(address));
    }
    text
}

/// Sources that are not listed, but whose /24 has an address that is, or is with a longer list: nothing less has to be looked up
/// for them than for a listed one. Hosts of networks that may be on the internet, and in none that a rule names.
pub(super) fn sources(count: u64) -> impl Iterator<Item = Ipv4Addr> {
    let hosts = listed().filter(|(_, length)| *length == 32).map(|(address, _)| Ipv4Addr::from(address ^ 1));
    let usable = |host: &Ipv4Addr| (11..=223).contains(&host.octets()[0]) && !host.is_loopback();
    hosts.filter(usable).take(count as usize)
}

/// Where frames go: into networks that are routed to, evenly over the table, or to the far end if it has no others.
pub(super) fn destinations(routes: u64, count: u64) -> Vec<Ipv4Addr> {
    if routes == 1 {
        return vec![FAR];
    }
    let step = ((routes - 1) / count).max(1);
    // Some networks occur twice: others stand in for them.
    let to = networks(routes - 1).step_by(step as usize).chain(networks(routes - 1));
    let mut known = HashSet::new();
    let to = to.map(|(address, _)| Ipv4Addr::from(address + 1)).filter(|address| known.insert(*address));
    to.take(count as usize).collect()
}

/// A file of addresses, one a line.
pub(super) fn lines(addresses: impl IntoIterator<Item = Ipv4Addr>) -> String {
    let mut text = String::new();
    for address in addresses {
        let _ = writeln!(text, "{address}");
    }
    text
}

/// Prefixes by length, in thousandths: about those of an internet table of 2018, when the XDP paper loaded one of 752,138.
const LENGTHS: [(u32, u32); 13] = [
    (24, 572),
    (22, 120),
    (23, 100),
    (21, 62),
    (20, 53),
    (19, 37),
    (16, 19),
    (18, 18),
    (17, 11),
    (15, 3),
    (14, 2),
    (13, 2),
    (12, 1),
];

/// Addresses and lengths of `count` routes, each time the same, from 16.0.0.0 to 111.255.255.255, where nothing else is.
pub(super) fn networks(count: u64) -> impl Iterator<Item = (u32, u32)> {
    // xorshift64*
    let mut state = 0x2545_f491_4f6c_dd1du64;
    (0..count).map(move |number| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let random = (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32;
        let mut share = (number % 1000) as u32;
        let found = LENGTHS.iter().find(|(_, part)| {
            let here = share < *part;
            share = share.wrapping_sub(*part);
            here
        });
        let length = found.map_or(24, |(length, _)| *length);
        (((0x1000_0000 + random % 0x6000_0000) >> (32 - length)) << (32 - length), length)
    })
}

/// They as orders to `ip -batch`.
fn routes(count: u64) -> String {
    let mut text = String::new();
    for (address, length) in networks(count) {
        let _ = writeln!(text, "route replace {}/{length} via {FAR_ADDRESS}", Ipv4Addr::from(address));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_their_sizes_and_never_what_is_sent() {
        assert_eq!(guard(1, "eth0").matches("[[rule]]").count(), 1);
        assert_eq!(guard(1000, "eth0").matches("[[rule]]").count(), 1000);
        let listed = blocked(100_000);
        assert_eq!(listed.lines().count(), 100_000);
        assert!(!listed.lines().any(|line| line.starts_with("198.18.") || line.starts_with("198.19.")));
        let prefixes: std::collections::HashSet<_> = listed.lines().collect();
        let sent: Vec<_> = sources(65_536).collect();
        assert_eq!(sent.len(), 65_536);
        for source in &sent {
            let network = Ipv4Addr::from(source.to_bits() & !0xff);
            assert!(!prefixes.contains(format!("{source}/32").as_str()));
            assert!(!prefixes.contains(format!("{network}/24").as_str()));
        }
        let beside = |source: &&Ipv4Addr| {
            prefixes.contains(format!("{}/32", Ipv4Addr::from(source.to_bits() ^ 1)).as_str())
        };
        assert_eq!(
            sent.iter().filter(beside).count(),
            sent.len(),
            "100,000 prefixes have that many neighbours"
        );
        assert_eq!(destinations(1, 4000), [FAR]);
        assert_eq!(destinations(11, 4000).len(), 10);
        let to: std::collections::HashSet<_> = destinations(752_000, 4000).into_iter().collect();
        assert_eq!(to.len(), 4000);
        assert_eq!(lines([FAR, FAR]), "198.18.64.2\n198.18.64.2\n");
        assert_eq!(LENGTHS.iter().map(|(_, share)| share).sum::<u32>(), 1000);
        let all: Vec<_> = networks(10_000).collect();
        assert_eq!(all, networks(10_000).collect::<Vec<_>>());
        assert_eq!(all.iter().filter(|(_, length)| *length == 24).count(), 5720);
        assert!(all.iter().all(|(address, _)| (16..112).contains(&(address >> 24))));
    }
}
