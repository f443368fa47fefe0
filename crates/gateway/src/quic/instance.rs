//! What distinguishes a server from others with the same private key.
//!
//! Check bytes of connection IDs and stateless reset tokens are bound to it. Servers that generate the same
//! tokens would disclose each other's: anyone who has seen a connection ID and gets a packet with it to the
//! other server, which does not know the connection, receives the token and can end the connection with it
//! (RFC 9000, sections 10.3.2 and 21.11). It must also be the same after a restart, or clients of a killed
//! server wait for their idle timeout.
//!
//! By default it consists of the machine's boot ID (a random ID of the kernel that no other machine has, not even a
//! clone), the network namespace and the listen addresses. A restarted process is therefore recognised until the
//! machine reboots. For longer, or to move a server between machines, the operator names the node, and is responsible
//! for unique names. Processes on one machine for which all of this is equal (each with some kernel sockets, or queues)
//! have slots: each takes the first free one, held by an abstract socket that the kernel releases with the process.
//!
//! The local address would not distinguish servers, because they may share it by anycast or a load balancer;
//! the machine's ID is copied with the machine; a file would have to be written and kept. The kernel's boot
//! ID has none of these problems and lasts long enough: a machine that takes longer to boot than clients
//! wait has nobody to reset.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::Arc;

use boring::error::ErrorStack;

use super::tls::{Identity, Root};

/// Processes that are told apart; a further one is not known again.
const PLACES: u8 = 16;

/// Identifies a server among those with its private key; see the module.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// `None`: unknown, so its secrets are its own and last as long as the process.
    id: Option<Vec<u8>>,
    /// Held while the server runs.
    _place: Option<Arc<UnixDatagram>>,
}

impl Instance {
    /// The server with `identity`'s key and the name `node`, or listening on `listen`. Created once, at
    /// start, before the process loses access to /proc.
    pub fn of(identity: &Identity, node: Option<&str>, listen: &[SocketAddr]) -> Result<Self, ErrorStack> {
        Self::after(None, identity, node, listen)
    }

    /// The same server as the process that had `place`, from its [`Instance::place`], if it is the same one by key, name and addresses: so
    /// clients of that process get resets that they believe when it is gone.
    pub fn after(
        place: Option<OwnedFd>,
        identity: &Identity,
        node: Option<&str>,
        listen: &[SocketAddr],
    ) -> Result<Self, ErrorStack> {
        let mut before = place.map(UnixDatagram::from);
        let about = match node {
            Some(node) => [b"node ", node.as_bytes()].concat(),
            None => match host(listen) {
                Ok(host) => host,
                Err(error) => {
                    tracing::warn!(%error, "no stateless resets to clients after a restart; set [server] node to enable them");
                    return Ok(Self::default());
                }
            },
        };
        let mut name = [0; 16];
        Root::of(identity)?.expand(b"instance place", &about, &mut name)?;
        let name = u128::from_be_bytes(name);
        for place in 0..PLACES {
            let name = format!("expressway/{name:032x}/{place}");
            let is_before = before.as_ref().is_some_and(|before| has_name(before, &name));
            let held = if is_before { before.take() } else { take(&name).ok() };
            let Some(held) = held else { continue };
            if place > 0 && !is_before {
                tracing::info!(
                    place,
                    "another process on this host uses this private key and these addresses"
                );
            }
            return Ok(Self { id: Some([&about[..], &[0, place]].concat()), _place: Some(Arc::new(held)) });
        }
        tracing::warn!(
            "too many processes with this private key and these addresses: no stateless resets to clients after a restart"
        );
        Ok(Self::default())
    }

    /// The socket that holds its place, for the process that succeeds this one.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn place(&self) -> io::Result<Option<OwnedFd>> {
        self._place.as_ref().map(|place| place.as_fd().try_clone_to_owned()).transpose()
    }

    /// Additional input for deriving secrets.
    pub(super) fn id(&self) -> Option<&[u8]> {
        self.id.as_deref()
    }
}

