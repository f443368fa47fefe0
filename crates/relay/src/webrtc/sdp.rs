//! The text of an offer before str0m reads it: what it may have, and what is left out. And the sections that its answer rejects.
//!
//! str0m compares lists of an offer with each other: payload types with their parameters and feedback, layers with streams. So what those
//! lists may have is counted first, in one pass. Browsers stay far below.

use super::answer::Role;
use crate::config::Data;

/// Octets of an offer at most.
pub(super) const LONGEST: usize = 64 << 10;
/// Octets of them without candidates, which str0m is not shown. Browsers with simulcast and all their codecs send about 10,000.
const LONGEST_READ: usize = 16 << 10;
/// Lines likewise.
const LINES: usize = 600;
/// Media sections of an offer at most: sound, pictures, and data.
const SECTIONS: usize = 3;
/// Payload types of a section.
const TYPES: usize = 128;
/// What lines begin with that there may be so many of. Chrome has about 60, 60, 130, 30, 20 and 3 of them.
const MOST: [(&str, usize); 6] = [
    ("a=rtpmap:", TYPES),
    ("a=fmtp:", TYPES),
    ("a=rtcp-fb:", 300),
    ("a=extmap:", 64),
    ("a=ssrc", 128),
    ("a=rid:", 16),
];
/// Parameters of codecs in all sections, by the `;` between them.
const PARAMETERS: usize = 512;
/// Parts of a line of simulcast: layers, and alternatives of them.
const PARTS: usize = 16;
/// Layers of a simulcast at most. Browsers send up to three.
const LAYERS: usize = 4;

/// Whether an offer has no more of anything than is allowed.
///
/// # Errors
/// In a few words, for whoever sent it.
pub(super) fn check(offer: &str) -> Result<(), String> {
    let read = || offer.lines().filter(|line| !line.starts_with("a=candidate:"));
    let octets: usize = read().map(|line| line.len() + 2).sum();
    if offer.len() > LONGEST || octets > LONGEST_READ || read().count() > LINES {
        return Err("the offer is too long".into());
    }
    let sections = offer.lines().filter(|line| line.starts_with("m=")).count();
    if !(1..=SECTIONS).contains(&sections) {
        return Err(format!(
            "the offer has {sections} media sections: at most one of audio and one of video are allowed"
        ));
    }
    let (mut counts, mut parameters, mut mapped) = ([0; MOST.len()], 0, [false; TYPES]);
    for line in offer.lines() {
        // What would be several lines to another parser.
        if line.contains('\r') {
            return Err("the offer is not valid SDP".into());
        }
        if line.starts_with("m=") {
            mapped = [false; TYPES];
            if line.matches(' ').count() > TYPES + 2 {
                return Err("the offer has too many payload types".into());
            }
        }
        if line.starts_with("a=simulcast:") && line.matches([';', ',']).count() >= PARTS {
            return Err("the offer has too many layers".into());
        }
        for (count, (start, most)) in counts.iter_mut().zip(MOST) {
            *count += usize::from(line.starts_with(start));
            if *count > most {
                return Err(format!("the offer has more than {most} lines of {start}"));
            }
        }
        if line.starts_with("a=fmtp:") {
            parameters += 1 + line.matches(';').count();
        }
        if parameters > PARAMETERS {
            return Err("the offer has too many parameters of codecs".into());
        }
        let Some(map) = line.strip_prefix("a=rtpmap:") else { continue };
        let number = map.split_once(' ').and_then(|(number, _)| number.parse::<usize>().ok());
        let Some(seen) = number.and_then(|number| mapped.get_mut(number)) else {
            return Err("the offer is not valid SDP".into());
        };
        if std::mem::replace(seen, true) {
            return Err("the offer has a payload type twice".into());
        }
    }
    Ok(())
}

/// A media section that the answer rejects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    /// Its place among all.
    place: usize,
    mid: String,
    /// What the answer says of it.
    text: String,
}

/// The sections of an offer that its answer rejects: those of data where the room has none, so that nothing of SCTP runs.
pub(super) fn rejected(offer: &str, data: Data) -> Vec<Rejected> {
    let mut rejected = Vec::new();
    if data != Data::Off {
        return rejected;
    }
    let (mut sections, mut is_in) = (0, false);
    for line in offer.lines() {
        if let Some(section) = line.strip_prefix("m=") {
            let mut words = section.splitn(3, ' ');
            let (kind, rest) = (words.next(), words.nth(1));
            is_in = kind == Some("application");
            if is_in {
                // RFC 3264, section 6: port 0, and the rest as it was offered.
                let text = format!(
                    "m=application 0 {}\r\nc=IN IP4 0.0.0.0\r\n",
                    rest.unwrap_or("UDP/DTLS/SCTP webrtc-datachannel")
                );
                rejected.push(Rejected { place: sections, mid: String::new(), text });
            }
            sections += 1;
        }
        let mid = line.strip_prefix("a=mid:").filter(|_| is_in);
        if let Some((mid, last)) = mid.zip(rejected.last_mut().filter(|last| last.mid.is_empty())) {
            last.mid = mid.into();
            last.text.push_str(&format!("a=mid:{mid}\r\n"));
        }
    }
    rejected
}

