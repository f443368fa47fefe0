//! `expressway doctor`: what packet I/O this host gives, what is in the way, and what mends it.
//!
//! * [`host`] and [`interface`] gather facts and change nothing.
//! * [`checks`] turns facts into findings; [`outlook`] says what each mode would give, by the rules and, with
//!   `--probe`, by the code that `serve` opens an interface with.
//! * [`render`] shows them.
//!
//! Checks are pure functions with fixtures for tests. Nothing is attached unless requested (`--probe`), and
//! only settings that one command can revert are fixed (`--fix`). `serve` logs the same findings about device
//! settings when it opens an interface.

mod checks;
mod host;
mod interface;
mod outlook;
mod render;

use std::process::ExitCode;

use expressway_dataplane::Provider;
use expressway_dataplane::findings::{Action, Finding, Severity};
use expressway_netio::device;
use expressway_netio::route::{LinkKind, Snapshot};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::fail::Failure;
use host::HostFacts;
use interface::InterfaceFacts;
use outlook::Outlook;

/// All that was found.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    kernel: String,
    host: Vec<Finding>,
    interfaces: Vec<InterfaceReport>,
    /// What `--fix` did.
    fixed: Vec<Fixed>,
}

#[derive(Serialize)]
struct InterfaceReport {
    name: String,
    facts: Value,
    findings: Vec<Finding>,
    modes: Vec<Outlook>,
}

/// One command of `--fix` and how it went.
#[derive(Serialize)]
struct Fixed {
    command: String,
    error: Option<String>,
}

impl Report {
    fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.host.iter().chain(self.interfaces.iter().flat_map(|interface| &interface.findings))
    }

    /// Findings that cost something.
    fn problems(&self) -> usize {
        self.findings().filter(|finding| finding.severity >= Severity::Warn).count()
    }
}

/// Looks, mends if told, and tells. The exit code is 0 when no problem is left, 1 when one is.
pub(crate) fn run(arguments: &Doctor) -> Result<ExitCode, Failure> {
    let provider = Provider::agent_or_own(arguments.agent.as_deref(), "doctor")?;
    // Where an agent goes away meanwhile, what it did not tell is no finding.
    let look = || provider.persist(|| examine(arguments, &provider, &provider.mirror()?.snapshot()));
    let mut report = look()?;
    if arguments.fix {
        let fixed = fix(&report);
        if !fixed.is_empty() {
            report = Report { fixed, ..look()? };
        }
    }
    let text = if arguments.json {
        let document = serde_json::to_string_pretty(&report).map_err(Failure::run_time)?;
        format!("{document}\n")
    } else {
        render::text(&report)
    };
    crate::print(&text)?;
    Ok(ExitCode::from(u8::from(report.problems() > 0)))
}

fn examine(arguments: &Doctor, provider: &Provider, snapshot: &Snapshot) -> Result<Report, Failure> {
    let host = HostFacts { agent: arguments.agent.clone(), ..HostFacts::read() };
    let mut interfaces = Vec::new();
    for name in names(arguments, snapshot) {
        let link = snapshot.link_by_name(&name).ok_or_else(|| {
            Failure::run_time(format!(
                "interface {name}: no such interface in this network namespace; see `ip link`"
            ))
        })?;
        let facts = match InterfaceFacts::read(link, provider, snapshot) {
            Ok(facts) => facts,
            // Not one that was asked for: it went away since, or the agent's rule has it not.
            Err(_) if arguments.interfaces.is_empty() => continue,
            Err(reason) => return Err(Failure::run_time(reason)),
        };
        let mut modes = outlook::claimed(&facts, &host);
        if arguments.probe {
            for tried in outlook::tried(&facts, provider, snapshot, link.mac.is_some()) {
                if let Some(claimed) = modes.iter_mut().find(|claimed| claimed.mode == tried.mode) {
                    *claimed = tried;
                }
            }
        }
        let findings = checks::interface(&facts, &host);
        interfaces.push(InterfaceReport { name, facts: document(&facts), findings, modes });
    }
    let kernel = host.release.clone();
    let (version, host) = (env!("CARGO_PKG_VERSION"), checks::host(&host));
    Ok(Report { version, kernel, host, interfaces, fixed: Vec::new() })
}

