//! Creates, removes, describes and enters labs.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::address::Addresses;
use crate::command::run;
use crate::config::{LabConfig, Offload, Role, Target, check_name, lab_of_namespace, namespace_name};
use crate::error::LabError;
use crate::{device, namespace, napi, processes, state};

/// The time for a link to get its carrier: a NIC negotiates for some seconds.
const CARRIER: Duration = Duration::from_secs(5);

/// A lab that is up.
///
/// Dropping it leaves it up: a lab outlives the process that made it until [`Lab::down`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lab {
    config: LabConfig,
    host: Option<Host>,
}

/// An interface of this host that stands in for a lab's server end; the client's end is on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The interface here.
    pub interface: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The interface there.
    pub far_interface: String,
    /// Its address.
    pub far_address: Ipv4Addr,
}

/// What [`Lab::down`] found and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Namespaces removed: 2 for a whole lab, 0 where there was none.
    pub namespaces: usize,
    /// Processes that were still running inside and were ended.
    pub processes: usize,
}

/// A lab as found in the kernel.
#[derive(Clone, Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub name: String,
    /// Both namespaces are there and the lab was finished. False is what a killed run leaves: the next
    /// `up` or `down` cleans it.
    pub complete: bool,
    /// Its configuration, if known.
    pub config: Option<LabConfig>,
    /// Its namespaces, server first.
    pub namespaces: Vec<NamespaceStatus>,
}

/// One namespace of a lab as found in the kernel.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceStatus {
    /// Which one.
    pub role: Role,
    /// Its name in `ip netns list`.
    pub namespace: String,
    /// Its veth end.
    pub interface: &'static str,
    /// Its addresses, where the configuration is known.
    pub addresses: Option<Addresses>,
    /// The processes that run inside.
    pub processes: Vec<u32>,
}

impl Lab {
    /// Makes a lab. What a killed run left under the same name is removed first; a finished lab of that
    /// name is an error. If a step fails, the steps before it are undone.
    pub fn up(config: LabConfig) -> Result<Self, LabError> {
        config.check()?;
        require_root()?;
        let _lock = state::Lock::take()?;
        if describe(&config.name)?.is_some_and(|status| status.complete) {
            return Err(LabError::AlreadyUp(config.name));
        }
        remove(&config.name)?;
        if let Err(error) = build(&config) {
            if let Err(second) = remove_made(&config.name, Some(&config)) {
                tracing::warn!(error = %second, "cannot clean up an incomplete lab");
            }
            return Err(error);
        }
        Ok(Self { config, host: None })
    }

    /// Uses an interface of this host: nothing is created, changed or removed, and programs run beside all others.
    pub fn on_host(host: Host) -> Self {
        Self { config: LabConfig::default(), host: Some(host) }
    }

    /// The lab of this name, which has to be up.
    pub fn open(name: &str) -> Result<Self, LabError> {
        check_name(name)?;
        let status = describe(name)?.filter(|status| status.complete);
        let config = status.and_then(|status| status.config);
        config.map(|config| Self { config, host: None }).ok_or_else(|| LabError::NotUp(name.to_owned()))
    }

    /// Removes a lab and everything in it, and ends the processes that run inside (SIGTERM, after five
    /// seconds SIGKILL). Without such a lab it does nothing.
    pub fn down(name: &str) -> Result<Removed, LabError> {
        check_name(name)?;
        require_root()?;
        let _lock = state::Lock::take()?;
        remove(name)
    }

    /// All labs on this machine by name, incomplete ones included.
    pub fn status() -> Result<Vec<LabStatus>, LabError> {
        let namespaces = namespace::list()?;
        let mut names: Vec<&str> =
            namespaces.iter().filter_map(|name| lab_of_namespace(name)).map(|(lab, _)| lab).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().filter_map(|name| describe(name).transpose()).collect()
    }

    /// Replaces this process by `program` in the namespace of `target`; returns only if that fails.
    ///
    /// So the exit code and signals are the program's own. It sees a `/sys` of that namespace.
    pub fn exec<S: AsRef<OsStr>>(target: &Target, program: &[S]) -> LabError {
        if program.is_empty() {
            return LabError::Config("exec: give a command after `--`".to_owned());
        }
        let lab = match require_root().and_then(|()| Self::open(&target.lab)) {
            Ok(lab) => lab,
            Err(error) => return error,
        };
        let mut command = lab.command(target.role, &program[0]);
        let source = command.args(&program[1..]).exec();
        LabError::MissingProgram { program: "ip", package: "iproute2", source }
    }

