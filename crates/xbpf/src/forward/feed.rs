//! Feeds and their receivers.
//!
//! The receivers of a feed are a plan: a devmap with one entry each, and a target each by (plan, device, number). A
//! change is a new plan, made whole before the feed names it. The old one is taken away a change later at the
//! earliest: the update of a map of maps waits until no packet is under way that saw it
//! (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapHandle, MapType, libbpf_sys};

use super::interface::{tag_words, words};
use super::{INTERFACES, Maps, RECEIVERS, Tag, device_value, remove, update};
use crate::error::Error;
use crate::skeleton::forward::types::{forward_feed, forward_listen, forward_target, forward_target_key};

/// Datagrams that are copied to receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Their destination.
    pub listen: SocketAddr,
    /// Where they are counted.
    pub slot: u32,
    /// [`super::ForwardInterface::slot`] of the interfaces that they may come by.
    pub ports: Vec<u32>,
    /// Who gets a copy; without any, they are left to the kernel.
    pub receivers: Vec<Receiver>,
}

/// How a copy leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its destination, of the feed's family.
    pub destination: SocketAddr,
    /// Its source address, of the same family; the source port is the datagram's.
    pub source: IpAddr,
    /// TTL or hop limit; 0: one less than the datagram had.
    pub hop_limit: u8,
    /// The device that sends it, and the frame's addresses and tags.
    pub device: u32,
    /// Hardware address of the sender.
    pub source_mac: [u8; 6],
    /// Hardware address of the next hop.
    pub destination_mac: [u8; 6],
    /// VLAN tags, outermost first.
    pub tags: [Option<Tag>; 2],
    /// Largest IP packet on its way: larger datagrams of the feed are left to the kernel.
    pub mtu: u32,
    /// Where copies are counted.
    pub slot: u32,
}

const _: () = {
    assert!(size_of::<forward_listen>() == LISTEN);
    assert!(size_of::<forward_feed>() == FEED);
    assert!(size_of::<forward_target_key>() == 12);
    assert!(size_of::<forward_target>() == TARGET);
};
const LISTEN: usize = 20;
const FEED: usize = 16 + (INTERFACES as usize + 1) / 8;
const TARGET: usize = 60;

/// What the maps hold.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    current: HashMap<SocketAddr, (u32, Feed)>,
    /// Plans that no feed names any more, with their targets.
    retired: Vec<Plan>,
    last_plan: u32,
}

#[derive(Debug)]
struct Plan {
    number: u32,
    targets: Vec<[u8; 12]>,
}

impl Feeds {
    pub(super) fn set(&mut self, maps: &Maps, program: BorrowedFd<'_>, feeds: &[Feed]) -> Result<(), Error> {
        let earlier = std::mem::take(&mut self.retired);
        let changed = self.change(maps, program, feeds);
        let mut removed = Ok(());
        for plan in earlier {
            if let Err(error) = plan.remove(maps) {
                self.retired.push(plan);
                removed = Err(error);
            }
        }
        changed.and(removed)
    }

