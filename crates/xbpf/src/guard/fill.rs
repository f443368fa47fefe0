//! The tables: sized before the program is loaded, and written before it is attached.

use libbpf_rs::MapHandle;

use super::tables::{Block4, GuardAddressSets, GuardPrefix, GuardRule, GuardSet, GuardValueSets};
use super::{Guard, GuardOptions, GuardReason, SHARED, monotonic, numbered, quic, write};
use crate::error::Error;
use crate::skeleton::guard::OpenGuardMaps;
use crate::skeleton::guard::types::guard_limit;

impl Guard {
    /// Has the shared buckets be full from now on: the time 0 may look like one in the future.
    pub(super) fn fill_shared(&self) -> Result<(), Error> {
        let now = monotonic() << guard_limit::GUARD_TIME_SHIFT.0;
        let bucket = [now.to_ne_bytes(), now.to_ne_bytes()].concat();
        let buckets = std::iter::repeat_n(bucket, self.options.classifier.rules.len() * SHARED);
        write(&self.maps.shared_map, "shared_map", numbered(buckets))
    }

    /// Writes all tables but the shared buckets.
    pub(super) fn fill(&self) -> Result<(), Error> {
        let (maps, options) = (&self.maps, &self.options);
        let list = |map: &MapHandle, name, prefixes: &mut dyn Iterator<Item = &GuardPrefix>| {
            write(map, name, prefixes.map(|prefix| (prefix.key(), vec![1])))
        };
        let four = |prefix: &&GuardPrefix| prefix.address.is_ipv4();
        let six = |prefix: &&GuardPrefix| prefix.address.is_ipv6();
        list(&maps.allow4_map, "allow4_map", &mut options.allow.iter().filter(four))?;
        list(&maps.allow6_map, "allow6_map", &mut options.allow.iter().filter(six))?;
        list(&maps.block6_map, "block6_map", &mut options.block.iter().filter(six))?;
        if let Some(block) = &self.block4 {
            let words = block.networks.iter().map(|word| word.to_ne_bytes().to_vec());
            write(&maps.block4_map, "block4_map", numbered(words))?;
            let hosts = block.hosts.iter().map(|host| (host.to_vec(), vec![1]));
            write(&maps.hosts4_map, "hosts4_map", hosts)?;
            list(&maps.block_long4_map, "block_long4_map", &mut block.long.iter())?;
        }
        options.quic.fill(maps)?;
        options.syn.fill(maps)?;
        self.fill_rules()
    }

    fn fill_rules(&self) -> Result<(), Error> {
        let (maps, rules) = (&self.maps, &self.options.classifier);
        let sets = |map: &MapHandle, name, sets: &[GuardSet]| {
            write(map, name, numbered(sets.iter().map(GuardSet::value)))
        };
        let addresses = |map: &MapHandle, name, ipv4, from: &Option<GuardAddressSets>| {
            let Some(from) = from else { return Ok(()) };
            let any = GuardPrefix { address: if ipv4 { [0; 4].into() } else { [0u8; 16].into() }, length: 0 };
            let family = from.prefixes.iter().filter(|(prefix, _)| prefix.address.is_ipv4() == ipv4);
            let default = (any.key(), if ipv4 { from.any4 } else { from.any6 }.value());
            let entries = family.map(|(prefix, set)| (prefix.key(), set.value()));
            write(map, name, std::iter::once(default).chain(entries))
        };
        addresses(&maps.source4_map, "source4_map", true, &rules.source)?;
        addresses(&maps.source6_map, "source6_map", false, &rules.source)?;
        addresses(&maps.destination4_map, "destination4_map", true, &rules.destination)?;
        addresses(&maps.destination6_map, "destination6_map", false, &rules.destination)?;
        let values = [
            (&rules.source_port, &maps.source_port_map, &maps.source_port_set_map),
            (&rules.destination_port, &maps.destination_port_map, &maps.destination_port_set_map),
            (&rules.length, &maps.length_map, &maps.length_set_map),
        ];
        for (from, classes, set_map) in values {
            let Some(from) = from else { continue };
            let class = from.classes.iter().map(|class| class.to_ne_bytes().to_vec());
            write(classes, "a table of ports or lengths", numbered(class))?;
            sets(set_map, "a table of ports or lengths", &from.sets)?;
        }
        sets(&maps.protocol_map, "protocol_map", rules.protocol.as_deref().unwrap_or_default())?;
        sets(&maps.flags_map, "flags_map", rules.flags.as_deref().unwrap_or_default())?;
        if let Some(payload) = &rules.payload {
            sets(&maps.payload_any_map, "payload_any_map", &[payload.any])?;
            write(&maps.payload_map, "payload_map", payload.entries())?;
        }
        write(&maps.rule_map, "rule_map", numbered(rules.rules.iter().map(GuardRule::value)))
    }
}

