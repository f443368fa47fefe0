//! [`ExpressIo`]: the ports of one worker and its kernel sockets behind one [`PacketIo`].
//!
//! Receives from both. Sends a burst by AF_XDP if frames for its path can be built and a port of that
//! interface is up, else by the kernel socket, with a counter that says why. What is for the kernel socket
//! is built in the kernel socket's own buffers, so nothing is ever copied from one way to the other.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use expressway_wire::{ChecksumMode, UdpTemplate, parse_udp};
use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::config::{ExpressConfig, HEADER_SPACE};
use super::description;
use super::hints::{ChecksumProbe, ChecksumProof, Grant, PROBE_LEN};
use super::inlet::{Change, PortInlet};
use super::interface::Interfaces;
use super::metadata::{Request, TransmitTime, Unfinished};
use super::path_cache::{PathCache, Reminders, Routes};
use super::port::{Port, PortReport};
use crate::io::{Datagram, Ecn, Flow, Hints, IoError, IoStats, PacketIo, Sent, Via};
use crate::route::{Path, Resolution, Resolver};
use crate::udp::UdpIo;
use crate::wait::Wait;

/// Link notices are looked for no oftener than this while there is nothing else to do.
const LINK_INTERVAL: Duration = Duration::from_millis(10);
/// Turns with packets from AF_XDP after which the kernel sockets are asked though the turns go on: a
/// datagram there waits for 8 batches at most, and their system call is shared by as many.
const KERNEL_EVERY: u32 = 8;
/// Bytes of an IPv4 and of an IPv6 header with the UDP header.
const HEADERS_V4: usize = 28;
/// Bytes of a UDP header (RFC 768).
const UDP_HEADER: usize = 8;
const HEADERS_V6: usize = 48;

/// AF_XDP packet I/O of one worker, with the kernel sockets of the same addresses beside it.
///
/// `K` is the kernel's way and `R` knows the paths; tests put other things there.
pub struct ExpressIo<K = UdpIo, R = Resolver> {
    ports: Vec<Port>,
    kernel: K,
    routes: R,
    config: ExpressConfig,
    links: Interfaces,
    inlet: PortInlet,
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
    /// Checksum probes sent.
    probes: u64,
    turns: u32,
    wait: Wait,
    /// When the kernel sockets were asked last.
    kernel_asked: Instant,
    busy: bool,
    /// A socket gave a full batch in the last receive.
    full: bool,
    stats: IoStats,
}

/// Why a burst takes the kernel socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fallback {
    Neighbour,
    Route,
    Socket,
    /// The ports of that interface leave sending to the kernel: nothing has gone wrong.
    Chosen,
}

impl<K: PacketIo, R: Routes> ExpressIo<K, R> {
    /// Packet I/O over `ports`, and over `kernel` for what they do not receive or cannot send. `kernel` must
    /// have a socket on every address that the redirect program takes packets of. Its `max_payload` bounds
    /// this one's, for reported path MTUs come to it: a [`UdpIo`] wants a resolver
    /// ([`UdpIo::set_resolver`]), without which it assumes an MTU of 1500. `routes` must
    /// be of the network namespace of the ports, whose links are asked for.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(mut ports: Vec<Port>, kernel: K, routes: R, config: ExpressConfig) -> Result<Self, IoError> {
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
        let inlet = PortInlet::new().map_err(failed("eventfd"))?;
        for fd in [links.as_fd(), timer.as_fd(), inlet.fd()] {
            epoll::add(&events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(|errno| failed("epoll_ctl")(errno.into()))?;
        }
        // What changed between the opening of a port and that of the socket above was told to nobody.
        for port in &mut ports {
            port.set_link(links.state(port.ifindex()));
        }
        let now = Instant::now();
        let largest = ports.iter().filter(|port| port.max_payload() > port.max_in_frame());
        let staging = largest.map(|port| HEADER_SPACE + port.max_payload()).max().unwrap_or(0);
        Ok(Self {
            staging: vec![0; staging].into_boxed_slice(),
            ports,
            kernel,
            routes,
            links,
            inlet,
            events,
            timer,
            armed: None,
            links_checked: now,
            paths: PathCache::new(config.ttl),
            reminders: Reminders::new(),
            now,
            probes: 0,
            turns: 0,
            wait: Wait::Interrupt,
            kernel_asked: now,
            busy: false,
            full: false,
            stats: IoStats::default(),
            config: ExpressConfig { batch: config.batch.max(1), ..config },
        })
    }