    fn change(&mut self, maps: &Maps, program: BorrowedFd<'_>, feeds: &[Feed]) -> Result<(), Error> {
        let gone: Vec<SocketAddr> = self
            .current
            .keys()
            .filter(|listen| !feeds.iter().any(|feed| feed.listen == **listen))
            .copied()
            .collect();
        for listen in gone {
            remove(&maps.feeds, "feeds_map", &listen_key(listen))?;
            if let Some((plan, feed)) = self.current.remove(&listen) {
                self.retired.push(Plan { number: plan, targets: target_keys(plan, &feed) });
            }
        }
        for feed in feeds {
            if self.current.get(&feed.listen).is_none_or(|(_, old)| old != feed) {
                self.put(maps, program, feed)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, maps: &Maps, program: BorrowedFd<'_>, feed: &Feed) -> Result<(), Error> {
        self.last_plan = self.last_plan.wrapping_add(1).max(1);
        let plan = self.last_plan;
        if let Err(error) = make(maps, program, feed, plan) {
            self.retired.push(Plan { number: plan, targets: target_keys(plan, feed) });
            return Err(error);
        }
        if let Some((old, before)) = self.current.insert(feed.listen, (plan, feed.clone())) {
            self.retired.push(Plan { number: old, targets: target_keys(old, &before) });
        }
        Ok(())
    }
}

/// Makes a plan whole, then has the feed name it.
fn make(maps: &Maps, program: BorrowedFd<'_>, feed: &Feed, plan: u32) -> Result<(), Error> {
    let keys = target_keys(plan, feed);
    for (key, receiver) in keys.iter().zip(&feed.receivers) {
        update(&maps.targets, "targets_map", key, &target_value(receiver))?;
    }
    if !feed.receivers.is_empty() {
        let devices = receivers_map(feed, program)?;
        update(&maps.plans, "plans_map", &plan.to_ne_bytes(), &devices.as_fd().as_raw_fd().to_ne_bytes())?;
    }
    update(&maps.feeds, "feeds_map", &listen_key(feed.listen), &feed_value(feed, plan))
}

impl Plan {
    fn remove(&self, maps: &Maps) -> Result<(), Error> {
        remove(&maps.plans, "plans_map", &self.number.to_ne_bytes())?;
        self.targets.iter().try_for_each(|key| remove(&maps.targets, "targets_map", key))
    }
}

/// A devmap with an entry for each receiver; the first keys are of one device each.
fn receivers_map(feed: &Feed, program: BorrowedFd<'_>) -> Result<MapHandle, Error> {
    const MAP: &str = "receivers_map";
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let entries = u32::try_from(feed.receivers.len()).unwrap_or(RECEIVERS);
    let map = MapHandle::create(MapType::DevmapHash, Some(MAP), 4, 8, entries, &options)
        .map_err(|source| Error::Map { map: MAP, source })?;
    let (first, others) = firsts(&feed.receivers);
    for (number, receiver) in (0u32..).zip(first.into_iter().chain(others)) {
        let value = device_value(receiver.device, program.as_raw_fd());
        update(&map, MAP, &number.to_ne_bytes(), &value)?;
    }
    Ok(map)
}

/// The first receiver behind each device, and the others.
fn firsts(receivers: &[Receiver]) -> (Vec<&Receiver>, Vec<&Receiver>) {
    let mut devices = HashSet::new();
    receivers.iter().partition(|receiver| devices.insert(receiver.device))
}

/// A `struct forward_target_key` for each receiver: they are numbered by device.
fn target_keys(plan: u32, feed: &Feed) -> Vec<[u8; 12]> {
    let mut numbers = HashMap::<u32, u32>::new();
    let key = |receiver: &Receiver| {
        let number = numbers.entry(receiver.device).or_default();
        let key = words([plan, receiver.device, *number]);
        *number += 1;
        key
    };
    feed.receivers.iter().map(key).collect()
}

/// An address as the program has it: IPv4 behind ::ffff:0:0/96.
fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A `struct forward_listen`.
fn listen_key(listen: SocketAddr) -> [u8; LISTEN] {
    let mut key = [0; LISTEN];
    key[..16].copy_from_slice(&address(listen.ip()));
    key[16..18].copy_from_slice(&listen.port().to_be_bytes());
    let family: u16 = if listen.is_ipv4() { 4 } else { 6 };
    key[18..].copy_from_slice(&family.to_ne_bytes());
    key
}

/// A `struct forward_feed`.
fn feed_value(feed: &Feed, plan: u32) -> [u8; FEED] {
    let mtu = feed.receivers.iter().map(|receiver| receiver.mtu).min().unwrap_or(0);
    let mut ports = [0u32; (INTERFACES as usize + 1) / 32];
    for slot in &feed.ports {
        if let Some(word) = ports.get_mut(*slot as usize / 32) {
            *word |= 1 << (slot % 32);
        }
    }
    let mut value = [0; FEED];
    let devices = u32::try_from(firsts(&feed.receivers).0.len()).unwrap_or(INTERFACES);
    for (into, word) in
        value.chunks_exact_mut(4).zip([plan, feed.slot, devices, mtu].into_iter().chain(ports))
    {
        into.copy_from_slice(&word.to_ne_bytes());
    }
    value
}

/// A `struct forward_target`.
fn target_value(receiver: &Receiver) -> [u8; TARGET] {
    let [outer, inner] = tag_words(receiver.tags);
    let mut value = [0; TARGET];
    value[..16].copy_from_slice(&address(receiver.source));
    value[16..32].copy_from_slice(&address(receiver.destination.ip()));
    value[32..36].copy_from_slice(&outer.to_ne_bytes());
    value[36..40].copy_from_slice(&inner.to_ne_bytes());
    value[40..42].copy_from_slice(&receiver.destination.port().to_be_bytes());
    value[42] = receiver.hop_limit;
    value[44..50].copy_from_slice(&receiver.source_mac);
    value[50..56].copy_from_slice(&receiver.destination_mac);
    value[56..].copy_from_slice(&receiver.slot.to_ne_bytes());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_numbered_by_device() {
        let receiver = |device| Receiver {
            destination: ([192, 0, 2, 1], 5000).into(),
            source: [192, 0, 2, 9].into(),
            hop_limit: 64,
            device,
            source_mac: [2; 6],
            destination_mac: [4; 6],
            tags: [None; 2],
            mtu: 1500,
            slot: 0,
        };
        let receivers = [3, 4, 3, 3, 4].map(receiver).to_vec();
        let feed = Feed { listen: ([239, 1, 1, 1], 5000).into(), slot: 0, ports: vec![], receivers };
        let expected =
            [[3, 0], [4, 0], [3, 1], [3, 2], [4, 1]].map(|[device, number]| words([7, device, number]));
        assert_eq!(target_keys(7, &feed), expected);
        let (first, others) = firsts(&feed.receivers);
        let devices = |receivers: Vec<&Receiver>| receivers.iter().map(|one| one.device).collect::<Vec<_>>();
        assert_eq!((devices(first), devices(others)), (vec![3, 4], vec![3, 3, 4]));
    }
}
