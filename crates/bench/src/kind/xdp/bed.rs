//! The bed in a lab: the lab's veth, a second one for forwarded packets, and a program at the far end that counts arrivals.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::Duration;

use expressway_lab::{Lab, Role};
use serde_json::Value as Json;

use super::{Run, prog_run, tables};
use crate::packet_path::PacketPath;
use crate::peers::{Placeholders, fill};
use crate::process::Logged;
use crate::{BenchError, CLIENT_CORE, SERVER_CORE, cpu, io_error};

/// Polling interval while a program starts.
const LOOK: Duration = Duration::from_millis(2);

/// The frames' destination port.
pub(super) const PORT: u16 = 4433;

/// Bytes of a frame in front of its payload: Ethernet, IPv4 and UDP.
const HEADERS: u64 = 14 + 20 + 8;

/// The second link, server's end first.
const OUT: &str = "server1";
const FAR_END: &str = "client1";

/// The network of the second link, of the range for benchmarks (RFC 2544).
const OUT_ADDRESS: &str = "198.18.64.1/24";
pub(super) const FAR_ADDRESS: &str = "198.18.64.2";
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 64, 2);

/// Destination of packets that are routed back: a host behind the client.
const BEHIND: &str = "198.18.65.1";
const BEHIND_NETWORK: &str = "198.18.65.0/24";

/// The frames' source: another host behind the client, so that it is no address of this machine.
const SOURCE: &str = "198.18.66.1";
pub(super) const SOURCE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 66, 1);

/// A hardware address of no interface here: the kernel drops its packets at the start of the IP layer (PACKET_OTHERHOST in
/// net/ipv4/ip_input.c), and nothing replies.
const SOMEBODY: &str = "02:00:00:00:00:fe";

/// Where packets end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At the interface, or in a packet filter.
    Dropped,
    /// In the kernel, as packets for another host.
    Passed,
    /// Back at their sender.
    Back,
    /// At the far end of the second link.
    Through,
    /// At the far end of the link: only the measured program sends.
    Sent,
}

impl End {
    pub(super) fn named(name: &str) -> Self {
        match name {
            "passed" => Self::Passed,
            "back" => Self::Back,
            "through" => Self::Through,
            "sent" => Self::Sent,
            _ => Self::Dropped,
        }
    }
}

/// Runs of a program by BPF_PROG_TEST_RUN.
pub(super) struct Ran {
    /// The verdict of the last.
    pub(super) verdict: u64,
    /// Of one, on average; the kernel counts in whole nanoseconds.
    pub(super) nanoseconds: f64,
}

/// The bed of one run in a lab.
pub(super) struct VethBed<'a> {
    run: &'a Run<'a>,
    end: End,
    cores: usize,
    /// NAPI threads of interfaces of the far end's name in other labs.
    others: BTreeSet<u32>,
    server_mac: String,
    client_mac: String,
}

/// Counts frames at their end.
pub(super) struct Sink(Logged);

impl Sink {
    /// Frames counted.
    pub(super) fn packets(mut self) -> Result<u64, BenchError> {
        self.0.end()?;
        let report: Json = self.0.read()?;
        let packets = report["packets"].as_u64();
        packets.ok_or_else(|| BenchError::Missing(format!("expressway drop: no packets in {report}")))
    }
}

