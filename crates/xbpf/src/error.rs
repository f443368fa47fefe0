//! BPF errors: what failed, for which object, and what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// An interface as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Kernel index in the network namespace of the caller.
    pub index: u32,
    /// Name at the time of the call; empty if the index had none.
    pub name: String,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "interface index {}", self.index),
            name => write!(f, "interface {name}"),
        }
    }
}

/// How an XDP program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Held by a bpf_link of this id: only the link's holder can detach it.
    Link(u32),
    /// Set through netlink (`ip link set xdp`, a libxdp dispatcher): stays until someone clears it.
    Netlink,
    /// One of the two; CAP_SYS_ADMIN is needed to tell which.
    Unknown,
}

/// An XDP program on an interface that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignProgram {
    /// Kernel-wide program id.
    pub id: u32,
    /// Name as loaded, at most 15 characters; empty if it has none or could not be read.
    pub name: String,
    /// How it is attached.
    pub holder: Holder,
}

impl fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "without a name" } else { &self.name };
        write!(f, "program {name} (id {})", self.id)?;
        match self.holder {
            Holder::Link(id) => write!(f, ", held by bpf_link {id}"),
            Holder::Netlink => write!(f, ", set by netlink"),
            Holder::Unknown => Ok(()),
        }
    }
}

/// Capabilities for loading and attaching. CAP_PERFMON because the verifier allows packet access at computed
/// offsets only with it (`bypass_spec_v1` in kernel/bpf/verifier.c).
pub(crate) const CAPABILITIES: &str = "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";

