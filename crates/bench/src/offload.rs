//! The segmentation offloads of an interface, which decide what a packet costs.

use std::collections::BTreeMap;

use expressway_lab::{Lab, Role};

use crate::{BenchError, io_error};

/// Features of `ethtool -k` that a UDP sender or receiver feels.
const FEATURES: [&str; 5] = [
    "tx-udp-segmentation",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "rx-udp-gro-forwarding",
    "tx-checksum-ip-generic",
];

/// Which of them are on at one end of a lab.
pub(crate) fn of(lab: &Lab, role: Role) -> Result<BTreeMap<String, bool>, BenchError> {
    let output = lab
        .command(role, "ethtool")
        .args(["-k", lab.interface(role)])
        .output()
        .map_err(io_error("ethtool"))?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(text: &str) -> BTreeMap<String, bool> {
    let feature = |line: &str| {
        let (name, state) = line.trim().split_once(": ")?;
        FEATURES.contains(&name).then(|| (name.to_owned(), state.starts_with("on")))
    };
    text.lines().filter_map(feature).collect()
}

/// All features that `ethtool -k` says are on.
pub(crate) fn all_on(text: &str) -> Vec<String> {
    let on = |line: &str| {
        let (name, state) = line.trim().split_once(": ")?;
        state.starts_with("on").then(|| name.to_owned())
    };
    text.lines().filter_map(on).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_read_from_ethtool() {
        let text = "Features for server0:\n\ttx-checksum-ip-generic: on\ntx-udp-segmentation: off [requested on]\nhw-tc-offload: off\n";
        let expected =
            [("tx-checksum-ip-generic".to_owned(), true), ("tx-udp-segmentation".to_owned(), false)];
        assert_eq!(parse(text), expected.into());
    }
}