/// Gives every map the size that `options` need.
pub(super) fn size(
    maps: &mut OpenGuardMaps<'_>,
    options: &GuardOptions,
    block4: Option<&Block4>,
) -> libbpf_rs::Result<()> {
    let rules = &options.classifier;
    let entries = |count: usize| u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let family = |list: &[GuardPrefix], four: bool| {
        entries(list.iter().filter(|prefix| prefix.address.is_ipv4() == four).count())
    };
    maps.allow4_map.set_max_entries(family(&options.allow, true))?;
    maps.allow6_map.set_max_entries(family(&options.allow, false))?;
    maps.block6_map.set_max_entries(family(&options.block, false))?;
    if let Some(block) = block4 {
        maps.block4_map.set_max_entries(Block4::NETWORKS as u32)?;
        maps.hosts4_map.set_max_entries(entries(block.hosts.len()))?;
        maps.block_long4_map.set_max_entries(entries(block.long.len()))?;
    }
    let of =
        |sets: &Option<GuardAddressSets>| entries(1 + sets.as_ref().map_or(0, |sets| sets.prefixes.len()));
    maps.source4_map.set_max_entries(of(&rules.source))?;
    maps.source6_map.set_max_entries(of(&rules.source))?;
    maps.destination4_map.set_max_entries(of(&rules.destination))?;
    maps.destination6_map.set_max_entries(of(&rules.destination))?;
    let classes = |sets: &Option<GuardValueSets>| entries(sets.as_ref().map_or(0, |sets| sets.classes.len()));
    let sets = |sets: &Option<GuardValueSets>| entries(sets.as_ref().map_or(0, |sets| sets.sets.len()));
    maps.source_port_map.set_max_entries(classes(&rules.source_port))?;
    maps.destination_port_map.set_max_entries(classes(&rules.destination_port))?;
    maps.length_map.set_max_entries(classes(&rules.length))?;
    maps.source_port_set_map.set_max_entries(sets(&rules.source_port))?;
    maps.destination_port_set_map.set_max_entries(sets(&rules.destination_port))?;
    maps.length_set_map.set_max_entries(sets(&rules.length))?;
    maps.protocol_map.set_max_entries(entries(rules.protocol.as_ref().map_or(0, Vec::len)))?;
    maps.flags_map.set_max_entries(entries(rules.flags.as_ref().map_or(0, Vec::len)))?;
    let payloads = rules.payload.as_ref().map_or(0, |payload| payload.values.len());
    maps.payload_map.set_max_entries(entries(payloads))?;
    maps.rule_map.set_max_entries(entries(rules.rules.len()))?;
    maps.rule_stats_map.set_max_entries(entries(rules.rules.len()))?;
    maps.shared_map.set_max_entries(entries(rules.rules.len() * SHARED))?;
    maps.quic_port_map.set_max_entries(quic::PORT_WORDS as u32)?;
    maps.tcp_port_map.set_max_entries(quic::PORT_WORDS as u32)?;
    maps.bucket_map.set_max_entries(options.buckets.max(1))?;
    maps.ban_map.set_max_entries(options.bans.max(1))?;
    maps.learned_map.set_max_entries(options.learning.map_or(1, |learning| learning.entries.max(1)))?;
    maps.stats_map.set_max_entries(GuardReason::ALL.len() as u32)
}

/// Sets what the program knows as constants.
pub(super) fn set(maps: &mut OpenGuardMaps<'_>, options: &GuardOptions, seed: u64) {
    let Some(knobs) = maps.rodata_data.as_deref_mut() else { return };
    let rules = &options.classifier;
    knobs.dry_run = options.dry_run;
    knobs.drop_malformed = options.drop_malformed;
    knobs.drop_fragments = options.drop_fragments;
    knobs.drop_default = options.drop_default;
    knobs.has_allow4 = options.allow.iter().any(|prefix| prefix.address.is_ipv4());
    knobs.has_allow6 = options.allow.iter().any(|prefix| prefix.address.is_ipv6());
    knobs.has_block4 = options.block.iter().any(|prefix| prefix.address.is_ipv4());
    knobs.has_block6 = options.block.iter().any(|prefix| prefix.address.is_ipv6());
    knobs.has_bans = options.applies_bans();
    knobs.has_quic = !options.quic.ports.is_empty();
    knobs.quic_unknown = options.quic.unknown();
    knobs.quic_keys_used = options.quic.keys(&mut knobs.quic_keys);
    let retry = options.quic.retry(&mut knobs.ghash, &mut knobs.retry_mask);
    knobs.has_retry = retry.is_some();
    knobs.has_syn = !options.syn.ports.is_empty();
    knobs.check_acks = options.syn.check_acks;
    (knobs.retry_cost, knobs.retry_burst) = retry.unwrap_or_default();
    knobs.rules = rules.rules.len() as u32;
    knobs.seed = seed;
    knobs.by_source = rules.source.is_some();
    knobs.by_destination = rules.destination.is_some();
    knobs.by_source_port = rules.source_port.is_some();
    knobs.by_destination_port = rules.destination_port.is_some();
    knobs.by_protocol = rules.protocol.is_some();
    knobs.by_length = rules.length.is_some();
    knobs.by_flags = rules.flags.is_some();
    knobs.by_payload = rules.payload.is_some();
    let probes = rules.payload.as_ref().map_or(&[][..], |payload| &payload.probes);
    knobs.probe_count = probes.len().min(knobs.probes.len()) as u32;
    for (place, probe) in knobs.probes.iter_mut().zip(probes) {
        place.offset = probe.offset.into();
        place.length = probe.length.into();
        for (word, bytes) in place.mask.iter_mut().zip(probe.mask.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
    }
}
