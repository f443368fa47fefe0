//! What a device knows of received packets, by the redirect program that is bound to it, on a veth: its driver has the
//! kfuncs for hash, time stamp and VLAN tag. Stripped tags are left to the parser's tests: nothing in a plain kernel strips
//! them on a veth. The kernel refuses test runs of such programs, so packets do it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_netio::io::TimeSource;
use expressway_netio::route::RouteMirror;
use expressway_netio::trace::{self, StampSwitch, Tracers};
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::xsk::{BindMode, XskBinding, XskConfig, XskIo, XskIoConfig};
use expressway_netio::{Hints, PacketIo, Via};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

use crate::common::netns::{NEAR, NEAR_DEVICE, Pair, is_privileged};

const PORT: u16 = 4433;
const PATIENCE: Duration = Duration::from_secs(20);

struct Bed {
    io: XskIo,
    redirect: Redirect,
    _attachment: Attachment,
    _mirror: RouteMirror,
    pair: Pair,
}

fn ifindex() -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, NEAR_DEVICE).unwrap()
}

impl Bed {
    fn new(mtu: usize, hints: bool) -> Self {
        Self::with(mtu, AttachMode::Native, || Options { hints: hints.then(ifindex), ..Options::default() })
    }

    fn with(mtu: usize, mode: AttachMode, options: impl FnOnce() -> Options + Send) -> Self {
        let pair = Pair::new(mtu, 1);
        let (io, redirect, attachment, mirror) = pair.near.enter(|| {
            let options = options();
            let redirect = Redirect::load(&options).unwrap();
            assert_eq!(redirect.cookie().is_some(), options.hints.is_some() || options.stamps);
            redirect.add_pair(SocketAddr::new(NEAR[0], PORT)).unwrap();
            let attachment = redirect.attach(ifindex(), mode, Existing::Refuse).unwrap();
            let config = XskConfig {
                mode: BindMode::Copy,
                description: redirect.cookie(),
                switch: redirect.switch().map(|map| StampSwitch::map(map).unwrap()),
                ..XskConfig::new(NEAR_DEVICE, 0)
            };
            let binding = XskBinding::open(config, redirect.xsk_map()).unwrap();
            let mirror = RouteMirror::start().unwrap();
            let kernel = UdpIo::bind(&UdpConfig::new(vec![SocketAddr::new(NEAR[0], PORT)])).unwrap();
            let resolver = mirror.resolver().unwrap();
            let io = XskIo::new(vec![binding], kernel, resolver, XskIoConfig::default()).unwrap();
            (io, redirect, attachment, mirror)
        });
        Self { io, redirect, _attachment: attachment, _mirror: mirror, pair }
    }

    /// Sends from the far end until one arrives by AF_XDP: its payload and what is known of it.
    fn exchange(&mut self, to: IpAddr, payload: &[u8]) -> Hints {
        let peer = self.pair.far.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let _ = peer.send_to(payload, SocketAddr::new(to, PORT));
            std::thread::sleep(Duration::from_millis(1));
            let mut seen = None;
            self.io
                .receive(Instant::now(), &mut |datagram| {
                    if datagram.payload == payload && datagram.via == Via::Xsk(0) {
                        seen = Some(datagram.hints);
                    }
                })
                .unwrap();
            if let Some(hints) = seen {
                return hints;
            }
            assert!(Instant::now() < deadline, "{:?} {:?}", self.io.stats(), self.redirect.counters());
        }
    }
}

fn tai() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Tai);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn datagrams_carry_hash_and_time() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(9000, true);
    for size in [1, 1200, 5000, 8972] {
        let begin = tai();
        let hints = bed.exchange(NEAR[0], &vec![size as u8; size]);
        assert!(hints.hash.is_some_and(|hash| hash != 0), "{size}: {hints:?}");
        let stamp = hints.timestamp.expect("the program stamps where the device does not");
        if stamp.source == TimeSource::Program {
            assert!((begin..=tai()).contains(&stamp.nanoseconds), "{begin} {stamp:?}");
        }
        assert_eq!(hints.vlan, None);
    }
    assert_eq!(bed.io.stats().dropped_malformed, 0);
}

#[test]
fn the_stamping_program_is_bound_to_no_device_and_runs_in_the_stack_too() {
    if !is_privileged() {
        return;
    }
    for mode in [AttachMode::Native, AttachMode::Generic] {
        let mut bed = Bed::with(1500, mode, || Options { stamps: true, ..Options::default() });
        let begin = tai();
        let hints = bed.exchange(NEAR[0], b"stamped");
        let stamp = hints.timestamp.expect("each is stamped");
        assert_eq!((stamp.source, hints.hash), (TimeSource::Program, None));
        assert!((begin..=tai()).contains(&stamp.nanoseconds), "{begin} {stamp:?}");
    }
}

#[test]
fn without_the_bound_program_nothing_is_known() {
    if !is_privileged() {
        return;
    }
    let mut bed = Bed::new(1500, false);
    assert_eq!(bed.exchange(NEAR[0], b"plain"), Hints::default());
}

#[test]
fn a_bound_program_is_for_its_device_alone() {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    pair.near.enter(|| {
        let options = Options { hints: Some(ifindex()), ..Options::default() };
        let redirect = Redirect::load(&options).unwrap();
        let generic = redirect.attach(ifindex(), AttachMode::Generic, Existing::Refuse).unwrap_err();
        assert!(generic.to_string().contains(NEAR_DEVICE), "{generic}");
        let error = Redirect::load(&Options { hints: Some(1), ..Options::default() }).err();
        assert!(error.is_some(), "loopback has no native XDP to bind to");
    });
}

#[test]
fn the_plain_program_stamps_while_somebody_traces() {
    if !is_privileged() {
        return;
    }
    for mode in [AttachMode::Native, AttachMode::Generic] {
        let mut bed = Bed::with(1500, mode, Options::default);
        assert_eq!(bed.exchange(NEAR[0], b"unasked"), Hints::default());
        let tracers = Tracers::new(1);
        bed.io.set_tracer(tracers.tracer(0));
        for round in 0..2 {
            let begin = tai();
            let options = trace::Options { filter: trace::Filter::default(), sample: 1 };
            let recording = tracers.start(&options).unwrap();
            let hints = bed.exchange(NEAR[0], b"asked");
            let stamp = hints.timestamp.expect("somebody asks");
            assert_eq!((stamp.source, hints.hash), (TimeSource::Program, None), "{round}");
            assert!((begin..=tai()).contains(&stamp.nanoseconds), "{begin} {stamp:?}");
            drop(recording);
            assert_eq!(bed.exchange(NEAR[0], b"no more"), Hints::default(), "{round}");
        }
        // A socket that is added while somebody traces.
        let _recording =
            tracers.start(&trace::Options { filter: trace::Filter::default(), sample: 1 }).unwrap();
        bed.io.set_tracer(trace::Tracer::default());
        bed.io.set_tracer(tracers.tracer(0));
        assert!(bed.exchange(NEAR[0], b"still asked").timestamp.is_some());
    }
}
