//! `expressway gen`: datagrams on a schedule.

mod addresses;
mod live;
mod report;
mod route;

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use expressway_dataplane::{Config, DataPath, IoConfig, IoMode, Maintainer, Provider, UdpSend, WorkerIo};
use expressway_feed::generate::{
    Capture, Content, Flows, Outcome, Output, Pace, PacketOutput, Payload, Plan, Progress, Run, Schedule,
};
use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{MAX_PAYLOAD, SendOptions, UdpConfig};
use expressway_wire::UdpHeaders;
use expressway_xbpf::LiveFrames;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::generate::{Io, Kind, Udp};
use crate::fail::Failure;

use live::LiveOutput;
use route::Route;

/// Flows that are sockets of the kernel: as many as the redirect program has pairs.
const SOCKETS: u32 = 1024;

/// Hop limit of multicast that nothing is said about (RFC 1112, section 6.1).
const MULTICAST_TTL: u8 = 1;

/// An output with what it needs to live, and the mode it obtained.
struct Opened {
    output: Box<dyn Output>,
    mode: String,
    _maintainer: Option<Maintainer>,
}

/// Generates.
pub(crate) fn run(kind: &Kind) -> Result<ExitCode, Failure> {
    let Kind::Udp(arguments) = kind;
    check(arguments).map_err(Failure::usage)?;
    crate::limits::raise_file_limit();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::run_time(format!("signal handlers: {error}")))?;
    }
    let provider = Provider::agent_or_own(arguments.agent.as_deref(), "gen")?;
    let (mirror, route) = provider.persist(|| -> Result<_, Failure> {
        let mirror = provider.mirror()?;
        let route = route::find(arguments, &mirror)?;
        Ok((mirror, route))
    })?;
    let largest = largest(arguments, &route)?;
    let flows = flows(arguments, &route)?;
    let content = content(arguments, largest)?;
    let nanoseconds = u64::try_from(arguments.seconds.as_nanos()).unwrap_or(u64::MAX);
    let count = arguments.count.unwrap_or(u64::MAX);
    let mut plan = Plan::new(flows.clone(), content, nanoseconds, count).map_err(Failure::run_time)?;
    let mut opened = open(arguments, provider, mirror, &route, &flows, largest)?;
    let before = report::cpu_time();
    let outcome = send(arguments, &mut plan, opened.output.as_mut(), &stop)?;
    let report = report::Report {
        arguments,
        flows: &flows,
        mode: &opened.mode,
        interface: route.interface.as_ref().map(|link| link.name.as_str()),
        tally: opened.output.tally(),
        capture: plan.capture_stats(),
        cpu: report::cpu_time().saturating_sub(before),
        outcome: &outcome,
    };
    report.print()?;
    let failed = arguments.strict && !report.problems().is_empty();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Sends the plan, with a line a second on a terminal.
fn send(
    arguments: &Udp,
    plan: &mut Plan,
    output: &mut dyn Output,
    stop: &AtomicBool,
) -> Result<Outcome, Failure> {
    let show = std::io::stderr().is_terminal();
    let run = Run {
        plan,
        output,
        late: arguments.late,
        spin: !arguments.no_spin,
        duration: arguments.seconds,
        echoes: arguments.round_trip.then_some(arguments.linger.0),
        stop,
        observe: &mut |progress: Progress| {
            if show {
                let seconds = progress.elapsed.as_secs_f64();
                eprint!("\r{seconds:.0} s: {} sent, {} late ", progress.sent, progress.late);
            }
        },
    };
    let outcome = run.run();
    if show {
        eprint!("\r\x1b[K");
    }
    outcome.map_err(Failure::run_time)
}

/// What the command line says that cannot be.
fn check(arguments: &Udp) -> Result<(), String> {
    let live = arguments.io == Io::Live;
    let multicast = arguments.to.ip().is_multicast();
    if arguments.to.ip().is_unspecified() || arguments.to.port() == 0 {
        return Err(format!("--to {}: needs a specific address and port", arguments.to));
    }
    if arguments.burst == 0 || arguments.count == Some(0) {
        return Err("--burst and --count: must be at least 1".into());
    }
    if arguments.pcap.is_none() && (arguments.speed.is_some() || arguments.stamp) {
        return Err("--speed and --stamp need --pcap".into());
    }
    if !live && arguments.flows > SOCKETS {
        return Err(format!(
            "--flows {}: at most {SOCKETS} with --io {}, which needs a socket per flow; --io live does not",
            arguments.flows, arguments.io
        ));
    }
    if !live && let Some(range) = arguments.source.iter().find(|source| source.count > 1) {
        return Err(format!(
            "--source of {} addresses: a range needs --io live; sockets send only from addresses of this machine",
            range.count
        ));
    }
    if !live && arguments.source_file.is_some() {
        return Err("--source-file needs --io live; sockets send only from addresses of this machine".into());
    }
    if arguments.to_file.is_some() && (arguments.to_mac.is_none() || multicast) {
        return Err(
            "--to-file needs --to-mac, and --to to be no multicast group: frames have one next hop".into()
        );
    }
    if !live && arguments.to_mac.is_some() {
        return Err("--to-mac needs --io live".into());
    }
    if live && arguments.round_trip {
        return Err("--round-trip: --io live receives nothing; use udp or copy".into());
    }
    if live && arguments.agent.is_some() {
        return Err("--agent: not available with --io live; use --io udp or copy".into());
    }
    if !live && !multicast && arguments.interface.is_some() {
        return Err("--interface is for multicast groups and --io live; otherwise the route decides".into());
    }
    if arguments.round_trip && multicast {
        return Err("--round-trip: a multicast group does not answer".into());
    }
    if arguments.round_trip && arguments.pcap.is_some() && !arguments.stamp {
        return Err("--round-trip with --pcap: needs --stamp to identify returned datagrams".into());
    }
    if arguments.fragment && arguments.io != Io::Mode(IoMode::Udp) {
        return Err(format!("--fragment: only the kernel fragments; use --io udp, not {}", arguments.io));
    }
    Ok(())
}

