//! Rules compiled into sets: for each value of each field, the rules that can still match.
//!
//! The program looks up one set per field and takes the first rule that is in all of them. This is first-match, so
//! rules keep their order, whatever fields they use. The table of a field has an entry for each value (ports, lengths,
//! protocols, flags) or prefix (addresses), and the set of a prefix includes those of the prefixes around it. Payloads
//! are examined in a few places, however many rules there are, with an entry for each value that rules look for there.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use expressway_xbpf::{
    GuardAddressSets, GuardClassifier, GuardPayloadSets, GuardPrefix, GuardProbe, GuardRule, GuardSet,
    GuardValueSets,
};

use super::list::masked;
use super::rule::{Range, Rule};

/// UDP services that answer far more than they are asked, to whoever the question seems to come from, by the port that
/// their answers come from: qotd, chargen, portmap, netbios-ns, snmp, cldap, rip, mssql, upnp, apple remote desktop,
/// ws-discovery, mdns, coap, ubiquiti, memcached, plex, dvr.
pub const AMPLIFIERS: [u16; 17] =
    [17, 19, 111, 137, 161, 389, 520, 1434, 1900, 3283, 3702, 5353, 5683, 10001, 11211, 32414, 37810];

/// Answers of NTP's control and private modes, which amplify, are longer than those that tell the time; so are
/// those with NTS (RFC 8915), which are taken for them.
pub const NTP: (u16, Range) = (123, Range(200, 65535));

/// The different places of payloads that rules look at.
pub fn probes<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<GuardProbe> {
    let mut found = Vec::new();
    for pattern in rules.flat_map(|rule| &rule.payload) {
        if !found.contains(&pattern.probe) {
            found.push(pattern.probe);
        }
    }
    found
}

/// Compiles rules, [`GuardSet::RULES`] at most, which look at [`GuardPayloadSets::PROBES`] places of payloads at most;
/// further ones are ignored.
pub fn compile(rules: &[(Rule, GuardRule)]) -> GuardClassifier {
    let rules = &rules[..rules.len().min(GuardSet::RULES)];
    let asked = |asks: fn(&Rule) -> bool| rules.iter().any(|(rule, _)| asks(rule));
    let by = |matches: &dyn Fn(&Rule) -> bool| {
        let mut set = GuardSet::default();
        for (number, (rule, _)) in rules.iter().enumerate() {
            if matches(rule) {
                set.insert(number);
            }
        }
        set
    };
    let ranges =
        |of: fn(&Rule) -> &[Range], indices| asked_ranges(rules, of).then(|| values(rules, of, indices));
    GuardClassifier {
        source: asked(|rule| !rule.source.is_empty()).then(|| addresses(rules, |rule| &rule.source)),
        destination: asked(|rule| !rule.destination.is_empty())
            .then(|| addresses(rules, |rule| &rule.destination)),
        source_port: ranges(|rule| &rule.source_port, GuardValueSets::PORTS),
        destination_port: ranges(|rule| &rule.destination_port, GuardValueSets::PORTS),
        length: ranges(|rule| &rule.length, GuardValueSets::LENGTHS),
        protocol: asked(|rule| !rule.protocol.is_empty()).then(|| {
            let takes = |rule: &Rule, number| {
                rule.protocol.is_empty() || rule.protocol.iter().any(|one| usize::from(one.0) == number)
            };
            (0..GuardValueSets::PROTOCOLS).map(|number| by(&|rule| takes(rule, number))).collect()
        }),
        flags: asked(|rule| rule.tcp_flags.is_some()).then(|| {
            // The last index is of packets without any, so only rules that do not ask take them.
            let takes = |rule: &Rule, flags: usize| match (rule.tcp_flags, u8::try_from(flags)) {
                (None, _) => true,
                (Some(wanted), Ok(flags)) => flags & wanted.mask == wanted.value,
                (Some(_), Err(_)) => false,
            };
            (0..GuardValueSets::FLAGS).map(|flags| by(&|rule| takes(rule, flags))).collect()
        }),
        payload: asked(|rule| !rule.payload.is_empty()).then(|| payloads(rules)),
        rules: rules.iter().map(|(_, effect)| *effect).collect(),
    }
}

fn payloads(rules: &[(Rule, GuardRule)]) -> GuardPayloadSets {
    let mut probes = probes(rules.iter().map(|(rule, _)| rule));
    probes.truncate(GuardPayloadSets::PROBES);
    let mut any = GuardSet::default();
    let mut values: BTreeMap<_, GuardSet> = BTreeMap::new();
    for (number, (rule, _)) in rules.iter().enumerate() {
        if rule.payload.is_empty() {
            any.insert(number);
        }
        for pattern in &rule.payload {
            if let Some(probe) = probes.iter().position(|probe| *probe == pattern.probe) {
                values.entry((probe, pattern.value)).or_default().insert(number);
            }
        }
    }
    let values = values.into_iter().map(|((probe, value), set)| (probe, value, set)).collect();
    GuardPayloadSets { probes, any, values }
}

fn asked_ranges(rules: &[(Rule, GuardRule)], of: fn(&Rule) -> &[Range]) -> bool {
    rules.iter().any(|(rule, _)| !of(rule).is_empty())
}