    /// The ports and how they fare.
    pub fn reports(&self) -> impl Iterator<Item = PortReport> {
        self.ports.iter().map(Port::report)
    }

    /// Where ports are added and removed while this runs on a worker.
    pub fn inlet(&self) -> PortInlet {
        self.inlet.clone()
    }

    /// True unless every port leaves sending to the kernel, so that no path needs to be looked up.
    fn transmits(&self) -> bool {
        self.ports.is_empty() || self.ports.iter().any(Port::transmits)
    }

    /// The kernel's side.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Adds and removes the ports that the inlet says.
    fn follow_inlet(&mut self) {
        for change in self.inlet.take() {
            match change {
                Change::Add(mut port) => {
                    port.set_link(self.links.state(port.ifindex()));
                    if let Err(error) = port.set_wait(self.wait) {
                        tracing::warn!(%error, "the added socket is not busy-polled");
                    }
                    if port.max_payload() > port.max_in_frame()
                        && self.staging.len() < HEADER_SPACE + port.max_payload()
                    {
                        self.staging = vec![0; HEADER_SPACE + port.max_payload()].into_boxed_slice();
                    }
                    if let Some(fd) = port.descriptor() {
                        // As in `watch`.
                        let _ =
                            epoll::add(&self.events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                    }
                    self.ports.push(*port);
                }
                Change::Remove { ifindex } => {
                    for mut port in self.ports.extract_if(.., |port| port.ifindex() == ifindex) {
                        port.close();
                        port.count(&mut self.stats);
                    }
                }
            }
        }
    }

    /// Follows link changes and opens failed sockets anew.
    fn watch(&mut self, now: Instant) {
        self.follow_inlet();
        if self.armed.is_some_and(|armed| armed <= now) {
            let mut expirations = [0u8; 8];
            // Nothing to read means that it has not fired yet, and it stays armed.
            if rustix::io::read(&self.timer, &mut expirations).is_ok() {
                self.armed = None;
            }
        }
        for port in &mut self.ports {
            if port.reopen(now)
                && let Some(fd) = port.descriptor()
            {
                // Failing (no memory) costs wake-ups of this port only; busy workers do not notice.
                let _ = epoll::add(&self.events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
            }
        }
        if now.saturating_duration_since(self.links_checked) >= LINK_INTERVAL {
            self.links_checked = now;
            if self.links.drain() {
                for port in &mut self.ports {
                    port.set_link(self.links.state(port.ifindex()));
                    if let Ok(mtu) = self.links.mtu(port.ifindex()) {
                        port.set_mtu(now, mtu);
                    }
                }
            }
        }
    }

    /// Which port and path a burst takes, or why the kernel's.
    fn plan(&mut self, flow: &Flow, segment: usize, hash: u64) -> Result<(usize, Path), Fallback> {
        // Which interface a link-local address means is the kernel socket's to know.
        if is_link_local(&flow.remote) {
            return Err(Fallback::Route);
        }
        let path = match self.routes.resolve(flow.local.ip(), flow.remote.ip()) {
            Resolution::Ready(path) => path,
            Resolution::Unresolved { .. } => return Err(Fallback::Neighbour),
            Resolution::NotDirect { .. } | Resolution::Unreachable => return Err(Fallback::Route),
        };
        let port = self.choose(&path, hash)?;
        if segment > self.ports[port].max_payload().min(self.staging_room(port)) {
            return Err(Fallback::Socket);
        }
        if path.stale && self.reminders.is_due(&path, self.now) {
            return Err(Fallback::Neighbour);
        }
        Ok((port, path))
    }

    /// The largest payload that this worker can build for a port: a frame's, or what the staging buffer holds.
    fn staging_room(&self, port: usize) -> usize {
        self.staging.len().saturating_sub(HEADER_SPACE).max(self.ports[port].max_in_frame())
    }

    /// A port of the path's interface that sends and is up; of several, always the same for a flow.
    fn choose(&self, path: &Path, hash: u64) -> Result<usize, Fallback> {
        let here = |port: &&Port| port.ifindex() == path.ifindex && port.transmits();
        let usable = self.ports.iter().filter(here).filter(|port| port.is_up()).count();
        if usable == 0 {
            let mut own = self.ports.iter().filter(|port| port.ifindex() == path.ifindex);
            return Err(match (self.ports.iter().any(|port| here(&port)), own.next()) {
                (true, _) => Fallback::Socket,
                (false, Some(_)) => Fallback::Chosen,
                (false, None) => Fallback::Route,
            });
        }
        let chosen = (hash >> 32) as usize % usable;
        self.ports
            .iter()
            .enumerate()
            .filter(|(_, port)| here(port) && port.is_up())
            .nth(chosen)
            .map(|(index, _)| index)
            .ok_or(Fallback::Socket)
    }

    /// Builds a burst on a port, in frames or in several frames a datagram.
    fn build_on(
        &mut self,
        (port, path, hash): (usize, &Path, u64),
        flow: &Flow,
        segment: usize,
        launch: Option<u64>,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let Ok(template) = self.paths.template(flow, path, hash) else {
            return self.fall_back(Fallback::Route, flow, segment, fill);
        };
        let largest = path.mtu.saturating_sub(if template.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 });
        let burst = Burst { template, segment, largest, launch, now: self.now };
        let (port, stats) = (&mut self.ports[port], &mut self.stats);
        Ok(match segment > port.max_in_frame() {
            true => build_parts(port, burst, &mut self.staging, stats, fill),
            false => build(port, burst, stats, fill),
        })
    }

    /// Fetches the time stamps of datagrams sent by AF_XDP, with the index of their port, oldest first. A port keeps
    /// as many as its ring has entries; those it could not keep are counted in `tx_stamps_unfetched`.
    pub fn transmit_times(&mut self, visit: &mut dyn FnMut(u16, TransmitTime)) {
        for (index, port) in self.ports.iter_mut().enumerate() {
            while let Some(time) = port.next_stamp() {
                visit(index as u16, time);
            }
        }
    }

    /// Sends a datagram of `flow` whose checksum is left to the device, for a receiver that judges it
    /// ([`ChecksumProbe::judge`]). It leaves with the next flush. `None` where the flow leaves by the kernel socket,
    /// or its port was granted no checksums.
    pub fn send_checksum_probe(&mut self, flow: &Flow) -> Option<ChecksumProbe> {
        let hash = self.paths.hash(flow);
        let (port, path) = self.plan(flow, PROBE_LEN, hash).ok()?;
        let template = self.paths.template(flow, &path, hash).ok()?;
        let port = &mut self.ports[port];
        if !port.grants().checksum.is_granted() {
            return None;
        }
        let start = HEADER_SPACE - template.header_len();
        let udp = template.header_len() - UDP_HEADER;
        let probe = ChecksumProbe::new(port.ifindex(), port.queue(), self.probes);
        self.probes += 1;
        let mut frame = port.acquire()?;
        let bytes = frame.bytes();
        bytes[HEADER_SPACE..HEADER_SPACE + PROBE_LEN].copy_from_slice(&probe.payload);
        let packet = template.write(&mut bytes[start..], PROBE_LEN, ChecksumMode::PseudoOnly, 0).ok()?;
        let checksum = Some(Unfinished { start: udp as u16, offset: 6 });
        frame.submit(start..start + packet, Request { checksum, ..Request::default() }).then_some(probe)
    }

    /// Leaves the checksums of the port that a probe was sent by to its device, until its socket is opened anew. False
    /// where that port is gone.
    pub fn trust_checksum(&mut self, proof: &ChecksumProof) -> bool {
        self.ports.iter_mut().any(|port| port.trust_checksum(proof))
    }

    /// Sends a burst by the kernel socket.
    fn fall_back(
        &mut self,
        reason: Fallback,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let sent = self.kernel.transmit(flow, segment, fill)?;
        let counter = match reason {
            Fallback::Chosen => return Ok(sent),
            Fallback::Neighbour => &mut self.stats.tx_fallback_neighbour,
            Fallback::Route => &mut self.stats.tx_fallback_route,
            Fallback::Socket => &mut self.stats.tx_fallback_socket,
        };
        *counter += sent.packets as u64;
        Ok(sent)
    }

    fn receive_express(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> usize {
        let (stats, verify) = (&mut self.stats, self.config.verify_checksum);
        let mut handed = 0;
        self.full = false;
        for (index, port) in self.ports.iter_mut().enumerate() {
            let (ifindex, description) = (port.ifindex(), port.description());
            let origin = Origin { via: Via::Express(index as u16), ifindex, verify, description };
            let taken = port.receive(now, self.config.batch, |frame| {
                handed += usize::from(deliver(frame, origin, stats, sink));
            });
            self.full |= taken >= self.config.batch;
        }
        handed
    }
}

/// Where a frame came in, and what is to be checked of it.
#[derive(Clone, Copy)]
struct Origin {
    via: Via,
    ifindex: u32,
    verify: bool,
    description: Option<u32>,
}

/// Finds the datagram in a received frame and hands it over where it lies. False if it is dropped.
#[inline]
fn deliver(
    frame: &mut [u8],
    origin: Origin,
    stats: &mut IoStats,
    sink: &mut dyn FnMut(Datagram<'_>),
) -> bool {
    let (hints, frame) = match (origin.description, frame.split_first_chunk_mut()) {
        (Some(cookie), Some((area, frame))) => (description::take(area, cookie), frame),
        (Some(_), None) => (Hints::default(), &mut [][..]),
        (None, _) => (Hints::default(), frame),
    };
    let Ok(layout) = parse_udp(frame) else {
        stats.dropped_malformed += 1;
        return false;
    };
    // The kernel's own check (`fib_validate_source`) is passed by: an answer to such a source would reach
    // services of this machine that trust it.
    if is_martian(layout.source.ip()) || layout.source.ip() == layout.destination.ip() {
        stats.dropped_malformed += 1;
        return false;
    }
    if origin.verify && layout.verify_checksum(frame).is_err() {
        stats.dropped_checksum += 1;
        return false;
    }
    let payload = &mut frame[layout.payload()];
    stats.rx_express_packets += 1;
    stats.rx_express_bytes += payload.len() as u64;
    let (mut remote, mut local) = (layout.source, layout.destination);
    if layout.vlan.is_empty() {
        scope(&mut remote, origin.ifindex);
        scope(&mut local, origin.ifindex);
    }
    sink(Datagram { payload, remote, local, ecn: Ecn::from_tos(layout.tos), via: origin.via, hints });
    true
}

/// True for a source address that no packet on a wire may have (RFC 1812, section 5.3.7; RFC 4291, sections
/// 2.5.2, 2.5.3 and 2.7).
#[inline]
fn is_martian(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(ip) => matches!(ip.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_multicast(),
    }
}

/// Says on which link a link-local address is, as the kernel's sockets do.
#[inline]
fn scope(address: &mut SocketAddr, ifindex: u32) {
    if let SocketAddr::V6(v6) = address
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(ifindex);
    }
}

fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local())
}