/// The offer as str0m reads it, without the sections that are rejected. Media that would go both ways go one, as the answer has to say
/// (RFC 9725, section 4.2). Who plays has no layers to send, and who has too many sends one (RFC 8853, section 5.3.2). Candidates are of no
/// use: the relay is ICE-lite, and learns the addresses of peers from their packets.
pub(super) fn plain(offer: &str, role: Role, rejected: &[Rejected]) -> String {
    let way = match role {
        Role::Publish => "a=sendonly",
        Role::Play => "a=recvonly",
    };
    let mut out = String::with_capacity(offer.len() + 2 * LINES);
    let layers = offer.lines().filter(|line| line.starts_with("a=rid:")).count();
    let has_layers = role == Role::Publish && layers <= LAYERS;
    let (mut sections, mut is_rejected) = (0, false);
    for line in offer.lines() {
        if line.starts_with("m=") {
            is_rejected = rejected.iter().any(|one| one.place == sections);
            sections += 1;
        }
        let is_layer = line.starts_with("a=simulcast:") || line.starts_with("a=rid:");
        if is_rejected || line.starts_with("a=candidate:") || is_layer && !has_layers {
            continue;
        }
        if line.starts_with("a=group:") && !rejected.is_empty() {
            let is_kept = |word: &&str| !rejected.iter().any(|one| one.mid == **word);
            let words: Vec<&str> = line.split(' ').filter(is_kept).collect();
            out.push_str(&words.join(" "));
        } else {
            out.push_str(if line == "a=sendrecv" { way } else { line });
        }
        out.push_str("\r\n");
    }
    out
}

/// An answer with the sections that it rejects, each in its place.
pub(super) fn with_rejected(answer: &str, rejected: &[Rejected]) -> String {
    let mut out = String::with_capacity(answer.len());
    let (mut sections, mut left) = (0, rejected.iter().peekable());
    let mut put = |out: &mut String, sections: &mut usize| {
        while let Some(one) = left.next_if(|one| one.place == *sections) {
            out.push_str(&one.text);
            *sections += 1;
        }
    };
    for line in answer.split_inclusive('\n') {
        if line.starts_with("m=") {
            put(&mut out, &mut sections);
            sections += 1;
        }
        out.push_str(line);
    }
    put(&mut out, &mut sections);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: &str = "v=0\r\na=group:BUNDLE a d v\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:a\r\na=rtpmap:111 opus/48000/2\r\n\
                         m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:d\r\na=sctp-port:5000\r\n\
                         m=video 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:v\r\na=rtpmap:96 VP8/90000\r\na=sendrecv\r\n\
                         a=candidate:1 1 udp 1 192.0.2.9 5000 typ host\r\n";

    #[test]
    fn sections_of_data_are_rejected_in_their_place() {
        let gone = rejected(OFFER, Data::Off);
        assert_eq!((gone.len(), gone[0].place, gone[0].mid.as_str()), (1, 1, "d"));
        let plain = plain(OFFER, Role::Publish, &gone);
        assert!(plain.contains("a=group:BUNDLE a v\r\n") && plain.contains("a=mid:v\r\n"));
        assert!(!plain.contains("application") && !plain.contains("sctp") && !plain.contains("candidate"));
        let answer = with_rejected("v=0\r\nm=audio 9 A\r\na=mid:a\r\nm=video 9 V\r\na=mid:v\r\n", &gone);
        let data = "m=application 0 UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP4 0.0.0.0\r\na=mid:d\r\n";
        assert_eq!(answer, format!("v=0\r\nm=audio 9 A\r\na=mid:a\r\n{data}m=video 9 V\r\na=mid:v\r\n"));
        let last = Rejected { place: 2, ..rejected(OFFER, Data::Off).remove(0) };
        assert!(with_rejected("v=0\r\nm=audio\r\nm=video\r\n", &[last]).ends_with(data));
        assert!(rejected(OFFER, Data::Publisher).is_empty());
    }

    #[test]
    fn lists_of_an_offer_have_bounds() {
        assert_eq!(check(OFFER), Ok(()));
        let with = |more: &str, count: usize| format!("{OFFER}{}", more.repeat(count));
        for (line, most) in [
            ("a=fmtp:96 a=1\r\n", 128),
            ("a=rtcp-fb:96 nack\r\n", 300),
            ("a=extmap:1 urn:x\r\n", 64),
            ("a=ssrc:1 cname:x\r\n", 128),
            ("a=ssrc-group:FID 1 2\r\n", 128),
            ("a=rid:h send\r\n", 16),
            ("a=x\r\n", LINES - OFFER.lines().filter(|line| !line.starts_with("a=candidate:")).count()),
        ] {
            assert_eq!(check(&with(line, most)), Ok(()), "{line}");
            assert!(check(&with(line, most + 1)).is_err(), "{line}");
        }
        let fmtp = |count| format!("a=fmtp:96 {}\r\n", "apt=96;".repeat(count));
        assert_eq!(check(&with(&fmtp(511), 1)), Ok(()));
        assert!(check(&with(&fmtp(512), 1)).is_err());
        assert!(check(&with("a=rtpmap:96 VP8/90000\r\n", 1)).is_err(), "twice");
        assert!(check(&with("a=rtpmap:128 VP8/90000\r\n", 1)).is_err());
        assert!(check(&with("a=x\ra=y\r\n", 1)).is_err(), "two lines in one");
        let layers = |count| format!("a=simulcast:send h{}\r\n", ";h".repeat(count));
        assert_eq!(check(&with(&layers(15), 1)), Ok(()));
        assert!(check(&with(&layers(16), 1)).is_err());
        let types = |count| OFFER.replace("SAVPF 96", &format!("SAVPF{}", " 96".repeat(count)));
        assert_eq!(check(&types(128)), Ok(()));
        assert!(check(&types(129)).is_err());
        assert!(check(&with("m=video 9 UDP/TLS/RTP/SAVPF 96\r\n", 1)).is_err());
        assert!(check(&with(&"x".repeat(LONGEST_READ), 1)).is_err());
        let candidate = format!("a=candidate:{}\r\n", "x".repeat(100));
        assert!(check(&with(&candidate, 500)).is_ok());
        assert!(check(&with(&candidate, 600)).is_err());
    }
}
