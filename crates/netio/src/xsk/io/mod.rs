//! [`XskIo`]: the bindings of one worker and its kernel sockets behind one [`PacketIo`].
//!
//! It receives from both. It sends a burst by AF_XDP if frames for its path can be built and a binding of that
//! interface is up, and otherwise through the kernel socket, with a counter that says why. Packets for the kernel
//! socket are built in that socket's own buffers, so nothing is ever copied from one to the other.

mod bindings;
mod burst;
mod completions;
mod plan;
mod receive;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::binding::{BindingReport, LendReport, XskBinding};
use super::config::{HEADER_SPACE, XskIoConfig};
use super::interface::Interfaces;
use super::path_cache::{PathCache, Reminders, Routes};
use super::sender::BindingSender;
use crate::io::{Datagram, Flow, IoError, IoStats, PacketIo, Sent, Via};
use crate::route::{Resolution, Resolver};
use crate::trace::Tracer;
use crate::udp::UdpIo;
use crate::wait::Wait;

use completions::Completions;
use plan::is_link_local;
use receive::{Origin, Prefix, deliver};

/// Turns with packets from AF_XDP after which the kernel sockets are asked though the turns go on: a
/// datagram there waits for 8 batches at most, and their system call is shared by as many.
const KERNEL_EVERY: u32 = 8;
/// Bytes of an IPv4 and of an IPv6 header with the UDP header.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;

/// AF_XDP packet I/O of one worker, with the kernel sockets of the same addresses beside it.
///
/// `K` is the kernel's way and `R` knows the paths; tests put other things there.
pub struct XskIo<K = UdpIo, R = Resolver> {
    bindings: Vec<XskBinding>,
    kernel: K,
    routes: R,
    config: XskIoConfig,
    links: Interfaces,
    sender: BindingSender,
    /// Holds what wakes the worker besides packets: link notices, the timer, sockets opened anew.
    events: OwnedFd,
    timer: OwnedFd,
    armed: Option<Instant>,
    links_checked: Instant,
    paths: PathCache,
    reminders: Reminders,
    /// Where datagrams larger than a frame are built, before they are cut into frames.
    staging: Box<[u8]>,
    now: Instant,
    turns: u32,
    wait: Wait,
    /// When the kernel sockets were asked last.
    kernel_asked: Instant,
    busy: bool,
    /// A socket gave a full batch in the last receive.
    full: bool,
    stats: IoStats,
    /// What readers were lent by bindings that are gone, and what by none.
    lent: LendReport,
    completions: Completions,
}