/// What is built for: the headers, slices of `segment` bytes of which a datagram may fill `largest`, and the time to
/// leave at. The kernel sends frames above the MTU of a device unasked, and the device or its peer loses them
/// uncounted.
struct Burst<'a> {
    template: &'a UdpTemplate,
    segment: usize,
    largest: usize,
    launch: Option<u64>,
    now: Instant,
}

/// Builds a burst of datagrams larger than a frame: each in `staging`, from where it is copied into frames. Frames
/// that lie side by side would save the copy, but soon none do: completions come back in any order.
fn build_parts(
    port: &mut Port,
    burst: Burst<'_>,
    staging: &mut [u8],
    stats: &mut IoStats,
    fill: &mut dyn FnMut(&mut [u8]) -> usize,
) -> Sent {
    let Burst { template, segment, largest, launch, now } = burst;
    let start = HEADER_SPACE - template.header_len();
    let (checksum, unfinished) = port.checksum(template.header_len() - UDP_HEADER);
    let request = Request { checksum: unfinished, launch, stamp: None };
    let mut sent = Sent::default();
    loop {
        if !port.has_room(template.header_len() + segment) {
            // In copy mode a kick gives frames back at once; else the caller comes again.
            port.flush(now);
            if !port.is_up() || !port.has_room(template.header_len() + segment) {
                sent.blocked = true;
                return sent;
            }
        }
        let length = fill(&mut staging[HEADER_SPACE..HEADER_SPACE + segment]);
        if length == 0 {
            return sent;
        }
        let length = length.min(segment);
        sent.packets += 1;
        sent.bytes += length;
        let packet = match length <= largest {
            true => template.write(&mut staging[start..], length, checksum, 0).ok(),
            false => None,
        };
        if packet.is_some_and(|packet| port.submit_parts(&staging[start..start + packet], request)) {
            stats.tx_express_packets += 1;
            stats.tx_express_bytes += length as u64;
        } else {
            stats.dropped_send_refused += 1;
        }
    }
}