fn addresses(rules: &[(Rule, GuardRule)], of: fn(&Rule) -> &[GuardPrefix]) -> GuardAddressSets {
    let mut own: BTreeMap<GuardPrefix, GuardSet> = BTreeMap::new();
    let mut any = GuardSet::default();
    for (number, (rule, _)) in rules.iter().enumerate() {
        if of(rule).is_empty() {
            any.insert(number);
        }
        for prefix in of(rule) {
            own.entry(*prefix).or_default().insert(number);
        }
    }
    let around = |prefix: &GuardPrefix| {
        let mut set = any;
        for length in 0..=prefix.length {
            let outer = GuardPrefix { address: masked(prefix.address, length), length };
            if let Some(more) = own.get(&outer) {
                set.extend(more);
            }
        }
        set
    };
    let whole = |address: IpAddr| around(&GuardPrefix { address, length: 0 });
    GuardAddressSets {
        any4: whole([0; 4].into()),
        any6: whole([0u8; 16].into()),
        prefixes: own
            .keys()
            .filter(|prefix| prefix.length > 0)
            .map(|prefix| (*prefix, around(prefix)))
            .collect(),
    }
}

/// Indices from 65,536 on are of packets without the value.
fn values(rules: &[(Rule, GuardRule)], of: fn(&Rule) -> &[Range], indices: usize) -> GuardValueSets {
    let mut any = GuardSet::default();
    // Where the set changes: between those it is the same.
    let mut starts = vec![0usize, 1 << 16];
    for (number, (rule, _)) in rules.iter().enumerate() {
        if of(rule).is_empty() {
            any.insert(number);
        }
        for Range(first, last) in of(rule) {
            starts.extend([usize::from(*first), usize::from(*last) + 1]);
        }
    }
    starts.sort_unstable();
    starts.dedup();
    let mut found = GuardValueSets::default();
    let mut places = HashMap::new();
    for (at, start) in starts.iter().enumerate().filter(|(_, start)| **start < indices) {
        let end = starts.get(at + 1).map_or(indices, |end| (*end).min(indices));
        let mut set = any;
        for (number, (rule, _)) in rules.iter().enumerate() {
            let within = |range: &Range| (usize::from(range.0)..=usize::from(range.1)).contains(start);
            if of(rule).iter().any(within) {
                set.insert(number);
            }
        }
        let place = *places.entry(set).or_insert_with(|| {
            found.sets.push(set);
            found.sets.len() as u32 - 1
        });
        found.classes.extend(std::iter::repeat_n(place, end - start));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> (Rule, GuardRule) {
        let rule: Rule = toml::from_str(&format!("name = \"a\"\naction = \"drop\"\n{text}")).unwrap();
        let effect = rule.effect().unwrap();
        (rule, effect)
    }

    fn set(rules: &[usize]) -> GuardSet {
        let mut set = GuardSet::default();
        rules.iter().for_each(|rule| set.insert(*rule));
        set
    }

    #[test]
    fn a_prefix_has_the_rules_of_those_around_it() {
        let rules =
            ["source = \"10.0.0.0/8\"", "source = [\"10.1.0.0/16\", \"2001:db8::/32\"]", ""].map(rule);
        let sets = compile(&rules).source.unwrap();
        assert_eq!((sets.any4, sets.any6), (set(&[2]), set(&[2])));
        let of = |text: &str| {
            let prefix = super::super::list::prefix(text).unwrap();
            sets.prefixes.iter().find(|(one, _)| *one == prefix).unwrap().1
        };
        assert_eq!(of("10.0.0.0/8"), set(&[0, 2]));
        assert_eq!(of("10.1.0.0/16"), set(&[0, 1, 2]));
        assert_eq!(of("2001:db8::/32"), set(&[1, 2]));
    }

    #[test]
    fn ports_share_sets_between_bounds() {
        let rules = ["destination_port = \"1000-2000\"", "destination_port = [2000, 65535]", ""].map(rule);
        let sets = compile(&rules).destination_port.unwrap();
        assert_eq!(sets.classes.len(), GuardValueSets::PORTS);
        let of = |port: usize| sets.sets[sets.classes[port] as usize];
        assert_eq!(of(999), set(&[2]));
        assert_eq!(of(1000), set(&[0, 2]));
        assert_eq!(of(2000), set(&[0, 1, 2]));
        assert_eq!(of(2001), set(&[2]));
        assert_eq!(of(65535), set(&[1, 2]));
        assert_eq!(of(65536), set(&[2]), "packets without ports");
        assert_eq!(sets.sets.len(), 4);
    }

    #[test]
    fn flags_are_of_tcp_alone() {
        let sets = compile(&["tcp_flags = \"syn,!ack\"", ""].map(rule)).flags.unwrap();
        assert_eq!(sets[2], set(&[0, 1]));
        assert_eq!(sets[18], set(&[1]));
        assert_eq!(sets[256], set(&[1]));
    }

    #[test]
    fn payloads_share_the_places_that_are_looked_at() {
        let rules = [
            "payload = \"offset 0: 01 02\"",
            "payload = [\"offset 0: 01 02\", \"offset 0: 03 04\", \"offset 1: 03 04\"]",
            "",
            "payload = { hex = \"01 02\", mask = \"ff 0f\" }",
        ]
        .map(rule);
        let sets = compile(&rules).payload.unwrap();
        assert_eq!(sets.probes.len(), 3, "two offsets, and one of them with another mask");
        assert_eq!(sets.any, set(&[2]));
        let found: Vec<_> = sets.values.iter().map(|(probe, value, set)| (*probe, value[0], *set)).collect();
        assert_eq!(found, [(0, 1, set(&[0, 1])), (0, 3, set(&[1])), (1, 3, set(&[1])), (2, 1, set(&[3]))]);
    }

    #[test]
    fn what_no_rule_asks_for_has_no_table() {
        let compiled = compile(&[rule("protocol = \"udp\"")]);
        assert!(compiled.source.is_none() && compiled.length.is_none() && compiled.flags.is_none());
        assert_eq!(compiled.protocol.unwrap()[17], set(&[0]));
    }
}
