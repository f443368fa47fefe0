//! Texts of cells.

use expressway_observe::flows::{Address, Rate, Row};
use expressway_observe::sockets::{Ring, Socket};

use super::state::State;
use crate::top::short;

/// A rate: bits or bytes.
pub(super) fn rate(bits: f64, octets: bool) -> String {
    if octets { format!("{}B", short(bits / 8.0)) } else { format!("{}b", short(bits)) }
}

/// An end of a conversation; `*` where several are in a row.
pub(super) fn end(address: Option<Address>, port: Option<u16>, state: &State) -> String {
    let host = match address {
        None => "*".to_owned(),
        Some(Address::Ip(ip)) => match state.names.host(ip).filter(|_| state.host_names) {
            Some(name) => name.to_owned(),
            // With a port behind it, it would be hard to read.
            None if ip.is_ipv6() && port.is_some() => format!("[{ip}]"),
            None => ip.to_string(),
        },
        Some(mac) => mac.to_string(),
    };
    match port {
        None => host,
        Some(port) => match state.names.port(port).filter(|_| state.port_names) {
            Some(name) => format!("{host}:{name}"),
            None => format!("{host}:{port}"),
        },
    }
}

/// Part of AF_XDP in a hundred.
pub(super) fn share(rate: &Rate) -> String {
    format!("{:.0}%", rate.af_xdp * 100.0)
}

/// What a row had, over the windows.
pub(super) fn rates(row: &Row, of: impl Fn(&Rate) -> f64, octets: bool) -> [String; 3] {
    [0, 1, 2].map(|at| rate(of(&row.rates[at]), octets))
}

/// `12/2048`, or the size alone.
pub(super) fn ring(ring: Option<Ring>) -> String {
    match ring {
        None => "-".to_owned(),
        Some(Ring { entries, used: None, .. }) => format!("?/{entries}"),
        Some(Ring { entries, used: Some(used), .. }) => format!("{used}/{entries}"),
    }
}

/// `expressway 4711`, and how many more.
pub(super) fn holders(socket: &Socket) -> String {
    match &socket.holders[..] {
        [] => "?".to_owned(),
        // As the owner: what made it for another process is older than that.
        [others @ .., last] => {
            let more = if others.is_empty() { String::new() } else { format!(" +{}", others.len()) };
            format!("{} {}{more}", last.name, last.process)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::Filter;
    use super::*;
    use crate::args::TopBy;

    #[test]
    fn ends_are_short() {
        let state = State::new(TopBy::Flow, Filter::default());
        let v6 = Some(Address::Ip("2001:db8::1".parse().unwrap()));
        assert_eq!(end(v6, Some(443), &state), "[2001:db8::1]:443");
        assert_eq!(end(v6, None, &state), "2001:db8::1");
        assert_eq!(end(None, Some(443), &state), "*:443");
        assert_eq!(end(Some(Address::Mac([1, 2, 3, 4, 5, 6])), None, &state), "01:02:03:04:05:06");
        assert_eq!((rate(8e6, false), rate(8e6, true)), ("8.00Mb".to_owned(), "1.00MB".to_owned()));
    }
}
