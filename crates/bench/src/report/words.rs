//! Numbers, points and machines as text, the same in Markdown and HTML.

use std::collections::BTreeMap;

use super::analysis::{Compared, Judgement, Leaders, Point, Row};
use super::standing::Standing;
use crate::environment::Environment;
use crate::nics::Nic;
use crate::raw::{Absent, Described, Measured};
use crate::scenario::{Bed, Contestant, Value};
use crate::statistic::Estimate;

/// A median with its interval, such as `7.85 (7.70 to 8.01)`.
pub(crate) fn interval(estimate: &Estimate, decimals: usize) -> String {
    match estimate.count {
        1 => format!("{:.decimals$}", estimate.mid),
        _ => format!(
            "{:.decimals$} ({:.decimals$} to {:.decimals$})",
            estimate.mid, estimate.low, estimate.high
        ),
    }
}

/// A unit as printed.
pub(crate) fn unit(unit: &str) -> &str {
    match unit {
        "us" => "µs",
        other => other,
    }
}

/// A metric's name with its unit.
pub(crate) fn label(metric: &Measured) -> String {
    let (label, unit) = (&metric.label, unit(&metric.unit));
    if unit.is_empty() || label.contains(unit) { label.clone() } else { format!("{label}, {unit}") }
}

/// A point, such as `body 1 MiB, udp_segmentation off`; empty for a scenario that sweeps nothing.
pub(crate) fn point(at: &BTreeMap<String, Value>) -> String {
    at.iter().map(|(key, value)| format!("{key} {}", amount(key, value))).collect::<Vec<_>>().join(", ")
}

/// A value of a parameter, sizes with their unit.
pub(crate) fn amount(key: &str, value: &Value) -> String {
    match value {
        Value::Count(bytes) if ["body", "range", "size", "buffer"].contains(&key) => size(*bytes),
        other => other.to_string(),
    }
}

