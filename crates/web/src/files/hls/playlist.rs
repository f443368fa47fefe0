//! How far a live media playlist has come (RFC 8216 and draft-pantos-hls-rfc8216bis, section 4.4).

use std::time::Duration;

use super::reload::Reload;

/// Octets of a tag that are looked at.
const MAX_TAG: usize = 4096;

/// Hints that are looked at: a part, and an initialization section.
pub(super) const MAX_HINTS: usize = 4;

/// The longest target duration that is believed.
const MAX_TARGET: u64 = 60;

/// The end of a media playlist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Playlist {
    /// Its target duration, not 0.
    pub(super) target: Duration,
    /// The media sequence number of the segment that comes next, of which there may be parts.
    next: u64,
    /// It has a segment.
    has_segment: bool,
    /// Parts of the last segment; 0 if they are no longer listed.
    last_parts: u64,
    /// Parts of the next one.
    parts: u64,
    /// Target duration of parts, in milliseconds; 0: there are none.
    part_target: u64,
    /// Nothing will be added.
    pub(super) is_over: bool,
    /// URIs of what comes next, as written.
    pub(super) hints: Vec<Box<str>>,
}

/// What a playlist means for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// It has what was asked for.
    Yes,
    NotYet,
    /// What was asked for is too far away to be waited for.
    TooFar,
}

impl Playlist {
    /// Reads a media playlist, each octet a constant number of times. `None`: it is none. The last line counts only if
    /// it has an end or `is_whole`: more of it may be written at this moment.
    pub(super) fn parse(text: &[u8], is_whole: bool) -> Option<Self> {
        let mut playlist = Self::default();
        let (mut first, mut skipped, mut segments) = (0, 0u64, 0u64);
        let mut lines = text.split(|byte| *byte == b'\n');
        let last = lines.next_back();
        let mut lines = lines.chain(last.filter(|_| is_whole));
        if lines.next()?.trim_ascii_end() != b"#EXTM3U" {
            return None;
        }
        for line in lines {
            let line = line.trim_ascii_end();
            let Some(tag) = line.strip_prefix(b"#") else {
                if !line.is_empty() {
                    segments += 1;
                    playlist.last_parts = std::mem::take(&mut playlist.parts);
                }
                continue;
            };
            let tag = &tag[..tag.len().min(MAX_TAG)];
            let Some(tag) = tag.strip_prefix(b"EXT-X-") else { continue };
            let tag = String::from_utf8_lossy(tag);
            let (name, value) = tag.split_once(':').unwrap_or((&tag, ""));
            match name {
                "TARGETDURATION" => {
                    playlist.target = Duration::from_secs(digits(value)?.clamp(1, MAX_TARGET))
                }
                "MEDIA-SEQUENCE" => first = digits(value)?,
                "PART-INF" => playlist.part_target = milliseconds(attribute(value, "PART-TARGET")?)?,
                "PART" => playlist.parts += 1,
                "SKIP" => skipped = digits(attribute(value, "SKIPPED-SEGMENTS")?)?,
                "ENDLIST" => playlist.is_over = true,
                "STREAM-INF" => return None,
                "PRELOAD-HINT" if playlist.hints.len() < MAX_HINTS => {
                    playlist.hints.extend(attribute(value, "URI").map(Box::from));
                }
                _ => {}
            }
        }
        playlist.has_segment = segments > 0 || skipped > 0;
        playlist.next = first.saturating_add(skipped).saturating_add(segments);
        (!playlist.target.is_zero()).then_some(playlist)
    }

    /// It ends before where `other` does.
    pub(super) fn is_behind(&self, other: &Self) -> bool {
        !self.is_over && (self.next, self.parts) < (other.next, other.parts)
    }

    /// Whether it has what a request waits for (sections 6.2.5.2 and 6.3.7).
    pub(super) fn reached(&self, reload: Reload) -> Reached {
        let Reload { segment, part } = reload;
        if self.is_over {
            return Reached::Yes;
        }
        let is_there = match part {
            _ if !self.has_segment && segment < self.next => true,
            None => self.has_segment && segment < self.next,
            Some(part) if segment == self.next => part < self.parts,
            // What is beyond the last part of a segment is the first of the one after it.
            Some(part) if segment.checked_add(1) == Some(self.next) => {
                self.last_parts == 0 || part < self.last_parts || self.parts > 0
            }
            Some(_) => segment < self.next,
        };
        if is_there {
            return Reached::Yes;
        }
        // Two segments beyond the last one, and three parts, or those of three seconds.
        let ahead = segment.saturating_sub(self.next);
        let limit = match self.part_target {
            0 | 1000.. => 3,
            target => 3000_u64.div_ceil(target),
        };
        let too_far = match part {
            _ if segment < self.next => false,
            None => ahead > 1,
            Some(part) if ahead == 0 => part >= self.parts.saturating_add(limit),
            Some(part) => ahead > 1 || part >= limit,
        };
        if too_far { Reached::TooFar } else { Reached::NotYet }
    }
}

/// The integer at the start of a value.
fn digits(value: &str) -> Option<u64> {
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    value[..end].parse().ok()
}

