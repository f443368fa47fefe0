//! Inputs of the relay's targets: who sends and when, a length, and the datagram; datagrams alone; offers.

/// A step.
fn step(kind: u8, datagram: &[u8]) -> Vec<u8> {
    [&[kind, datagram.len() as u8], datagram].concat()
}

fn rtp(sequence: u16, ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 96];
    packet.extend_from_slice(&sequence.to_be_bytes());
    packet.extend_from_slice(&u32::from(sequence).to_be_bytes());
    packet.extend_from_slice(&ssrc.to_be_bytes());
    packet.extend_from_slice(b"payload");
    packet
}

fn rtcp(kind: u8, form: u8, words: &[u32]) -> Vec<u8> {
    let mut packet = vec![0x80 | form, kind];
    packet.extend_from_slice(&(words.len() as u16).to_be_bytes());
    words.iter().for_each(|word| packet.extend_from_slice(&word.to_be_bytes()));
    packet
}

/// One for each kind of packet and sender.
pub(super) fn rooms() -> Vec<(&'static str, Vec<u8>)> {
    let report = rtcp(201, 0, &[7]);
    let stream = |numbers: &[u16]| -> Vec<u8> {
        numbers.iter().flat_map(|number| step(0, &rtp(*number, 1))).collect()
    };
    let nack = |media: u32, entries: &[u32]| {
        [report.clone(), rtcp(205, 1, &[&[7, media], entries].concat())].concat()
    };
    let block = [1, 0x0100_0005, 9, 3, 0x5678_9abc, 0];
    vec![
        ("stream", stream(&[65_534, 65_535, 0, 1, 2])),
        ("gap", [stream(&[1, 5, 9]), step(16, &rtp(10, 1)), step(16, &rtp(11, 1))].concat()),
        ("late-and-twice", stream(&[1, 3, 2, 3, 2])),
        ("jump", stream(&[1, 2, 40_000, 40_001])),
        (
            "nack",
            [stream(&[1, 2, 3, 4]), step(2, &nack(1, &[0x0001_ffff])), step(3, &nack(9, &[0x0002_0001]))]
                .concat(),
        ),
        ("nack-much", [stream(&[1, 2, 3, 4]), step(2, &nack(1, &[0x0001_ffff; 40]))].concat()),
        ("pli", [stream(&[1]), step(2, &[report.clone(), rtcp(206, 1, &[7, 1])].concat())].concat()),
        (
            "fir",
            [stream(&[1]), step(3, &[report.clone(), rtcp(206, 4, &[7, 0, 9, 0x0100_0000])].concat())]
                .concat(),
        ),
        (
            "sender-report",
            [
                stream(&[1, 2]),
                step(1, &rtcp(200, 0, &[1, 0x1234_5678, 0x9abc_def0, 5, 6, 7])),
                step(2, &rtcp(201, 1, &[&[7], &block[..]].concat())),
                step(8, &rtp(3, 1)),
            ]
            .concat(),
        ),
        ("bye", [stream(&[1]), step(1, &rtcp(203, 1, &[1])), step(4, &rtp(1, 2))].concat()),
        (
            "second-publisher",
            [stream(&[1]), step(4, &rtp(1, 2)), step(5, &rtp(2, 1)), step(24 + 4, &rtp(9, 2))].concat(),
        ),
        ("many-ssrcs", (0..20).flat_map(|ssrc| step(0, &rtp(1, ssrc))).collect()),
        ("stranger", [stream(&[1]), step(6, &report)].concat()),
        ("description", [stream(&[1]), step(1, &rtcp(202, 1, &[1, 0x0103_6162, 0x6300_0000]))].concat()),
        (
            "cut",
            [step(0, &rtp(1, 1)[..11]), step(1, &rtcp(200, 0, &[1])), step(2, &[0x80, 0xc8, 0xff, 0xff])]
                .concat(),
        ),
    ]
}