/// Builds a burst in frames of `port`.
fn build(
    port: &mut Port,
    burst: Burst<'_>,
    stats: &mut IoStats,
    fill: &mut dyn FnMut(&mut [u8]) -> usize,
) -> Sent {
    let Burst { template, segment, largest, launch, now } = burst;
    let start = HEADER_SPACE - template.header_len();
    let (checksum, unfinished) = port.checksum(template.header_len() - UDP_HEADER);
    let request = Request { checksum: unfinished, launch, stamp: None };
    let mut sent = Sent::default();
    let mut flushed = false;
    loop {
        let Some(mut frame) = port.acquire() else {
            // In copy mode a kick gives frames back at once; else the caller comes again.
            if flushed || !port.is_up() {
                sent.blocked = true;
                return sent;
            }
            flushed = true;
            port.flush(now);
            continue;
        };
        flushed = false;
        let bytes = frame.bytes();
        let length = fill(&mut bytes[HEADER_SPACE..HEADER_SPACE + segment]);
        if length == 0 {
            return sent;
        }
        let length = length.min(segment);
        // Accepted either way: what cannot be sent is counted as dropped, as the kernel socket does it.
        sent.packets += 1;
        sent.bytes += length;
        if length > largest {
            stats.dropped_send_refused += 1;
            continue;
        }
        // UMEM frames have the room and the template was checked, so only a datagram that no header can
        // describe fails; IPv4 identification may be 0 in packets that are not fragmented (RFC 6864).
        let packet = template.write(&mut bytes[start..], length, checksum, 0);
        if !packet.is_ok_and(|packet| frame.submit(start..start + packet, request)) {
            stats.dropped_send_refused += 1;
            continue;
        }
        stats.tx_express_packets += 1;
        stats.tx_express_bytes += length as u64;
    }
}

