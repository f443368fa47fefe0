//! Searches data from clients. Tests count the bytes that are examined, which reveals a parser that examines them
//! repeatedly.

/// Where the first octet is that `wanted` takes.
pub(crate) fn position(octets: &[u8], wanted: impl Fn(u8) -> bool) -> Option<usize> {
    let found = octets.iter().position(|&octet| wanted(octet));
    looked_at(found.map_or(octets.len(), |at| at + 1));
    found
}

/// Where the last octet is that `wanted` takes.
pub(crate) fn last_position(octets: &[u8], wanted: impl Fn(u8) -> bool) -> Option<usize> {
    let found = octets.iter().rposition(|&octet| wanted(octet));
    looked_at(octets.len() - found.unwrap_or(0));
    found
}

/// Counts octets that were looked at, or copied, by other means.
#[cfg(not(test))]
pub(crate) fn looked_at(_octets: usize) {}

#[cfg(test)]
pub(crate) use counting::{assert_linear, looked_at, octets_looked_at};

#[cfg(test)]
mod counting {
    use std::cell::Cell;

    thread_local! {
        static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn looked_at(octets: usize) {
        LOOKED_AT.set(LOOKED_AT.get() + octets);
    }

    /// Octets that `action` has looked at.
    pub(crate) fn octets_looked_at(action: impl FnOnce()) -> usize {
        LOOKED_AT.set(0);
        action();
        LOOKED_AT.get()
    }

    /// Has `parse` read what `input` makes of 1 KiB, 8 KiB and 64 KiB, and asserts that it looks at each octet no more
    /// than `times` times, and at some at all.
    pub(crate) fn assert_linear(
        what: &str,
        times: usize,
        input: impl Fn(usize) -> Vec<u8>,
        mut parse: impl FnMut(&[u8]),
    ) {
        for size in [1 << 10, 1 << 13, 1 << 16] {
            let input = input(size);
            let looked_at = octets_looked_at(|| parse(&input));
            assert!(looked_at > 0, "{what}: nothing was counted");
            assert!(looked_at <= times * input.len() + 64, "{what}: {looked_at} of {} octets", input.len());
        }
    }
}
