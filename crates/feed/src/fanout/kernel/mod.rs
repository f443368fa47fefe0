//! Forwarding by the kernel: this process admits subscribers, and after that touches no datagram.
//!
//! ```text
//!   one UDP socket per subscriber, all in one multicast group: the kernel clones each datagram
//!     └▶ sk_skb verdict: prepend the length, redirect to the subscriber's TCP socket (bpf/fanout.bpf.c)
//!   unicast feeds are rewritten to a private group where they arrive
//!   events (ring buffer) ─▶ Switch: who connected, who left, who is slow
//! ```
//!
//! Each datagram is a separate send to each subscriber: nothing is coalesced.
//!
//! ```text
//!  unicast ─ tcx ingress: destination ▶ private group ─┐
//!  multicast ──────────────────────────────────────────┴▶ UDP clones, one socket per subscriber
//!         ─▶ sk_skb verdict: state? how far behind? prepend length ─▶ redirect ─▶ psock backlog ─▶ TCP socket
//!  sockops: connection established (into the map), ended ─┐
//!  verdict: slow ─────────────────────────────────────────┴▶ ring buffer ─▶ a thread that admits and removes subscribers
//! ```
//!
//! The stock kernel only clones multicast, so a unicast feed is rewritten to a multicast group where it
//! arrives. The group is private: packets sent to it from outside are dropped. A datagram is in a socket's
//! backlog completely or not at all.
//!
//! The kernel does not bound the backlog of a socket. So the verdict reads its length and the socket's
//! sequence numbers. It gives nothing to a subscriber that is too far behind until it has accepted
//! everything. Without a ring there is no newest datagram to skip to, but the gap marker has the same
//! meaning.
//!
//! Connections are put into the map by sockops when they are established, because a process cannot add one
//! that is already half-closed. Nothing is pinned: programs, links and maps end with the process.
//!
//! Each copy costs its own send and a UDP receive as well, and nothing is coalesced. What is saved is waking
//! a process, which shows with one subscriber and no longer with eight. The number of subscribers and the
//! pattern of the feed are not known at start, so nothing measured then could decide.
//!
//! `--mode auto` therefore uses earlier measurements of `bench` on the same machine, for as many subscribers
//! as may come. The kernel forwards if it was shown better at one of those points, and may be much worse at
//! none. Measurements of another machine, kernel or version are ignored. Without measurements the process
//! forwards: it can lose little, the kernel mode can lose much.

mod cgroup;
mod group;
mod link;
mod switch;
mod unicast;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use expressway_netio::mailbox::mailbox;
use expressway_xbpf::{FanoutOptions, FanoutPrograms, Turn};

use super::framing::Framing;
use super::options::{Options, Protocol, Start, StartPolicy};
use super::service::{Fanout, FanoutError, MAILBOX, UnstartedFanout, bind, thread};
use super::stats::Ledger;
use super::sys;
use expressway_netio::udp::group::Membership;
use group::Group;
use switch::Switch;

/// Datagrams that may wait for a subscriber's socket, whatever their size: each takes some 2.5 KiB of kernel memory
/// (an skb with a page fragment of an MTU), so this is some 10 MiB.
const MAX_QUEUE: u32 = 4096;

/// The feed that the kernel forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFeed {
    /// Where it comes to: an address of this machine, or a multicast group.
    pub udp: SocketAddr,
    /// The interface that it comes by. Without one the route to a group decides; a unicast feed needs it.
    pub interface: Option<String>,
}

impl Fanout {
    /// As [`Fanout::start`], with the kernel forwarding. Only plain TCP subscribers that start at the next datagram,
    /// and one thread, which has little to do. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, Linux 6.6 and a cgroup
    /// hierarchy of version 2.
    ///
    /// # Errors
    /// [`FanoutError`] says which option, address, interface, privilege or kernel feature.
    pub fn start_in_kernel(options: Options, feed: &KernelFeed) -> Result<Self, FanoutError> {
        options.check().and_then(|()| check(&options, feed)).map_err(FanoutError::Options)?;
        let listeners = options.listen.iter().map(|listen| bind(*listen)).collect::<Result<Vec<_>, _>>()?;
        let netns =
            listeners.first().map(|listener| sys::netns_cookie(listener.fd.as_fd())).transpose().map_err(
                |error| FanoutError::NotInKernel(format!("SO_NETNS_COOKIE: {error}; Linux 5.14 is needed")),
            )?;
        let membership = Membership {
            group: feed.udp.ip(),
            interface: feed.interface.clone(),
            sources: if feed.udp.ip().is_multicast() { options.sources.clone() } else { Vec::new() },
        };
        let group = if feed.udp.ip().is_multicast() {
            Group::of_feed(feed.udp, membership)?
        } else {
            Group::private(feed.udp, membership)?
        };
        let turn = group.is_private().then(|| Turn {
            destination: feed.udp,
            group: group.address(),
            sources: options.sources.clone(),
        });
        let mut programs = FanoutPrograms::load(&FanoutOptions {
            prefix: prefix(options.framing)?,
            max_lag: options.limits.lag_bytes as u64,
            max_age: options.limits.lag_age,
            max_queue: MAX_QUEUE,
            subscribers: u32::try_from(options.limits.subscribers).unwrap_or(u32::MAX),
            ports: listeners.iter().map(|listener| listener.listen.address.port()).collect(),
            netns: netns.unwrap_or_default(),
            turn,
        })?;
        let own = cgroup::own().map_err(FanoutError::NotInKernel)?;
        programs.follow(own.as_fd())?;
        let ledger = Arc::new(Ledger::of_kernel(&options.limits));
        let (sender, inbox) = mailbox(MAILBOX).map_err(thread("eventfd"))?;
        let switch = Switch::new(&options, feed, group, programs, inbox, ledger.clone())?;
        let mut parts = UnstartedFanout::new(&options, listeners, ledger, Arc::default(), vec![sender])?;
        parts.spawn("expressway-swch".into(), move || switch.run())?;
        parts.open()
    }
}

