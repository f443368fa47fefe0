//! Maintains the interfaces while the server runs, as they come, go and change.
//!
//! ```text
//!            attached, sockets on every channel
//!   open ◀─────────────────────────────────────── waiting: kernel sockets serve
//!     │   ▲ it has an address, is up,               ▲     tried again after 1 s, 2 s, … 60 s,
//!     │   │ and opening worked                      │     and at once when it is another interface
//!     │   └─────────────────────────────────────────┤
//!     ├── removed, its channels changed, ───────────┘
//!     │     or the agent that opened it came back
//!     └── its program taken off by force: left alone, for whoever did it had a reason
//! ```
//!
//! A link that goes down and comes back needs none of this: the sockets stay bound and follow it by themselves, as they
//! follow the MTU.
//!
//! Once per second, the main thread compares what the listen addresses need (from the route mirror) with what is open.
//! An interface that is gone or has other channels is closed as a whole and reopened as at start, with growing pauses.
//! New sockets reach their workers through an inlet that costs one load per turn. There is one procedure for all
//! causes: kernel sockets serve meanwhile, so a finer one is not needed. A program detached by force is not reattached,
//! because the detach was deliberate. A bond passes on what its members receive: the program and the sockets are on the
//! members, and sending is left to the kernel, which knows the bond's policy. For bridges, macvlans and tunnels, only
//! the kernel knows which frames belong to them.
//!
//! A queue has only one AF_XDP socket, so two servers split the queues. Packets that arrive on the other server's
//! queues find no socket in our map and pass to our kernel socket. The servers share nothing that would have to be
//! trusted.

mod agent_watch;
mod backoff;
mod maintainer;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use expressway_netio::route::Snapshot;

use agent_watch::AgentWatch;
use backoff::Backoff;
pub use maintainer::Maintainer;

use crate::data_path::{DataPath, Interface};
use crate::devices::devices_now;
use crate::error::Error;
use crate::negotiate::Obtained;
use crate::provider::Provider;

/// The longest pause before an interface that could not be opened is tried again. A try costs a load of the XDP
/// program.
const LONGEST: Duration = Duration::from_secs(60);

/// Why an interface was opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was removed, and one of that name is there again.
    Removed,
    /// The number of its receive queues in use changed.
    Channels,
    /// It came, came up or got an address after the start.
    Appeared,
    /// The agent that had opened it went, and one that knows nothing of it came.
    Agent,
    /// It was given up for a process that was to succeed this one, and did not.
    Upgrade,
}

impl Cause {
    const ALL: [Self; 5] = [Self::Removed, Self::Channels, Self::Appeared, Self::Agent, Self::Upgrade];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "removed",
            Self::Channels => "channels",
            Self::Appeared => "appeared",
            Self::Agent => "agent",
            Self::Upgrade => "succession",
        })
    }
}

/// An interface that could serve but is not open.
#[derive(Debug)]
struct Waiting {
    /// Index when it was tried or lost; 0 if it has not been seen.
    index: u32,
    cause: Cause,
    /// When it is tried again; `None`: only when it is another interface.
    retry: Option<Backoff>,
    /// What was wrong the last time.
    problem: Option<String>,
}

/// An interface that was opened in this round, to be told of once it receives.
struct Reopened {
    interface: String,
    mode: Obtained,
    cause: Cause,
}

/// What upkeep remembers from one round to the next.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    waiting: HashMap<String, Waiting>,
    reopened: HashMap<(String, Cause), u64>,
    agent: AgentWatch,
    /// Why addresses could not be followed, as it was last said.
    addresses: Option<String>,
}

impl Upkeep {
    /// Says once what keeps the programs from taking the addresses of now.
    fn say_addresses(&mut self, error: Option<Error>) {
        let problem = error.map(|error| error.to_string());
        if let Some(problem) = problem.as_ref().filter(|_| problem != self.addresses) {
            tracing::warn!("addresses changed but could not be applied yet: {problem}");
        }
        self.addresses = problem;
    }

    /// The interface was tried at start and left to the kernel: that stands while it is the same one.
    pub(crate) fn leave(&mut self, name: &str, index: u32) {
        let waiting = Waiting { index, cause: Cause::Appeared, retry: None, problem: None };
        self.waiting.insert(name.to_owned(), waiting);
    }

