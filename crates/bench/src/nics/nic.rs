//! A network interface as found, with the settings that determine the cost of a packet.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{BenchError, io_error, offload};

/// An interface with the address that is measured over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nic {
    /// Its name.
    pub interface: String,
    /// The address of this end.
    pub address: Ipv4Addr,
    /// Length of that address's prefix: the other end is in it.
    pub prefix: u8,
    /// MTU, bytes.
    pub mtu: u64,
    /// Speed in Mbit/s, if the driver reports it.
    pub speed: Option<u64>,
    /// What `ethtool -i` says: driver, version, firmware, bus.
    pub driver: BTreeMap<String, String>,
    /// What `ethtool -k` says is on.
    pub offloads: Vec<String>,
    /// What `ethtool -l` says is set: channels by kind.
    pub channels: BTreeMap<String, String>,
    /// What `ethtool -g` says is set: entries of rings.
    pub rings: BTreeMap<String, String>,
    /// What `ethtool -c` says of interrupt coalescing.
    pub coalescing: BTreeMap<String, String>,
    /// Its interrupts with the cores that they may go to.
    pub interrupts: BTreeMap<u32, String>,
    /// Whether it receives in NAPI threads (`/sys/class/net/IF/threaded`).
    pub threaded: bool,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            interface: String::new(),
            address: Ipv4Addr::UNSPECIFIED,
            prefix: 32,
            mtu: 0,
            speed: None,
            driver: BTreeMap::new(),
            offloads: Vec::new(),
            channels: BTreeMap::new(),
            rings: BTreeMap::new(),
            coalescing: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            threaded: false,
        }
    }
}

/// One entry of `ip -json address show`.
#[derive(Deserialize)]
struct Shown {
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    addr_info: Vec<Assigned>,
}

#[derive(Deserialize)]
struct Assigned {
    local: IpAddr,
    prefixlen: u8,
}

/// What `ip address` says of an interface.
fn show(interface: &str, options: &[&str]) -> Result<Vec<Shown>, BenchError> {
    let output = Command::new("ip")
        .arg("-json")
        .args(options)
        .args(["address", "show", "dev", interface])
        .output()
        .map_err(io_error("ip"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        BenchError::Missing(format!(
            "interface {interface}: cannot parse the output of `ip address`: {error}"
        ))
    })
}

impl Nic {
    /// Reads an interface of this host and changes nothing. Without an address it takes the interface's first.
    ///
    /// # Errors
    /// When there is no such interface, it is down, or it does not have the address.
    pub fn read(interface: &str, address: Option<Ipv4Addr>) -> Result<Self, BenchError> {
        let wrong = |problem: String| BenchError::Missing(format!("interface {interface}: {problem}"));
        let sys = Path::new("/sys/class/net").join(interface);
        let named =
            !interface.is_empty() && !interface.contains('/') && interface != "." && interface != "..";
        if !named || !sys.exists() {
            return Err(wrong("no such interface here; `ip link` lists them".into()));
        }
        let shown = show(interface, &["-4"])?;
        // Without an IPv4 address there is only an empty entry.
        let assigned = shown.iter().flat_map(|one| &one.addr_info).filter_map(|one| match one.local {
            IpAddr::V4(local) => Some((local, one.prefixlen)),
            IpAddr::V6(_) => None,
        });
        let found = assigned.into_iter().find(|(local, _)| address.is_none_or(|wanted| *local == wanted));
        let Some((local, prefix)) = found else {
            let wanted = address.map_or("IPv4 address".to_owned(), |address| format!("address {address}"));
            return Err(wrong(format!("has no {wanted}: give it one with `ip address add`")));
        };
        if !shown.iter().any(|one| one.flags.iter().any(|flag| flag == "LOWER_UP")) {
            return Err(wrong("has no link: bring it up and check the cable".into()));
        }
        let number = |file: &str| text(&sys.join(file)).trim().parse::<u64>().ok();
        Ok(Self {
            interface: interface.to_owned(),
            address: local,
            prefix,
            mtu: number("mtu").unwrap_or(0),
            // -1 where it is not known.
            speed: number("speed"),
            driver: fields(&ethtool("-i", interface)),
            offloads: offload::all_on(&ethtool("-k", interface)),
            channels: fields(current(&ethtool("-l", interface))),
            rings: fields(current(&ethtool("-g", interface))),
            coalescing: fields(&ethtool("-c", interface)),
            interrupts: interrupts(&sys),
            threaded: text(&sys.join("threaded")).trim() == "1",
        })
    }

