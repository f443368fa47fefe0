//! Files of addresses, one a line.

use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use crate::fail::Failure;

/// The most addresses of a file.
const MOST: usize = 65_536;
/// The most bytes: as many of the longest addresses.
const BYTES: u64 = MOST as u64 * 40;

/// The addresses of the file that an option names; none without one.
pub(super) fn read(file: Option<&Path>, option: &str) -> Result<Vec<IpAddr>, Failure> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let named = |problem: String| Failure::usage(format!("{option} {}: {problem}", file.display()));
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|open| open.take(BYTES + 1).read_to_string(&mut text))
        .map_err(|error| named(error.to_string()))?;
    if text.len() as u64 > BYTES {
        return Err(named(format!("longer than {BYTES} bytes")));
    }
    parse(&text).map_err(named)
}

fn parse(text: &str) -> Result<Vec<IpAddr>, String> {
    let mut addresses = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line = line.trim();
        let address: IpAddr =
            line.parse().map_err(|_| format!("line {}: `{line}` is not an address", number + 1))?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(format!("line {}: {address} is not the address of a host", number + 1));
        }
        if addresses.len() == MOST {
            return Err(format!("line {}: at most {MOST} addresses", number + 1));
        }
        addresses.push(address);
    }
    if addresses.is_empty() { Err("has no address".into()) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_one_a_line() {
        let read = parse("192.0.2.1\n\n 2001:db8::1 \n").unwrap();
        assert_eq!(read, ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]);
        let many = "192.0.2.1\n".repeat(MOST);
        assert_eq!(parse(&many).unwrap().len(), MOST);
        for (text, part) in [
            ("", "has no address"),
            ("192.0.2.1\nhost\n", "line 2: `host` is not an address"),
            ("224.0.0.1", "line 1: 224.0.0.1 is not the address of a host"),
            ("::", "is not the address of a host"),
            (format!("{many}192.0.2.2").as_str(), "line 65537: at most 65536"),
        ] {
            assert!(parse(text).unwrap_err().contains(part), "{part}");
        }
        let absent = read_absent();
        assert!(absent.contains("--to-file /no/such/file: "), "{absent}");
    }

    fn read_absent() -> String {
        read(Some(Path::new("/no/such/file")), "--to-file").unwrap_err().to_string()
    }
}