impl<K: PacketIo, R: Routes> PacketIo for ExpressIo<K, R> {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        self.now = now;
        self.watch(now);
        let mut received = self.receive_express(now, sink);
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
            Ok((port, path)) => self.build_on((port, &path, hash), flow, segment, None, fill),
            Err(reason) => self.fall_back(reason, flow, segment, fill),
        }
    }

    fn transmit_at(
        &mut self,
        flow: &Flow,
        segment: usize,
        launch: u64,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let hash = self.paths.hash(flow);
        let unsupported = |why: &str| IoError::Socket {
            what: format!("launch time for {}: {why}", flow.remote),
            source: io::ErrorKind::Unsupported.into(),
        };
        if segment == 0 || !self.transmits() {
            return Err(unsupported("the kernel socket sends"));
        }
        match self.plan(flow, segment, hash) {
            Ok((port, path)) => match self.ports[port].grants().launch_time {
                Grant::Granted => self.build_on((port, &path, hash), flow, segment, Some(launch), fill),
                refused => Err(unsupported(&refused.to_string())),
            },
            // Better early than never: the neighbour is unknown for a moment only.
            Err(Fallback::Neighbour) => self.fall_back(Fallback::Neighbour, flow, segment, fill),
            Err(Fallback::Chosen) => Err(unsupported("the kernel socket sends")),
            Err(Fallback::Route | Fallback::Socket) => Err(unsupported("no AF_XDP socket can send it")),
        }
    }

    fn flush(&mut self, now: Instant) -> Result<(), IoError> {
        self.now = now;
        for port in &mut self.ports {
            port.flush(now);
        }
        self.kernel.flush(now)
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
        let here = |port: &&Port| port.ifindex() == path.ifindex && port.transmits();
        let frame = self.ports.iter().filter(here).map(Port::max_payload);
        let headers = if flow.remote.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        match frame.min() {
            Some(frame) => kernel.min(frame).min(path.mtu.saturating_sub(headers)),
            None => kernel,
        }
    }

    fn set_wait(&mut self, wait: Wait) -> Result<(), IoError> {
        self.wait = wait;
        for port in &mut self.ports {
            port.set_wait(wait)?;
        }
        self.kernel.set_wait(wait)
    }

    fn descriptors(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.ports.iter().filter_map(Port::descriptor).for_each(&mut *visit);
        visit(self.events.as_fd());
        self.kernel.descriptors(visit);
    }

    fn prepare_sleep(&mut self) -> bool {
        let now = Instant::now();
        let mut work = false;
        let mut wake_at: Option<Instant> = None;
        for port in &mut self.ports {
            work |= port.prepare_sleep(now);
            if let Some(turn) = port.next_turn(now) {
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
        self.ports.iter().for_each(|port| port.count(&mut stats));
        stats
    }
}

#[cfg(all(test, not(loom)))]
#[path = "io_tests.rs"]
mod tests;
