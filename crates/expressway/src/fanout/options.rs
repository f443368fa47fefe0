//! From the command line to what the fan-out is to do.

use std::sync::Arc;

use expressway_dataplane::IoMode;
use expressway_feed::fanout::{
    Framing, Limits, Listen, Membership, Options, Protocol, SlowClient, TlsIdentity,
};

use crate::args::{Fanout as Arguments, FanoutMode};
use crate::fail::Failure;

/// Options and multicast membership, checked.
pub(super) fn of(arguments: &Arguments) -> Result<(Options, Option<Membership>), Failure> {
    check(arguments).map_err(Failure::usage)?;
    let listen = [
        (Protocol::Tcp, &arguments.tcp),
        (Protocol::Tls, &arguments.tls),
        (Protocol::WebSocket, &arguments.ws),
        (Protocol::SecureWebSocket, &arguments.wss),
    ];
    let listen = listen
        .iter()
        .flat_map(|(protocol, addresses)| {
            addresses.iter().map(|address| Listen { protocol: *protocol, address: *address })
        })
        .collect();
    let tls = match (&arguments.certificate, &arguments.private_key) {
        (Some(certificate), Some(key)) => {
            Some(Arc::new(TlsIdentity::load(certificate, key).map_err(Failure::usage)?))
        }
        _ => None,
    };
    let slow_client = slow_client(arguments);
    if slow_client == SlowClient::Drop && arguments.framing == Framing::None {
        tracing::warn!(
            "framing none has no gap marker: datagrams skipped for slow subscribers show in statistics only"
        );
    }
    let options = Options {
        framing: arguments.framing,
        slow_client,
        limits: Limits {
            lag_bytes: arguments.max_lag.0 as usize,
            lag_age: arguments.max_age.0,
            stall: arguments.stall.0,
            send_buffer: arguments.send_buffer.0 as usize,
            subscribers: arguments.max_subscribers,
            subscribers_per_address: arguments.max_subscribers_per_address,
            handshake: arguments.handshake_timeout.0,
            handshakes: arguments.max_handshakes,
            handshakes_per_address: arguments.max_handshakes_per_address,
            request: arguments.max_request.0 as usize,
            input: arguments.max_input.0 as usize,
        },
        ring: arguments.ring.0 as usize,
        start: arguments.start,
        snapshot: arguments.snapshot_prefix.as_ref().map(|prefix| prefix.0.clone()),
        allow: arguments.allow.clone(),
        origins: arguments.origin.clone(),
        tls,
        threads: arguments.threads,
        sources: arguments.source.clone(),
        ..Options::new(listen)
    };
    options.check().map_err(|problem| Failure::usage(format!("--{problem}")))?;
    Ok((options, super::membership(arguments)))
}

/// Without a word about it, gaps come only where the stream can tell them.
fn slow_client(arguments: &Arguments) -> SlowClient {
    let default = if arguments.framing == Framing::None { SlowClient::Disconnect } else { SlowClient::Drop };
    arguments.slow_client.unwrap_or(default)
}

fn check(arguments: &Arguments) -> Result<(), String> {
    if arguments.udp.port() == 0 {
        return Err("--udp: port 0 is not allowed; give the feed's port".into());
    }
    let group = arguments.udp.ip().is_multicast();
    if group && arguments.interface.is_none() && !matches!(arguments.io, IoMode::Udp | IoMode::Auto) {
        return Err(format!(
            "--io {}: give the interface that {} arrives on: --interface",
            arguments.io, arguments.udp
        ));
    }
    let in_kernel = arguments.mode == FanoutMode::Kernel;
    if arguments.interface.is_some() && !group && !in_kernel {
        return Err(format!("--interface: {} is not a multicast group", arguments.udp));
    }
    if in_kernel && arguments.agent.is_some() {
        return Err(
            "--agent: an agent provides no forwarding programs; --mode kernel needs the privileges itself"
                .into(),
        );
    }
    if in_kernel && arguments.io != IoMode::Udp {
        return Err(format!(
            "--io {}: not available with --mode kernel, which receives by kernel sockets; leave it out",
            arguments.io
        ));
    }
    let by_this_process = arguments.agent.is_some() || arguments.io != IoMode::Udp;
    if arguments.measured.is_some() && (arguments.mode != FanoutMode::Auto || by_this_process) {
        return Err("--measured: used only by --mode auto without --agent and --io".into());
    }
    if let Some(other) = arguments.source.iter().find(|source| source.is_ipv4() != arguments.udp.is_ipv4()) {
        return Err(format!("--source {other}: not of the address family of --udp {}", arguments.udp));
    }
    Ok(())
}
