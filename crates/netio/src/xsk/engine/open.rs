//! Opens every XSK, whoever will use it: this process, a process without the privileges, or several sockets on one
//! UMEM.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::assembly::ASSEMBLY_SIZE;
use super::fd::XskFd;
use super::{ObtainedMode, Umem, Xsk, XskId};
use crate::netdev::Netdev;
use crate::ring::Mapped;
use crate::sys::IoError;
use crate::wait::{self, Wait};
use crate::xsk::config::{BindMode, XskConfig};
use crate::xsk::error::{OpenError, Step};
use crate::xsk::metadata::METADATA_LEN;
use crate::xsk::xskmap;

/// Frames of one sent packet in copy mode: the parts behind the first become fragments of a socket buffer, of
/// which there are `MAX_SKB_FRAGS`, 17 unless the kernel is built with more (`xsk_build_skb` in
/// `net/xdp/xsk.c`).
const COPY_SEGMENTS: u32 = 17;
/// Bytes of socket buffer that a packet under way takes in copy mode, at most.
const SEND_BUFFER: u32 = 4096;

/// What is to be bound where.
pub(crate) struct Bind<'a> {
    /// The number of the XSK on its UMEM.
    pub(crate) id: XskId,
    /// Fitted to the interface.
    pub(crate) config: &'a XskConfig,
    /// Index of the interface.
    pub(crate) ifindex: u32,
    /// Whether packets may be larger than a frame.
    pub(crate) multi_buffer: bool,
    /// The XSKMAP that the socket goes into; none for one that only sends.
    pub(crate) map: Option<BorrowedFd<'a>>,
    /// A bound socket that the UMEM is registered with; none: it is registered with this one.
    pub(crate) shared: Option<&'a XskFd>,
    /// What the socket is prepared for, where its user cannot do that.
    pub(crate) wait: Wait,
}

/// An XSK that is bound, and what is known of it.
pub(crate) struct Opened {
    pub(crate) xsk: Xsk<Mapped>,
    /// Frames that one sent packet may take.
    pub(crate) segments: u32,
    /// Packets that one system call may send in copy mode; 0 of a socket that only receives.
    pub(crate) tx_budget: u32,
}

/// Makes a socket, in the order that drivers need: UMEM, rings, a full fill ring, bind, XSKMAP.
///
/// What fails before the bind leaves the UMEM as it was; for later failures see [`Xsk::reclaim`].
pub(crate) fn bring_up(umem: &mut Umem, bind: &Bind<'_>) -> Result<Opened, OpenError> {
    let &Bind { config, ifindex, multi_buffer, .. } = bind;
    let failed =
        |step: Step| move |source| step.failed(&config.interface, config.queue, multi_buffer, source);
    let socket = XskFd::new().map_err(failed(Step::Create))?;
    if bind.shared.is_none() {
        socket.register(umem).map_err(failed(Step::Register))?;
    }
    let rings = socket.rings(config.rx_ring, config.tx_ring, config.sends).map_err(failed(Step::Ring))?;
    let mut xsk = Xsk::new(bind.id, umem, socket, rings, assembly_size(multi_buffer));
    let bound = match bind.shared {
        None => xsk
            .socket
            .bind(ifindex, config.queue, config.mode, multi_buffer, config.bind_patience)
            .map_err(failed(Step::Bind(config.mode))),
        Some(first) => xsk
            .socket
            .bind_shared(ifindex, config.queue, first, config.bind_patience)
            .map_err(failed(Step::BindShared)),
    };
    if let Err(error) = bound {
        xsk.reclaim(umem);
        return Err(error);
    }
    xsk.mode = xsk.socket.mode().map_err(failed(Step::Options))?;
    check_mode(config, xsk.mode)?;
    let tx_budget = match config.sends {
        true => xsk.socket.widen_transmit(
            config.tx_ring.saturating_mul(SEND_BUFFER),
            config.tx_budget.unwrap_or(config.tx_ring),
        ),
        false => 0,
    };
    wait::prepare_socket(xsk.socket.as_fd(), bind.wait, xsk.mode == ObtainedMode::Copy, "AF_XDP").map_err(
        |error| match error {
            IoError::Socket { source, .. } => failed(Step::Wait)(source),
            error => failed(Step::Wait)(io::Error::other(error)),
        },
    )?;
    if let Some(map) = bind.map {
        xskmap::insert(map, config.map_key, xsk.socket.as_fd()).map_err(failed(Step::Map))?;
    }
    describe(&mut xsk, config);
    let segments = segments(xsk.mode, multi_buffer, ifindex);
    Ok(Opened { xsk, segments, tx_budget })
}

/// Takes over a socket that [`bring_up`] has made in another process, on memory of this one. Its frames are still where
/// they were there: those of the lowest addresses in the fill ring, all others free.
pub(crate) fn adopt(
    umem: &mut Umem,
    config: &XskConfig,
    multi_buffer: bool,
    (socket, mode): (OwnedFd, ObtainedMode),
) -> Result<Xsk<Mapped>, OpenError> {
    let failed = |source| Step::Ring.failed(&config.interface, config.queue, multi_buffer, source);
    let socket = XskFd::bound(socket);
    let rings = socket.map_rings(config.rx_ring, config.tx_ring, config.sends).map_err(failed)?;
    let mut xsk = Xsk::adopt(XskId(0), umem, socket, rings, assembly_size(multi_buffer));
    xsk.mode = mode;
    describe(&mut xsk, config);
    Ok(xsk)
}

/// Whether this process may make a socket.
pub(crate) fn can_open() -> io::Result<()> {
    XskFd::new().map(drop)
}

fn assembly_size(multi_buffer: bool) -> usize {
    if multi_buffer { ASSEMBLY_SIZE } else { 0 }
}

/// Has packets handed over with what the XDP program writes in front of them, where it does.
fn describe(xsk: &mut Xsk<Mapped>, config: &XskConfig) {
    let is_described = config.description.is_some() || config.switch.is_some();
    xsk.prefix = if is_described { METADATA_LEN } else { 0 };
}

/// Frames that one sent packet may take. What the kernel does not tell of a device is 1.
fn segments(mode: ObtainedMode, multi_buffer: bool, ifindex: u32) -> u32 {
    match mode {
        _ if !multi_buffer => 1,
        ObtainedMode::Copy => COPY_SEGMENTS,
        ObtainedMode::ZeroCopy => {
            let features = Netdev::open().and_then(|mut netdev| netdev.features(ifindex));
            features.map_or(1, |features| features.zero_copy_segments)
        }
    }
}

/// Refuses a mode other than the one asked for: some drivers bind in copy mode whatever they are told.
pub(crate) fn check_mode(config: &XskConfig, obtained: ObtainedMode) -> Result<(), OpenError> {
    match (config.mode, obtained) {
        (BindMode::Auto, _)
        | (BindMode::Copy, ObtainedMode::Copy)
        | (BindMode::ZeroCopy, ObtainedMode::ZeroCopy) => Ok(()),
        (asked, obtained) => {
            Err(OpenError::Mode { interface: config.interface.clone(), queue: config.queue, asked, obtained })
        }
    }
}