fn size(bytes: u64) -> String {
    for (unit, name) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

/// Who leads at a point, as a sentence.
pub(crate) fn leaders(point: &Point<'_>) -> String {
    match &point.leaders {
        Leaders::One(one) => format!("{} leads.", one.name),
        Leaders::Together(all) => format!("No clear winner: {} are too close to call.", names(all)),
        Leaders::TooFewRounds => "No winner: too few rounds.".into(),
        Leaders::Alone => String::new(),
    }
}

/// A point and who leads there, such as `collapse: nginx, expressway`.
pub(crate) fn standing(one: &Standing<'_>) -> String {
    match one.leaders.as_str() {
        "" => format!("{}: {}", one.label, one.state.words().to_lowercase()),
        leaders => format!("{}: {leaders}", one.label),
    }
}

fn names(all: &[&Contestant]) -> String {
    all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn comma(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(", {text}") }
}

/// The published figure with its unit.
pub(crate) fn theirs(one: &Compared<'_>) -> String {
    let figure = &one.beside.figure;
    let range = if figure.low == figure.high {
        figure.low.to_string()
    } else {
        format!("{} to {}", figure.low, figure.high)
    };
    if figure.is_ratio() { range } else { format!("{range} {}", unit(&figure.unit)) }
}

/// Ours: who, where, how much.
pub(crate) fn ours(one: &Compared<'_>) -> String {
    let who = match &one.beside.to {
        Some(to) => format!("{} to {to}", one.beside.contestant),
        None => one.beside.contestant.clone(),
    };
    let at = comma(&point(one.at));
    let unit = if one.beside.to.is_some() { String::new() } else { format!(" {}", unit(one.unit)) };
    format!("{who}{at}: {}{unit}", interval(&one.ours, 2))
}

/// Our figure by theirs, where both are of one unit.
pub(crate) fn by_theirs(one: &Compared<'_>) -> String {
    let figure = &one.beside.figure;
    let same = one.judgement != Judgement::Context || figure.unit == one.unit;
    if same { format!("{:.2}", one.ours.mid / (0.5 * (figure.low + figure.high))) } else { "–".into() }
}

/// A file's text without its line breaks.
pub(crate) fn unwrap(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How figures are obtained, in every report.
pub(crate) const METHOD: &str = "Figures are medians over rounds with 95 % bootstrap intervals. Contestants run in turn, A B C \
    then C B A; ratios are taken within rounds. A leader is named only where the interval of its ratio to every other excludes 1.";

/// Rounds and times.
pub(crate) fn effort(scenario: &Described) -> String {
    let (effort, plural) = (&scenario.effort, if scenario.effort.rounds == 1 { "" } else { "s" });
    let (rounds, seconds, warmup) = (effort.rounds, effort.seconds, effort.warmup);
    format!("{rounds} round{plural} of {seconds} s each after {warmup} s of warm-up.")
}

/// The settings that all contestants share, defaults included; empty for a kind without settings.
pub(crate) fn settings(scenario: &Described) -> String {
    point(&scenario.settings)
}

/// Rows of cells, the first of each a name.
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// The results at a point: intervals for the headline, medians for the rest.
pub(crate) fn table(scenario: &Described, point: &Point<'_>) -> Table {
    let given =
        |metric: &&Measured| point.rows.iter().any(|row| row.values.contains_key(metric.key.as_str()));
    let metrics: Vec<&Measured> = scenario.metrics.iter().filter(given).collect();
    let base = scenario
        .about
        .base
        .as_deref()
        .filter(|_| point.rows.len() > 1 && point.rows.iter().any(|row| row.ratio.is_some()));
    let mut head = vec![String::new()];
    for metric in &metrics {
        head.extend(absolute(scenario, metric).then(|| label(metric)));
        head.extend(
            base.filter(|_| metric.key == scenario.about.headline)
                .map(|base| ratio_to(scenario, metric, base)),
        );
    }
    head.push("runs".into());
    let row = |row: &Row<'_>| {
        let mut cells = vec![row.contestant.name.clone()];
        for metric in &metrics {
            let decides = metric.key == scenario.about.headline;
            let cell = match row.values.get(metric.key.as_str()) {
                Some(estimate) if decides => interval(estimate, metric.decimals),
                Some(estimate) => format!("{:.*}", metric.decimals, estimate.mid),
                None => "–".into(),
            };
            cells.extend(absolute(scenario, metric).then_some(cell));
            if decides && base.is_some() {
                cells.push(row.ratio.as_ref().map_or("–".into(), |ratio| interval(ratio, 2)));
            }
        }
        cells.push(row.runs.len().to_string());
        cells
    };
    Table { head, rows: point.rows.iter().map(row).collect() }
}

/// The head of the column of ratios; it names the metric if there is no column for that.
fn ratio_to(scenario: &Described, metric: &Measured, base: &str) -> String {
    match absolute(scenario, metric) {
        true => format!("ratio to {base}"),
        false => format!("{}, ratio to {base}", metric.label),
    }
}

/// Missing contestants and failed runs, each once.
pub(crate) fn absent(all: &[Absent]) -> Vec<String> {
    let mut lines = Vec::new();
    for one in all {
        let line = format!("{}, {}: {}", one.scenario, one.contestant, one.reason);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// A machine in one sentence.
pub(crate) fn machine(environment: &Environment) -> String {
    let kind = if environment.virtual_machine { "virtual machine" } else { "machine" };
    let gib = environment.memory as f64 / (1u64 << 30) as f64;
    format!(
        "{}, {} cores of a {kind}, {gib:.0} GiB, Linux {}, expressway {} at commit {} ({} build), {}",
        environment.cpu,
        environment.cores,
        environment.kernel,
        environment.version,
        environment.commit,
        environment.build,
        date(environment.began)
    )
}

/// What may influence the figures, a sentence each.
pub(crate) fn circumstances(environment: &Environment) -> Vec<String> {
    let mut all = Vec::new();
    if environment.build != "release" {
        all.push("A debug build: the figures show that the suite works, and nothing about speed.".into());
    }
    if environment.virtual_machine {
        all.push("A virtual machine: other load on its host is unknown, and its speed may vary.".into());
    }
    all.push(match environment.governors.as_slice() {
        [] => "No frequency scaling by the kernel.".into(),
        governors => format!("Frequency governor: {}.", governors.join(", ")),
    });
    all.push(match environment.idle_states.as_slice() {
        [] => "No idle states available to the kernel.".into(),
        states => format!("Idle states: {}.", states.join(", ")),
    });
    if !environment.network_interrupts.is_empty() {
        let interrupts = environment.network_interrupts.iter();
        let each: Vec<String> = interrupts.map(|(name, cores)| format!("{name} on {cores}")).collect();
        all.push(format!("Interrupts of this machine's NICs, unused by labs: {}.", each.join("; ")));
    }
    if !environment.kernel_options.is_empty() {
        all.push(format!("Kernel options: {}.", environment.kernel_options.join(" ")));
    }
    if environment.load_average > 0.5 * environment.cores as f64 {
        all.push(format!(
            "Other processes were running at the start: the load average was {:.1}.",
            environment.load_average
        ));
    }
    all
}

/// How the test bed differs from the hardware of published figures.
pub(crate) fn bed_differs(scenario: &Described, environment: &Environment) -> String {
    match scenario.bed {
        Bed::Lab => format!(
            "Both ends share the {} cores of one machine and are joined by a veth: no NIC, no DMA, no zero-copy, no \
             interrupts, and the cost of a packet includes the kernel's veth driver. Ratios carry over where that cost is the \
             same for both sides; rates and times do not.",
            environment.cores
        ),
        Bed::Nics => hosts(scenario, environment).unwrap_or_default(),
        Bed::Guest | Bed::GuestIcount => format!(
            "The processor is emulated ({}), and so is the NIC, whose work is not counted. {}",
            scenario
                .emulated
                .as_ref()
                .map_or("TCG".into(), |emulated| format!("TCG, QEMU {}", emulated.qemu)),
            if scenario.bed.counts_instructions() {
                "Instructions are not time: caches, barriers and DMA, which matter on hardware, count for nothing."
            } else {
                "Ratios are of emulated time; its times and rates say nothing about hardware."
            }
        ),
    }
}

/// A guest, and what its figures mean; `None` for a bed on the machine itself.
pub(crate) fn emulated(scenario: &Described) -> Option<String> {
    let emulated = scenario.emulated.as_ref()?;
    let says = if scenario.bed.counts_instructions() {
        "Figures are instructions, kernel included; no times are given"
    } else {
        "Only ratios are given: its times and rates are those of no real machine"
    };
    Some(format!(
        "An emulated guest: Linux {} on QEMU {} (`{}`), two virtio-net devices wired to each other, zero-copy confirmed \
         by XDP_OPTIONS in each run. {says}.",
        emulated.inside.kernel, emulated.qemu, emulated.processors
    ))
}

/// Whether a metric's absolute figures are meaningful on a scenario's bed, and not only ratios.
pub(crate) fn absolute(scenario: &Described, metric: &Measured) -> bool {
    let timed = ["ns", "us", "ms", "s", "1/s", "kpps", "Mpps", "Gbit", "Gbit/s", "requests/s"];
    let of_time = timed.contains(&metric.unit.as_str()) || metric.label.contains("CPU");
    !(scenario.bed.is_guest() && of_time)
}

/// The two hosts of given NICs; `None` for a bed on one machine.
pub(crate) fn hosts(scenario: &Described, environment: &Environment) -> Option<String> {
    let hosts = scenario.hosts.as_ref()?;
    Some(format!(
        "Two hosts: {} serves over {}; another ({}, Linux {}) sends the load over {}. Interfaces are used as found. CPU is \
         everything the serving host ran, interrupts included.",
        environment.cpu,
        interface(&hosts.near),
        hosts.far_environment.cpu,
        hosts.far_environment.kernel,
        interface(&hosts.far)
    ))
}

/// An interface in words.
fn interface(nic: &Nic) -> String {
    let driver = nic.driver.get("driver").map_or("unknown driver", String::as_str);
    let speed = nic.speed.map_or(String::new(), |speed| format!(", {speed} Mbit/s"));
    let segments = if nic.has("tx-udp-segmentation") { "segments" } else { "does not segment" };
    format!("{} ({driver}{speed}, MTU {}, {segments} UDP)", nic.interface, nic.mtu)
}

/// A day in UTC, by the proleptic Gregorian calendar (Howard Hinnant, `civil_from_days`).
pub(crate) fn date(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_795_305_600), "2026-11-22");
    }

    #[test]
    fn sizes_and_points_read_well() {
        let at = [("body".to_owned(), Value::Count(1 << 20)), ("connections".to_owned(), Value::Count(1024))];
        assert_eq!(point(&at.into()), "body 1 MiB, connections 1024");
        assert_eq!(size(1000), "1000 B");
        let estimate = Estimate { low: 1.0, mid: 1.5, high: 2.0, count: 3 };
        assert_eq!(interval(&estimate, 1), "1.5 (1.0 to 2.0)");
        assert_eq!(interval(&Estimate { count: 1, ..estimate }, 2), "1.50");
    }

    #[test]
    fn a_guest_has_ratios_and_no_times() {
        use super::super::{analysis, fixture};
        use crate::guest::Emulated;

        let mut raw = fixture::raw(&[[1.0, 2.0, 3.0]; 6]);
        let head = |raw: &crate::raw::RawRun| {
            let points = analysis::points(&raw.scenarios[0], raw);
            let table = table(&raw.scenarios[0], &points[0]);
            assert!(table.rows.iter().all(|row| row.len() == table.head.len()), "{:?}", table.rows);
            table.head
        };
        assert_eq!(head(&raw), ["", "Gbit/CPU-s", "ratio to a", "B/datagram", "runs"]);
        assert_eq!(emulated(&raw.scenarios[0]), None);
        raw.scenarios[0].bed = Bed::Guest;
        let guest = Emulated { qemu: "10.0.2".into(), ..Emulated::default() };
        raw.scenarios[0].emulated = Some(Box::new(guest));
        assert_eq!(head(&raw), ["", "Gbit/CPU-s, ratio to a", "B/datagram", "runs"]);
        let said = emulated(&raw.scenarios[0]).unwrap();
        assert!(said.contains("QEMU 10.0.2") && said.contains("Only ratios"), "{said}");
        let differs = bed_differs(&raw.scenarios[0], &raw.environments[0]);
        assert!(!differs.contains("veth") && differs.contains("QEMU 10.0.2"), "{differs}");
    }

    #[test]
    fn a_debug_build_and_a_busy_machine_are_reported() {
        let environment =
            Environment { build: "debug".into(), load_average: 9.0, cores: 2, ..Environment::default() };
        let all = circumstances(&environment).join(" ");
        assert!(all.contains("debug build") && all.contains("load average was 9.0"), "{all}");
    }
}
