//! What origins and clients say to a cache, and what disks have.

/// Octets of a header.
const ENTRY: usize = 64;

/// Responses (`<`) to requests (`>`), and other requests (`?`).
pub(super) fn exchanges() -> Vec<(&'static str, Vec<u8>)> {
    let list = |before: &str, member: &str, times: usize| format!("200\n{before}{}", member.repeat(times));
    let with = |text: String| text.into_bytes();
    vec![
        ("max-age", with("200\n<cache-control: max-age=60, public\n<etag: \"a\"\n?if-none-match: \"a\"".into())),
        ("s-maxage", with("200\n<cache-control: s-maxage=\"5\", no-cache=\"a,b\"\n>authorization: x".into())),
        ("expires", with("404\n<expires: Tue, 19 Jan 2038 03:14:08 GMT\n<date: Mon, 18 Jan 2038 03:14:08 GMT\n<age: 5, 7".into())),
        ("stale", with("200\n<cache-control: max-age=1, stale-while-revalidate=9, stale-if-error=9\n?cache-control: max-stale".into())),
        ("modified", with("200\n<cache-control: max-age=9\n<last-modified: Sun Nov  6 08:49:37 1994\n?if-modified-since: Sunday, 06-Nov-94 08:49:37 GMT".into())),
        ("vary", with("200\n<cache-control: max-age=9\n<vary: accept-encoding, x\n>accept-encoding: gzip, br\n>x: a\n>x: b\n?accept-encoding: GZIP ,br\n?x: a,b".into())),
        ("ranges", with("200\n<cache-control: max-age=9\n<etag: \"a\"\n?range: bytes=0-1,5-6,-7\n?if-range: \"a\"".into())),
        ("tags", with("200\n<cache-control: max-age=9\n<surrogate-key: a b c\n<cache-tag: d, e".into())),
        ("connection", with("200\n<cache-control: max-age=9\n<connection: x, y\n<x: 1".into())),
        ("directives", with(list("<cache-control: max-age=9", ",x=\"a\\\\\"b\"", 300))),
        ("directives-open", with(list("<cache-control: max-age=9,\"", "a,", 300))),
        ("directives-lines", with(list("", "<cache-control: max-age=9\n", 120))),
        ("vary-names", with(list("<cache-control: max-age=9\n<vary: ", "a,", 300))),
        ("vary-many", with(format!("200\n<cache-control: max-age=9\n<vary: {}", (0..20).map(|n| format!("x-{n},")).collect::<String>()))),
        ("vary-lines", with(list("<cache-control: max-age=9\n<vary: x", "\n>x: a , b,,", 100))),
        ("tags-many", with(list("<cache-control: max-age=9\n<surrogate-key: ", "a ", 400))),
        ("connection-many", with(list("<cache-control: max-age=9\n<connection: ", "a,", 300))),
        ("etags", with(list("<cache-control: max-age=9\n<etag: \"b\"\n?if-none-match: ", "\"a\",", 100))),
        ("ages", with(list("<cache-control: max-age=9\n<age: ", "1,", 300))),
        ("fields", with(list("<cache-control: max-age=9", "\n<x: 1", 120))),
    ]
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text].concat()
}

fn number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// The record of one variant with these fields.
fn one(fields: &[(&str, &str)], selecting: &[(&str, &str)]) -> Vec<u8> {
    let pairs = |pairs: &[(&str, &str)]| -> Vec<u8> {
        let each =
            pairs.iter().flat_map(|(name, value)| [text(name.as_bytes()), text(value.as_bytes())].concat());
        number(pairs.len() as u64).into_iter().chain(each).collect()
    };
    let numbers: Vec<u8> = [7, 200, 1000, 1 << 40, 0, 60_000, 0, 0].into_iter().flat_map(number).collect();
    [text(b"https://a.example/"), number(1), numbers, vec![4], number(0), pairs(fields), pairs(selecting)]
        .concat()
}

/// Records.
pub(super) fn records() -> Vec<(&'static str, Vec<u8>)> {
    let with = |rest: Vec<u8>| [vec![1], rest].concat();
    let many: Vec<_> = (0..60).map(|_| ("x", "1")).collect();
    vec![
        ("one", with(one(&[("etag", "\"a\""), ("vary", "x")], &[("x", "=a")]))),
        ("none", with([text(b"k"), number(0)].concat())),
        ("fields", with(one(&many, &many))),
        ("count", with([text(b"k"), number(u64::MAX)].concat())),
        ("length", with([0xff; 4].to_vec())),
        ("other-format", vec![0, 1, 2]),
    ]
}

/// A header whose sum the target makes right.
fn header(kind: u8, place: (u32, u32), length: u32) -> Vec<u8> {
    let mut octets = vec![0; ENTRY];
    octets[..4].copy_from_slice(&0x656e_7401_u32.to_le_bytes());
    octets[4] = kind;
    octets[8] = 1;
    octets[16] = place.1 as u8;
    octets[32..36].copy_from_slice(&place.0.to_le_bytes());
    octets[36..40].copy_from_slice(&place.1.to_le_bytes());
    octets[40..44].copy_from_slice(&length.to_le_bytes());
    octets
}

/// Regions of 4096 octets.
pub(super) fn stores() -> Vec<(&'static str, Vec<u8>)> {
    let mut region = vec![0; ENTRY];
    region[..4].copy_from_slice(&0x7265_6701_u32.to_le_bytes());
    region[8] = 1;
    let with = |entries: &[Vec<u8>]| [region.clone(), entries.concat()].concat();
    let empty: Vec<_> = (1..63).map(|unit| header(1, (0, unit), 0)).collect();
    vec![
        ("empty", with(&[])),
        ("entries", with(&[header(0, (0, 1), 100), vec![0; 128], header(1, (0, 4), 10), vec![0; 64]])),
        ("headers", with(&empty)),
        ("too-long", with(&[header(0, (0, 1), u32::MAX)])),
        ("longest", with(&[header(0, (0, 1), 4096 - 128)])),
        ("elsewhere", with(&[header(0, (1, 1), 10)])),
        ("unknown-kind", with(&[header(9, (0, 1), 10)])),
    ]
}
