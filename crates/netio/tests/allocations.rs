//! In steady state a worker's turn allocates nothing, whatever the backend: receive, handle, timers,
//! messages, transmit, flush.
//!
//! A counting allocator watches the thread that turns the worker, and only while it turns.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::sim::{Link, Network, SimIo};
use expressway_netio::udp::{SendMode, UdpConfig, UdpIo};
use expressway_netio::xsk::{TransmitVia, XskIoConfig};
use expressway_netio::{
    Context, Datagram, Flow, IoError, PacketIo, Service, SliceLimit, Transmit, Worker, WorkerOptions, mailbox,
};

use common::netns::{FAR, NEAR, Pair, is_privileged};
use counting_allocator::allocations;

mod common;
mod counting_allocator;

const PORT: u16 = 4433;
const BURST: usize = 32;
const WARM_UP: usize = 100;
const MEASURED: usize = 400;

/// Echoes; arms a timer for each datagram and sends itself a message for each.
struct Echo {
    replies: Vec<(Flow, usize)>,
    bytes: Vec<u8>,
    datagrams: usize,
    messages: u64,
    timers: u64,
}

impl Service for Echo {
    type Message = u64;

    fn handle_datagram(&mut self, context: &mut Context<'_, u64>, datagram: Datagram<'_>) {
        // So many that each fires before its token comes round again.
        self.datagrams += 1;
        let token = self.datagrams % 1000;
        self.replies.push((Flow::new(datagram.local, datagram.remote), datagram.payload.len()));
        self.bytes.extend_from_slice(datagram.payload);
        context.timers.arm(token, context.now + Duration::from_micros(token as u64));
        context.peers[0].try_send(1).expect("the mailbox has room for a burst");
    }

    fn handle_message(&mut self, _: &mut Context<'_, u64>, message: u64) {
        self.messages += message;
    }

    fn handle_timer(&mut self, _: &mut Context<'_, u64>, _: usize) {
        self.timers += 1;
    }

    fn poll_transmit(
        &mut self,
        _: &mut Context<'_, u64>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        let mut bytes = self.bytes.as_slice();
        for &(flow, len) in &self.replies {
            let (reply, rest) = bytes.split_at(len);
            let mut once = Some(reply);
            io.transmit(&flow, 1400, &mut |slot| {
                let Some(reply) = once.take() else { return 0 };
                slot[..len].copy_from_slice(reply);
                len
            })?;
            bytes = rest;
        }
        self.replies.clear();
        self.bytes.clear();
        Ok(Transmit::Done)
    }

    fn is_finished(&self) -> bool {
        false
    }
}

/// Echoes bursts through a worker on `io`. `send` sends one datagram to it; `receive` takes the echo of one,
/// if it has come.
fn check(io: impl PacketIo, mut send: impl FnMut(&[u8]), mut receive: impl FnMut() -> bool) {
    let echo = Echo {
        replies: Vec::with_capacity(1024),
        bytes: Vec::with_capacity(1 << 20),
        datagrams: 0,
        messages: 0,
        timers: 0,
    };
    let (sender, inbox) = mailbox(1024).expect("an eventfd");
    let peers = Arc::from([sender]);
    // So small that some of each batch waits for the next turn.
    let options = WorkerOptions { slice: SliceLimit::Pieces(20), ..WorkerOptions::default() };
    let mut worker = Worker::new(options, Instant::now(), echo, io, inbox, peers);
    let (mut allocated, mut echoed) = (0, 0);
    for round in 0..WARM_UP + MEASURED {
        for number in 0..BURST {
            let len = if number % 8 == 7 { 100 + round % 300 } else { 1200 };
            send(&[round as u8; 1200][..len]);
        }
        let mut missing = BURST;
        let started = Instant::now();
        while missing > 0 {
            let before = allocations();
            worker.turn(Instant::now()).expect("the backend works");
            if round >= WARM_UP {
                allocated += allocations() - before;
            }
            while receive() {
                missing -= 1;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "{missing} echoes are missing");
        }
        echoed += BURST;
    }
    assert!(worker.service().timers > 0 && worker.service().messages > 0, "they were part of it");
    assert_eq!(worker.stats().transmitted, echoed as u64);
    assert_eq!(allocated, 0, "allocations in {} turns of steady state", worker.stats().turns);
}

#[test]
fn the_allocator_counts() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert!(allocations() > before);
}

#[test]
fn simulated_allocates_nothing() {
    let network = Network::real_time(1, Link::default());
    let [near, far] = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], PORT)));
    let io = network.endpoint(&[near]).expect("the address is free");
    let peer = std::cell::RefCell::new(network.endpoint(&[far]).expect("the address is free"));
    let send = |payload: &[u8]| {
        let mut once = Some(payload);
        let mut peer = peer.borrow_mut();
        peer.transmit(&Flow::new(far, near), payload.len(), &mut |slot| {
            once.take().map_or(0, |payload| {
                slot.copy_from_slice(payload);
                payload.len()
            })
        })
        .expect("the simulated network does not fail");
        peer.flush(Instant::now()).expect("the simulated network does not fail");
    };
    let mut waiting = 0;
    let receive = || {
        if waiting == 0 {
            waiting = received(&mut peer.borrow_mut());
        }
        let any = waiting > 0;
        waiting -= usize::from(any);
        any
    };
    check(io, send, receive);
}

fn received(peer: &mut SimIo) -> usize {
    peer.receive(Instant::now(), &mut |_| ()).expect("the simulated network does not fail")
}

/// The far side of a veth: a plain socket.
fn check_on_veth(pair: &Pair, to: IpAddr, io: impl PacketIo) {
    let from = SocketAddr::new(FAR[usize::from(to.is_ipv6())], PORT);
    let peer = pair.far.enter(|| UdpSocket::bind(from).expect("the address is free"));
    peer.set_nonblocking(true).expect("a socket can be non-blocking");
    let to = SocketAddr::new(to, PORT);
    let mut buffer = [0u8; 2048];
    check(
        io,
        |payload| {
            peer.send_to(payload, to).expect("the peer can send");
        },
        || peer.recv_from(&mut buffer).is_ok(),
    );
}

fn kernel(send: SendMode, gro: bool, to: IpAddr) {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let config = UdpConfig { send, gro, ..UdpConfig::new(vec![SocketAddr::new(to, PORT)]) };
    let io = pair.near.enter(|| UdpIo::bind(&config).expect("the address is free"));
    check_on_veth(&pair, to, io);
}

#[test]
fn kernel_gso_allocates_nothing() {
    kernel(SendMode::Gso, true, NEAR[0]);
}

#[test]
fn kernel_sendmmsg_allocates_nothing() {
    kernel(SendMode::Sendmmsg, false, NEAR[2]);
}

#[test]
fn kernel_sendmsg_allocates_nothing() {
    kernel(SendMode::Sendmsg, false, NEAR[0]);
}

fn xsk(transmit: TransmitVia, to: IpAddr) {
    if !is_privileged() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let config = XskIoConfig::default();
    let (io, _around) = common::xsk::open_sending(&pair, 1, PORT, config, transmit);
    check_on_veth(&pair, to, io);
}

#[test]
fn xsk_copy_allocates_nothing() {
    xsk(TransmitVia::Xsk, NEAR[0]);
}

#[test]
fn hybrid_allocates_nothing() {
    xsk(TransmitVia::Kernel, NEAR[2]);
}
