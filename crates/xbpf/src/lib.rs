//! The BPF programs' skeletons, maps and attachment. Sources are in `bpf/`, in C.
//!
//! [`Redirect`] is the XDP program that gives the UDP datagrams of configured (address, port) pairs to
//! the AF_XDP socket of their receive queue and passes everything else to the kernel. [`Attachment`] is
//! its hold on an interface: a bpf_link, so that the death of the process, however it dies, takes the
//! program off and frees the maps; nothing is pinned. Beside programs of others it is a component of a libxdp
//! dispatcher ([`Redirect::join`]): pinned, and what a killed process leaves is removed by the next.
//!
//! [`Guard`] filters what comes by lists and rules.
//!
//! Besides there are [`LiveFrames`], which sends frames out of an interface without a socket, and [`Baseline`], the
//! programs of the XDP paper that drop, pass, count, touch, return or redirect every packet. [`forward::Forward`] routes.
//!
//! This crate never sees a socket: whoever owns the AF_XDP sockets puts them into
//! [`Redirect::xsk_map`]. It holds no policy either: wildcards are expanded and modes chosen above.
//!
//! ```no_run
//! use expressway_xbpf::{AttachMode, Counter, Existing, Options, Redirect};
//!
//! # fn main() -> Result<(), expressway_xbpf::Error> {
//! let redirect = Redirect::load(&Options::default())?;
//! redirect.add_pair(([192, 0, 2, 1], 443).into())?;
//! let attachment = redirect.attach(3, AttachMode::Native, Existing::Refuse)?;
//! // … sockets go into redirect.xsk_map() …
//! for (counter, packets) in redirect.counters()?.iter() {
//!     println!("{counter} {packets}"); // "pass: other_pair 17"
//! }
//! assert_eq!(redirect.counters()?[Counter::PassNoSocket], 0);
//! drop(attachment); // the program is off the interface
//! # Ok(())
//! # }
//! ```
//!
//! # Counters
//!
//! Each packet that reaches the program grows exactly one [`Counter`], on its CPU, without a lock. The
//! counter says the verdict and the reason:
//!
//! | verdict | reason | what the packet was |
//! |---|---|---|
//! | redirect | `taken` | ours; given to the AF_XDP socket of its queue. The socket may still drop it: see XDP_STATISTICS |
//! | pass | `other_mac` | for another station; only with [`Options::local_mac`] |
//! | pass | `not_ip` | ARP, LLDP and the like |
//! | pass | `vlan_depth` | behind more than two VLAN tags |
//! | pass | `truncated` | ends before destination address and port, in the frame or by its own IP length |
//! | pass | `malformed` | an IP version or header length that can't be |
//! | pass | `not_udp` | TCP, ICMP and the like |
//! | pass | `fragment` | any IP fragment, first, later or atomic |
//! | pass | `ipv4_options` | UDP behind IPv4 options |
//! | pass | `ipv6_extension` | behind IPv6 extension headers that are the kernel's: see below |
//! | pass | `other_pair` | UDP for an address or port that is not configured |
//! | pass | `no_socket` | ours, but its queue has no AF_XDP socket; the kernel socket gets it |
//! | drop | `udp_header` | ours, but packet or frame ends inside the UDP header |
//! | drop | `ip_length` | ours, but the frame is shorter than the IP header says |
//! | drop | `udp_length` | ours, but the UDP length is below 8 or beyond the IP payload |
//!
//! The order of the checks is that of the headers, so a packet with several peculiarities counts under
//! the first one met; a TCP fragment is `not_udp`.
//!
//! **Drops** are sure to be for a configured pair: destination address and port lie inside the frame and
//! inside the length that the IP header gives. Whatever is cut shorter passes as `truncated`, for its
//! port is unknown or is Ethernet padding; the kernel counts it under its own errors.
//!
//! **IPv6 extension headers**: hop-by-hop options (first only), destination options and routing headers,
//! up to four in all, are walked and the datagram is taken when all that a host has to do about them is
//! to carry on: every option is padding or of the class that a host skips when it does not know it (RFC
//! 8200, section 4.2: the two high bits of its type are zero), and no routing segment is left. Else it is
//! `ipv6_extension`: a jumbo payload, a home address, more than 16 options in a header, segments left,
//! authentication, mobility, HIP, shim6, a fifth header.
//!
//! **VLAN**: tags that the device strips from the frame (`rx-vlan-offload`) are invisible to XDP and to
//! whoever reads the frame from an AF_XDP socket. Turn it off where VLANs are used.
//!
//! Not checked by the program: IPv4 header checksum, UDP checksum, source address. Whoever reads the
//! datagram checks them.
//!
//! # Opening and verification
//!
//! A test shows that `wire` accepts every frame that the program takes. A wildcard listen address is expanded
//! by the caller and followed as addresses change, so that routed traffic is never captured. Kernel sockets
//! are bound first, the program is attached without pairs, AF_XDP sockets are bound and inserted, and only
//! then are the pairs added.

