//! The reference's table of drops is the list in the code.

use std::fmt::Write as _;

use expressway_observe::drops::REASONS;

#[test]
fn the_reference_has_every_reason() {
    let mut table =
        String::from("| `layer` | `reason` | what was dropped | also counted by |\n|---|---|---|---|\n");
    for reason in REASONS {
        let counter = reason.counter.map_or_else(String::new, |counter| {
            let labels: Vec<_> =
                counter.labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            format!("`{}_total{labels}`", counter.name)
        });
        writeln!(table, "| {} | {} | {} | {counter} |", reason.layer, reason.name, reason.help).unwrap();
    }
    let reference = include_str!("../../../../docs/reference.md");
    assert!(reference.contains(&table), "docs/reference.md must contain this table:\n{table}");
}