    /// Times that each interface was opened again, by cause: all causes of each one in `open`, of those that were and of
    /// those that wait for it.
    fn reopened<'a>(&'a self, open: impl Iterator<Item = &'a str>) -> Vec<(String, Cause, u64)> {
        let known = self.reopened.keys().map(|(name, _)| name).chain(self.waiting.keys()).map(String::as_str);
        let names: BTreeSet<&str> = open.chain(known).collect();
        let count = |name: &str, cause| self.reopened.get(&(name.to_owned(), cause)).copied().unwrap_or(0);
        let of = |name: &str| Cause::ALL.map(|cause| (name.to_owned(), cause, count(name, cause)));
        names.into_iter().flat_map(of).collect()
    }

    fn lose(&mut self, name: &str, cause: Cause, now: Instant) {
        let waiting = Waiting { index: 0, cause, retry: Some(Backoff::new(now, LONGEST)), problem: None };
        self.waiting.insert(name.to_owned(), waiting);
    }

    /// What was tried in vain while the agent was away is tried now.
    pub(crate) fn retry_all(&mut self, now: Instant) {
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.retry.is_some()) {
            waiting.retry = Some(Backoff::new(now, LONGEST));
        }
    }

    /// Whether to try the interface now.
    fn is_due(&self, name: &str, index: u32, now: Instant) -> bool {
        self.waiting.get(name).is_none_or(|waiting| {
            (waiting.index != index && waiting.index != 0)
                || waiting.retry.is_some_and(|retry| retry.is_due(now))
        })
    }

    /// Notes a failed try. True if that is news.
    fn fail(&mut self, name: &str, index: u32, now: Instant, problem: String) -> bool {
        let cause = self.waiting.get(name).map_or(Cause::Appeared, |waiting| waiting.cause);
        let before = self.waiting.remove(name);
        let same = before.filter(|before| before.index == index || before.index == 0);
        let mut retry =
            same.as_ref().and_then(|before| before.retry).unwrap_or_else(|| Backoff::new(now, LONGEST));
        retry.fail(now);
        let news = same.and_then(|before| before.problem).is_none_or(|before| before != problem);
        let waiting = Waiting { index, cause, retry: Some(retry), problem: Some(problem) };
        self.waiting.insert(name.to_owned(), waiting);
        news
    }

    fn succeed(&mut self, name: &str) -> Cause {
        let cause = self.waiting.remove(name).map_or(Cause::Appeared, |waiting| waiting.cause);
        *self.reopened.entry((name.to_owned(), cause)).or_default() += 1;
        cause
    }
}

impl DataPath {
    /// Times that each interface was opened again, by cause.
    pub fn reopened(&self) -> Vec<(String, Cause, u64)> {
        self.upkeep.reopened(self.interfaces.iter().map(|interface| interface.name.as_str()))
    }

    /// Looks after what changes outside: interfaces, their channels, addresses, programs taken off.
    pub fn maintain(&mut self) {
        if self.handed_on.is_down {
            return;
        }
        let snapshot = self.mirror.snapshot();
        let now = Instant::now();
        self.follow_agent(now);
        self.find_lost(&snapshot, now);
        let opened = self.open_missing(&snapshot, now);
        if !opened.is_empty() {
            self.generation = None;
        }
        // Programs of an agent that is gone take what they took; the one that is back makes others.
        if self.generation != Some(snapshot.generation()) && self.provider.agent_connected() != Some(false) {
            let problem = self.follow_addresses().err();
            self.upkeep.say_addresses(problem);
        }
        for Reopened { interface, mode, cause } in opened {
            tracing::info!(interface, %mode, %cause, "AF_XDP path reopened");
        }
    }

    /// Finds the agent again once it has gone. The one that is back knows nothing of the programs that keep up the
    /// AF_XDP path, and could neither follow their addresses nor replace their sockets: what it gives takes their
    /// place.
    fn follow_agent(&mut self, now: Instant) {
        let Provider::Agent(client) = &self.provider else { return };
        if !self.upkeep.agent.follow(client, now) {
            return;
        }
        tracing::info!("agent reconnected: reopening interfaces; kernel sockets serve meanwhile");
        let open = |interface: &&Interface| !interface.detached;
        let indices: Vec<u32> =
            self.interfaces.iter().filter(open).map(|interface| interface.index).collect();
        for index in indices {
            self.close(index, Cause::Agent, now);
        }
        self.upkeep.retry_all(now);
    }

    /// Whether the agent is connected; `None` where none is used.
    pub fn agent_connected(&self) -> Option<bool> {
        self.provider.agent_connected()
    }

    /// Times that an agent was found again, and tries to that failed.
    pub fn agent_tries(&self) -> Option<(u64, u64)> {
        self.provider.agent_connected().map(|_| (self.upkeep.agent.reconnects, self.upkeep.agent.failures))
    }