/// Why loading, attaching or using the BPF programs failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process may not use BPF.
    #[error("{action}: not permitted; run as root or with {needed}")]
    NotPermitted {
        /// What was tried.
        action: String,
        /// The capabilities needed.
        needed: &'static str,
    },
    /// The kernel refused the program or a map. The verifier's log is in the trace.
    #[error("XDP program: load failed: {source}; needs Linux 5.18 or newer with BPF and AF_XDP")]
    Load {
        /// What libbpf reported.
        source: libbpf_rs::Error,
    },
    /// The kernel refused the programs that forward a feed, or their maps. The verifier's log is in the trace.
    #[error(
        "forwarding in the kernel: load failed: {source}; needs Linux 6.6 or newer with BTF and \
         CONFIG_BPF_STREAM_PARSER, or use --mode user"
    )]
    FanoutLoad {
        /// What libbpf reported.
        source: libbpf_rs::Error,
    },
    /// A program that forwards a feed cannot be attached.
    #[error("forwarding in the kernel: {place}: {source}; use --mode user")]
    FanoutAttach {
        /// Interface or cgroup, and which hook.
        place: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A program that captures packets cannot be loaded or attached.
    #[error("{hook}: {source}{}", match source.kind() {
        // EPERM; EACCES is the verifier's.
        libbpf_rs::ErrorKind::PermissionDenied if source.to_string().contains("(os error 1)") => "; a security policy of this kernel refuses such programs, even to root",
        libbpf_rs::ErrorKind::NotFound => "; this kernel has no such function",
        _ => "",
    })]
    Capture {
        /// Where it was to be attached.
        hook: &'static str,
        /// What libbpf reported.
        source: libbpf_rs::Error,
    },
    /// The program that learns sources cannot be attached.
    #[error(
        "learning sources by the tracepoint inet_sock_set_state: {source}; needs Linux 5.14 or newer with BTF"
    )]
    Learn {
        /// What libbpf reported.
        source: libbpf_rs::Error,
    },
    /// The object of the capture programs has no room for a filter where it should.
    #[error("filter: {length} instructions; at most {room} fit")]
    FilterLength {
        /// Instructions.
        length: usize,
        /// The most there can be.
        room: usize,
    },
    /// Buffers for captured packets could not be made.
    #[error("capture buffers: {source}; try a smaller buffer")]
    Buffers {
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no such interface in the caller's network namespace.
    #[error("{interface}: no such interface in this network namespace")]
    NoInterface {
        /// The interface asked for.
        interface: Interface,
    },
    /// Another XDP program is on the interface, and `Existing::Refuse` was asked for, or it can't be
    /// replaced.
    #[error("{interface}: already has another XDP {program}; {}", match program.holder {
        // As another server attaches it.
        Holder::Link(_) if program.name == crate::PROGRAM => "another expressway process uses this interface: stop it, or \
            start both with `[io] dispatcher = \"always\"` and each with its own `[io] queues`",
        Holder::Link(_) => "a bpf_link cannot be replaced: stop the process that holds it",
        Holder::Netlink | Holder::Unknown => "remove it with `ip link set dev … xdp off`, or replace it with --replace",
    })]
    Foreign {
        /// The interface asked for.
        interface: Interface,
        /// What is there.
        program: ForeignProgram,
    },
    /// The interface is in use in a way that queries do not show.
    #[error("{interface}: busy: another XDP program was attached or detached at the same time; try again")]
    Busy {
        /// The interface asked for.
        interface: Interface,
    },
    /// The driver has no native XDP.
    #[error(
        "{interface}: the driver does not support native XDP; use generic XDP (--io generic) or --io udp"
    )]
    NoNativeXdp {
        /// The interface asked for.
        interface: Interface,
    },
    /// The device does not offload XDP programs.
    #[error(
        "{interface}: the device does not support XDP offload; use `attach = \"native\"` or leave it out"
    )]
    NoOffload {
        /// The interface asked for.
        interface: Interface,
    },
    /// The driver lacks queues for XDP. On veth: fewer RX queues than the peer has TX queues.
    #[error(
        "{interface}: not enough queues for XDP: on veth give it as many RX queues as its peer has TX \
         queues (`ethtool -L … rx N`), elsewhere lower the channel count (`ethtool -L … combined N`)"
    )]
    TooFewQueues {
        /// The interface asked for.
        interface: Interface,
    },
    /// The MTU (on veth: the peer's) is beyond what the driver runs XDP with.
    #[error("{interface}: the MTU is too large for the driver's XDP; lower it (on veth: the peer's)")]
    MtuTooLarge {
        /// The interface asked for.
        interface: Interface,
    },
    /// Attaching failed for another reason.
    #[error("{interface}: attaching the XDP program in {mode} mode: {source}")]
    Attach {
        /// The interface asked for.
        interface: Interface,
        /// `native`, `generic` or `offload`.
        mode: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Asking the kernel about an interface, program or link failed.
    #[error("{interface}: {action}: {source}")]
    Query {
        /// The interface asked about.
        interface: Interface,
        /// What was asked.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program of an interface can't be kept for the time after this process, or taken over from one before.
    #[error("{interface}: pinning the XDP program: {source}")]
    Pin {
        /// The interface asked for.
        interface: Interface,
        /// Why.
        source: io::Error,
    },
    /// The flow tables can't be kept for the time after this process.
    #[error("pinning the flow tables: {source}")]
    PinTables {
        /// Why.
        source: io::Error,
    },
    /// The XDP dispatcher of an interface can't be read, made or changed.
    #[error("{interface}: XDP dispatcher: {what}: {source}")]
    Dispatcher {
        /// The interface asked for.
        interface: Interface,
        /// What could not be done, or with what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel cannot load extension programs, which a dispatcher's components are.
    #[error(
        "XDP dispatcher: a security policy of this kernel refuses extension programs (BPF_PROG_TYPE_EXT), even to \
         root; use `[io] dispatcher = \"never\"`"
    )]
    NoExtensions,
    /// The pair has a wildcard address or port.
    #[error("{pair}: a wildcard cannot be redirected: list the interface's addresses individually")]
    Wildcard {
        /// The pair asked for.
        pair: SocketAddr,
    },
    /// The pairs map is full.
    #[error(
        "{pair}: all {limit} (address, port) pairs are in use; raise the limit or listen on fewer addresses"
    )]
    PairLimit {
        /// The pair that did not fit.
        pair: SocketAddr,
        /// How many fit.
        limit: u32,
    },
    /// Reading or writing a map failed.
    #[error("BPF map {map}: {source}")]
    Map {
        /// The map's name.
        map: &'static str,
        /// What libbpf reported.
        source: libbpf_rs::Error,
    },
    /// A map's content does not have the expected layout.
    #[error("BPF map {map}: content does not match its header in bpf/include")]
    Layout {
        /// The map's name.
        map: &'static str,
    },
    /// A test run failed.
    #[error("BPF_PROG_TEST_RUN on a frame of {length} bytes: {source}")]
    TestRun {
        /// Length of the frame.
        length: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Live frames could not be sent.
    #[error("{interface}: live frames: {source}; needs Linux 5.18 or newer")]
    Live {
        /// The interface to send by.
        interface: Interface,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused the programs that observe, or what they attach to.
    #[error("observing: {what}: {source}; needs Linux 5.18 or newer with BTF")]
    Observe {
        /// Which program or hook.
        what: String,
        /// What libbpf reported.
        source: libbpf_rs::Error,
    },
    /// The XDP program on an interface has no type information, so that it cannot be traced.
    #[error("{interface}: XDP program {name} (id {id}) has no BTF, so it cannot be traced")]
    NoTypes {
        /// The interface.
        interface: Interface,
        /// The program's id.
        id: u32,
        /// Its name.
        name: String,
    },
    /// The kernel broke off a listing.
    #[error("listing {what}: {source}")]
    List {
        /// Of what.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file descriptor could not be duplicated.
    #[error("duplicating a BPF file descriptor: {source}; raise the open file limit (RLIMIT_NOFILE)")]
    Descriptor {
        /// The kernel's answer.
        source: io::Error,
    },
}
