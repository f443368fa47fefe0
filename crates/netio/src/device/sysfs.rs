//! The location of a device in the machine: NUMA node and nearby cores, from sysfs by bus address. (By interface name,
//! sysfs would answer for the network namespace in which it was mounted.)

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// NUMA node; `None` on a machine with one.
    pub node: Option<u32>,
    /// Cores of that node, ascending.
    pub cores: Vec<usize>,
}

/// The place of the PCI device of that address (`0000:3b:00.0`). `None` for devices without one.
pub(super) fn locality(bus: &str) -> Option<Locality> {
    locality_under(Path::new("/sys/bus/pci/devices"), bus)
}

fn locality_under(devices: &Path, bus: &str) -> Option<Locality> {
    let is_address = |byte: u8| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.';
    if bus.is_empty() || !bus.contains(':') || !bus.bytes().all(is_address) {
        return None;
    }
    let device = devices.join(bus);
    // -1 says that there is one node, or that the firmware does not tell.
    let node = fs::read_to_string(device.join("numa_node")).ok()?.trim().parse::<u32>().ok();
    let cores = fs::read_to_string(device.join("local_cpulist")).unwrap_or_default();
    Some(Locality { node, cores: parse_cpu_list(cores.trim()) })
}

/// The cores of a list as the kernel writes it, such as `0-3,8`. What is no number is passed over.
pub fn parse_cpu_list(list: &str) -> Vec<usize> {
    /// `NR_CPUS` of any kernel is below that.
    const MOST: usize = 65_536;
    let mut cores = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
            && last < MOST
        {
            cores.extend(first..=last);
        }
    }
    cores.sort_unstable();
    cores.dedup();
    cores
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpu_list("5"), [5]);
        assert_eq!(parse_cpu_list("2,1-2"), [1, 2]);
        assert!(parse_cpu_list("").is_empty() && parse_cpu_list("3-1,x,0-99999999").is_empty());
    }

    #[test]
    fn the_place_is_read_by_bus_address() {
        let root = std::env::temp_dir().join(format!("expressway-sysfs-{}", std::process::id()));
        let device = root.join("0000:3b:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        fs::write(device.join("local_cpulist"), "8-11\n").unwrap();
        let found = locality_under(&root, "0000:3b:00.0").unwrap();
        assert_eq!(found, Locality { node: Some(1), cores: vec![8, 9, 10, 11] });
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(locality_under(&root, "0000:3b:00.0").unwrap().node, None);
        for wrong in ["", "tap", "../../etc", "0000:3b:00.1"] {
            assert_eq!(locality_under(&root, wrong), None, "{wrong}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
