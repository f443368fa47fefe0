//! What each mode would give on an interface, and why not: by what the device claims, or by trying.

use expressway_dataplane::config::Attach;
use expressway_dataplane::negotiate::{self, Costs, Obtained, Receive, Sending, StepDown, Transmit};
use expressway_dataplane::{IoConfig, IoMode, Provider, UdpSend, try_mode};
use expressway_netio::device::UDP_SEGMENTATION;
use expressway_netio::route::Snapshot;
use expressway_netio::xsk::{BindMode, ObtainedMode};
use expressway_xbpf::AttachMode;
use serde::Serialize;

use super::host::HostFacts;
use super::interface::InterfaceFacts;

/// What a mode would give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outlook {
    pub(super) mode: String,
    /// It works; `None`: that is only known once it is tried.
    pub(super) works: Option<bool>,
    /// It was tried.
    pub(super) tried: bool,
    pub(super) receive: Option<String>,
    pub(super) transmit: Option<String>,
    /// Why not, or what stands behind it.
    pub(super) reason: String,
    /// Steps down on the way, of `auto`.
    pub(super) step_downs: Vec<StepDown>,
}

impl Outlook {
    fn no(mode: IoMode, reason: impl Into<String>) -> Self {
        Self {
            mode: mode.to_string(),
            works: Some(false),
            tried: false,
            receive: None,
            transmit: None,
            reason: reason.into(),
            step_downs: Vec::new(),
        }
    }

    fn yes(mode: IoMode, works: Option<bool>, receive: Receive, transmit: Transmit) -> Self {
        let (receive, transmit) = (Some(receive.to_string()), Some(transmit.to_string()));
        Self { works, receive, transmit, ..Self::no(mode, "") }
    }
}

/// What each mode would give, by what the device claims. Nothing is attached.
pub(super) fn claimed(facts: &InterfaceFacts, host: &HostFacts) -> Vec<Outlook> {
    let by_kernel = Transmit::by_kernel(UdpSend::Gso, &facts.device, host.version);
    IoMode::NAMES.iter().map(|(_, mode)| claim(*mode, facts, host, by_kernel)).collect()
}

fn claim(mode: IoMode, facts: &InterfaceFacts, host: &HostFacts, by_kernel: Transmit) -> Outlook {
    let udp =
        |reason: String| Outlook { reason, ..Outlook::yes(mode, Some(true), Receive::Kernel, by_kernel) };
    let Some(plan) = negotiate::plan(mode, Attach::Auto) else { return udp(String::new()) };
    if let Some(obstacle) = obstacle(facts, host, plan.attach) {
        return if plan.steps_down {
            udp(format!("kernel UDP: {obstacle}"))
        } else {
            Outlook::no(mode, obstacle)
        };
    }
    let claims = facts.device.xdp;
    let zero_copy = claims.map(|claims| claims.zero_copy);
    let (bind, certain) = match (plan.binds, zero_copy) {
        ([BindMode::ZeroCopy], Some(false)) => {
            return Outlook::no(mode, "the driver does not advertise zero-copy AF_XDP");
        }
        ([BindMode::ZeroCopy, ..] | [BindMode::Auto], Some(true)) | ([BindMode::ZeroCopy], None) => {
            (ObtainedMode::ZeroCopy, false)
        }
        _ => (ObtainedMode::Copy, claims.is_some() || plan.attach == AttachMode::Generic),
    };
    let socket = Transmit::by_socket(bind);
    let uses_xsk = match plan.sending {
        Sending::Kernel => false,
        Sending::Xsk if facts.is_member => {
            return Outlook::no(mode, "the bond chooses the sending member: use mode hybrid or auto");
        }
        Sending::Xsk => true,
        Sending::Cheapest => !facts.is_member && Costs::default().prefer_socket(socket, by_kernel),
    };
    let transmit = if uses_xsk { socket } else { by_kernel };
    let mut outlook = Outlook::yes(mode, certain.then_some(true), bind.into(), transmit);
    if plan.sending == Sending::Cheapest && Costs::are_wanted(socket, by_kernel) {
        outlook.reason = format!("sending is measured at start: {socket} or {by_kernel}");
    } else if mode == IoMode::Hybrid && facts.device.has(UDP_SEGMENTATION) {
        outlook.reason = "the device segments UDP".into();
    }
    outlook
}

/// What keeps AF_XDP off an interface in that attach mode.
fn obstacle(facts: &InterfaceFacts, host: &HostFacts, attach: AttachMode) -> Option<String> {
    let name = &facts.link.name;
    if !facts.link.is_direct() {
        return Some(match facts.members.as_slice() {
            [] => format!("AF_XDP cannot bind to {name}"),
            members => format!("frames arrive on its members: see {}", members.join(", ")),
        });
    }
    if !host.lacks().is_empty() {
        return Some(format!("{} missing", host.lacks().join(", ")));
    }
    if let Some(there) = &facts.program
        && !(there.is_dispatcher() && there.mode == attach)
    {
        return Some(format!("another XDP {} is attached", there.program));
    }
    match facts.device.xdp {
        Some(claims) if attach == AttachMode::Native && !claims.xdp => {
            Some(format!("the driver {} does not advertise native XDP", facts.device.driver_name()))
        }
        _ => None,
    }
}

/// What each mode gives when it is tried for real: the program is attached, a socket bound to each queue, a probe
/// frame sent, and all of it taken off again. No traffic is taken meanwhile.
pub(super) fn tried(
    facts: &InterfaceFacts,
    provider: &Provider,
    snapshot: &Snapshot,
    mac_known: bool,
) -> Vec<Outlook> {
    let outlook = |mode: IoMode| {
        if mode == IoMode::Udp || !facts.link.is_direct() || !mac_known {
            return None;
        }
        // Nothing is kept of what is measured.
        let config = IoConfig { mode, ..IoConfig::default() };
        Some(match try_mode(&config, provider, &facts.link, facts.is_member, snapshot) {
            Ok((obtained, queues, steps)) => {
                let (receive, transmit) = *queues.first()?;
                let works = obtained != Obtained::Udp;
                let mut outlook = Outlook::yes(mode, Some(works), receive, transmit);
                let same = queues.iter().filter(|queue| **queue == (receive, transmit)).count();
                if same < queues.len() {
                    outlook.reason = format!("{same} of {} queues; the others differ", queues.len());
                }
                Outlook { tried: true, step_downs: steps, ..outlook }
            }
            Err((reason, steps)) => Outlook { tried: true, step_downs: steps, ..Outlook::no(mode, reason) },
        })
    };
    IoMode::NAMES.iter().filter_map(|(_, mode)| outlook(*mode)).collect()
}
