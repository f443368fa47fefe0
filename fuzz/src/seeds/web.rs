//! Heads of requests, with what each header field may hold in the forms that have cost most.

/// Heads as the target reads them: method and target, authority, fields.
pub(super) fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let ask = |target: &str, fields: &str| format!("GET {target}\nedge.example\n{fields}").into_bytes();
    let host = |authority: &str| format!("GET /a.js\n{authority}\n").into_bytes();
    let list = |before: &str, member: &str, times: usize| format!("{before}{}", member.repeat(times));
    let one_byte_ranges = |count: u32| {
        let ranges: Vec<_> = (0..count).map(|block| format!("{0}-{0}", block << 18)).collect();
        format!("range: bytes={}", ranges.join(","))
    };
    vec![
        ("index", ask("/", "accept: */*\nuser-agent: curl/8")),
        ("coded", ask("/a.js?v=1", "accept-encoding: gzip;q=0.5, br;q=1.0, identity;q=0.1, *;q=0")),
        ("only-coded", ask("/only.css", "accept-encoding: gzip")),
        ("head", b"HEAD /block.mp4\nedge.example\nrange: bytes=0-1".to_vec()),
        ("post", b"POST /a.js\nedge.example\n".to_vec()),
        ("options", b"OPTIONS *\nedge.example\n".to_vec()),
        ("extension-method", b"M-SEARCH /a.js\nedge.example\n".to_vec()),
        ("folder", ask("/dir?x=%22", "")),
        ("folder-index", ask("/dir/", "")),
        ("missing", ask("/none/none", "")),
        ("hidden", b"GET /.hidden/x\nwild.example\n".to_vec()),
        ("link", b"GET /dir/up/link.js\nlinks.test\n".to_vec()),
        ("empty", ask("/empty.txt", "range: bytes=0-")),
        ("dots", ask(&list("/a/b/c/", "./../c/", 40), "")),
        ("dots-above", ask(&list("/", "a/../../", 40), "")),
        ("slashes", ask(&list("/a", "//", 60), "")),
        ("escapes", ask(&list("/", "%2e%2e%2f", 40), "")),
        ("escapes-kept", ask(&list("/dir%3f", "%25%00", 40), "")),
        ("deep", ask("/a/b/c/d/e/f/g/h/", "")),
        ("long-name", ask(&list("/", "n", 300), "")),
        ("queries", ask(&list("/dir?", "a=b&", 80), "")),
        ("fragment", ask("/a.js#x", "")),
        ("not-modified", ask("/a.js", "if-modified-since: Thu, 01 Jan 1970 00:00:00 GMT\nif-none-match: *")),
        ("if-none-match", ask("/a.js", &list("if-none-match: ", "\"a\", ", 40))),
        ("if-none-match-weak", ask("/a.js", &list("if-none-match: ", "W/\"a,b\" ,", 40))),
        ("if-none-match-bare", ask("/a.js", &list("if-none-match: ", "a,", 200))),
        ("if-none-match-open", ask("/a.js", &list("if-none-match: \"", "a\"x,", 60))),
        ("if-match", ask("/a.js", &list("if-match: ", "\"x\",", 60))),
        ("if-match-lines", ask("/a.js", &list("", "if-match: \"x\"\n", 100))),
        ("if-unmodified", ask("/a.js", "if-unmodified-since: Sunday, 06-Nov-94 08:49:37 GMT")),
        ("if-range", ask("/block.mp4", "if-range: \"x\"\nrange: bytes=1-2")),
        ("if-range-date", ask("/block.mp4", "if-range: Sun Nov  6 08:49:37 1994\nrange: bytes=1-2")),
        ("range", ask("/media.mp4", "range: bytes=262143-524288")),
        ("range-suffix", ask("/block.mp4", "range: bytes=-300000")),
        ("range-none", ask("/block.mp4", "range: bytes=999999999-")),
        ("ranges", ask("/media.mp4", "range: bytes=0-9, 100-199 , -5,7-")),
        ("ranges-empty", ask("/block.mp4", &list("range: bytes=", "999999999-,", 100))),
        ("ranges-whole", ask("/block.mp4", &list("range: bytes=", "0-,", 100))),
        ("ranges-spaces", ask("/block.mp4", &list("range: bytes= ", "0  -  1  , ", 60))),
        ("ranges-blocks", ask("/media.mp4", &one_byte_ranges(200))),
        ("encodings", ask("/a.js", &list("accept-encoding: ", "br;q=0.1;q=0.2,", 60))),
        ("encodings-parameters", ask("/a.js", &list("accept-encoding: br", ";q=1.000", 100))),
        ("cookies", ask("/a.js", &list("", "cookie: a=b\n", 60))),
        ("fields", ask("/a.js", &list("", "x-field: 1\n", 128))),
        ("host-labels", host(&list("", "a.", 200))),
        ("host-labels-wild", host(&(list("", "b.", 100) + "b.a.test"))),
        ("host-upper", host(&list("", "A-", 60))),
        ("host-port", host(&list("edge.example:", "0", 60))),
        ("host-address", host("[2001:db8::1]:443")),
        ("host-brackets", host(&list("[", "0:", 60))),
        ("host-dots", host(&list("edge", "..", 60))),
        // As long as a header section may be, and beyond the bounds of lists and names.
        ("if-none-match-15000", ask("/a.js", &list("if-none-match: ", "a,", 15_000))),
        ("if-none-match-weak-10000", ask("/a.js", &list("if-none-match: ", "W/,", 10_000))),
        ("if-none-match-quoted-7500", ask("/a.js", &list("if-none-match: ", "\"a\",", 7500))),
        ("if-match-10000", ask("/a.js", &list("if-match: ", "\"\",", 10_000))),
        ("ranges-10000", ask("/media.mp4", &list("range: bytes=", "5-,", 10_000))),
        ("encodings-7500", ask("/a.js", &list("accept-encoding: ", "br,", 7500))),
        ("host-labels-15000", host(&list("", "a.", 15_000))),
        ("host-labels-wild-15000", host(&(list("", "b.", 15_000) + "b.a.test"))),
        ("dots-10000", ask(&list("/", "../", 10_000), "")),
        ("folders-15000", ask(&list("/", "a/", 15_000), "")),
        ("escapes-3000", ask(&list("/", "%2e%2e%2f", 3000), "")),
    ]
}

