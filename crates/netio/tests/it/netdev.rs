//! Device features and NAPI settings, on a veth with an XDP program.

use std::net::UdpSocket;
use std::time::Duration;

use expressway_netio::netdev::{NapiGuard, NapiSettings, Netdev};
use expressway_xbpf::{AttachMode, Existing, Options, Redirect};

use crate::common::netns::{NEAR_DEVICE, Pair, is_privileged};

fn ifindex() -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, NEAR_DEVICE).unwrap()
}

#[test]
fn a_veth_claims_the_hints_that_it_has() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    pair.near.enter(|| {
        let features = Netdev::open().unwrap().features(ifindex()).unwrap();
        assert!(features.xdp && features.rx_timestamp && features.rx_hash, "{features:?}");
        assert!(!features.zero_copy && !features.tx_checksum, "{features:?}");
    });
}

#[test]
fn napi_settings_are_applied_read_back_and_put_back() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    pair.near.enter(|| {
        // A veth has NAPI contexts while it has a native program.
        let redirect = Redirect::load(&Options::default()).unwrap();
        let _attachment = redirect.attach(ifindex(), AttachMode::Native, Existing::Refuse).unwrap();
        let mut netdev = Netdev::open().unwrap();
        let napis = netdev.napis(ifindex()).unwrap();
        let [napi] = napis[..] else { panic!("one queue, one context: {napis:?}") };
        assert_eq!(netdev.napi(napi.id).unwrap(), napi);
        assert_eq!(netdev.napi_of_queue(ifindex(), 0).unwrap(), None, "a veth ties none to its queues");
        let settings = NapiSettings {
            defer_hard_irqs: 2,
            gro_flush_timeout: Duration::from_micros(200),
            irq_suspend_timeout: Duration::from_secs(5),
        };
        let guard = NapiGuard::apply(&[napi.id], settings).unwrap();
        assert_eq!(guard.ids().collect::<Vec<_>>(), [napi.id]);
        assert_eq!(netdev.napi(napi.id).unwrap().settings, settings);
        drop(guard);
        assert_eq!(netdev.napi(napi.id).unwrap(), napi);

        // One that is not there spoils all.
        let error = NapiGuard::apply(&[napi.id, 0x7fff_fff0], settings).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
        assert_eq!(netdev.napi(napi.id).unwrap(), napi);
    });
}
