//! One client of the agent: its requests, what it holds, and how all of that ends with its connection.
//!
//! What a client can do to the agent is bounded by its slot and its rule. It has one thread, which it can keep busy
//! or waiting, and which has its own descriptor table ([`crate::table`]). Its requests and their answers are limited
//! in rate and length. What is logged about it is an occasional line.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::device::DeviceFacts;
use expressway_netio::route::{NetlinkSource, NetlinkUse, OwnNamespace};
use expressway_netio::udp::{Steering, UdpConfig, UdpGroup};
use expressway_netio::wait::{BusyPoll, Wait};
use expressway_netio::xsk::{BindMode, ObtainedMode, XskConfig, bind_for, umem_len};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};
use rustix::fs::fcntl_get_seals;

use crate::account::Account;
use crate::channel::{Channel, ChannelError, MAX_FDS, Received, printable};
use crate::message::{self, Code, Netlink, Refusal, Reply, Request};
use crate::policy::Rule;
use crate::server::Shared;

/// Time limit for hello: until then the client only occupies a slot.
const HELLO: Duration = Duration::from_secs(10);
/// Characters of a client's name in the log.
const NAME: usize = 64;
/// rtnetlink sockets per client: a few per worker, and as many again for those reopened.
const NETLINK_SOCKETS: u32 = 4096;
/// Those of them that subscribe to all changes, each of which may queue 4 MiB: one, plus some for those
/// reopened.
const CHANGES_SOCKETS: u32 = 32;
/// UDP sockets per client: 64 addresses of 256 workers.
const UDP_SOCKETS: u32 = 64 * 256;
/// Shortest and longest interval between checks of memory that should become free soon.
const RECLAIM: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(4));
/// The longest that a client may have its bind wait for a busy queue.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most queues that a program can be loaded for.
const QUEUES: u32 = 4096;

/// A client and what it holds.
pub(crate) struct Session<'a> {
    id: u64,
    rule: Rule,
    shared: Arc<Shared>,
    welcome: bool,
    /// Sockets provided.
    netlink: u32,
    changes: u32,
    udp: u32,
    interfaces: HashMap<String, Program>,
    account: &'a mut Account,
}

/// The program on an interface, for this client.
struct Program {
    redirect: Redirect,
    attachment: Attachment,
}

/// An answer with its descriptors.
type Answer = (Reply, Vec<OwnedFd>);

fn kernel(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::Kernel, error)
}

/// The way of waiting, within the client's limits: a tenth of a second, and a driver's own budget.
fn way_of_waiting(asked: Option<message::BusyPoll>) -> Wait {
    asked.map_or(Wait::Interrupt, |poll| {
        Wait::BusyPoll(BusyPoll {
            time: Duration::from_micros(poll.microseconds.into()).min(Duration::from_millis(100)),
            budget: poll.budget.clamp(1, 64),
        })
    })
}

fn no_program(interface: &str) -> Refusal {
    Refusal::new(Code::Protocol, format!("{interface}: this client has no program attached"))
}

fn done() -> Answer {
    (Reply::Done, Vec::new())
}

impl<'a> Session<'a> {
    /// Memory it is given is counted on `account`, which outlives it.
    pub(crate) fn new(id: u64, rule: Rule, shared: Arc<Shared>, account: &'a mut Account) -> Self {
        let interfaces = HashMap::new();
        Self { id, rule, shared, welcome: false, netlink: 0, changes: 0, udp: 0, interfaces, account }
    }

    /// Waits for the next request; meanwhile checks memory that should become free.
    fn receive(&mut self, channel: &Channel) -> Result<Received<Request>, ChannelError> {
        let mut pause = RECLAIM.0;
        loop {
            let retired = self.account.has_retired();
            let patience = match self.welcome {
                false => Some(HELLO),
                true => retired.then_some(pause),
            };
            channel.set_receive_timeout(patience)?;
            match channel.receive(1) {
                Err(ChannelError::Timeout) if self.welcome => {
                    self.account.reclaim();
                    pause = (pause * 2).min(RECLAIM.1);
                }
                result => return result,
            }
        }
    }