/// Heads for a site of rules, as the target reads them.
pub(super) fn ruled() -> Vec<(&'static str, Vec<u8>)> {
    let ask = |target: &str, fields: &str| format!("GET {target}\nedge.example\n{fields}").into_bytes();
    let token = |what: &str| format!("/signed/x/y?a=b&token=exp=9999999999{what}~hmac=*&c");
    let many = |member: &str| member.repeat(900 / member.len());
    vec![
        ("respond", ask("/a/x/b", "")),
        ("suffix", ask("/live/x.m3u8", "origin: https://b.example")),
        ("rewritten", ask("/old/a.x", "")),
        ("rewritten-escapes", ask(&format!("/old/{}", many("%3F")), "")),
        ("preflight", b"OPTIONS /a\nedge.example\norigin: https://b.example\naccess-control-request-method: PUT\naccess-control-request-headers: a, b".to_vec()),
        ("signed", ask(&token("~acl=/signed/*"), "")),
        ("signed-address", ask(&token("~st=1~ip=192.0.2.1~acl=/signed/?/y!/b"), "")),
        ("signed-stars", ask(&token(&format!("~acl={}", many("*/"))), "")),
        ("signed-marks", ask(&token(&format!("~acl={}", many("?*"))), "")),
        ("signed-patterns", ask(&token(&format!("~acl={}", many("*!"))), "")),
        ("signed-fields", ask(&token(&many("~a=b")), "")),
        ("unsigned", ask("/signed/x?token=exp=1~acl=*~hmac=0", "")),
        ("cookie", ask("/signed/x", "cookie: a=b; token=exp=1~hmac=0; c=d")),
        ("cookies", ask("/signed/x", &format!("cookie: {}", many("a=b; ")))),
        ("cookie-lines", ask("/signed/x", &"cookie: tokens=a\n".repeat(100))),
        ("queries", ask(&format!("/signed/x?{}", many("a&")), "")),
        ("escapes", ask(&format!("/signed/x?token={}", many("%7e")), "")),
    ]
}

/// Lines of texts as the target of the access log reads them: flags, then a text a line.
pub(super) fn lines() -> Vec<(&'static str, Vec<u8>)> {
    let with = |flags: u8, texts: &str| [&[flags], texts.as_bytes()].concat();
    let texts = "GET\nedge.example\n/a?b=\"c\"\nbytes=0-\nhttps://a.example/\nagent \\ \u{7f} \u{1f6e3}";
    vec![
        ("json", with(0, texts)),
        ("combined", with(3, texts)),
        ("json-escapes", with(0, &format!("GET\na\n/{}", "\u{1}\"\\".repeat(60)))),
        ("combined-escapes", with(1, &format!("GET\na\n/{}", "\u{1}\"\\".repeat(60)))),
        ("unlike-text", [&[0], b"GET\n\n/".as_slice(), &[0xff; 90]].concat()),
    ]
}
