//! PROXY headers of both versions.

/// Headers, with what follows them.
pub(super) fn headers() -> Vec<(&'static str, Vec<u8>)> {
    let v2 = |command: u8, family: u8, length: u16, rest: &[u8]| {
        let fixed = [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[command, family], &length.to_be_bytes()].concat();
        [&fixed, rest].concat()
    };
    let four = [192, 0, 2, 7, 198, 51, 100, 2, 0x12, 0x34, 1, 187];
    vec![
        ("v1-tcp4", b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 443\r\nGET /".to_vec()),
        ("v1-tcp6", b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 65535 443\r\n".to_vec()),
        ("v1-unknown", b"PROXY UNKNOWN ffff:f...f:ffff ffff 65535 65535\r\n".to_vec()),
        ("v1-endless", [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat()),
        ("v1-port", b"PROXY TCP4 192.0.2.1 198.51.100.2 65536 443\r\n".to_vec()),
        ("v2-tcp4", v2(0x21, 0x11, 12, &four)),
        ("v2-additions", v2(0x21, 0x11, 16, &[&four[..], b"\x04\x00\x01x"].concat())),
        ("v2-tcp6", v2(0x21, 0x21, 36, &[1; 36])),
        ("v2-local", v2(0x20, 0, 0, b"")),
        ("v2-unix", v2(0x21, 0x31, 216, &[0; 216])),
        ("v2-longest", v2(0x21, 0x11, 2048, &[0; 2048])),
        ("v2-too-long", v2(0x21, 0x11, 2049, &[0; 2049])),
        ("v2-cut", v2(0x21, 0x21, 36, &[1; 20])),
    ]
}
