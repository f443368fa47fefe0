//! One client of the agent: what it asked for, what it has, and how all of that ends with its connection.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use expressway_netio::device::DeviceFacts;
use expressway_netio::express::{BindMode, ObtainedMode, PortConfig, bind_for, memory_of};
use expressway_netio::route::{NetlinkSource, NetlinkUse, OwnNamespace};
use expressway_netio::udp::{Steering, UdpConfig, UdpGroup};
use expressway_netio::wait::{BusyPoll, Wait};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

use crate::channel::{Channel, ChannelError, MAX_FDS, Received};
use crate::message::{self, Code, Netlink, Refusal, Reply, Request};
use crate::policy::Rule;
use crate::server::Shared;

/// rtnetlink sockets of a client: one a worker and use, with as many again for those opened anew.
const NETLINK_SOCKETS: u32 = 2048;
/// The longest that a client may have its bind wait for a busy queue.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most queues that a program can be loaded for.
const QUEUES: u32 = 4096;

/// A client, and what it has.
pub(crate) struct Session {
    id: u64,
    rule: Rule,
    shared: Arc<Shared>,
    welcome: bool,
    netlink: u32,
    interfaces: HashMap<String, Program>,
}

/// The program on an interface, for this client.
struct Program {
    redirect: Redirect,
    attachment: Attachment,
    /// Bytes of UMEM by queue.
    memory: HashMap<u32, u64>,
}

/// An answer with what goes beside it.
type Answer = (Reply, Vec<OwnedFd>);

fn kernel(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::Kernel, error)
}

/// The way of waiting, for the most that a client may ask for: a tenth of a second, and a driver's own budget.
fn way_of_waiting(asked: Option<message::BusyPoll>) -> Wait {
    asked.map_or(Wait::Interrupt, |poll| {
        Wait::BusyPoll(BusyPoll {
            time: Duration::from_micros(poll.microseconds.into()).min(Duration::from_millis(100)),
            budget: poll.budget.clamp(1, 64),
        })
    })
}

fn done() -> Answer {
    (Reply::Done, Vec::new())
}

impl Session {
    pub(crate) fn new(id: u64, rule: Rule, shared: Arc<Shared>) -> Self {
        Self { id, rule, shared, welcome: false, netlink: 0, interfaces: HashMap::new() }
    }

    /// Serves the client until its connection ends.
    ///
    /// # Errors
    /// Why it was ended from here: malformed messages, another version, answers that are not taken.
    pub(crate) fn serve(&mut self, channel: &Channel) -> Result<(), ChannelError> {
        loop {
            let Received { sequence, content, fds } = match channel.receive::<Request>(1) {
                Ok(received) => received,
                Err(ChannelError::Closed) => return Ok(()),
                Err(error) => {
                    let code = match error {
                        ChannelError::Version(_) => Code::Version,
                        _ => Code::Protocol,
                    };
                    // It may be gone, or not read: then the end of the connection says enough.
                    let _ = channel.send(0, &Reply::Refused(Refusal::new(code, &error)), &[]);
                    return Err(error);
                }
            };
            match self.answer(content, fds) {
                Ok((reply, fds)) => send(channel, sequence, reply, &fds)?,
                Err(refusal) => {
                    self.shared.count_refusal();
                    tracing::warn!(client = self.id, rule = self.rule.name, code = %refusal.code, "refused: {refusal}");
                    channel.send(sequence, &Reply::Refused(refusal), &[])?;
                }
            }
        }
    }