impl<K: PacketIo, R: Routes> XskIo<K, R> {
    /// Packet I/O over `bindings`, and over `kernel` for what they do not receive or cannot send. `kernel` must
    /// have a socket on every address that the redirect program takes packets of. Its `max_payload` bounds
    /// this one's, for reported path MTUs come to it: a [`UdpIo`] wants a resolver
    /// ([`UdpIo::set_resolver`]), without which it assumes an MTU of 1500. `routes` must
    /// be of the network namespace of the bindings, whose links are asked for.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(
        mut bindings: Vec<XskBinding>,
        kernel: K,
        routes: R,
        config: XskIoConfig,
    ) -> Result<Self, IoError> {
        let failed = |what: &str| {
            let what = format!("AF_XDP: {what}");
            move |source: io::Error| IoError::Socket { what, source }
        };
        let links = Interfaces::open(routes.source()).map_err(failed("netlink socket for link changes"))?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| failed("epoll_create")(errno.into()))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| failed("timerfd_create")(errno.into()))?;
        let sender = BindingSender::new().map_err(failed("eventfd"))?;
        for fd in [links.as_fd(), timer.as_fd(), sender.fd()] {
            epoll::add(&events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(|errno| failed("epoll_ctl")(errno.into()))?;
        }
        // What changed between the opening of a binding and that of the socket above was told to nobody.
        for binding in &mut bindings {
            binding.set_link(links.state(binding.ifindex()));
        }
        let now = Instant::now();
        let largest = bindings.iter().filter(|binding| binding.max_payload() > binding.max_in_frame());
        let staging = largest.map(|binding| HEADER_SPACE + binding.max_payload()).max().unwrap_or(0);
        let io = Self {
            staging: vec![0; staging].into_boxed_slice(),
            bindings,
            kernel,
            routes,
            links,
            sender,
            events,
            timer,
            armed: None,
            links_checked: now,
            paths: PathCache::new(config.ttl),
            reminders: Reminders::new(),
            now,
            turns: 0,
            wait: Wait::Interrupt,
            kernel_asked: now,
            busy: false,
            full: false,
            stats: IoStats::default(),
            lent: LendReport::default(),
            completions: Completions::default(),
            config: XskIoConfig { batch: config.batch.max(1), ..config },
        };
        io.bindings.iter().filter_map(XskBinding::reader_events).for_each(|fd| io.follow(fd));
        Ok(io)
    }

    /// Readers in other processes and what they were lent ([`super::XskConfig::lend`]), of all bindings since the start; looks
    /// after those that have come and gone first.
    pub fn lend_report(&mut self) -> LendReport {
        self.bindings.iter_mut().for_each(XskBinding::attend);
        let mut report = self.lent;
        self.bindings.iter().for_each(|binding| report += binding.lend_report());
        report
    }

    /// The bindings and how they fare.
    pub fn reports(&self) -> impl Iterator<Item = BindingReport> {
        self.bindings.iter().map(XskBinding::report)
    }

    /// Where bindings are added and removed while this runs on a worker.
    pub fn sender(&self) -> BindingSender {
        self.sender.clone()
    }

    /// True unless every binding leaves sending to the kernel, so that no path needs to be looked up.
    fn transmits(&self) -> bool {
        self.bindings.is_empty() || self.bindings.iter().any(XskBinding::transmits)
    }

    /// The kernel's side.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }
}