/// What is known of the machine and of where on it the server is.
fn host(listen: &[SocketAddr]) -> io::Result<Vec<u8>> {
    let at = |path: &'static str| move |error| io::Error::other(format!("{path}: {error}"));
    let (boot, namespace) = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net");
    let mut about = b"boot ".to_vec();
    about.extend_from_slice(std::fs::read_to_string(boot).map_err(at(boot))?.trim().as_bytes());
    about.push(b' ');
    about.extend_from_slice(
        std::fs::read_link(namespace).map_err(at(namespace))?.as_os_str().as_encoded_bytes(),
    );
    let mut addresses: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
    addresses.sort_unstable();
    for address in addresses {
        about.push(b' ');
        about.extend_from_slice(address.as_bytes());
    }
    Ok(about)
}

/// Whether the socket has that abstract name.
fn has_name(socket: &UnixDatagram, name: &str) -> bool {
    socket.local_addr().is_ok_and(|address| address.as_abstract_name() == Some(name.as_bytes()))
}

/// Takes an abstract name of this network namespace, which nobody else has then.
fn take(name: &str) -> io::Result<UnixDatagram> {
    let held = UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(name)?)?;
    // Nothing is to be queued there.
    held.shutdown(Shutdown::Both)?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::testing::identity;

    fn listen(text: &str) -> Vec<SocketAddr> {
        text.split(' ').map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn a_restarted_server_is_known_again_and_is_no_other() {
        let (key, other) = (identity("one.example"), identity("one.example"));
        let addresses = listen("192.0.2.1:443 [2001:db8::1]:443");
        let first = Instance::of(&key, None, &addresses).unwrap();
        let id = first.id().unwrap().to_vec();
        // Beside it, and elsewhere.
        let second = Instance::of(&key, None, &addresses).unwrap();
        assert_ne!(second.id().unwrap(), id);
        let elsewhere = Instance::of(&key, None, &listen("192.0.2.2:443")).unwrap();
        assert_ne!(elsewhere.id().unwrap(), id);
        drop(first);
        let again = Instance::of(&key, None, &listen("[2001:db8::1]:443 192.0.2.1:443")).unwrap();
        assert_eq!(again.id().unwrap(), id, "the order of addresses does not matter");
        // Places are those of a key.
        assert_eq!(Instance::of(&other, None, &addresses).unwrap().id().unwrap(), id);
    }

    #[test]
    fn who_comes_after_is_the_same_server_while_both_run() {
        let key = identity("one.example");
        let first = Instance::of(&key, Some("edge-1"), &[]).unwrap();
        let place = || first.place().unwrap();
        let second = Instance::after(place(), &key, Some("edge-1"), &[]).unwrap();
        assert_eq!(second.id(), first.id());
        assert_ne!(Instance::of(&key, Some("edge-1"), &[]).unwrap().id(), first.id(), "a stranger beside");
        let renamed = Instance::after(place(), &key, Some("edge-2"), &[]).unwrap();
        assert_ne!(renamed.id(), first.id());
        assert!(
            renamed.place().unwrap().is_some_and(|place| !has_name(&place.into(), "")),
            "a place of its own"
        );
        let id = first.id().unwrap().to_vec();
        drop(first);
        assert_ne!(
            Instance::of(&key, Some("edge-1"), &[]).unwrap().id().unwrap(),
            id,
            "the second holds the place"
        );
    }

    #[test]
    fn a_node_is_known_by_its_name_wherever_it_listens() {
        let key = identity("one.example");
        let first = Instance::of(&key, Some("edge-1"), &listen("192.0.2.1:443")).unwrap();
        let id = first.id().unwrap().to_vec();
        assert_ne!(Instance::of(&key, Some("edge-2"), &listen("192.0.2.1:443")).unwrap().id().unwrap(), id);
        assert_ne!(Instance::of(&key, Some("edge-1"), &listen("192.0.2.1:443")).unwrap().id().unwrap(), id);
        drop(first);
        let moved = Instance::of(&key, Some("edge-1"), &listen("192.0.2.9:443")).unwrap();
        assert_eq!(moved.id().unwrap(), id);
    }

    #[test]
    fn more_processes_than_places_are_unknown() {
        let key = identity("one.example");
        let all: Vec<_> = (0..=PLACES).map(|_| Instance::of(&key, Some("edge"), &[]).unwrap()).collect();
        let mut ids: Vec<_> = all.iter().filter_map(Instance::id).collect();
        assert_eq!(ids.len(), usize::from(PLACES));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), usize::from(PLACES));
    }
}
