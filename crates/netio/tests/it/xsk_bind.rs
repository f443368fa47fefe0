//! Opening AF_XDP bindings on a veth: modes, errors with their remedies, and what is left behind.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use expressway_netio::xsk::{
    Backing, BindMode, BindingState, ObtainedMode, OpenError, XskBinding, XskConfig,
};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

use crate::common::netns::{NEAR_DEVICE, Pair, is_privileged};

/// A veth with so many queues and the redirect program at its near end.
fn bed(mtu: usize, queues: usize) -> (Pair, Redirect, Attachment) {
    let pair = Pair::new(mtu, queues);
    let redirect = Redirect::load(&Options { queues: 4, ..Options::default() }).unwrap();
    let attachment = pair.near.enter(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let index = rustix::net::netdevice::name_to_index(&socket, NEAR_DEVICE).unwrap();
        redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap()
    });
    (pair, redirect, attachment)
}

fn config(queue: u32, mode: BindMode) -> XskConfig {
    XskConfig { mode, ..XskConfig::new(NEAR_DEVICE, queue) }
}

fn open(pair: &Pair, redirect: &Redirect, config: XskConfig) -> Result<XskBinding, OpenError> {
    pair.near.enter(|| XskBinding::open(config, redirect.xsk_map()))
}

/// The failing call's error and the whole message.
fn refused(result: Result<XskBinding, OpenError>) -> (i32, String) {
    match result {
        Err(error @ OpenError::Socket { .. }) => {
            let message = error.to_string();
            let OpenError::Socket { source, .. } = error else { unreachable!("matched above") };
            (source.raw_os_error().unwrap_or(0), message)
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn the_mode_obtained_is_read_back() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    for mode in [BindMode::Copy, BindMode::Auto] {
        let binding = open(&pair, &redirect, config(0, mode)).unwrap();
        let report = binding.report();
        assert_eq!(binding.mode(), Some(ObtainedMode::Copy), "veth has no zero-copy");
        assert_eq!((report.state, report.queue, report.multi_buffer), (BindingState::Up, 0, false));
        assert_eq!(report.interface, NEAR_DEVICE);
        // The next bind finds the queue still held for a moment and waits.
    }
}

#[test]
fn zero_copy_that_the_driver_lacks_is_an_error_that_says_so() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    let (errno, message) = refused(open(&pair, &redirect, config(0, BindMode::ZeroCopy)));
    assert_eq!(errno, libc::EOPNOTSUPP, "{message}");
    let start = format!("{NEAR_DEVICE} queue 0: AF_XDP bind in zero-copy mode: EOPNOTSUPP");
    assert!(message.starts_with(&start), "{message}");
    assert!(
        message.ends_with("the driver does not support zero-copy AF_XDP: use mode copy or auto"),
        "{message}"
    );
}

#[test]
fn a_queue_out_of_range_is_named() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 2);
    let (errno, message) = refused(open(&pair, &redirect, config(2, BindMode::Copy)));
    assert_eq!(errno, libc::EINVAL, "{message}");
    assert!(message.contains("queue 2") && message.contains("ethtool -l"), "{message}");
    assert!(open(&pair, &redirect, config(1, BindMode::Copy)).is_ok());
}

#[test]
fn a_queue_that_is_taken_is_waited_for_and_then_refused() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    let holder = open(&pair, &redirect, config(0, BindMode::Copy)).unwrap();
    let impatient = XskConfig { bind_patience: Duration::from_millis(50), ..config(0, BindMode::Copy) };
    let (errno, message) = refused(open(&pair, &redirect, impatient));
    assert_eq!(errno, libc::EBUSY, "{message}");
    assert!(message.contains("another AF_XDP socket holds this queue"), "{message}");
    drop(holder);
    for _ in 0..5 {
        // The kernel releases the queue later than the close; patience bridges that, every time.
        drop(open(&pair, &redirect, config(0, BindMode::Copy)).unwrap());
    }
}

#[test]
fn a_map_that_does_not_fit_is_refused_and_the_queue_is_free_again() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    let beyond = XskConfig { map_key: 4, ..config(0, BindMode::Copy) };
    let (errno, message) = refused(open(&pair, &redirect, beyond));
    assert_eq!(errno, libc::E2BIG, "{message}");
    assert!(
        message.contains("inserting into the XSKMAP") && message.contains("exceeds the map's entries"),
        "{message}"
    );
    let file = std::fs::File::open("/dev/null").unwrap();
    let wrong =
        pair.near.enter(|| XskBinding::open(config(0, BindMode::Copy), std::os::fd::AsFd::as_fd(&file)));
    let (_, message) = refused(wrong);
    assert!(message.ends_with("the descriptor is not an XSKMAP"), "{message}");
    assert!(open(&pair, &redirect, config(0, BindMode::Copy)).is_ok());
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    match open(&pair, &redirect, XskConfig::new("nowhere0", 0)) {
        Err(OpenError::Interface { interface, source }) => {
            assert_eq!(interface, "nowhere0");
            assert_ne!(source.kind(), ErrorKind::Other);
        }
        other => panic!("{:?}", other.map(|binding| binding.report())),
    }
}

#[test]
fn the_frame_size_decides_whether_packets_span_frames() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(3400, 1);
    for (frame_size, multi_buffer) in [(2048, true), (4096, false)] {
        let config = XskConfig { frame_size, ..config(0, BindMode::Copy) };
        let binding = open(&pair, &redirect, config).unwrap();
        assert_eq!(binding.report().multi_buffer, multi_buffer, "{frame_size}");
    }
}

#[test]
fn ordinary_pages_serve_where_huge_ones_are_not_wanted() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    let small = XskConfig { huge_pages: false, rx_ring: 64, tx_ring: 64, ..config(0, BindMode::Copy) };
    let binding = open(&pair, &redirect, small).unwrap();
    assert_eq!(binding.report().backing, Some(Backing::Normal));
}

#[test]
fn the_send_budget_is_what_was_asked_or_what_the_kernel_has() {
    if !is_privileged() {
        return;
    }
    let (pair, redirect, _attachment) = bed(1500, 1);
    for (asked, expected) in [(None, 2048), (Some(64), 64)] {
        let config = XskConfig { tx_budget: asked, ..config(0, BindMode::Copy) };
        let budget = open(&pair, &redirect, config).unwrap().report().tx_budget;
        // Linux 6.17 has the option; 32 is the constant of those before.
        assert!(budget == expected || budget == 32, "{budget}");
    }
}