    /// A command that runs `program` in the namespace of `role`. The child's process ID is the
    /// program's: `ip netns exec` replaces itself.
    ///
    /// # Panics
    /// For the client of a [`Host`], which is elsewhere.
    pub fn command(&self, role: Role, program: impl AsRef<OsStr>) -> Command {
        if self.host.is_some() {
            assert_eq!(role, Role::Server, "the client's end is on another host");
            return Command::new(program);
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.config.namespace(role)]).arg(program);
        command
    }

    /// Runs `work` on a thread of its own inside the namespace of `role` and returns what it returns.
    /// Sockets created in it may be returned and keep working in the namespace.
    pub fn run<T: Send>(&self, role: Role, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        match &self.host {
            Some(_) => Ok(work()),
            None => namespace::run(&self.config.namespace(role), work),
        }
    }

    /// Takes the veth end of `role` down, or brings it up. Going down removes its IPv6 addresses and ends
    /// its NAPI threads; coming up restores both.
    pub fn set_link(&self, role: Role, up: bool) -> Result<(), LabError> {
        let _lock = state::Lock::take()?;
        if up {
            return bring_up(&self.config, role);
        }
        let namespace = self.config.namespace(role);
        run("ip", &format!("-n {namespace} link set {} down", role.interface())).map(drop)
    }

    /// How it was made.
    pub fn config(&self) -> &LabConfig {
        &self.config
    }

    /// The addresses of `role`.
    pub fn addresses(&self, role: Role) -> Addresses {
        let made = Addresses::of(&self.config, role);
        match (&self.host, role) {
            (None, _) => made,
            (Some(host), Role::Server) => Addresses { ipv4: host.address, ..made },
            (Some(host), Role::Client) => Addresses { ipv4: host.far_address, ..made },
        }
    }

    /// The interface of this host that it stands on, if it does.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// The interface of `role`.
    pub fn interface(&self, role: Role) -> &str {
        match (&self.host, role) {
            (None, _) => role.interface(),
            (Some(host), Role::Server) => &host.interface,
            (Some(host), Role::Client) => &host.far_interface,
        }
    }
}

fn require_root() -> Result<(), LabError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

/// What exists of the lab `name`; `None` if nothing does.
fn describe(name: &str) -> Result<Option<LabStatus>, LabError> {
    let present = namespace::list()?;
    let config = state::load(name);
    let mut namespaces = Vec::new();
    for role in Role::ALL {
        let namespace = namespace_name(name, role);
        if !present.contains(&namespace) {
            continue;
        }
        let addresses = config.as_ref().map(|config| Addresses::of(config, role));
        let processes = match processes::inside(&namespace) {
            // Nothing holds the lock here: it may have been removed since.
            Err(LabError::Command { output, .. }) if output.contains("No such file or directory") => continue,
            processes => processes?,
        };
        namespaces.push(NamespaceStatus {
            role,
            namespace,
            interface: role.interface(),
            addresses,
            processes,
        });
    }
    if namespaces.is_empty() {
        return Ok(None);
    }
    let complete = namespaces.len() == Role::ALL.len() && config.is_some();
    Ok(Some(LabStatus { name: name.to_owned(), complete, config, namespaces }))
}

/// Removes whatever exists of a lab. The caller holds the lock.
fn remove(name: &str) -> Result<Removed, LabError> {
    remove_made(name, state::load(name).as_ref())
}

/// The same for a lab with a known configuration.
fn remove_made(name: &str, config: Option<&LabConfig>) -> Result<Removed, LabError> {
    // First, so that a removal that is cut short leaves a lab that counts as unfinished.
    state::forget(name)?;
    let present = namespace::list()?;
    let mut removed = Removed::default();
    for role in Role::ALL {
        let namespace = namespace_name(name, role);
        if !present.contains(&namespace) {
            continue;
        }
        match processes::end(&namespace)? {
            Ok(ended) => removed.processes += ended,
            Err(pids) => return Err(LabError::Survivors { name: name.to_owned(), pids }),
        }
        if let Some(device) = config.and_then(|config| config.device(role))
            && let Err(error) = device::give_back(&namespace, role, device)
        {
            // It may not have come that far; the kernel gives back what is still inside.
            tracing::debug!(%error, "no device to return");
        }
        // Now, and not when the namespace's last user is gone: a socket elsewhere may still hold it. The
        // peer end goes with it, so the second time there is none.
        if let Err(error) = run("ip", &format!("-n {namespace} link del {}", role.interface())) {
            tracing::debug!(%error, "no veth to remove");
        }
        run("ip", &format!("netns del {namespace}"))?;
        removed.namespaces += 1;
    }
    Ok(removed)
}

fn build(config: &LabConfig) -> Result<(), LabError> {
    let [server, client] = Role::ALL.map(|role| config.namespace(role));
    let [server0, client0] = Role::ALL.map(Role::interface);
    for namespace in [&server, &client] {
        run("ip", &format!("netns add {namespace}"))?;
    }
    if config.devices.is_some() {
        return device::build(config);
    }
    // Both ends with the same number: an XDP program is refused (ENOSPC) where the peer has more transmit
    // queues than this end has receive queues. Both are born inside their namespaces.
    let (queues, mtu) = (config.queues, config.mtu);
    let size = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
    run(
        "ip",
        &format!("-n {server} link add {server0} {size} type veth peer name {client0} {size} netns {client}"),
    )?;
    for role in Role::ALL {
        set_offloads(config, role)?;
        add_vlan(config, role)?;
    }
    if config.queue_limit > 0 {
        let limit = config.queue_limit;
        run("tc", &format!("-n {server} qdisc replace dev {server0} root pfifo limit {limit}"))?;
    }
    finish(config)
}