    /// The addresses that an interface of this host has now.
    pub(crate) fn addresses(interface: &str) -> Result<Vec<IpAddr>, BenchError> {
        let shown = show(interface, &[])?;
        Ok(shown.iter().flat_map(|one| &one.addr_info).map(|one| one.local).collect())
    }

    /// The VLANs, bridges and the like that are stacked on an interface now, in words; `None` without any.
    pub(crate) fn above(interface: &str) -> Option<String> {
        let entries = fs::read_dir(Path::new("/sys/class/net").join(interface)).ok()?;
        let names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("upper_").map(str::to_owned))
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Whether the interface's link is up now.
    pub(crate) fn has_carrier(interface: &str) -> bool {
        text(&Path::new("/sys/class/net").join(interface).join("carrier")).trim() == "1"
    }

    /// The hardware address that the interface has now.
    pub(crate) fn hardware_address(&self) -> Result<[u8; 6], BenchError> {
        let file = Path::new("/sys/class/net").join(&self.interface).join("address");
        let shown = text(&file);
        let bytes: Option<Vec<u8>> =
            shown.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
            BenchError::Missing(format!("interface {}: no hardware address in {shown:?}", self.interface))
        })
    }

    /// Whether an address is in the network of this end: load goes nowhere else.
    pub(crate) fn reaches(&self, address: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
        self.address.to_bits() & mask == address.to_bits() & mask
    }

    /// Whether a feature is on.
    pub(crate) fn has(&self, feature: &str) -> bool {
        self.offloads.iter().any(|on| on == feature)
    }
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// What it prints; empty if the driver does not support the query.
fn ethtool(question: &str, interface: &str) -> String {
    let output = Command::new("ethtool").args([question, interface]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The current settings, which follow the maxima.
fn current(text: &str) -> &str {
    text.split_once("Current hardware settings:").map_or("", |(_, rest)| rest)
}

/// Lines of `name: value`, those without a value left out.
fn fields(text: &str) -> BTreeMap<String, String> {
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        let says = !value.is_empty() && value != "n/a";
        says.then(|| (name.trim().to_owned(), value))
    };
    text.lines().filter_map(field).collect()
}

/// Interrupts of the device, by number.
fn interrupts(sys: &Path) -> BTreeMap<u32, String> {
    let Ok(listed) = fs::read_dir(sys.join("device/msi_irqs")) else { return BTreeMap::new() };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let cores =
        |number: u32| text(Path::new(&format!("/proc/irq/{number}/smp_affinity_list"))).trim().to_owned();
    listed.flatten().filter_map(number).map(|number| (number, cores(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_from_what_could_be() {
        let channels = "Channel parameters for eth1:\nPre-set maximums:\nRX:\t\tn/a\nCombined:\t8\nCurrent hardware settings:\nRX:\t\tn/a\nCombined:\t4\n";
        assert_eq!(fields(current(channels)), [("Combined".to_owned(), "4".to_owned())].into());
        assert!(fields(current("no such question")).is_empty());
        let driver = fields("driver: ixgbe\nfirmware-version: 0x8000 1.2\nbus-info: 0000:01:00.0\n");
        assert_eq!(driver["bus-info"], "0000:01:00.0");
    }

    #[test]
    fn load_stays_in_the_network_of_the_interface() {
        let nic = Nic { address: Ipv4Addr::new(192, 0, 2, 1), prefix: 24, ..Nic::default() };
        assert!(nic.reaches(Ipv4Addr::new(192, 0, 2, 200)));
        assert!(!nic.reaches(Ipv4Addr::new(192, 0, 3, 1)));
        assert!(!Nic { prefix: 32, ..nic.clone() }.reaches(Ipv4Addr::new(192, 0, 2, 2)));
        assert!(Nic { prefix: 0, ..nic }.reaches(Ipv4Addr::new(8, 8, 8, 8)));
    }

    #[test]
    fn an_interface_that_is_not_there_is_named() {
        for name in ["nonesuch0", "", "../lo", ".."] {
            let error = Nic::read(name, None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("interface {name}: no such interface")), "{error}");
        }
    }
}
