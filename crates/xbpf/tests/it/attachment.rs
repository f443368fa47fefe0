//! The program on real interfaces: veth pairs in namespaces of the test's own. Needs root and iproute2.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use expressway_xbpf::{AttachMode, Attachment, Error, Existing, Holder, Interface, Options, Redirect};
use libbpf_rs::{Xdp, XdpFlags};

use AttachMode::{Generic, Native};
use Existing::{Refuse, Replace};

use crate::support;
use crate::support::load;
use crate::support::netns::{FAR, Link, NEAR, Shape, index_of, inside, ip};

const MODES: [AttachMode; 2] = [Native, Generic];

fn attach(
    link: &Link,
    redirect: &Redirect,
    mode: AttachMode,
    existing: Existing,
) -> Result<Attachment, Error> {
    link.in_near(|| redirect.attach(index_of(NEAR), mode, existing))
}

#[test]
fn dropping_the_attachment_takes_the_program_off() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    for mode in MODES {
        let attachment = attach(&link, &redirect, mode, Refuse).unwrap();
        assert_eq!(attachment.mode(), mode);
        assert_eq!(attachment.interface().name, NEAR);
        assert!(attachment.is_attached().unwrap());
        assert!(link.has_program());
        let shown = link.ip_near(&format!("link show dev {NEAR}"));
        assert_eq!(shown.contains("xdpgeneric"), mode == Generic, "{shown}");
        drop(attachment);
        assert!(!link.has_program());
    }
}

#[test]
fn a_program_that_a_link_holds_is_named_and_stays() {
    let Some(redirect) = load(&Options::default()) else { return };
    let foreign = load(&Options::default()).unwrap();
    let link = Link::new(&Shape::default());
    for (held_in, wanted) in [(Native, Native), (Generic, Generic), (Generic, Native), (Native, Generic)] {
        let held = attach(&link, &foreign, held_in, Refuse).unwrap();
        for existing in [Refuse, Replace] {
            let error = attach(&link, &redirect, wanted, existing).unwrap_err();
            let Error::Foreign { interface, program } = &error else { panic!("{error}") };
            assert_eq!(interface.name, NEAR);
            assert_eq!(program.name, "expressway_udp");
            assert_eq!(program.id, program_id(&foreign));
            assert!(matches!(program.holder, Holder::Link(_)));
            let message = error.to_string();
            assert!(
                message.starts_with("interface near: already has another XDP program expressway_udp (id ")
            );
            assert!(message.contains("another expressway process uses this interface: stop it"), "{message}");
        }
        assert!(held.is_attached().unwrap());
    }
}

#[test]
fn a_program_that_netlink_set_is_named_and_replaced_on_demand() {
    let Some(redirect) = load(&Options::default()) else { return };
    let foreign = load(&Options::default()).unwrap();
    let link = Link::new(&Shape::default());
    let flags = |mode| if mode == Native { XdpFlags::DRV_MODE } else { XdpFlags::SKB_MODE };
    for (held_in, wanted) in [(Native, Native), (Generic, Generic), (Generic, Native), (Native, Generic)] {
        link.in_near(|| Xdp::new(foreign.program()).attach(index_of(NEAR) as i32, flags(held_in)).unwrap());

        let error = attach(&link, &redirect, wanted, Refuse).unwrap_err();
        let Error::Foreign { program, .. } = &error else { panic!("{error}") };
        assert_eq!((program.id, program.holder), (program_id(&foreign), Holder::Netlink));
        assert!(error.to_string().contains("--replace"), "{error}");
        let shown = link.ip_near(&format!("-details link show dev {NEAR}"));
        assert!(shown.contains(&format!("id {}", program_id(&foreign))), "refusing left it alone: {shown}");

        let attachment = attach(&link, &redirect, wanted, Replace).unwrap();
        assert!(attachment.is_attached().unwrap());
        drop(attachment);
        assert!(!link.has_program(), "a replaced program does not come back");
    }
}

fn program_id(redirect: &Redirect) -> u32 {
    libbpf_rs::Program::id_from_fd(redirect.program()).unwrap()
}

#[test]
fn what_an_interface_lacks_is_said() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape { near_queues: 1, far_queues: 2, mtu: 1500 });
    let error = attach(&link, &redirect, Native, Refuse).unwrap_err();
    assert!(matches!(error, Error::TooFewQueues { .. }), "{error}");
    drop(attach(&link, &redirect, Generic, Refuse).unwrap());

    let error = link.in_near(|| redirect.attach(index_of("lo"), Native, Refuse)).unwrap_err();
    assert!(matches!(error, Error::NoNativeXdp { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "interface lo: the driver does not support native XDP; use generic XDP (--io generic) or --io udp"
    );
    drop(link.in_near(|| redirect.attach(index_of("lo"), Generic, Refuse)).unwrap());

    for index in [0, 4_000_000, u32::MAX] {
        let error = link.in_near(|| redirect.attach(index, Native, Refuse)).unwrap_err();
        let expected = Interface { index, name: String::new() };
        assert!(matches!(&error, Error::NoInterface { interface } if *interface == expected), "{error}");
    }
}

#[test]
fn an_attachment_knows_when_its_interface_is_gone() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    let attachment = attach(&link, &redirect, Native, Refuse).unwrap();
    link.ip_near(&format!("link set dev {NEAR} down"));
    assert!(attachment.is_attached().unwrap(), "down is not gone");
    link.ip_near(&format!("link delete dev {NEAR}"));
    assert!(!attachment.is_attached().unwrap());
}