    /// Serves the client until its connection ends.
    ///
    /// # Errors
    /// Why the agent closed it: malformed messages, another version, unread answers.
    pub(crate) fn serve(&mut self, channel: &Channel) -> Result<(), ChannelError> {
        loop {
            let Received { sequence, content, fds } = match self.receive(channel) {
                Ok(received) => received,
                Err(ChannelError::Closed) => return Ok(()),
                Err(error) => {
                    let code = match error {
                        ChannelError::Version(_) => Code::Version,
                        _ => Code::Protocol,
                    };
                    // The client may be gone or not reading: then closing the connection says enough.
                    let _ = channel.send(0, &Reply::Refused(Refusal::new(code, &error)), &[]);
                    return Err(error);
                }
            };
            // Only memfds are closed here: others may take as long as their owner likes.
            if fds.iter().any(|fd| fcntl_get_seals(fd).is_err()) {
                std::mem::forget(fds);
                let error = ChannelError::Malformed("descriptor is not a memfd".to_owned());
                let _ = channel.send(sequence, &Reply::Refused(Refusal::new(Code::Protocol, &error)), &[]);
                return Err(error);
            }
            std::thread::sleep(self.account.slot().request(Instant::now()));
            match self.answer(content, fds) {
                Ok((reply, fds)) => send(channel, sequence, reply, &fds)?,
                Err(refusal) => {
                    self.shared.count_refusal(self.id, &self.rule.name, &refusal);
                    channel.send(sequence, &Reply::Refused(refusal), &[])?;
                }
            }
        }
    }

    fn answer(&mut self, request: Request, mut fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let expected = usize::from(matches!(request, Request::Socket(_)));
        if fds.len() != expected {
            let what = format!("got {} descriptors, expected {expected}", fds.len());
            return Err(Refusal::new(Code::Protocol, what));
        }
        if request.interface().is_some_and(|name| !may_be_name(name)) {
            return Err(Refusal::new(Code::Protocol, "invalid interface name"));
        }
        match request {
            Request::Hello { .. } if self.welcome => Err(Refusal::new(Code::Protocol, "repeated hello")),
            Request::Hello { client } => {
                self.shared.greet(self.id, &printable(&client, NAME), &self.rule.name);
                self.welcome = true;
                Ok((Reply::Welcome { rule: self.rule.name.clone() }, Vec::new()))
            }
            _ if !self.welcome => Err(Refusal::new(Code::Protocol, "the first request must be hello")),
            Request::Netlink { usage } => self.netlink(usage),
            Request::Device { interface, ifindex } => self.device(&interface, ifindex),
            Request::Udp(udp) => self.udp(&udp),
            Request::Attach { interface, queues, generic, replace, timestamps } => {
                self.attach(interface, queues, (generic, replace, timestamps))
            }
            Request::Detach { interface } => {
                self.wait_for_program();
                self.detach(&interface);
                Ok(done())
            }
            Request::Socket(socket) => match fds.pop() {
                Some(memory) => self.socket(&socket, memory),
                None => Err(Refusal::new(Code::Protocol, "request carries no memory descriptor")),
            },
            Request::AddPair { interface, pair } => {
                self.rule.check_listen(pair)?;
                // A group that the rule lists may be taken on any of the client's allowed interfaces.
                if !pair.ip().is_multicast() && !self.shared.has_address(&interface, pair.ip()) {
                    let what = format!("{} is not an address of {interface}", pair.ip());
                    return Err(Refusal::new(Code::Address, what));
                }
                self.program(&interface)?.redirect.add_pair(pair).map_err(kernel)?;
                Ok(done())
            }
            Request::RemovePair { interface, pair } => {
                self.program(&interface)?.redirect.remove_pair(pair).map_err(kernel)?;
                Ok(done())
            }
            Request::Counters { interface } => {
                let counters = self.program(&interface)?.redirect.counters().map_err(kernel)?;
                let packets = counters.iter().map(|(_, packets)| packets).collect();
                Ok((Reply::Counters { packets }, Vec::new()))
            }
            Request::Attached { interface } => {
                let attached = self.program(&interface)?.attachment.is_attached().map_err(kernel)?;
                Ok((Reply::Attached { attached }, Vec::new()))
            }
        }
    }

    fn program(&mut self, interface: &str) -> Result<&mut Program, Refusal> {
        self.interfaces.get_mut(interface).ok_or_else(|| no_program(interface))
    }

