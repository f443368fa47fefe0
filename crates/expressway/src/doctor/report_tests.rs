//! The report on a host and interfaces with everything wrong, and what modes are said to give.

use expressway_netio::device::{Feature, GRO_FORWARDING, GRO_LIST, UDP_SEGMENTATION};
use expressway_netio::netdev::Features;
use expressway_xbpf::{AttachMode, ForeignProgram, Holder};

use super::checks::tests::{good_host, good_nic};
use super::interface::Program;
use super::*;
use expressway_dataplane::negotiate::StepDown;

/// Everything wrong, with names as long as the kernel allows.
fn ill() -> Report {
    let mut host = good_host();
    host.release = "6.18.0-rc7-next-20261119-with-a-long-suffix-of-a-distribution+deb13-cloud-amd64".into();
    host.missing = host::NEEDED.map(|(name, _)| name).to_vec();
    (host.locks_freely, host.memlock, host.files) = (false, Some(65_536), Some(1024));
    (host.quota, host.memory, host.jit, host.filtered) = (Some(1250), Some(1 << 20), Some(0), true);
    (host.container, host.buffers) = (Some("docker".into()), [Some(1000); 2]);
    let mut nic = good_nic();
    nic.link.name = "enp193s0f1np1v9".into();
    nic.device.name = nic.link.name.clone();
    nic.link.mtu = 9000;
    for name in [GRO_FORWARDING, GRO_LIST] {
        nic.device.features.push(Feature { name: name.into(), active: true, fixed: false });
    }
    nic.device.hashes.iter_mut().for_each(|hash| hash.ports = false);
    nic.device.channels.as_mut().unwrap().rx = 2;
    let program =
        ForeignProgram { id: 4_294_967_295, name: "a_program_of_15".into(), holder: Holder::Link(1) };
    let owners = (0..9).map(|pid| format!("a-process-of-15 ({pid})")).collect();
    nic.program = Some(Program { program, mode: AttachMode::Native, owners });
    let mut modes = outlook::claimed(&nic, &host);
    modes[0].step_downs.push(StepDown {
        interface: nic.link.name.clone(),
        queue: Some(7),
        from: "zero-copy".into(),
        to: "copy".into(),
        reason: "x".repeat(200),
    });
    Report {
        version: "0.1.0",
        kernel: host.release.clone(),
        host: checks::host(&host),
        interfaces: vec![InterfaceReport {
            name: nic.link.name.clone(),
            facts: document(&nic),
            findings: checks::interface(&nic, &host),
            modes,
        }],
        fixed: vec![Fixed {
            command: "ethtool -K enp193s0f1np1v9 rx-gro-list off".into(),
            error: Some("EPERM".into()),
        }],
    }
}

/// The report of the machine that the test runs on.
fn real() -> Report {
    let arguments = Doctor { interfaces: Vec::new(), probe: false, fix: false, agent: None, json: false };
    let mirror = Provider::Own.mirror().unwrap();
    examine(&arguments, &Provider::Own, &mirror.snapshot()).unwrap()
}

#[test]
fn the_report_fits_a_terminal_of_80_columns() {
    for report in [ill(), real()] {
        let text = render::text(&report);
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?} of:\n{text}");
        }
    }
}

#[test]
fn what_is_found_is_shown_with_its_remedy() {
    let (report, text) = (ill(), render::text(&ill()));
    assert!(report.problems() > 8, "{text}");
    let one_line = text.replace(" \\\n", " ");
    let one_line = one_line.split_whitespace().collect::<Vec<_>>().join(" ");
    for finding in report.findings() {
        assert!(one_line.contains(finding.text.split_whitespace().next().unwrap()), "{finding:?}");
        if let Some(fix) = &finding.fix {
            assert!(one_line.contains(&format!("$ {}", fix.command)), "{fix:?} of:\n{text}");
        }
    }
    assert!(one_line.contains("failed ethtool -K enp193s0f1np1v9 rx-gro-list off: EPERM"), "{text}");
    assert!(
        one_line
            .ends_with(&format!("{} problems found; the commands after `$` fix them.", report.problems()))
    );
}

#[test]
fn the_document_has_everything_that_the_text_has() {
    for report in [ill(), real()] {
        let document = serde_json::to_value(&report).unwrap();
        assert_eq!(document["host"].as_array().unwrap().len(), report.host.len());
        let interfaces = document["interfaces"].as_array().unwrap();
        for (shown, interface) in interfaces.iter().zip(&report.interfaces) {
            assert_eq!(shown["findings"].as_array().unwrap().len(), interface.findings.len());
            assert_eq!(shown["modes"].as_array().unwrap().len(), 6);
            assert!(shown["facts"]["ifindex"].is_u64());
        }
    }
}

/// `mode: receive/transmit`, or why not.
fn outlooks(facts: &interface::InterfaceFacts) -> Vec<String> {
    let way = |outlook: &Outlook| match (&outlook.receive, &outlook.transmit, outlook.works) {
        (Some(receive), Some(transmit), works) => format!("{receive}/{transmit} {works:?}"),
        _ => outlook.reason.clone(),
    };
    outlook::claimed(facts, &good_host()).iter().map(|one| format!("{}: {}", one.mode, way(one))).collect()
}

#[test]
fn modes_follow_from_what_the_driver_claims() {
    let mut nic = good_nic();
    assert_eq!(
        outlooks(&nic),
        [
            "auto: zerocopy/gso-device None",
            "zerocopy: zerocopy/zerocopy None",
            "copy: copy/copy Some(true)",
            "hybrid: zerocopy/gso-device None",
            "generic: copy/copy Some(true)",
            "udp: kernel/gso-device Some(true)",
        ]
    );
    nic.device.features.retain(|feature| feature.name != UDP_SEGMENTATION);
    assert_eq!(outlooks(&nic)[0], "auto: zerocopy/zerocopy None");
    nic.device.xdp = Some(Features { xdp: true, ..Features::default() });
    assert_eq!(outlooks(&nic)[0], "auto: copy/gso Some(true)");
    assert_eq!(outlooks(&nic)[1], "zerocopy: the driver does not advertise zero-copy AF_XDP");
    nic.device.xdp = Some(Features::default());
    assert_eq!(outlooks(&nic)[0], "auto: kernel/gso Some(true)");
    assert_eq!(outlooks(&nic)[2], "copy: the driver ice does not advertise native XDP");
    assert_eq!(outlooks(&nic)[4], "generic: copy/copy Some(true)");
    // A kernel before 6.3 tells nothing of XDP.
    nic.device.xdp = None;
    assert_eq!(outlooks(&nic)[1], "zerocopy: zerocopy/zerocopy None");
    assert_eq!(outlooks(&nic)[2], "copy: copy/copy None");
}

#[test]
fn a_member_of_a_bond_sends_by_the_kernel() {
    let nic = interface::InterfaceFacts { is_member: true, ..good_nic() };
    assert_eq!(outlooks(&nic)[0], "auto: zerocopy/gso-device None");
    assert!(outlooks(&nic)[2].starts_with("copy: the bond chooses the sending member"));
}