/// A decimal number of seconds.
fn milliseconds(value: &str) -> Option<u64> {
    let seconds: f64 = value.parse().ok()?;
    (0.001..=60.0).contains(&seconds).then_some((seconds * 1000.0) as u64)
}

/// The value of an attribute, without quotes.
fn attribute<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = list;
    loop {
        let (key, value) = rest.split_once('=')?;
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => value.split_at(value.find(',').unwrap_or(value.len())),
        };
        if key.trim() == name {
            return Some(value);
        }
        rest = after.strip_prefix(',')?;
    }
}

#[cfg(test)]
mod tests {
    use super::Reached::{NotYet, TooFar, Yes};
    use super::*;

    const HEAD: &str =
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-PART-INF:PART-TARGET=0.5\n#EXT-X-MEDIA-SEQUENCE:100\n";

    fn parse(text: &str) -> Option<Playlist> {
        Playlist::parse(text.as_bytes(), true)
    }

    fn reached(text: &str, segment: u64, part: impl Into<Option<u64>>) -> Reached {
        parse(text).unwrap().reached(Reload { segment, part: part.into() })
    }

    #[test]
    fn a_playlist_has_its_segments_and_the_parts_of_the_next() {
        let part = "#EXT-X-PART:DURATION=0.5,URI=\"p\"\n";
        let text = format!(
            "{HEAD}#EXTINF:4,\na.m4s\n\n{part}{part}#EXTINF:4,\nb.m4s\r\n{part}#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"x=1,2.m4s\"\n"
        );
        // 100 and 101 are there, 101 with two parts, and one of 102.
        for (segment, part, expected) in [
            (0, None, Yes),
            (101, None, Yes),
            (102, None, NotYet),
            (103, None, NotYet),
            (104, None, TooFar),
            (u64::MAX, None, TooFar),
            (100, Some(u64::MAX), Yes),
            (101, Some(1), Yes),
            (101, Some(2), Yes),
            (102, Some(0), Yes),
            (102, Some(1), NotYet),
            (102, Some(6), NotYet),
            (102, Some(7), TooFar),
            (103, Some(0), NotYet),
            (103, Some(6), TooFar),
            (104, Some(0), TooFar),
            (u64::MAX, Some(u64::MAX), TooFar),
        ] {
            assert_eq!(reached(&text, segment, part), expected, "{segment} {part:?}");
        }
        let playlist = parse(&text).unwrap();
        assert_eq!(playlist.hints, [Box::from("x=1,2.m4s")]);
        assert_eq!(playlist.target, Duration::from_secs(4));
        let without_next = format!("{HEAD}{part}{part}#EXTINF:4,\na.m4s\n");
        assert_eq!(reached(&without_next, 100, 2), NotYet, "the first part of 101");
        assert_eq!(reached(&format!("{text}#EXT-X-ENDLIST\n"), u64::MAX, None), Yes, "nothing will come");
    }

    #[test]
    fn an_empty_playlist_and_skipped_segments_count() {
        assert_eq!(reached(HEAD, 99, None), Yes);
        assert_eq!(reached(HEAD, 100, None), NotYet);
        assert_eq!(reached(HEAD, 102, None), TooFar);
        let skip = format!("{HEAD}#EXT-X-SKIP:SKIPPED-SEGMENTS=10\n#EXTINF:4,\na\n");
        assert_eq!([reached(&skip, 110, None), reached(&skip, 111, None)], [Yes, NotYet]);
    }

    #[test]
    fn what_is_no_media_playlist_is_none() {
        for text in [
            "",
            "#EXTM3U",
            "#EXTM3U\na.m4s\n",
            "#EXT-X-TARGETDURATION:4\n",
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n#EXT-X-TARGETDURATION:4\n",
            "#EXTM3U\n#EXT-X-TARGETDURATION:x\n",
            "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:99999999999999999999\n",
            "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-PART-INF:PART-TARGET=nan\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let most = format!(
            "#EXTM3U\n#EXT-X-TARGETDURATION:{}\n#EXT-X-MEDIA-SEQUENCE:{}\na\nb\n",
            u64::MAX,
            u64::MAX
        );
        assert_eq!(reached(&most, u64::MAX, None), NotYet, "numbers end somewhere");
    }

    #[test]
    fn a_line_that_may_go_on_does_not_count_yet() {
        let text = format!("{HEAD}#EXTINF:4,\na.m4s\n#EXTINF:4,\nb.m");
        let reload = Reload { segment: 101, part: None };
        let seen = |is_whole| Playlist::parse(text.as_bytes(), is_whole).unwrap().reached(reload);
        assert_eq!([seen(true), seen(false)], [Yes, NotYet]);
    }

    #[test]
    fn long_lines_cost_their_length_once() {
        let long = "x".repeat(3 << 20);
        let text = format!(
            "{HEAD}#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"{long}\"\n#EXT-X-{long}\n#{long}\n#EXTINF:4,{long}\n{long}\n{}",
            "#EXT-X-PRELOAD-HINT:URI=\"p\"\n".repeat(10)
        );
        let playlist = parse(&text).unwrap();
        assert_eq!(playlist.hints.len(), MAX_HINTS, "the long one is cut off and none");
        assert_eq!(playlist.reached(Reload { segment: 100, part: None }), Yes);
    }
}