/// Brings the lab up and records it.
pub(crate) fn finish(config: &LabConfig) -> Result<(), LabError> {
    for role in Role::ALL {
        bring_up(config, role)?;
    }
    await_carrier(config)?;
    state::save(config)
}

/// Waits until the kernel has seen that there is a carrier: until then it drops what is sent (linkwatch_do_dev in
/// net/core/link_watch.c). A cable that isn't there is no fault of the lab's.
fn await_carrier(config: &LabConfig) -> Result<(), LabError> {
    let deadline = Instant::now() + CARRIER;
    for role in Role::ALL {
        let show = format!("-n {} -oneline link show {}", config.namespace(role), role.interface());
        while !run("ip", &show)?.contains(" state UP ") && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn set_offloads(config: &LabConfig, role: Role) -> Result<(), LabError> {
    let (namespace, interface) = (config.namespace(role), role.interface());
    let ethtool = |features: String| {
        run("ip", &format!("netns exec {namespace} ethtool -K {interface} {features}")).map(drop)
    };
    // Without `gro on` (or an XDP program) at the receiving end, a veth drops what XDP_TX and redirects
    // send to it, and has no NAPI instance that could get a thread.
    ethtool("gro on".to_owned())?;
    if config.vlan.is_some() {
        // Otherwise the tag travels beside the packet, where an XDP program does not see it.
        ethtool("rxvlan off txvlan off".to_owned())?;
    }
    if config.napi_core(role.peer()).is_some() {
        // A veth takes what an end with TCP segmentation sends past the other end's NAPI instance
        // (veth_skb_is_eligible_for_gro in drivers/net/veth.c), so that the sender's core would receive it.
        ethtool("tso off".to_owned())?;
    }
    match role {
        Role::Server => udp_segmentation(config),
        Role::Client if config.client_checksum == Offload::Off => ethtool("tx off".to_owned()),
        Role::Client => Ok(()),
    }
}

/// Whether UDP datagrams leave the server in one piece for all of a burst. A veth of before Linux 5.13 has no say in that.
pub(crate) fn udp_segmentation(config: &LabConfig) -> Result<(), LabError> {
    let (namespace, interface) = (config.namespace(Role::Server), Role::Server.interface());
    let wanted = format!("tx-udp-segmentation {}", config.udp_segmentation);
    match run("ip", &format!("netns exec {namespace} ethtool -K {interface} {wanted}")) {
        Err(LabError::Command { output, .. }) if output.contains("Could not change any device features") => {
            Ok(())
        }
        result => result.map(drop),
    }
}

fn add_vlan(config: &LabConfig, role: Role) -> Result<(), LabError> {
    let Some(id) = config.vlan else { return Ok(()) };
    let (namespace, interface) = (config.namespace(role), role.interface());
    let link = format!("link add link {interface} name {interface}.{id} type vlan id {id}");
    match run("ip", &format!("-n {namespace} {link}")) {
        Err(LabError::Command { output, .. }) if output.contains("Unknown device type") => {
            Err(LabError::Unsupported("VLAN interfaces (CONFIG_VLAN_8021Q)"))
        }
        other => other.map(drop),
    }
}

/// Brings the interfaces of `role` up, gives them their addresses and pins their NAPI threads.
fn bring_up(config: &LabConfig, role: Role) -> Result<(), LabError> {
    let (namespace, interface) = (config.namespace(role), role.interface());
    let others = match config.device(role) {
        // A device keeps its threads from lab to lab.
        Some(_) => napi::Others::none(),
        None => napi::Others::of(role)?,
    };
    run("ip", &format!("-n {namespace} link set lo up"))?;
    run("ip", &format!("-n {namespace} link set {interface} up"))?;
    if let Some(id) = config.vlan {
        run("ip", &format!("-n {namespace} link set {interface}.{id} up"))?;
    }
    add_addresses(config, role)?;
    match config.napi_core(role) {
        Some(core) => napi::pin(&namespace, role, core, &others),
        None => Ok(()),
    }
}

/// Gives the interfaces their addresses; those that they have already stay.
fn add_addresses(config: &LabConfig, role: Role) -> Result<(), LabError> {
    let (namespace, interface) = (config.namespace(role), role.interface());
    let addresses = Addresses::of(config, role);
    let vlan = config.vlan.map(|id| format!("{interface}.{id}"));
    let vlan = vlan.as_deref().unwrap_or(interface);
    let v4 =
        [(interface, Some(addresses.ipv4)), (interface, addresses.second_ipv4), (vlan, addresses.vlan_ipv4)];
    for (device, address) in v4 {
        if let Some(address) = address {
            run("ip", &format!("-n {namespace} addr replace {address}/24 dev {device}"))?;
        }
    }
    let v6 =
        [(interface, Some(addresses.ipv6)), (interface, addresses.second_ipv6), (vlan, addresses.vlan_ipv6)];
    for (device, address) in v6 {
        if let Some(address) = address {
            // Duplicate address detection would hold the address back for a second.
            run("ip", &format!("-n {namespace} addr replace {address}/64 dev {device} nodad"))?;
        }
    }
    Ok(())
}