    /// Adds `wanted` to a count limited to `most` for the whole connection, whatever became of earlier ones.
    fn count(given: &mut u32, wanted: u32, most: u32, what: &str) -> Result<(), Refusal> {
        let all = given.saturating_add(wanted);
        if all > most {
            return Err(Refusal::new(Code::Protocol, format!("more than {most} {what} on one connection")));
        }
        *given = all;
        Ok(())
    }

    fn netlink(&mut self, usage: Netlink) -> Result<Answer, Refusal> {
        if usage == Netlink::Changes {
            Self::count(
                &mut self.changes,
                1,
                CHANGES_SOCKETS,
                "rtnetlink sockets subscribed to all changes",
            )?;
        }
        Self::count(&mut self.netlink, 1, NETLINK_SOCKETS, "rtnetlink sockets")?;
        let usage = match usage {
            Netlink::Requests => NetlinkUse::Requests,
            Netlink::Changes => NetlinkUse::Changes,
            Netlink::Links => NetlinkUse::Links,
        };
        let socket = OwnNamespace.open(usage).map_err(|error| kernel(format!("rtnetlink: {error}")))?;
        Ok((Reply::Done, vec![socket]))
    }

    fn device(&self, interface: &str, ifindex: u32) -> Result<Answer, Refusal> {
        self.rule.check_interface(interface)?;
        let facts = DeviceFacts::read(interface, ifindex)
            .map_err(|error| kernel(format!("interface {interface}: {error}")))?;
        let allowed = self.rule.queues.as_ref().map(|queues| queues.iter().copied().collect());
        let device = message::Device { facts, allowed, transmits: self.rule.transmit };
        Ok((Reply::Device(Box::new(device)), Vec::new()))
    }

    fn udp(&mut self, udp: &message::Udp) -> Result<Answer, Refusal> {
        self.rule.check_listen(udp.listen)?;
        self.rule.check_workers(udp.workers)?;
        self.rule.check_busy_poll(udp.busy_poll.is_some())?;
        self.rule.check_socket_buffer(udp.receive_buffer.max(udp.send_buffer))?;
        Self::count(&mut self.udp, udp.workers, UDP_SOCKETS, "UDP sockets")?;
        let config = UdpConfig {
            steering: match udp.steering {
                Some((offset, clear_mask)) => Steering::ByteAt { offset, clear_mask },
                None => Steering::Hash,
            },
            gro: udp.gro,
            socket_receive_buffer: udp.receive_buffer as usize,
            socket_send_buffer: udp.send_buffer as usize,
            wait: way_of_waiting(udp.busy_poll),
            groups: udp.listen.ip().is_multicast(),
            ..UdpConfig::new(vec![udp.listen])
        };
        let group = UdpGroup::bind(&config, udp.workers as usize).map_err(kernel)?;
        let fds = group.into_workers().into_iter().flat_map(|worker| worker.into_fds()).collect();
        Ok((Reply::Sockets { remaining: 0 }, fds))
    }

    fn attach(
        &mut self,
        interface: String,
        queues: u32,
        (generic, replace, timestamps): (bool, bool, bool),
    ) -> Result<Answer, Refusal> {
        self.rule.check_interface(&interface)?;
        self.rule.check_replace(replace)?;
        if self.rule.only_listen && !self.shared.carries(&interface, &self.rule.listen) {
            let what = format!("{interface} has none of the listen addresses");
            return Err(Refusal::new(Code::Interface, what));
        }
        if !(1..=QUEUES).contains(&queues) {
            return Err(Refusal::new(Code::Queue, format!("{queues} queues: must be 1 to {QUEUES}")));
        }
        self.shared.claim(&interface, self.id)?;
        self.wait_for_program();
        let attached = self.load(&interface, queues, (generic, replace, timestamps));
        match attached {
            Ok((program, link)) => {
                let cookie = program.redirect.cookie();
                let switch = program.redirect.switch().map(|switch| switch.try_clone_to_owned());
                let switch = switch.transpose().map_err(kernel)?;
                self.interfaces.insert(interface, program);
                Ok((Reply::Program { cookie }, switch.into_iter().chain([link]).collect()))
            }
            Err(refusal) => {
                self.shared.release(&interface, self.id);
                Err(refusal)
            }
        }
    }

