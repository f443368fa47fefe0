//! The key of the pairs map: one destination address and port as the BPF program looks it up.
//!
//! Layout and byte order are those of `struct redirect_pair` in `bpf/include/redirect_shared.h`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::error::Error;
use crate::skeleton::types::{redirect_family, redirect_pair};

/// Bytes of a key.
pub(crate) const KEY_SIZE: usize = size_of::<redirect_pair>();

// The key is written field by field below; these hold it to the header's layout.
const _: () = {
    assert!(KEY_SIZE == 20);
    assert!(std::mem::offset_of!(redirect_pair, address) == 0);
    assert!(std::mem::offset_of!(redirect_pair, port) == 16);
    assert!(std::mem::offset_of!(redirect_pair, family) == 18);
};

/// The key of `pair`. An IPv4 address mapped into IPv6 is the IPv4 address, as it is on the wire; scope
/// and flow label are no part of a destination.
///
/// # Errors
/// [`Error::Wildcard`] for an unspecified address or port 0: the program compares, it does not match.
pub(crate) fn key(pair: SocketAddr) -> Result<[u8; KEY_SIZE], Error> {
    let ip = pair.ip().to_canonical();
    if ip.is_unspecified() || pair.port() == 0 {
        return Err(Error::Wildcard { pair });
    }
    let (address, family) = match ip {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), redirect_family::REDIRECT_IPV4),
        IpAddr::V6(v6) => (v6.octets(), redirect_family::REDIRECT_IPV6),
    };
    let mut key = [0; KEY_SIZE];
    key[..16].copy_from_slice(&address);
    key[16..18].copy_from_slice(&pair.port().to_be_bytes());
    key[18..].copy_from_slice(&(family.0 as u16).to_ne_bytes());
    Ok(key)
}

/// The pair of a key; `None` if it does not have a key's size.
pub(crate) fn pair(key: &[u8]) -> Option<SocketAddr> {
    let key: &[u8; KEY_SIZE] = key.try_into().ok()?;
    let (address, rest) = key.split_first_chunk::<16>()?;
    let port = u16::from_be_bytes([rest[0], rest[1]]);
    let family = u16::from_ne_bytes([rest[2], rest[3]]);
    let v6 = Ipv6Addr::from(*address);
    let ip = match v6.to_ipv4_mapped() {
        Some(v4) if u32::from(family) == redirect_family::REDIRECT_IPV4.0 => IpAddr::V4(v4),
        _ => IpAddr::V6(v6),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_their_pairs() {
        for text in ["192.0.2.1:443", "[2001:db8::1]:65535", "[fe80::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(pair(&key(address).unwrap()), Some(address));
        }
    }

    #[test]
    fn a_key_is_what_the_header_says() {
        let bytes = key("192.0.2.1:443".parse().unwrap()).unwrap();
        let family = 4u16.to_ne_bytes();
        let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 1, 187, family[0], family[1]];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped = key("[::ffff:192.0.2.1]:443".parse().unwrap()).unwrap();
        assert_eq!(mapped, key("192.0.2.1:443".parse().unwrap()).unwrap());
    }

    #[test]
    fn wildcards_are_refused() {
        for text in ["0.0.0.0:443", "[::]:443", "[::ffff:0.0.0.0]:443", "192.0.2.1:0"] {
            assert!(matches!(key(text.parse().unwrap()), Err(Error::Wildcard { .. })), "{text}");
        }
    }

    #[test]
    fn a_key_of_another_size_is_none() {
        assert_eq!(pair(&[0; KEY_SIZE - 1]), None);
    }
}
