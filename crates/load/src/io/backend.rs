//! Opens the way that packets are to move by.

use std::error::Error;

use expressway_netio::device::channels;
use expressway_netio::express::{BindMode, ExpressConfig, ExpressIo, Port, PortConfig};
use expressway_netio::route::RouteMirror;
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_xbpf::{AttachMode, Attachment, Existing, Options, Redirect};

use super::Way;

/// An open backend, with what has to live as long.
pub(crate) enum Backend {
    Kernel(Box<UdpIo>, RouteMirror),
    Express(Box<ExpressIo>, Box<Around>),
}

impl Backend {
    /// What XDP_OPTIONS said of the sockets after bind; none without any.
    pub(crate) fn obtained(&self) -> Option<String> {
        match self {
            Self::Kernel(..) => None,
            Self::Express(_, around) => around.obtained.clone(),
        }
    }
}

/// What AF_XDP needs around its sockets.
pub(crate) struct Around {
    _attachment: Attachment,
    _redirect: Redirect,
    _mirror: RouteMirror,
    obtained: Option<String>,
}

pub(crate) fn open(way: &Way) -> Result<Backend, Box<dyn Error>> {
    let mut udp = UdpConfig::new(vec![way.listen]);
    udp.send = way.send_mode();
    udp.gro = !way.no_gro;
    let mirror = RouteMirror::start()?;
    let mut kernel = UdpIo::bind(&udp)?;
    kernel.set_resolver(mirror.resolver()?);
    let Some(interface) = &way.interface else {
        return Ok(Backend::Kernel(Box::new(kernel), mirror));
    };
    let snapshot = mirror.snapshot();
    let link = snapshot
        .links()
        .iter()
        .find(|link| link.name == *interface)
        .ok_or_else(|| format!("interface {interface}: no such interface in this network namespace"))?;
    let queues = channels(interface).map_or(link.rx_queues, |channels| channels.rx).max(1);
    let redirect = Redirect::load(&Options { queues, ..Options::default() })?;
    let attachment = redirect.attach(link.index, AttachMode::Native, Existing::Refuse)?;
    let mut ports = Vec::new();
    for queue in 0..queues {
        let mode = if way.zero_copy { BindMode::ZeroCopy } else { BindMode::Copy };
        let config = PortConfig { mode, ..PortConfig::new(interface, queue) };
        ports.push(Port::open(config, redirect.xsk_map())?);
    }
    let obtained = ports.iter().find_map(Port::mode).map(|mode| mode.to_string());
    let io = ExpressIo::new(ports, kernel, mirror.resolver()?, ExpressConfig::default())?;
    redirect.add_pair(way.listen)?;
    let around = Around { _attachment: attachment, _redirect: redirect, _mirror: mirror, obtained };
    Ok(Backend::Express(Box::new(io), Box::new(around)))
}
