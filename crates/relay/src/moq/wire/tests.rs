use proptest::prelude::*;

use expressway_h3::varint;

use super::write::message;
use super::*;

fn read<'a, M: Message<'a>>(input: &'a [u8]) -> Result<M, Problem> {
    let (message, length) = M::read(input)?;
    assert_eq!(length, input.len());
    Ok(message)
}

#[test]
fn what_is_written_is_read() {
    let wishes = Wishes { priority: 7, max_age: 10_000, start: None, end: Some(9) };
    let subscribe = Subscribe { id: 3, broadcast: "cam/1", track: "video", wishes };
    let written = write::subscribe(3, "cam/1", "video", wishes);
    assert_eq!(written[0], 2);
    assert_eq!(read(&written[1..]), Ok(subscribe));
    let group = Group { subscription: 3, sequence: 1 << 40 };
    assert_eq!(read(&write::group(group)[1..]), Ok(group));
    let info = TrackInfo { priority: 1, max_age: 5000, timescale: 1_000_000 };
    assert_eq!(read(&write::track_info(info)), Ok(info));
    assert_eq!(read(&write::track("a", "b")[1..]), Ok(Track { broadcast: "a", track: "b" }));
    let asked = AnnounceRequest { prefix: "", exclude_hop: 77 };
    assert_eq!(read(&write::announce_request(77)[1..]), Ok(asked));
    let mut out = Vec::new();
    let announce = Announce { is_active: true, suffix: "cam", hops: vec![1, 1 << 50] };
    write::announce(&announce, &mut out);
    assert_eq!(read(&out), Ok(announce));
    out.clear();
    write::announce_ok(5, 2, &mut out);
    assert_eq!(read(&out), Ok(AnnounceOk { origin: 5, active: 2 }));
    assert_eq!(read(&write::setup()[1..]), Ok(Setup { path: None }));
    assert_eq!(read(&write::goaway()[1..]), Ok(Goaway { uri: "" }));
    for answer in [Answer::Start(4), Answer::End(1 << 30), Answer::Drop { first: 1, last: 2, code: 0x34 }] {
        let mut out = Vec::new();
        answer.write(&mut out);
        assert_eq!(Answer::read(&out), Ok((answer, out.len())));
        for cut in 0..out.len() {
            assert_eq!(Answer::read(&out[..cut]), Err(Problem::Incomplete));
        }
    }
}

#[test]
fn lengths_that_are_claimed_cost_nothing() {
    let huge = [0xff; 8];
    assert_eq!(Setup::read(&huge), Err(Problem::Invalid("a message is too long")));
    // A message of 9 octets whose path claims to have 2^62.
    let mut path = vec![9];
    path.extend(huge);
    path.push(0);
    assert!(matches!(AnnounceRequest::read(&path), Err(Problem::Invalid(_))));
    assert!(matches!(Setup::read(&[2, 0x40, 0x41]), Err(Problem::Invalid("too many parameters"))));
    let long = "x".repeat(MAX_PATH + 1);
    let written = write::track(&long, "t");
    assert_eq!(Track::read(&written[1..]), Err(Problem::Invalid("a path or name is too long")));
    let mut hops = Vec::new();
    message(&mut hops, |body| body.extend([1, 0, MAX_HOPS as u8 + 1]));
    assert_eq!(Announce::read(&hops), Err(Problem::Invalid("too many hops")));
    assert_eq!(Group::read(&[3, 1, 1, 1]), Err(Problem::Invalid("a message is longer than its fields")));
    assert_eq!(TrackInfo::read(&[4, 0, 0, 1, 0]), Err(Problem::Invalid("a timescale of 0")));
    assert_eq!(Track::read(&[4, 1, 0xff, 1, b'a']), Err(Problem::Invalid("a path or name is not UTF-8")));
}

#[test]
fn frames_are_followed_wherever_they_are_cut() {
    let mut stream = Vec::new();
    for (time, length) in [(4000_u64, 3_usize), (1, 0), (66, 70)] {
        varint::write(time, &mut stream);
        varint::write(length as u64, &mut stream);
        stream.extend(std::iter::repeat_n(0xff, length));
    }
    for cut in 0..=stream.len() {
        let mut frames = Frames::default();
        frames.follow(&stream[..cut], 100).unwrap();
        frames.follow(&stream[cut..], 100).unwrap();
        assert!(frames.is_whole());
        assert_eq!(frames.count, 3);
    }
    let mut frames = Frames::default();
    frames.follow(&stream[..stream.len() - 1], 100).unwrap();
    assert!(!frames.is_whole());
    assert_eq!(Frames::default().follow(&stream, 69), Err("a frame is too long"));
}

proptest! {
    #[test]
    fn anything_is_read_or_refused(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Setup::read(&input);
        let _ = AnnounceRequest::read(&input);
        let _ = AnnounceOk::read(&input);
        let _ = Subscribe::read(&input);
        let _ = Wishes::read(&input);
        let _ = Track::read(&input);
        let _ = TrackInfo::read(&input);
        let _ = Fetch::read(&input);
        let _ = Goaway::read(&input);
        let _ = Answer::read(&input);
        if let Ok((announce, length)) = Announce::read(&input) {
            prop_assert!(length <= input.len());
            let mut again = Vec::new();
            write::announce(&announce, &mut again);
            let reread = Announce::read(&again).map(|(announce, _)| announce);
            prop_assert_eq!(reread, Ok(announce.clone()));
        }
        let mut frames = Frames::default();
        let _ = frames.follow(&input, 1 << 20);
        prop_assert!(frames.count <= input.len() as u64);
    }
}