    /// Gives up what is gone or no longer fits.
    fn find_lost(&mut self, snapshot: &Snapshot, now: Instant) {
        let mut lost = Vec::new();
        for interface in &mut self.interfaces {
            let name = &interface.name;
            let attached = interface.program.is_attached();
            if attached != Some(true) && snapshot.link(interface.index).is_none() {
                tracing::warn!(
                    interface = name,
                    "interface removed; kernel sockets serve its addresses until it is back"
                );
                lost.push((interface.index, Cause::Removed));
            } else if attached == Some(false) {
                if !interface.detached {
                    tracing::warn!(
                        interface = name,
                        "XDP program detached by someone else; kernel sockets serve the interface's addresses"
                    );
                    interface.detached = true;
                }
            } else if let Some(link) = snapshot.link(interface.index)
                && let Some(channels) = self.provider.channels(link)
                && channels.rx.max(1) != interface.queues
            {
                tracing::warn!(
                    interface = name,
                    "receive channels changed from {} to {}: reopening AF_XDP sockets, kernel sockets \
                     serve meanwhile",
                    interface.queues,
                    channels.rx
                );
                lost.push((interface.index, Cause::Channels));
            }
        }
        for (index, cause) in lost {
            self.close(index, cause, now);
        }
    }

    /// Takes program and sockets off an interface; the workers close theirs at their next turn.
    fn close(&mut self, index: u32, cause: Cause, now: Instant) {
        self.take_back(index);
        self.close_program(index, cause, now);
    }

    /// Takes the program off an interface, whose sockets stay with the workers.
    pub(crate) fn close_program(&mut self, index: u32, cause: Cause, now: Instant) {
        for closed in self.interfaces.extract_if(.., |interface| interface.index == index) {
            self.upkeep.lose(&closed.name, cause, now);
        }
    }

    /// Opens the interfaces that have an address of ours and no program yet. Their programs take no address so far.
    fn open_missing(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<Reopened> {
        let mut reopened = Vec::new();
        let groups_on = self.config.groups_on(snapshot);
        for device in devices_now(self.config.io.mode, &self.listen, groups_on, snapshot) {
            let (name, index) = (device.link.name.clone(), device.link.index);
            if !device.link.is_up
                || self.interfaces.iter().any(|interface| interface.index == index)
                || !self.upkeep.is_due(&name, index, now)
            {
                continue;
            }
            match self.open_interface(&device) {
                Ok(mode) => {
                    let cause = self.upkeep.succeed(&name);
                    reopened.push(Reopened { interface: name, mode, cause });
                }
                Err(problem) => {
                    let text = problem.to_string();
                    if self.upkeep.fail(&name, index, now, text.clone()) {
                        tracing::warn!(
                            interface = name,
                            "falling back to kernel UDP on this interface: {text}"
                        );
                    }
                }
            }
        }
        reopened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_interface_is_tried_again_ever_later_and_at_once_when_it_is_another() {
        let (mut upkeep, start) = (Upkeep::default(), Instant::now());
        assert!(upkeep.is_due("eth9", 7, start), "never seen");
        upkeep.lose("eth9", Cause::Removed, start);
        let mut now = start;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(upkeep.is_due("eth9", 7, now));
            let news = upkeep.fail("eth9", 7, now, "no such thing".into());
            assert_eq!(news, seconds == 1, "said once");
            assert!(!upkeep.is_due("eth9", 7, now + Duration::from_secs(seconds) - Duration::from_millis(1)));
            now += Duration::from_secs(seconds);
        }
        assert!(upkeep.is_due("eth9", 8, start), "another interface of that name");
        assert!(upkeep.fail("eth9", 8, start, "no such thing".into()), "news of another interface");
        assert!(upkeep.is_due("eth9", 8, start + Backoff::FIRST));
        assert_eq!(upkeep.succeed("eth9"), Cause::Removed);
        let counts = upkeep.reopened(["eth8"].into_iter());
        assert_eq!(counts.len(), 10, "each cause of both, 0 included: {counts:?}");
        assert!(counts.contains(&("eth9".into(), Cause::Removed, 1)), "{counts:?}");
    }

    #[test]
    fn what_was_left_to_the_kernel_at_start_stays_so_while_it_is_the_same_interface() {
        let (mut upkeep, now) = (Upkeep::default(), Instant::now());
        upkeep.leave("eth9", 7);
        assert!(!upkeep.is_due("eth9", 7, now + LONGEST * 10));
        assert!(upkeep.is_due("eth9", 8, now));
        upkeep.retry_all(now);
        assert!(!upkeep.is_due("eth9", 7, now + LONGEST * 10), "also when an agent is back");
        assert_eq!(upkeep.succeed("eth9"), Cause::Appeared);
    }

    #[test]
    fn what_failed_while_the_agent_was_away_is_tried_at_once_when_it_is_back() {
        let (mut upkeep, start) = (Upkeep::default(), Instant::now());
        upkeep.lose("eth9", Cause::Removed, start);
        upkeep.fail("eth9", 7, start, "the connection was closed".into());
        upkeep.fail("eth9", 7, start, "the connection was closed".into());
        assert!(!upkeep.is_due("eth9", 7, start));
        upkeep.retry_all(start);
        assert!(upkeep.is_due("eth9", 7, start));
        assert_eq!(upkeep.reopened(std::iter::empty()).len(), 5, "counted while it waits");
        assert_eq!(upkeep.succeed("eth9"), Cause::Removed, "the cause stays");
    }
}
