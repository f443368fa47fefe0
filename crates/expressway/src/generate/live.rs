//! Datagrams as live frames: built here, sent by the kernel as XDP redirects are.

use std::time::Duration;

use expressway_feed::generate::{Datagrams, Output, OutputError, Tally};
use expressway_netio::Flow;
use expressway_netio::route::Path;
use expressway_wire::{ChecksumMode, UdpHeaders, UdpTemplate};
use expressway_xbpf::LiveFrames;

/// Flows whose headers are kept ready, 100 bytes each. Others are compiled anew.
const TEMPLATES: u32 = 65_536;

/// Sends frames out of one interface.
pub(super) struct LiveOutput {
    frames: LiveFrames,
    path: Path,
    ttl: u8,
    templates: Box<[Option<(u32, UdpTemplate)>]>,
    interface: String,
    bytes: u64,
}

/// Bytes of headers in front of payloads.
pub(super) fn header_length(path: &Path, flow: &Flow) -> usize {
    headers(path, UdpHeaders::DEFAULT_TTL, flow).header_len()
}

fn headers(path: &Path, ttl: u8, flow: &Flow) -> UdpHeaders {
    let mut headers = UdpHeaders::new(path.source_mac, path.destination_mac, flow.local, flow.remote);
    (headers.vlan, headers.ttl) = (path.vlan, ttl);
    headers
}

impl LiveOutput {
    /// Sends `frames` of so many flows along `path`.
    pub(super) fn new(frames: LiveFrames, path: Path, ttl: u8, flows: u32, interface: &str) -> Self {
        let templates = vec![None; flows.clamp(1, TEMPLATES) as usize].into();
        Self { frames, path, ttl, templates, interface: interface.to_owned(), bytes: 0 }
    }
}

impl Output for LiveOutput {
    fn send(&mut self, datagrams: &Datagrams<'_>) -> Result<usize, OutputError> {
        let other = |error: &dyn std::fmt::Display| OutputError::Other(error.to_string());
        let mut taken = 0;
        for due in datagrams.dues() {
            let place = due.flow as usize % self.templates.len();
            let slot = &mut self.templates[place];
            let template = match slot {
                Some((flow, template)) if *flow == due.flow => &*template,
                _ => {
                    let compiled = headers(&self.path, self.ttl, &datagrams.flow(due)).template();
                    let compiled = compiled.map_err(|error| other(&format!("--to: {error}")))?;
                    &slot.insert((due.flow, compiled)).1
                }
            };
            let pushed = self.frames.push(|frame| {
                let start = template.header_len();
                let length = datagrams.write(due, &mut frame[start..]);
                template.write(frame, length, ChecksumMode::Full, due.sequence as u16).unwrap_or(0)
            });
            if !pushed {
                break;
            }
            taken += 1;
            self.bytes += due.length as u64;
        }
        self.frames.send().map_err(|error| other(&error))?;
        let counts = self.frames.counts();
        if counts.refused > 0 {
            return Err(OutputError::Other(refusal(&self.interface, counts.sent > 0)));
        }
        Ok(taken)
    }

    fn receive(&mut self, _sink: &mut dyn FnMut(&[u8])) -> Result<usize, OutputError> {
        Ok(0)
    }

    fn wait(&mut self, pause: Duration) -> Result<(), OutputError> {
        std::thread::sleep(pause);
        Ok(())
    }

    fn tally(&self) -> Tally {
        let counts = self.frames.counts();
        Tally {
            sent: counts.sent,
            bytes: self.bytes,
            refused: counts.dropped,
            calls: counts.calls,
            ..Tally::default()
        }
    }
}

/// Why `interface` takes no frames from XDP. One that `took` some has changed since.
fn refusal(interface: &str, took: bool) -> String {
    if took {
        return format!(
            "interface {interface}: no longer accepts frames from XDP; it, its peer or the peer's XDP program is gone"
        );
    }
    format!(
        "interface {interface}: does not accept frames from XDP; --io live needs a driver with ndo_xdp_xmit, and on a veth \
         a peer with an XDP program or `ethtool -K PEER gro on`"
    )
}
