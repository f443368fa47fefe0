//! Watches the connection to the agent, and reconnects when it is lost.

use std::time::{Duration, Instant};

use expressway_agent::{AgentError, Client};

use super::backoff::Backoff;

/// The longest pause between two tries. A try costs a connect to a unix socket.
const LONGEST: Duration = Duration::from_secs(10);

/// What is remembered of an agent.
#[derive(Debug, Default)]
pub(super) struct AgentWatch {
    /// While it is away.
    search: Option<Backoff>,
    /// Why the agent that came back rejected us, as last logged.
    problem: Option<String>,
    /// Times that it was found again.
    pub(super) reconnects: u64,
    /// Tries that were in vain.
    pub(super) failures: u64,
}

impl AgentWatch {
    /// Looks after the connection. True when the agent is another one than before.
    pub(super) fn follow(&mut self, client: &Client, now: Instant) -> bool {
        // Asking notices the agent's end, which is logged once.
        if client.is_connected() || !client.may_return() {
            return false;
        }
        let search = self.search.get_or_insert_with(|| Backoff::new(now, LONGEST));
        if !search.is_due(now) {
            return false;
        }
        match client.reconnect() {
            Ok(()) => {
                *self = Self { reconnects: self.reconnects + 1, failures: self.failures, ..Self::default() };
                true
            }
            Err(error) => {
                search.fail(now);
                self.failures += 1;
                self.say(&error);
                false
            }
        }
    }

    /// That nobody listens is known already. Anything else is logged once.
    fn say(&mut self, error: &AgentError) {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let is_refused = match error {
            AgentError::Connect { source, .. } if matches!(source.kind(), ConnectionRefused | NotFound) => {
                return tracing::debug!(%error, "agent not reachable yet");
            }
            AgentError::Connect { .. } => false,
            _ => true,
        };
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            match is_refused {
                true => tracing::warn!("agent reconnected but rejected us: {text}"),
                false => tracing::warn!("agent not reachable yet: {text}"),
            }
            self.problem = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use expressway_agent::channel::Channel;
    use expressway_agent::message::{Code, Refusal, Reply, Request};
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
    };

    use super::*;

    /// An agent that gives each client one answer, and is gone.
    fn agent(path: &std::path::Path, replies: Vec<Reply>) -> std::thread::JoinHandle<()> {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 1).unwrap();
        let path = path.to_owned();
        std::thread::spawn(move || {
            for reply in replies {
                let channel = Channel::new(accept(&socket).unwrap(), Duration::from_secs(5)).unwrap();
                let asked = channel.receive::<Request>(0).unwrap();
                assert!(matches!(asked.content, Request::Hello { .. }));
                channel.send(asked.sequence, &reply, &[]).unwrap();
            }
            std::fs::remove_file(path).unwrap();
        })
    }

    #[test]
    fn an_agent_is_looked_for_ever_more_seldom_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let welcome = || Reply::Welcome { rule: "edge".into() };
        let first = agent(&path, vec![welcome()]);
        let client = Client::connect(&path, "test").unwrap();
        first.join().unwrap();
        let (mut watch, start) = (AgentWatch::default(), Instant::now());
        let mut now = start;
        for seconds in [1, 2, 4, 8, 10, 10] {
            assert!(!watch.follow(&client, now));
            let failures = watch.failures;
            now += Duration::from_secs(seconds);
            assert!(!watch.follow(&client, now - Duration::from_millis(1)));
            assert_eq!(watch.failures, failures, "before its time");
        }
        assert_eq!((watch.reconnects, watch.failures), (0, 6));
        // One that turns us away, then one that lets us in.
        let refusal = Reply::Refused(Refusal::new(Code::Unknown, "no [[allow]] has uid 7"));
        let second = agent(&path, vec![refusal, welcome()]);
        assert!(!watch.follow(&client, now));
        assert!(watch.problem.as_ref().is_some_and(|said| said.contains("uid 7")));
        assert!(watch.follow(&client, now + LONGEST));
        assert_eq!((watch.reconnects, watch.failures), (1, 7));
        second.join().unwrap();
        // That one goes too: the search begins anew, at once.
        assert!(!watch.follow(&client, now + LONGEST));
        assert_eq!(watch.failures, 8);
    }

    #[test]
    fn an_agent_of_this_process_alone_is_not_looked_for() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let other = std::thread::spawn(move || {
            let channel = Channel::new(theirs, Duration::from_secs(5)).unwrap();
            let asked = channel.receive::<Request>(0).unwrap();
            channel.send(asked.sequence, &Reply::Welcome { rule: "own".into() }, &[]).unwrap();
        });
        let client = Client::over(ours, "of this test".into(), "test").unwrap();
        other.join().unwrap();
        let mut watch = AgentWatch::default();
        assert!(!watch.follow(&client, Instant::now()));
        assert_eq!((watch.reconnects, watch.failures, client.is_connected()), (0, 0, false));
    }
}