/// What only this process can do is refused, not left out.
fn check(options: &Options, feed: &KernelFeed) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("mode kernel: {what}; use --mode user"));
    if let Some(other) = options.listen.iter().find(|listen| listen.protocol != Protocol::Tcp) {
        return refuse(&format!(
            "{} subscribers are not supported; the kernel forwards tcp only",
            other.protocol.name()
        ));
    }
    if options.start != StartPolicy::Fixed(Start::Next) {
        return refuse("the kernel retains no data: subscribers can only start at the next datagram");
    }
    if options.snapshot.is_some() {
        return refuse("the kernel retains no data, so snapshots are not supported");
    }
    if options.threads != 1 {
        return refuse("the kernel forwards on the CPUs that receive: threads must be 1");
    }
    if feed.udp.ip().is_unspecified() {
        return refuse(&format!("{} is a wildcard; give the address that the feed is sent to", feed.udp));
    }
    if !feed.udp.ip().is_multicast() && feed.interface.is_none() {
        return Err(format!(
            "interface: mode kernel picks up a unicast feed on a specific interface, and none has {}",
            feed.udp.ip()
        ));
    }
    if feed.udp.ip().is_loopback() || feed.interface.as_deref() == Some("lo") {
        return refuse(
            "loopback is not supported: its packets are routed before they can be turned into multicast",
        );
    }
    Ok(())
}

fn prefix(framing: Framing) -> Result<u32, FanoutError> {
    match framing {
        Framing::None => Ok(0),
        Framing::Len16 => Ok(2),
        Framing::Len32 => Ok(4),
        Framing::WebSocket => Err(FanoutError::Options("framing must be none, len16 or len32".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::fanout::Listen;

    fn feed(udp: &str, interface: Option<&str>) -> KernelFeed {
        KernelFeed { udp: udp.parse().unwrap(), interface: interface.map(str::to_owned) }
    }

    #[test]
    fn what_the_kernel_cannot_do_is_refused_by_name() {
        let listen = Listen { protocol: Protocol::Tcp, address: "192.0.2.1:0".parse().unwrap() };
        let good = Options::new(vec![listen]);
        let multicast = feed("239.1.1.1:5000", None);
        assert_eq!(check(&good, &multicast), Ok(()));
        assert_eq!(check(&good, &feed("192.0.2.1:5000", Some("eth0"))), Ok(()));
        let complaint = |change: &dyn Fn(&mut Options)| {
            let mut options = good.clone();
            change(&mut options);
            check(&options, &multicast).unwrap_err()
        };
        for (protocol, name) in
            [(Protocol::Tls, "tls"), (Protocol::WebSocket, "ws"), (Protocol::SecureWebSocket, "wss")]
        {
            let text = complaint(&|options| options.listen[0].protocol = protocol);
            assert!(text.starts_with(&format!("mode kernel: {name} subscribers")), "{text}");
        }
        assert!(complaint(&|options| options.start = StartPolicy::Ask).contains("next datagram"));
        assert!(
            complaint(&|options| options.start = StartPolicy::Fixed(Start::Last(1)))
                .contains("retains no data")
        );
        assert!(complaint(&|options| options.snapshot = Some(vec![1])).contains("snapshots"));
        assert!(complaint(&|options| options.threads = 2).contains("threads must be 1"));
        for (udp, interface, text) in [
            ("0.0.0.0:5000", Some("eth0"), "wildcard"),
            ("192.0.2.1:5000", None, "on a specific interface"),
            ("127.0.0.1:5000", Some("lo"), "loopback"),
        ] {
            let complaint = check(&good, &feed(udp, interface)).unwrap_err();
            assert!(complaint.contains(text), "{complaint}");
        }
    }

    #[test]
    fn private_groups_are_of_this_site() {
        for destination in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let scoped = match group::random(destination.parse::<SocketAddr>().unwrap().ip()) {
                IpAddr::V4(v4) => v4.octets()[..2] == [239, 255],
                IpAddr::V6(v6) => v6.segments()[0] == 0xff15,
            };
            assert!(scoped);
        }
    }
}