/// The interfaces asked for, or all but loopback and VLANs, which are seen at the device below them.
fn names(arguments: &Doctor, snapshot: &Snapshot) -> Vec<String> {
    if !arguments.interfaces.is_empty() {
        return arguments.interfaces.clone();
    }
    let stands_alone = |kind: &LinkKind| !matches!(kind, LinkKind::Loopback | LinkKind::Vlan { .. });
    let links = snapshot.links().iter().filter(|link| stands_alone(&link.kind));
    links.map(|link| link.name.clone()).collect()
}

/// The facts of an interface for programs.
fn document(facts: &InterfaceFacts) -> Value {
    let InterfaceFacts { link, device, vlans, members, is_member, program } = facts;
    json!({
        "ifindex": link.index,
        "mtu": link.mtu,
        "up": link.is_up,
        "carrier": link.has_carrier,
        "vlans": vlans,
        "members": members,
        "bond_member": is_member,
        "driver": device.driver.as_ref().map(|driver| json!({
            "name": driver.name, "version": driver.version, "firmware": driver.firmware, "bus": driver.bus,
        })),
        "channels": device.channels.map(|channels| json!({
            "rx": channels.rx, "tx": channels.tx, "max_rx": channels.max_rx, "max_tx": channels.max_tx,
        })),
        "rings": device.rings.map(|rings| json!({
            "rx": rings.rx, "tx": rings.tx, "max_rx": rings.max_rx, "max_tx": rings.max_tx,
        })),
        "features": device.features.iter().map(|feature| (feature.name.clone(), json!({
            "active": feature.active, "fixed": feature.fixed,
        }))).collect::<serde_json::Map<_, _>>(),
        "rss": {
            "hashes": device.hashes.iter().map(|hash| (hash.flow.clone(), json!({"ports": hash.ports})))
                .collect::<serde_json::Map<_, _>>(),
            "queues": device.spread.as_ref().map(|spread| &spread.queues),
        },
        "numa_node": device.locality.as_ref().and_then(|locality| locality.node),
        "xdp": device.xdp.map(|xdp| json!({
            "native": xdp.xdp, "zero_copy": xdp.zero_copy, "offload": xdp.offload,
            "multi_buffer": xdp.multi_buffer, "zero_copy_segments": xdp.zero_copy_segments,
            "rx_timestamp": xdp.rx_timestamp, "rx_hash": xdp.rx_hash, "rx_vlan_tag": xdp.rx_vlan_tag,
            "tx_timestamp": xdp.tx_timestamp, "tx_checksum": xdp.tx_checksum,
        })),
        "program": program.as_ref().map(|there| json!({
            "id": there.program.id, "name": there.program.name, "mode": there.mode.name(), "owners": there.owners,
        })),
    })
}

/// Runs what `--fix` may run, saying each command on standard error.
fn fix(report: &Report) -> Vec<Fixed> {
    let mut fixed = Vec::new();
    for fix in report.findings().filter_map(|finding| finding.fix.as_ref()) {
        let Some(action) = &fix.action else { continue };
        let result = match action {
            Action::FeatureOff { interface, feature } => device::set_feature(interface, feature, false),
            Action::HashPorts { interface, flow } => device::hash_ports(interface, flow),
        };
        let error = result.err().map(|error| error.to_string());
        match &error {
            None => tracing::info!("applied, equivalent to `{}`", fix.command),
            Some(error) => tracing::error!("`{}` failed: {error}", fix.command),
        }
        fixed.push(Fixed { command: fix.command.clone(), error });
    }
    fixed
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