impl<K: PacketIo, R: Routes> PacketIo for XskIo<K, R> {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        self.now = now;
        self.watch(now);
        let mut received = 0;
        self.full = false;
        let is_traced = self.completions.tracer.is_on();
        for (index, binding) in self.bindings.iter_mut().enumerate() {
            let origin = Origin {
                via: Via::Xsk(index as u16),
                ifindex: binding.ifindex(),
                verify: self.config.verify_checksum,
                prefix: match (binding.description(), binding.switch()) {
                    (Some(cookie), _) => Prefix::Description(cookie),
                    (None, Some(switch)) if is_traced => Prefix::Description(switch.cookie()),
                    (None, Some(_)) => Prefix::Unread,
                    (None, None) => Prefix::None,
                },
            };
            let Some((mut batch, readers)) = binding.receive(self.config.batch) else { continue };
            while let Some(mut packet) = batch.next() {
                let Some(lendable) = deliver(packet.bytes(), origin, &mut self.stats, sink) else { continue };
                received += 1;
                if readers != 0 {
                    packet.lend(lendable.part, readers, lendable.info);
                }
            }
            let taken = batch.packets();
            drop(batch);
            self.full |= taken >= self.config.batch;
            binding.end_receive(now, taken);
        }
        self.trace_completions();
        // A turn without packets that follows one with packets leads to sleep, whose wait would tell of the
        // kernel sockets anyway: request and response by AF_XDP cost no call on them.
        let was_busy = std::mem::replace(&mut self.busy, received > 0);
        self.turns += 1;
        let ask_kernel = match self.wait {
            // Idle turns follow each other without a pause here: time is the measure.
            Wait::Spin(spin) => now.saturating_duration_since(self.kernel_asked) >= spin.kernel_interval,
            Wait::Interrupt | Wait::BusyPoll(_) => self.turns >= KERNEL_EVERY || (received == 0 && !was_busy),
        };
        if ask_kernel {
            self.turns = 0;
            self.kernel_asked = now;
            let by_kernel = self.kernel.receive(now, sink)?;
            self.full |= self.kernel.may_have_more(by_kernel);
            if by_kernel > 0 && self.bindings.iter().any(XskBinding::has_readers) {
                self.lent.not_lent.not_lent_kernel += by_kernel as u64;
            }
            received += by_kernel;
        }
        Ok(received)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        if segment == 0 || !self.transmits() {
            return self.kernel.transmit(flow, segment, fill);
        }
        let hash = self.paths.hash(flow);
        match self.plan(flow, segment, hash) {
            Ok((binding, path)) => {
                let sent = self.build_on((binding, &path, hash), flow, segment, fill);
                self.trace_burst(binding);
                sent
            }
            Err(reason) => self.fall_back(reason, flow, segment, fill),
        }
    }

    fn flush(&mut self, now: Instant) -> Result<(), IoError> {
        self.now = now;
        for binding in &mut self.bindings {
            binding.send(now);
        }
        self.trace_completions();
        let sent = self.kernel.flush(now);
        for binding in &mut self.bindings {
            binding.tell_refilled(now);
        }
        sent
    }

    fn waiting(&self) -> usize {
        self.kernel.waiting()
    }

    fn max_payload(&mut self, flow: &Flow) -> usize {
        // Path MTUs that routers reported come to the kernel socket, whichever way the datagram took.
        let kernel = self.kernel.max_payload(flow);
        if !self.transmits() || is_link_local(&flow.remote) {
            return kernel;
        }
        let Resolution::Ready(path) = self.routes.resolve(flow.local.ip(), flow.remote.ip()) else {
            return kernel;
        };
        let here = |binding: &&XskBinding| binding.ifindex() == path.ifindex && binding.transmits();
        let frame = self.bindings.iter().filter(here).map(XskBinding::max_payload);
        let headers = if flow.remote.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        match frame.min() {
            Some(frame) => kernel.min(frame).min(path.mtu.saturating_sub(headers)),
            None => kernel,
        }
    }

    fn set_wait(&mut self, wait: Wait) -> Result<(), IoError> {
        self.wait = wait;
        for binding in &mut self.bindings {
            binding.set_wait(wait)?;
        }
        self.kernel.set_wait(wait)
    }

    fn descriptors(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.bindings.iter().filter_map(XskBinding::descriptor).for_each(&mut *visit);
        visit(self.events.as_fd());
        self.kernel.descriptors(visit);
    }

    /// Bindings come and go within `events`.
    fn descriptors_generation(&self) -> u64 {
        self.kernel.descriptors_generation()
    }

    fn kernel_socket(&self, address: IpAddr) -> Option<BorrowedFd<'_>> {
        self.kernel.kernel_socket(address)
    }

    fn set_tracer(&mut self, tracer: Tracer) {
        self.kernel.set_tracer(tracer.clone());
        self.completions.tracer = tracer;
        self.tell_places();
    }

    fn prepare_sleep(&mut self) -> bool {
        let now = Instant::now();
        let mut work = false;
        let mut wake_at: Option<Instant> = None;
        for binding in &mut self.bindings {
            work |= binding.prepare_sleep(now);
            if let Some(turn) = binding.next_turn(now) {
                wake_at = Some(wake_at.map_or(turn, |earlier| earlier.min(turn)));
            }
        }
        if let Some(turn) = wake_at
            && self.armed.is_none_or(|armed| turn < armed)
        {
            // A timer of 0 would be disarmed.
            let pause = turn.saturating_duration_since(now).max(Duration::from_micros(1));
            let value = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            match timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
                Ok(_) => self.armed = Some(turn),
                // Cannot happen with these arguments; without the timer the worker must not sleep.
                Err(_) => work = true,
            }
        }
        self.kernel.prepare_sleep() || work
    }

    fn batch(&self) -> usize {
        self.config.batch.max(self.kernel.batch())
    }

    fn may_have_more(&self, _received: usize) -> bool {
        self.full
    }

    fn stats(&self) -> IoStats {
        let mut stats = self.kernel.stats();
        stats += self.stats;
        self.bindings.iter().for_each(|binding| binding.count(&mut stats));
        stats
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
