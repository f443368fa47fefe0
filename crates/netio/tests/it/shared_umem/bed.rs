//! A veth whose near end receives into a UMEM, and a sender at the far end.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use expressway_netio::xsk::{
    BindMode, ReaderAccess, ReaderReport, SharedUmem, SocketId, UmemConfig, XskConfig, interface_index,
};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

use crate::common::c::unique_path;
use crate::common::netns::{FAR, NEAR, NEAR_DEVICE, Pair};

pub(crate) const PORT: u16 = 7411;

pub(crate) const RING: u32 = 128;

pub(crate) const QUOTA: u32 = 64;

/// A veth whose near end receives into a UMEM, and a sender at the far end.
pub(crate) struct Bed {
    pub(crate) umem: SharedUmem,
    pub(crate) socket: SocketId,
    pub(crate) path: PathBuf,
    pub(crate) sender: UdpSocket,
    /// Of all packets that were lent to somebody: how many, their bytes, and the sum of these.
    pub(crate) lent: (u64, u64, u32),
    pub(crate) redirect: Redirect,
    pub(crate) _attachment: Attachment,
    pub(crate) pair: Pair,
}

pub(crate) fn port(queue: u32) -> XskConfig {
    XskConfig { mode: BindMode::Copy, rx_ring: RING, tx_ring: RING, ..XskConfig::new(NEAR_DEVICE, queue) }
}

pub(crate) fn config(frames: u32) -> UmemConfig {
    UmemConfig { frames, shareable: true, ..UmemConfig::default() }
}

impl Bed {
    /// Frames for the socket and so many readers; readers are let in.
    pub(crate) fn new(readers: u32) -> Self {
        let pair = Pair::new(1500, 1);
        let redirect = Redirect::load(&Options { queues: 4, ..Options::default() }).unwrap();
        redirect.add_pair(SocketAddr::new(NEAR[0], PORT)).unwrap();
        let mut umem = SharedUmem::new(&config(2 * RING + readers * QUOTA)).unwrap();
        let (attachment, socket) = pair.near.enter(|| {
            let index = interface_index(NEAR_DEVICE).unwrap();
            let attachment = redirect.attach(index, AttachMode::Native, Existing::Refuse).unwrap();
            (attachment, umem.bind(&port(0), Some(redirect.xsk_map())).unwrap())
        });
        let path = unique_path();
        umem.share(ReaderAccess { readers: readers + 1, quota: QUOTA, ..ReaderAccess::new(&path) }).unwrap();
        let sender = pair.far.enter(|| UdpSocket::bind((FAR[0], 0)).unwrap());
        Self { umem, socket, path, sender, lent: (0, 0, 0), redirect, _attachment: attachment, pair }
    }

    /// One turn of the receiver: lends all it receives to all who are there.
    pub(crate) fn turn(&mut self) {
        self.umem.wait(Some(Duration::from_millis(5))).unwrap();
        let readers = self.umem.readers();
        let lent = &mut self.lent;
        self.umem
            .receive(self.socket, 64, |mut packet| {
                let bytes = packet.bytes();
                let sum = bytes.iter().fold(0u32, |sum, &byte| sum.wrapping_add(byte.into()));
                let length = bytes.len() as u64;
                if !packet.lend(readers, 0, 0).is_empty() {
                    *lent = (lent.0 + 1, lent.1 + length, lent.2.wrapping_add(sum));
                }
            })
            .unwrap();
        self.umem.flush().unwrap();
    }

    /// Turns until `done`. A bound far beyond what it takes, so that a failure is no hang.
    pub(crate) fn run(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "never: {what}; {:?}",
                self.umem.reader_stats()
            );
            self.turn();
        }
    }

    pub(crate) fn send(&self, first: u32, count: u32) {
        for number in first..first + count {
            let mut payload = vec![number as u8; 16 + number as usize % 1000];
            payload[..4].copy_from_slice(&number.to_be_bytes());
            self.sender.send_to(&payload, (NEAR[0], PORT)).unwrap();
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.umem.stats(self.socket).unwrap().rx_xsk_packets
    }

    /// Sends so many packets, in bursts, each of which every reader but those in `slow` must return first.
    pub(crate) fn send_all(&mut self, count: u32, slow: usize) {
        for first in (0..count).step_by(20) {
            let burst = 20.min(count - first);
            let wanted = self.received() + u64::from(burst);
            self.send(first, burst);
            self.run("a burst comes back", |bed| {
                let busy = bed.umem.reader_reports().filter(|report| report.held > 0).count();
                bed.received() == wanted && busy <= slow
            });
        }
    }

    pub(crate) fn wait_for_readers(&mut self, count: u32) {
        self.run("a reader comes or goes", |bed| bed.umem.readers().count() == count);
    }

    pub(crate) fn report(&self, number: usize) -> ReaderReport {
        self.umem.reader_reports().nth(number).unwrap()
    }
}