mod attachment;
mod balance;
mod baseline;
mod bpffs;
mod capture;
mod capture_changes;
mod capture_record;
mod capture_targets;
mod counters;
mod dispatcher;
mod error;
mod fanout;
mod flows;
pub mod forward;
mod guard;
mod kernel_names;
mod link;
mod live;
mod pair;
mod redirect;
mod rings;
mod role;
mod skeleton;
mod sockets;
mod sys;
mod target;
mod xdp_drops;

/// Name of the redirect program, as `ip link` and `xdp-loader status` show it.
pub const PROGRAM: &str = "expressway_udp";

pub use attachment::{AttachMode, Attachment, Existing, Keep, attached, interface_name, release_orphans};
pub use balance::{
    Balance, BalanceCounter, BalanceCounts, BalanceListener, BalanceMethod, BalanceName, BalanceNode,
    BalanceOptions, BalanceProtocol, BalanceQuic, BalanceRun, BalanceState, BalanceTraffic,
};
pub use baseline::{Action, Baseline, BaselineCounts, BaselineRun};
pub use capture::{
    CaptureCounts, CaptureFilter, CaptureHook, CaptureLink, CapturePrograms, CaptureSettings, FilterTrial,
    XdpProgram, xdp_program,
};
pub use capture_changes::{ProgramChange, ProgramChanges};
pub use capture_record::{CaptureKind, CaptureRecord};
pub use capture_targets::{CaptureTarget, CaptureVlan};
pub use counters::{Counter, Counters, Verdict};
pub use error::{Error, ForeignProgram, Holder, Interface};
pub use fanout::{FanoutCounts, FanoutEvent, FanoutOptions, FanoutPrograms, FanoutRecord, Turn};
pub use flows::{
    DropCounts, DropKind, FLOW_PATHS, FlowCounts, FlowEntry, FlowKey, FlowOptions, FlowPath, FlowPrograms,
    FlowQueue, FlowTotals,
};
pub use guard::{
    Guard, GuardAddressSets, GuardClassifier, GuardCount, GuardKey, GuardLearned, GuardLearner,
    GuardLearning, GuardLearningCount, GuardLimit, GuardOptions, GuardPayloadSets, GuardPer, GuardPrefix,
    GuardProbe, GuardQuic, GuardQuicCount, GuardRate, GuardReason, GuardRetry, GuardRule, GuardRuleCount,
    GuardSample, GuardSamples, GuardSampling, GuardSamplingCount, GuardSet, GuardSyn, GuardUnknown,
    GuardValueSets,
};
pub use kernel_names::drop_reasons;
pub use live::{LiveCounts, LiveFrames};
pub use redirect::{Options, Redirect, TestRun};
pub use rings::PerfRings;
pub use role::Role;
pub use sockets::{SocketList, SocketRecord, SocketRing};
pub use target::XdpTarget;
pub use xdp_drops::{XdpDrop, last_drops};