    fn load(
        &mut self,
        interface: &str,
        queues: u32,
        (generic, replace, timestamps): (bool, bool, bool),
    ) -> Result<(Program, OwnedFd), Refusal> {
        // Another attempt, in another mode: the first program is detached first. The sockets bound for it
        // may stay.
        self.interfaces.remove(interface);
        self.account.retire_all(interface);
        let ifindex = self.shared.ifindex(interface)?;
        let options = Options { queues, ..Options::default() };
        let mode = if generic { AttachMode::Generic } else { AttachMode::Native };
        let existing = if replace { Existing::Replace } else { Existing::Refuse };
        let (redirect, attachment) = if timestamps {
            Redirect::describe(&options, ifindex, mode, existing).map_err(kernel)?
        } else {
            let redirect = Redirect::load(&options).map_err(kernel)?;
            let attachment = redirect.attach(ifindex, mode, existing).map_err(kernel)?;
            (redirect, attachment)
        };
        let link = attachment.link().ok_or_else(|| kernel("the program has no bpf_link"))?;
        let link = link.try_clone_to_owned().map_err(kernel)?;
        Ok((Program { redirect, attachment }, link))
    }

    /// Programs are attached and detached at a limited rate.
    fn wait_for_program(&self) {
        std::thread::sleep(self.account.slot().program(Instant::now()));
    }

    fn socket(&mut self, socket: &message::Socket, memory: OwnedFd) -> Result<Answer, Refusal> {
        self.rule.check_interface(&socket.interface)?;
        self.rule.check_queue(&socket.interface, socket.queue)?;
        self.rule.check_busy_poll(socket.busy_poll.is_some())?;
        self.rule.check_transmit(socket.sends)?;
        let config = XskConfig {
            mode: self.rule.bind_mode(match socket.mode {
                message::Mode::Auto => BindMode::Auto,
                message::Mode::Copy => BindMode::Copy,
                message::Mode::ZeroCopy => BindMode::ZeroCopy,
            })?,
            sends: socket.sends,
            frame_size: socket.frame_size,
            rx_ring: socket.rx_ring,
            tx_ring: socket.tx_ring,
            bind_patience: Duration::from_millis(socket.patience_ms.into()).min(PATIENCE),
            wait: way_of_waiting(socket.busy_poll),
            ..XskConfig::new(&socket.interface, socket.queue)
        };
        config.validate().map_err(kernel)?;
        // A larger frame than requested, as the interface's MTU may need it, is refused there.
        let wanted = umem_len(&config);
        let program = self.interfaces.get(&socket.interface).ok_or_else(|| no_program(&socket.interface))?;
        self.account.set_aside(&self.rule, &socket.interface, socket.queue, wanted)?;
        let bound = bind_for(&config, memory.as_fd(), program.redirect.xsk_map()).map_err(|error| {
            self.account.put_back(wanted);
            kernel(error)
        })?;
        self.account.add(memory, wanted, &socket.interface, socket.queue);
        let reply =
            Reply::Bound { zero_copy: bound.mode == ObtainedMode::ZeroCopy, segments: bound.segments };
        Ok((reply, vec![bound.socket]))
    }

    fn detach(&mut self, interface: &str) {
        if self.interfaces.remove(interface).is_some() {
            self.account.retire_all(interface);
            self.shared.release(interface, self.id);
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let interfaces: Vec<String> = self.interfaces.keys().cloned().collect();
        for interface in interfaces {
            // The program is detached before the claim is released, so that the next client finds the
            // interface free.
            self.detach(&interface);
        }
    }
}

/// Whether this is a valid interface name (`dev_valid_name` in `net/core/dev.c`) that a log may show.
fn may_be_name(name: &str) -> bool {
    let may_be = |character: char| !matches!(character, '/' | ':') && !character.is_whitespace();
    (1..16).contains(&name.len()) && name.chars().all(may_be) && printable(name, 16) == name
}

/// Sends an answer; descriptors that do not fit one message follow in further ones.
fn send(channel: &Channel, sequence: u32, reply: Reply, fds: &[OwnedFd]) -> Result<(), ChannelError> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    if !matches!(reply, Reply::Sockets { .. }) {
        return channel.send(sequence, &reply, &borrowed);
    }
    let mut left = borrowed.len();
    for part in borrowed.chunks(MAX_FDS) {
        left -= part.len();
        channel.send(sequence, &Reply::Sockets { remaining: left as u32 }, part)?;
    }
    Ok(())
}

/// Whether an address may be taken over: link-local ones stay with the kernel, which knows their scope.
pub(crate) fn may_be_taken(ip: IpAddr) -> bool {
    !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