/// The longest payload that may be sent.
fn largest(arguments: &Udp, route: &Route) -> Result<usize, Failure> {
    let whole = route.largest(&arguments.to);
    let most = if arguments.fragment { MAX_PAYLOAD } else { whole };
    if arguments.pcap.is_some() {
        return Ok(most);
    }
    let wanted = arguments.size.largest();
    if wanted > most {
        let name = route.interface.as_ref().map_or("the path", |link| &link.name);
        return Err(Failure::usage(format!(
            "--size {}: larger than the MTU of {name} ({}), which leaves {most} bytes; with --fragment the kernel \
             fragments larger ones",
            arguments.size, route.mtu
        )));
    }
    Ok(wanted)
}

fn flows(arguments: &Udp, route: &Route) -> Result<Flows, Failure> {
    let mut sources: Vec<IpAddr> = arguments.source.iter().flat_map(|sources| sources.addresses()).collect();
    sources.extend(addresses::read(arguments.source_file.as_deref(), "--source-file")?);
    let destinations = addresses::read(arguments.to_file.as_deref(), "--to-file")?;
    if sources.is_empty() {
        sources.push(route.source);
    }
    Flows::new(
        sources,
        arguments.source_port,
        (arguments.to, arguments.to_ports),
        arguments.flows,
        arguments.flow_burst,
    )
    .and_then(|flows| flows.with_destinations(destinations))
    .map_err(|problem| Failure::usage(format!("--flows: {problem}")))
}

fn content(arguments: &Udp, largest: usize) -> Result<Content, Failure> {
    if let Some(file) = &arguments.pcap {
        let capture =
            Capture::open(file, arguments.speed.unwrap_or(1.0), largest).map_err(Failure::run_time)?;
        return Ok(Content::Replayed { capture: Box::new(capture), stamp: arguments.stamp });
    }
    let Some(rate) = arguments.rate else { return Err(Failure::usage("missing --rate PPS")) };
    let pace = if arguments.poisson { Pace::Poisson } else { Pace::Even };
    Ok(Content::Made {
        schedule: Schedule::new(pace, rate.0, arguments.burst, arguments.seed),
        sizes: arguments.size,
        payload: Payload::new(arguments.payload, largest, arguments.seed),
        seed: arguments.seed,
    })
}

fn open(
    arguments: &Udp,
    provider: Provider,
    mirror: RouteMirror,
    route: &Route,
    flows: &Flows,
    largest: usize,
) -> Result<Opened, Failure> {
    let mode = match arguments.io {
        Io::Mode(mode) => mode,
        Io::Live => {
            let path = *route::path_of(route, arguments.io, &arguments.to)?;
            let longest = live::header_length(&path, &flows.flow(0)) + largest.min(LiveFrames::MAX_FRAME);
            if longest > LiveFrames::MAX_FRAME && arguments.pcap.is_none() {
                return Err(Failure::usage(format!(
                    "--size {}: live frames are limited to {} bytes including headers; use --io copy",
                    arguments.size,
                    LiveFrames::MAX_FRAME
                )));
            }
            let longest = longest.min(LiveFrames::MAX_FRAME);
            let frames = LiveFrames::open(path.ifindex, longest).map_err(Failure::run_time)?;
            let usual =
                if arguments.to.ip().is_multicast() { MULTICAST_TTL } else { UdpHeaders::DEFAULT_TTL };
            let ttl = arguments.ttl.unwrap_or(usual);
            let name =
                mirror.snapshot().link(path.ifindex).map_or_else(String::new, |link| link.name.clone());
            let output = Box::new(LiveOutput::new(frames, path, ttl, flows.count(), &name));
            return Ok(Opened { output, mode: "live".into(), _maintainer: None });
        }
    };
    drop(mirror);
    let config = path_config(arguments, mode, route, flows.sources().collect());
    let (path, mut ios) = DataPath::open(config, provider, 1)?;
    let (output, by): (Box<dyn Output>, _) = match ios.remove(0) {
        WorkerIo::Kernel(io) => (Box::new(PacketOutput::new(*io, false)), arguments.send.to_string()),
        WorkerIo::Xsk(io) => {
            let sends = !matches!(path.mode().to_string().as_str(), "udp" | "hybrid");
            (Box::new(PacketOutput::new(*io, sends)), path.mode().to_string())
        }
    };
    Ok(Opened { output, mode: by, _maintainer: Some(Maintainer::start(path)?) })
}

fn path_config(arguments: &Udp, mode: IoMode, route: &Route, listen: Vec<SocketAddr>) -> Config {
    let multicast = arguments.to.ip().is_multicast();
    // Above the MTU the kernel cuts datagrams, not runs of them.
    let send =
        if arguments.fragment && arguments.send == UdpSend::Gso { UdpSend::Sendmmsg } else { arguments.send };
    let io = IoConfig { mode, udp_send: send, replace: arguments.replace, ..IoConfig::default() };
    let udp = UdpConfig {
        // Full buffers make datagrams late, and are no reason to drop them.
        send_patience: std::time::Duration::from_secs(5),
        ..io.udp(listen)
    };
    let sending = SendOptions {
        ttl: arguments.ttl.or(multicast.then_some(MULTICAST_TTL)),
        multicast_interface: route.interface.as_ref().filter(|_| multicast).map(|link| link.index),
        fragment: arguments.fragment,
    };
    Config { sending, ..Config::with(io, udp) }
}
