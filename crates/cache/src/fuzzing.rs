//! The parts that fuzz targets reach: freshness information from origins and clients, and arbitrary disk contents.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};

use crate::codec;
use crate::directives::Directives;
use crate::disk;
use crate::object::{Entry, Object};
use crate::options::SiteOptions;
use crate::policy;
use crate::respond::respond;

/// When all that is stored was received.
const RECEIVED: u64 = 1 << 40;

/// A response that came to `first`, and what it is to `second`: whether it may be stored, how long it is good, whether it is
/// the variant, and what is sent. Whether it was stored.
///
/// # Panics
/// If what is stored is not what was stored.
pub fn exchange(first: &HeaderMap, status: StatusCode, response: &HeaderMap, second: &HeaderMap) -> bool {
    let options = SiteOptions::default();
    let times = (RECEIVED - 100, RECEIVED);
    let Some(freshness) = policy::freshness(first, status, response, &options, times) else { return false };
    let Some(object) = Object::new(status, response, first, 1000, freshness) else { return false };
    assert!(object.is_for(first), "a response is not for the request that it came to");
    let asked = Directives::of_request(second);
    for later in [0, 1000, 1 << 42] {
        let _use = freshness.judge(&asked, RECEIVED + later);
    }
    let _is_for = object.is_for(second);
    let _is_same = object.is_same(second);
    let _tags = object.tags().count();
    let (head, _content) = respond(&Method::GET, second, &object, options.max_ranges, RECEIVED + 1000);
    assert!(head.body_length.is_some_and(|length| length < 1 << 20), "{head:?}");
    let entry = Entry { key: "k".into(), variants: vec![Arc::new(object)] };
    assert_eq!(codec::decode(&codec::encode(&entry)).as_ref(), Some(&entry));
    true
}

/// A record as a disk has it. Whether it is one.
///
/// # Panics
/// If it is another one when it is written again.
pub fn record(octets: &[u8]) -> bool {
    let Some(entry) = codec::decode(octets) else { return false };
    assert_eq!(codec::decode(&codec::encode(&entry)).as_ref(), Some(&entry));
    true
}

/// The regions of a small store from `octets`, whose checksums are made right. Entries that are found.
///
/// # Errors
/// Of writing the file, which has to be empty.
///
/// # Panics
/// If an entry is not within its region.
pub fn store(file: File, octets: &[u8]) -> std::io::Result<usize> {
    let mut octets = octets.to_vec();
    disk::seal(&mut octets);
    file.write_all_at(&octets, disk::FIRST)?;
    Ok(disk::scan_file(file))
}