/// A STUN message with these attributes.
fn stun(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (kind, value) in attributes {
        body.extend_from_slice(&kind.to_be_bytes());
        body.extend_from_slice(&(value.len() as u16).to_be_bytes());
        body.extend_from_slice(value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let mut message = kind.to_be_bytes().to_vec();
    message.extend_from_slice(&(body.len() as u16).to_be_bytes());
    message.extend_from_slice(&[0x21, 0x12, 0xa4, 0x42]);
    message.extend_from_slice(&[7; 12]);
    message.extend_from_slice(&body);
    message
}

/// One for each protocol that shares the address.
pub(super) fn datagrams() -> Vec<(&'static str, Vec<u8>)> {
    let name: (u16, &[u8]) = (6, b"000123456789abcdef:peer");
    let priority: (u16, &[u8]) = (0x24, &[0, 0, 0, 1]);
    vec![
        ("request", stun(1, &[priority, name, (8, &[1; 20]), (0x8028, &[2; 4])])),
        ("no-name", stun(1, &[priority])),
        ("no-colon", stun(1, &[(6, b"name")])),
        ("many", stun(1, &[priority; 40])),
        ("answer", stun(0x0101, &[name])),
        ("cut", stun(1, &[name])[..30].to_vec()),
        ("dtls", vec![22, 254, 253, 0, 0]),
        ("rtp", rtp(1, 2)),
        ("rtcp", rtcp(200, 0, &[1, 2])),
        ("channel", vec![0x40, 0, 0, 4, 1, 2, 3, 4]),
    ]
}

/// What peers offer.
pub(super) fn offers() -> Vec<(&'static str, Vec<u8>)> {
    let head =
        "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0 1\r\na=msid-semantic:WMS *\r\n";
    let ice = "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\na=setup:actpass\r\na=rtcp-mux\r\na=fingerprint:sha-256 ";
    let print = format!("{}\r\n", ["AB"; 32].join(":"));
    let section = |kind: &str, mid: u8, types: &str, more: &str| {
        format!(
            "m={kind} 9 UDP/TLS/RTP/SAVPF {types}\r\nc=IN IP4 0.0.0.0\r\na=mid:{mid}\r\n{ice}{print}{more}"
        )
    };
    let video = "a=sendonly\r\na=rtpmap:96 VP8/90000\r\na=rtcp-fb:96 nack pli\r\na=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\n\
                 a=ssrc-group:FID 1 2\r\na=ssrc:1 cname:x\r\na=ssrc:2 cname:x\r\na=extmap:1 urn:ietf:params:rtp-hdrext:sdes:mid\r\n\
                 a=candidate:1 1 udp 2130706431 192.0.2.9 5000 typ host\r\n";
    let audio = "a=sendonly\r\na=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\n";
    let data = format!(
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP4 0.0.0.0\r\na=mid:1\r\n{ice}{print}a=sctp-port:5000\r\n"
    );
    let whole = |role: char, sections: &[&str]| format!("{role}{head}{}", sections.concat()).into_bytes();
    let (video, audio) = (section("video", 0, "96 97", video), section("audio", 1, "111", audio));
    vec![
        ("publish", whole('0', &[&video, &audio])),
        ("play", whole('1', &[&video.replace("sendonly", "recvonly")])),
        ("data", whole('1', &[&video.replace("sendonly", "recvonly"), &data])),
        ("both-ways", whole('0', &[&video.replace("sendonly", "sendrecv")])),
        (
            "simulcast",
            whole('0', &[&format!("{video}a=rid:h send\r\na=rid:l send\r\na=simulcast:send h;l\r\n")]),
        ),
        ("no-fingerprint", whole('0', &[&video.replace("fingerprint", "finger")])),
        ("same-mid", whole('0', &[&video, &video])),
        ("cut", whole('0', &[&video[..200]])),
        ("many-types", whole('0', &[&section("video", 0, &"96 ".repeat(40), "a=sendonly\r\n")])),
        (
            "many-candidates",
            whole('0', &[&video, &"a=candidate:1 1 udp 1 192.0.2.9 5000 typ host\r\n".repeat(40)]),
        ),
        ("no-sdp", b"0hello".to_vec()),
    ]
}
