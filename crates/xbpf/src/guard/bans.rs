//! Sources that are banned for a while.

use std::net::{IpAddr, Ipv6Addr};

use libbpf_rs::{MapCore, MapFlags};

use super::{Guard, SWEEP, monotonic};
use crate::error::Error;

impl Guard {
    /// Bans a source for so many nanoseconds from now on: an IPv4 address, or the /64 of an IPv6 address. It applies if
    /// [`GuardOptions::applies_bans`](super::GuardOptions::applies_bans).
    ///
    /// # Errors
    /// [`Error::Map`]: there is no room.
    pub fn ban(&self, source: IpAddr, time: u64) -> Result<(), Error> {
        let until = monotonic().saturating_add(time.min(1 << 62));
        let result = self.maps.ban_map.update(&ban_key(source), &until.to_ne_bytes(), MapFlags::ANY);
        result.map_err(|source| Error::Map { map: "ban_map", source })
    }

    /// Ends the ban of a source. False if there was none.
    pub fn unban(&self, source: IpAddr) -> bool {
        self.maps.ban_map.delete(&ban_key(source)).is_ok()
    }

    /// Bans with the nanoseconds that are left of them, up to `most`; as [`Guard::banned`].
    pub fn bans(&self, most: usize) -> Vec<(IpAddr, u64)> {
        let now = monotonic();
        let entries = self.maps.ban_map.lookup_batch(SWEEP, MapFlags::ANY, MapFlags::ANY);
        let one = |(key, value): (Vec<u8>, Vec<u8>)| {
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(key).ok()?).to_canonical();
            let until = u64::from_ne_bytes(value.try_into().ok()?);
            until.checked_sub(now).filter(|left| *left > 0).map(|left| (address, left))
        };
        entries.into_iter().flatten().filter_map(one).take(most).collect()
    }

    /// Sources that are banned now, up to `most`: IPv4 addresses, and the first address of each IPv6 /64.
    pub fn banned(&self, most: usize) -> Vec<IpAddr> {
        let address = |key: Vec<u8>| Some(Ipv6Addr::from(<[u8; 16]>::try_from(key).ok()?).to_canonical());
        self.maps.ban_map.keys().filter_map(address).take(most).collect()
    }
}

/// A source as the table of bans has it.
fn ban_key(source: IpAddr) -> [u8; 16] {
    match source {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => (address.to_bits() >> 64 << 64).to_be_bytes(),
    }
}
