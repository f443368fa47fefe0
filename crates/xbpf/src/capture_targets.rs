//! Whose packets the capture programs look at: devices, VLANs on them, and the XDP programs that are captured at.

use std::mem::offset_of;

use libbpf_rs::{MapCore, MapFlags};

use crate::capture::CapturePrograms;
use crate::error::Error;
use crate::skeleton::capture_types::{capture_limit, capture_target, capture_target_flag, capture_vlan};

const TARGETS: &str = "targets_map";
const VLANS: &str = "vlans_map";
const TRACED: &str = "traced_map";

/// What the packets of a device are captured as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureTarget {
    /// The index of the interface that they are shown as; `None`: only those of VLANs are.
    pub shown: Option<u32>,
    /// Where they are counted.
    pub slot: u32,
    /// It has VLANs that are captured.
    pub tagged: bool,
    /// Its packets are captured on the devices below; here only what the kernel drops.
    pub drops_only: bool,
    /// What it receives is seen at an XDP program of the bond above.
    pub traced_above: bool,
    /// What it receives has the queue that it was sent by, not one more than the queue that it was received by: veth
    /// (`veth_xmit` in drivers/net/veth.c).
    pub sent_queue: bool,
}

impl CaptureTarget {
    fn value(self) -> [u8; size_of::<capture_target>()] {
        let flags = [
            (self.tagged, capture_target_flag::CAPTURE_TAGGED),
            (self.drops_only, capture_target_flag::CAPTURE_DROPS_ONLY),
            (self.traced_above, capture_target_flag::CAPTURE_XDP_ABOVE),
            (self.sent_queue, capture_target_flag::CAPTURE_SENT_QUEUE),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag.0);
        let mut value = [0; size_of::<capture_target>()];
        for (at, word) in [
            (offset_of!(capture_target, shown), self.shown.unwrap_or(0)),
            (offset_of!(capture_target, slot), self.slot),
            (offset_of!(capture_target, flags), flags),
        ] {
            value[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        value
    }
}

/// Frames of a device with certain tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureVlan {
    /// The device's index.
    pub device: u32,
    /// The tags, outermost first: ethertype and VLAN; zeros where there is no second one.
    pub tags: [(u16, u16); 2],
}

impl CaptureVlan {
    fn key(self) -> [u8; size_of::<capture_vlan>()] {
        let mut key = [0; size_of::<capture_vlan>()];
        key[offset_of!(capture_vlan, ifindex)..][..4].copy_from_slice(&self.device.to_ne_bytes());
        for (at, (kind, vlan)) in self.tags.into_iter().enumerate() {
            let tag = u32::from(kind) << 16 | u32::from(vlan);
            key[offset_of!(capture_vlan, tags) + 4 * at..][..4].copy_from_slice(&tag.to_ne_bytes());
        }
        key
    }
}

impl CapturePrograms {
    /// The most devices that packets are captured on.
    pub const DEVICES: usize = capture_limit::CAPTURE_DEVICES.0 as usize;
    /// The most VLANs, counted on each device.
    pub const VLANS: usize = capture_limit::CAPTURE_VLANS.0 as usize;

    /// Has packets of the device captured.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_target(&self, device: u32, target: CaptureTarget) -> Result<(), Error> {
        self.put(TARGETS, &device.to_ne_bytes(), &target.value())
    }

    /// Has them captured no longer.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remove_target(&self, device: u32) -> Result<(), Error> {
        self.take(TARGETS, &device.to_ne_bytes())
    }

    /// Has packets of the VLAN shown without its tags, as those of `shown`. Its device is a target that is tagged.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_vlan(&self, vlan: CaptureVlan, shown: u32, slot: u32) -> Result<(), Error> {
        let target = CaptureTarget { shown: Some(shown), slot, ..CaptureTarget::default() };
        self.put(VLANS, &vlan.key(), &target.value())
    }

    /// Undoes that.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remove_vlan(&self, vlan: CaptureVlan) -> Result<(), Error> {
        self.take(VLANS, &vlan.key())
    }

    /// Says that the XDP program is captured at, so that the stack is not asked for what it passes: from `since` on, in
    /// nanoseconds of the monotonic clock, when nothing is under way any more that it passed before.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_traced(&self, program: u32, since: u64) -> Result<(), Error> {
        self.put(TRACED, &program.to_ne_bytes(), &since.to_ne_bytes())
    }

    /// Undoes that.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn remove_traced(&self, program: u32) -> Result<(), Error> {
        self.take(TRACED, &program.to_ne_bytes())
    }

    fn put(&self, map: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.map(map)?.update(key, value, MapFlags::ANY).map_err(|source| Error::Map { map, source })
    }

    fn take(&self, map: &'static str, key: &[u8]) -> Result<(), Error> {
        match self.map(map)?.delete(key) {
            Err(source) if source.kind() != libbpf_rs::ErrorKind::NotFound => Err(Error::Map { map, source }),
            _ => Ok(()),
        }
    }
}