impl<'a> VethBed<'a> {
    /// Extends the run's lab so that packets reach their end.
    pub(super) fn make(run: &'a Run<'a>, end: End, cores: usize) -> Result<Self, BenchError> {
        let mac = |role: Role| -> Result<String, BenchError> {
            let file = format!("/sys/class/net/{}/address", role.interface());
            Ok(shown(run.lab, role, "cat", &[&file])?.trim().to_owned())
        };
        let (server_mac, client_mac) = (mac(Role::Server)?, mac(Role::Client)?);
        let others = cpu::napi_threads(FAR_END)?;
        let bed = Self { run, end, cores, others, server_mac, client_mac };
        // No route leads back to the frames' source.
        for role in Role::ALL {
            for interface in ["all", "default", role.interface()] {
                sysctl(run.lab, role, &format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
            }
        }
        match end {
            End::Dropped | End::Passed | End::Sent => {}
            End::Back => bed.route_back()?,
            End::Through => bed.add_link()?,
        }
        Ok(bed)
    }

    fn route_back(&self) -> Result<(), BenchError> {
        let (lab, interface) = (self.run.lab, Role::Server.interface());
        let client = lab.addresses(Role::Client).ipv4.to_string();
        self.neighbour(&client, interface)?;
        ip(lab, Role::Server, &format!("route add {BEHIND_NETWORK} via {client} dev {interface}"))?;
        for interface in ["all", interface] {
            // Otherwise it sends ICMP redirects to the source.
            sysctl(lab, Role::Server, &format!("net/ipv4/conf/{interface}/send_redirects"), "0")?;
        }
        Ok(())
    }

    /// The second veth. Its far end has the hardware address of the client's first interface, so that programs that swap
    /// addresses and programs that resolve the neighbour both reach it.
    fn add_link(&self) -> Result<(), BenchError> {
        let lab = self.run.lab;
        let (mac, netns) = (&self.client_mac, lab.config().namespace(Role::Client));
        let size = format!("numrxqueues {0} numtxqueues {0}", self.cores);
        let far_end = format!("{FAR_END} address {mac} {size} netns {netns}");
        ip(lab, Role::Server, &format!("link add {OUT} {size} type veth peer name {far_end}"))?;
        let far = format!("{FAR_ADDRESS}/24");
        for (role, interface, address) in [(Role::Server, OUT, OUT_ADDRESS), (Role::Client, FAR_END, &far)] {
            // Without it, or an XDP program, a veth takes nothing from XDP and has no NAPI instance.
            shown(lab, role, "ethtool", &["-K", interface, "gro", "on"])?;
            ip(lab, role, &format!("link set {interface} up"))?;
            ip(lab, role, &format!("address add {address} dev {interface}"))?;
            sysctl(lab, role, &format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
        }
        let threaded = format!("echo 1 > /sys/class/net/{FAR_END}/threaded");
        shown(lab, Role::Client, "sh", &["-c", &threaded])?;
        self.neighbour(FAR_ADDRESS, OUT)
    }

    fn neighbour(&self, address: &str, interface: &str) -> Result<(), BenchError> {
        let entry = format!("{address} lladdr {} dev {interface} nud permanent", self.client_mac);
        ip(self.run.lab, Role::Server, &format!("neighbour replace {entry}"))
    }

    /// Gives the next hop the hardware address of the server's own interface, so that a program that routes takes again what
    /// it has sent.
    pub(super) fn route_to_itself(&self) -> Result<(), BenchError> {
        let entry = format!("{FAR_ADDRESS} lladdr {} dev {OUT} nud permanent", self.server_mac);
        ip(self.run.lab, Role::Server, &format!("neighbour replace {entry}"))
    }

    /// The hardware addresses of the link's ends.
    pub(super) fn addresses(&self) -> [[u8; 6]; 2] {
        [&self.server_mac, &self.client_mac].map(|text| {
            let mut address = [0; 6];
            for (octet, word) in address.iter_mut().zip(text.split(':')) {
                *octet = u8::from_str_radix(word, 16).unwrap_or_default();
            }
            address
        })
    }

    /// Runs a program on a frame, as if it had come by the server's interface.
    pub(super) fn prog_run(&self, program: u64, frame: &[u8], repeat: u64) -> Result<Ran, BenchError> {
        let (lab, work) = (self.run.lab, &self.run.tools.work);
        let interface = lab.interface(Role::Server);
        let links = json(lab, Role::Server, "ip", &["-json", "link", "show", "dev", interface])?;
        let index = links.pointer("/0/ifindex").and_then(Json::as_u64).unwrap_or_default() as u32;
        let data = prog_run::write(work, "frame", frame)?;
        let context = prog_run::write(work, "context", &prog_run::context(frame.len(), index))?;
        let (program, repeat) = (program.to_string(), repeat.to_string());
        let words = [
            "--json", "prog", "run", "id", &program, "data_in", &data, "ctx_in", &context, "repeat", &repeat,
        ];
        let ran = json(lab, Role::Server, "bpftool", &words)?;
        match (ran["retval"].as_u64(), ran["duration"].as_f64()) {
            (Some(verdict), Some(nanoseconds)) => Ok(Ran { verdict, nanoseconds }),
            _ => Err(BenchError::Missing(format!("bpftool prog run: no duration in {ran}"))),
        }
    }

    /// Sets a path up in the server's namespace, which is removed with the lab.
    pub(super) fn prepare(&self, path: &PacketPath) -> Result<(), BenchError> {
        for (file, value) in &path.sysctl {
            sysctl(self.run.lab, Role::Server, file, value)?;
        }
        let places = self.places("");
        if let Some(program) = &path.tables {
            tables::write(program, self.run.case, &places)?;
        }
        for command in path.prepare(&places) {
            if let Some((program, arguments)) = command.split_first() {
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                shown(self.run.lab, Role::Server, program, &arguments)?;
            }
        }
        Ok(())
    }

    /// Starts what a path runs, if anything, on the server's cores, and waits until it is ready.
    pub(super) fn start(&self, path: &PacketPath, action: &str) -> Result<Option<Logged>, BenchError> {
        start_path(self.run, path, &self.places(action))
    }

    /// Starts what counts packets at their end; `None` where that is not another interface.
    pub(super) fn sink(&self) -> Result<Option<Sink>, BenchError> {
        let interface = match self.end {
            End::Dropped | End::Passed => return Ok(None),
            End::Back | End::Sent => Role::Client.interface(),
            End::Through => FAR_END,
        };
        let program = self.run.tools.expressway.display().to_string();
        let command =
            [&program, "--log-level", "error", "drop", "-i", interface, "--action", "drop", "--json"];
        let command = command.map(str::to_owned);
        let mut process = start(self.run, Role::Client, CLIENT_CORE, "sink", &command, &BTreeMap::new())?;
        wait_until_attached(self.run.lab, &mut process, Role::Client, interface)?;
        let others = if interface == FAR_END { &self.others } else { &self.run.others };
        // With several cores, packets arrive on the core that forwarded them.
        let first = if self.cores > 1 { SERVER_CORE } else { CLIENT_CORE };
        cpu::run_first(&cpu::pin_in_turn(interface, others, first..first + self.cores)?)?;
        Ok(Some(Sink(process)))
    }

    /// Pins the NAPI threads of the far end to the client's core, with priority over what else runs there.
    pub(super) fn pin_far(&self) -> Result<(), BenchError> {
        cpu::run_first(&cpu::pin_in_turn(FAR_END, &self.others, CLIENT_CORE..CLIENT_CORE + 1)?)
    }

    /// Starts a generator on a core: live frames, the cheapest to send on a veth, so that the sender is not the limit.
    pub(super) fn generate(
        &self,
        path: &PacketPath,
        core: usize,
        options: &[(&str, String)],
    ) -> Result<Logged, BenchError> {
        let mac = match self.end {
            End::Passed => SOMEBODY,
            _ if path.switches => &self.client_mac,
            _ => &self.server_mac,
        };
        let mut command = vec![self.run.tools.expressway.display().to_string(), "--log-level".into()];
        command
            .extend(["error", "gen", "udp", "--json", "--io", "live", "--source", SOURCE].map(str::to_owned));
        command.extend(["--interface", Role::Client.interface(), "--to-mac", mac].map(str::to_owned));
        command.extend(["--to".into(), format!("{}:{PORT}", self.destination())]);
        command.extend(options.iter().flat_map(|(option, value)| [(*option).to_owned(), value.clone()]));
        start(self.run, Role::Client, core, &format!("generator-{core}"), &command, &BTreeMap::new())
    }

    /// The frames' destination.
    fn destination(&self) -> String {
        match self.end {
            End::Dropped | End::Passed => self.run.lab.addresses(Role::Server).ipv4.to_string(),
            End::Back => BEHIND.to_owned(),
            End::Through => FAR_ADDRESS.to_owned(),
            End::Sent => self.run.lab.addresses(Role::Client).ipv4.to_string(),
        }
    }

    fn places(&self, action: &str) -> Placeholders {
        let work = self.run.tools.work.display().to_string();
        let size = self.run.case.count("size");
        [
            ("interface", Role::Server.interface().to_owned()),
            ("out", OUT.to_owned()),
            ("next_mac", self.client_mac.clone()),
            ("action", action.to_owned()),
            ("expressway", self.run.tools.expressway.display().to_string()),
            ("io", self.run.tools.io.display().to_string()),
            ("from", self.run.lab.addresses(Role::Server).ipv4.to_string()),
            ("to", self.destination()),
            ("size", size.to_string()),
            ("frame_size", (size + HEADERS).to_string()),
            ("port", PORT.to_string()),
            ("core", SERVER_CORE.to_string()),
            ("lab", self.run.lab.config().name.clone()),
            ("work", work),
        ]
        .into()
    }
}

/// Starts a command at an end of the lab, on a core. `log` names its files.
pub(super) fn start(
    run: &Run<'_>,
    side: Role,
    core: usize,
    log: &str,
    command: &[String],
    environment: &BTreeMap<String, String>,
) -> Result<Logged, BenchError> {
    Logged::start(run.lab, side, core..core + 1, run.tools.work.join(log), command, environment.clone())
}

/// Starts what a path runs, if anything, on the server's cores, and waits until it is ready: it says so, or there is a program
/// on the server's interface.
pub(super) fn start_path(
    run: &Run<'_>,
    path: &PacketPath,
    places: &Placeholders,
) -> Result<Option<Logged>, BenchError> {
    let command = path.run(places);
    if command.is_empty() {
        return Ok(None);
    }
    let filled = |(name, value): (&String, &String)| (name.clone(), fill(value, places));
    let environment = path.environment.iter().map(filled).collect();
    let mut process = start(run, Role::Server, SERVER_CORE, "path", &command, &environment)?;
    match &path.ready {
        Some(ready) => {
            process.wait_until(ready, LOOK, &|process| Ok(process.output().contains(ready.as_str())))?
        }
        None => wait_until_attached(run.lab, &mut process, Role::Server, run.lab.interface(Role::Server))?,
    }
    Ok(Some(process))
}

fn wait_until_attached(
    lab: &Lab,
    process: &mut Logged,
    role: Role,
    interface: &str,
) -> Result<(), BenchError> {
    let attached = |_: &Logged| Ok(program_on(lab, role, interface)?.is_some());
    process.wait_until("a program on the interface", LOOK, &attached)
}

/// The number of the XDP program on an interface, if there is one.
pub(super) fn program_on(lab: &Lab, role: Role, interface: &str) -> Result<Option<u64>, BenchError> {
    let links = json(lab, role, "ip", &["-json", "link", "show", "dev", interface])?;
    Ok(links.pointer("/0/xdp/prog/id").and_then(Json::as_u64))
}

/// Packets that a side's interface has received, those that a program dropped included as its driver counts them.
pub(super) fn received(lab: &Lab, side: Role) -> Result<u64, BenchError> {
    let file = format!("/sys/class/net/{}/statistics/rx_packets", lab.interface(side));
    let text = shown(lab, side, "cat", &[&file])?;
    text.trim().parse().map_err(|error| BenchError::Missing(format!("{file}: {error}")))
}

/// Sets a file below `/proc/sys` in a namespace: never the machine's own. A leading `-` marks an optional one.
fn sysctl(lab: &Lab, role: Role, file: &str, value: &str) -> Result<(), BenchError> {
    let path = format!("/proc/sys/{}", file.trim_start_matches('-'));
    let written = lab.run(role, || std::fs::write(&path, value))?;
    match written {
        Err(error) if error.kind() == ErrorKind::NotFound && file.starts_with('-') => Ok(()),
        written => written.map_err(io_error(format!("{role}: {path}"))),
    }
}

fn ip(lab: &Lab, role: Role, words: &str) -> Result<(), BenchError> {
    shown(lab, role, "ip", &words.split_whitespace().collect::<Vec<_>>()).map(drop)
}

/// Runs a program in a namespace and reads its JSON.
pub(super) fn json(lab: &Lab, role: Role, program: &str, arguments: &[&str]) -> Result<Json, BenchError> {
    let text = shown(lab, role, program, arguments)?;
    serde_json::from_str(&text).map_err(|error| BenchError::Missing(format!("{program}: {error} in {text}")))
}

/// Runs a program in a namespace and gives its output.
fn shown(lab: &Lab, role: Role, program: &str, arguments: &[&str]) -> Result<String, BenchError> {
    let output = lab.command(role, program).args(arguments).output().map_err(io_error(program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(BenchError::Missing(format!("{program} {}: {}", words(&arguments.join(" ")), words(&said))))
}
