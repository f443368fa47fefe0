//! The queues of an interface's devices, those without packets included: that one has all of them is what one looks for.

use std::collections::BTreeMap;
use std::fs;

use expressway_xbpf::{Error, FlowCounts, FlowPrograms, interface_name};

use super::sample::{Paths, Queue};
use crate::packet::Direction;

/// Which one: its device, direction and number, those that are not known last.
type Key = (u32, Direction, u32);

/// Remembers the reading before.
#[derive(Debug, Default)]
pub(super) struct Queues {
    before: BTreeMap<Key, FlowCounts>,
}

impl Queues {
    /// What each had since the last call.
    pub(super) fn read(&mut self, programs: &FlowPrograms, devices: &[u32]) -> Result<Vec<Queue>, Error> {
        let names: BTreeMap<u32, String> =
            devices.iter().filter_map(|device| Some((*device, interface_name(*device)?))).collect();
        let mut now: BTreeMap<Key, FlowCounts> = BTreeMap::new();
        for queue in programs.queues()? {
            let direction = if queue.out { Direction::Out } else { Direction::In };
            now.insert((queue.device, direction, queue.queue.unwrap_or(u32::MAX)), queue.counts);
        }
        let name = |device: u32| names.get(&device).cloned().unwrap_or_else(|| device.to_string());
        for device in devices.iter().take(FlowPrograms::DEVICES) {
            for (direction, count) in there_are(&name(*device)) {
                for number in 0..count {
                    now.entry((*device, direction, number)).or_default();
                }
            }
        }
        let found = now.iter().map(|(key, counts)| {
            let before = self.before.get(key).copied().unwrap_or_default();
            let (device, direction, number) = *key;
            Queue {
                device: name(device),
                direction,
                queue: Some(number).filter(|number| *number != u32::MAX),
                paths: Paths::from(&counts.since(&before)),
            }
        });
        let found = found.collect();
        self.before = now;
        Ok(found)
    }
}

/// How many queues a device has in each direction (Documentation/ABI/testing/sysfs-class-net-queues in Linux).
fn there_are(device: &str) -> [(Direction, u32); 2] {
    let mut count = [(Direction::In, 0), (Direction::Out, 0)];
    for entry in fs::read_dir(format!("/sys/class/net/{device}/queues")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let prefix = name.as_encoded_bytes().get(..3);
        match prefix {
            Some(b"rx-") => count[0].1 += 1,
            Some(b"tx-") => count[1].1 += 1,
            _ => {}
        }
    }
    count.map(|(direction, count)| (direction, count.min(FlowPrograms::QUEUES as u32)))
}