    fn answer(&mut self, request: Request, mut fds: Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let expected = usize::from(matches!(request, Request::Socket(_)));
        if fds.len() != expected {
            let what = format!("{} descriptors came where {expected} belong", fds.len());
            return Err(Refusal::new(Code::Protocol, what));
        }
        match request {
            Request::Hello { client } => {
                tracing::info!(
                    client = self.id,
                    name = client.escape_debug().to_string(),
                    rule = self.rule.name,
                    "client"
                );
                self.welcome = true;
                Ok((Reply::Welcome { rule: self.rule.name.clone() }, Vec::new()))
            }
            _ if !self.welcome => Err(Refusal::new(Code::Protocol, "say hello first")),
            Request::Netlink { usage } => self.netlink(usage),
            Request::Device { interface, ifindex } => self.device(&interface, ifindex),
            Request::Udp(udp) => self.udp(&udp),
            Request::Attach { interface, queues, generic, replace, timestamps } => {
                self.attach(interface, queues, (generic, replace, timestamps))
            }
            Request::Detach { interface } => {
                self.detach(&interface);
                Ok(done())
            }
            Request::Socket(socket) => match fds.pop() {
                Some(memory) => self.socket(&socket, memory.as_fd()),
                None => Err(Refusal::new(Code::Protocol, "no memory came with the request")),
            },
            Request::AddPair { interface, pair } => {
                self.rule.check_listen(pair)?;
                // A group, which the rule names, is taken on whichever of its interfaces the client has.
                if !pair.ip().is_multicast() && !self.shared.has_address(&interface, pair.ip()) {
                    let what = format!("{} is no address of {interface}: its traffic is not ours", pair.ip());
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
        self.interfaces.get_mut(interface).ok_or_else(|| {
            Refusal::new(Code::Protocol, format!("{interface}: no program is attached for this client"))
        })
    }

    fn netlink(&mut self, usage: Netlink) -> Result<Answer, Refusal> {
        self.netlink += 1;
        if self.netlink > NETLINK_SOCKETS {
            let what = format!("more than {NETLINK_SOCKETS} rtnetlink sockets");
            return Err(Refusal::new(Code::Protocol, what));
        }
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
        Ok((Reply::Device(Box::new(message::Device { facts, allowed })), Vec::new()))
    }

    fn udp(&self, udp: &message::Udp) -> Result<Answer, Refusal> {
        self.rule.check_listen(udp.listen)?;
        self.rule.check_workers(udp.workers)?;
        self.rule.check_busy_poll(udp.busy_poll.is_some())?;
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
        if !(1..=QUEUES).contains(&queues) {
            return Err(Refusal::new(Code::Queue, format!("{queues} queues are not 1 to {QUEUES}")));
        }
        self.shared.claim(&interface, self.id)?;
        let attached = self.load(&interface, queues, (generic, replace, timestamps));
        match attached {
            Ok((program, link)) => {
                let cookie = program.redirect.cookie();
                self.interfaces.insert(interface, program);
                Ok((Reply::Program { cookie }, vec![link]))
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
        // Another attempt, in another mode: the first program goes first.
        self.interfaces.remove(interface);
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
        let link = attachment.link().ok_or_else(|| kernel("the program has no bpf_link of its own"))?;
        let link = link.try_clone_to_owned().map_err(kernel)?;
        Ok((Program { redirect, attachment, memory: HashMap::new() }, link))
    }

    fn socket(&mut self, socket: &message::Socket, memory: BorrowedFd<'_>) -> Result<Answer, Refusal> {
        self.rule.check_interface(&socket.interface)?;
        self.rule.check_queue(&socket.interface, socket.queue)?;
        self.rule.check_busy_poll(socket.busy_poll.is_some())?;
        let config = PortConfig {
            mode: match socket.mode {
                message::Mode::Auto => BindMode::Auto,
                message::Mode::Copy => BindMode::Copy,
                message::Mode::ZeroCopy => BindMode::ZeroCopy,
            },
            frame_size: socket.frame_size,
            rx_ring: socket.rx_ring,
            tx_ring: socket.tx_ring,
            bind_patience: Duration::from_millis(socket.patience_ms.into()).min(PATIENCE),
            wait: way_of_waiting(socket.busy_poll),
            ..PortConfig::new(&socket.interface, socket.queue)
        };
        config.validate().map_err(kernel)?;
        let wanted = memory_of(&config);
        // A queue has one socket at a time (`xsk_get_pool_from_qid` in net/xdp/xsk.c): a bind that succeeds
        // shows that the one before is gone, and its memory with it.
        let others = |(name, program): (&String, &Program)| -> u64 {
            let own = name == &socket.interface;
            program
                .memory
                .iter()
                .filter(|(queue, _)| !own || **queue != socket.queue)
                .map(|(_, bytes)| bytes)
                .sum()
        };
        let held: u64 = self.interfaces.iter().map(others).sum();
        self.rule.check_memory(held.saturating_add(wanted))?;
        let program = self.program(&socket.interface)?;
        let bound = bind_for(&config, memory, program.redirect.xsk_map()).map_err(kernel)?;
        program.memory.insert(socket.queue, wanted);
        let reply = Reply::Bound {
            zero_copy: bound.mode == ObtainedMode::ZeroCopy,
            ifindex: bound.ifindex,
            multi_buffer: bound.multi_buffer,
            segments: bound.segments,
        };
        Ok((reply, vec![bound.socket]))
    }

    fn detach(&mut self, interface: &str) {
        if self.interfaces.remove(interface).is_some() {
            self.shared.release(interface, self.id);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let interfaces: Vec<String> = self.interfaces.keys().cloned().collect();
        for interface in interfaces {
            // The program goes before the claim, so that the next client finds the interface free.
            self.detach(&interface);
        }
    }
}

/// Sends an answer; more descriptors than a message takes follow in further ones.
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

/// Whether an address is one to take the traffic of: link-local ones stay with the kernel, which knows their
/// scope.
pub(crate) fn may_be_taken(ip: IpAddr) -> bool {
    !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