/// Not a test by itself: the process that `sigkill_leaves_nothing` kills.
#[test]
fn helper_attach_and_wait() {
    let Ok(namespace) = std::env::var("XBPF_TEST_NAMESPACE") else { return };
    let redirect = Redirect::load(&Options::default()).unwrap();
    let _attachment = inside(&namespace, || redirect.attach(index_of(NEAR), Native, Refuse)).unwrap();
    println!("attached program {}", program_id(&redirect));
    loop {
        std::thread::park();
    }
}

#[test]
fn sigkill_leaves_nothing() {
    use std::io::{BufRead, BufReader};
    if load(&Options::default()).is_none() {
        return;
    }
    let link = Link::new(&Shape::default());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attachment::helper_attach_and_wait", "--nocapture"])
        .env("XBPF_TEST_NAMESPACE", link.near())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept open: a child that can't print would end on its own.
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let program: u32 = output
        .find_map(|line| line.unwrap().split_once("attached program ")?.1.parse().ok())
        .expect("the child attaches");
    assert!(link.has_program());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!link.has_program());
    // Programs are freed after a grace period, and its maps with it: wait, with a bound.
    let gone = || libbpf_rs::Program::fd_from_id(program).is_err();
    assert!(support::eventually(gone), "program {program} is still loaded");
}

#[test]
fn without_privilege_the_error_says_what_is_needed() {
    if load(&Options::default()).is_none() {
        return;
    }
    let denied = std::thread::spawn(|| {
        rustix::thread::set_capabilities(None, no_capabilities()).unwrap();
        Redirect::load(&Options::default()).map(drop)
    });
    let error = denied.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::NotPermitted { .. }), "{error}");
    assert!(error.to_string().contains("CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"), "{error}");
}

#[test]
fn three_capabilities_suffice() {
    use rustix::thread::CapabilitySet as Set;
    if load(&Options::default()).is_none() {
        return;
    }
    let link = Link::new(&Shape::default());
    let foreign = load(&Options::default()).unwrap();
    link.in_near(|| {
        let index = index_of(NEAR);
        let enough = Set::BPF | Set::NET_ADMIN | Set::PERFMON;
        let sets = rustix::thread::CapabilitySets {
            effective: enough,
            permitted: enough,
            inheritable: Set::empty(),
        };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let redirect = Redirect::load(&Options::default()).unwrap();
        redirect.add_pair(support::pair6()).unwrap();
        drop(redirect.attach(index, Native, Refuse).unwrap());
        // Whose a foreign program is takes more; that there is one does not.
        let _held = foreign.attach(index, Native, Refuse).unwrap();
        let error = redirect.attach(index, Native, Refuse).unwrap_err();
        let Error::Foreign { program, .. } = &error else { panic!("{error}") };
        assert_eq!((program.id, program.holder), (program_id(&foreign), Holder::Unknown));
        let error = redirect.attach(index, Native, Replace).unwrap_err();
        assert!(matches!(&error, Error::NotPermitted { needed: "CAP_SYS_ADMIN", .. }), "{error}");
    });
}

fn no_capabilities() -> rustix::thread::CapabilitySets {
    let none = rustix::thread::CapabilitySet::empty();
    rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none }
}

#[test]
fn impossible_sizes_are_load_errors() {
    if load(&Options::default()).is_none() {
        return;
    }
    for options in [Options { pairs: 0, ..Options::default() }, Options { queues: 0, ..Options::default() }] {
        let error = Redirect::load(&options).unwrap_err();
        assert!(matches!(error, Error::Load { .. }), "{error}");
    }
}

#[test]
fn pairs_are_a_set_with_a_limit() {
    let Some(redirect) = load(&Options { pairs: 2, ..Options::default() }) else { return };
    assert!(redirect.add_pair(support::pair4()).unwrap());
    assert!(!redirect.add_pair(support::pair4()).unwrap(), "twice is once");
    assert!(redirect.add_pair(support::pair6()).unwrap());
    let third = "192.0.2.3:443".parse().unwrap();
    let error = redirect.add_pair(third).unwrap_err();
    assert!(matches!(error, Error::PairLimit { pair, limit: 2 } if pair == third), "{error}");
    let mut pairs = redirect.pairs();
    pairs.sort();
    assert_eq!(pairs, [support::pair4(), support::pair6()]);
    assert!(redirect.remove_pair(support::pair4()).unwrap());
    assert!(!redirect.remove_pair(support::pair4()).unwrap());
    assert!(redirect.add_pair(third).unwrap(), "room again");
}

#[test]
fn the_program_bears_its_name() {
    let Some(redirect) = load(&Options::default()) else { return };
    let link = Link::new(&Shape::default());
    let _attachment = attach(&link, &redirect, Native, Refuse).unwrap();
    let shown = ip(&format!("-n {} -details link show dev {NEAR}", link.near()));
    assert!(shown.contains("name expressway_udp"), "{shown}");
    let _: &UdpSocket = &link.client("192.0.2.2:0");
    assert!(!link.ip_far(&format!("-details link show dev {FAR}")).contains("prog/xdp"));
    assert!(redirect.xsk_map().as_fd().try_clone_to_owned().is_ok());
}
