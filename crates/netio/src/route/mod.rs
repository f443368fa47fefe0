//! Where a datagram is sent: a mirror of the kernel's links, addresses, routes and neighbours.
//!
//! [`RouteMirror`] follows rtnetlink on a thread of its own and publishes immutable [`Snapshot`]s with a
//! generation. Each worker has a [`Resolver`], which turns an address pair into the [`Path`] of the first
//! hop (hardware addresses, VLAN tags, MTU, source) and remembers it until the generation changes.
//!
//! Mirrored are the tables that the three default policy rules use. Where rules, route types or next-hop
//! objects go beyond that, the kernel is asked for the route (`RTM_GETROUTE`) instead of being imitated.
//! Nothing here changes the kernel's tables, and nothing resolves neighbours: a datagram through a kernel
//! socket does that.
//!
//! Because AF_XDP traffic does not confirm neighbours for the kernel, a stale one occasionally gets a burst through the
//! kernel socket, which does.

mod link;
mod mirror;
mod neighbour;
mod netlink;
mod resolve;
mod snapshot;
mod table;
mod tracker;

pub use link::{Link, LinkKind};
pub use mirror::{MirrorStats, RouteMirror};
pub use neighbour::Neighbour;
pub use netlink::{NetlinkSource, NetlinkUse, OwnNamespace};
pub use resolve::{Path, Resolution, Resolver};
pub use snapshot::{InterfaceAddress, Snapshot};
pub use tracker::links;

/// Why the mirror could not be made.
#[derive(Debug, thiserror::Error)]
#[error("rtnetlink: {what}: {source}")]
pub struct RouteError {
    /// The step that failed.
    pub what: &'static str,
    /// The kernel's error.
    pub source: std::io::Error,
}
