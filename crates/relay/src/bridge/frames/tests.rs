//! Frames in packets of any form, some of which are lost.

use proptest::prelude::*;

use super::*;

const LONGEST: usize = 1 << 16;

/// A frame as a sender has it, and a way to put it into packets.
#[derive(Clone, Debug)]
struct Sent {
    frame: Vec<u8>,
    packets: Vec<Vec<u8>>,
    is_key: bool,
}

/// Start codes and units.
fn stream(units: &[Vec<u8>]) -> Vec<u8> {
    units.iter().flat_map(|unit| [&[0, 0, 0, 1][..], unit].concat()).collect()
}

/// Pieces of at most so many octets.
fn pieces(octets: &[u8], size: usize) -> Vec<Vec<u8>> {
    octets.chunks(size).map(Into::into).collect()
}

/// Units, each as it is, in fragments, or with the next ones in an aggregate.
fn h264_packets(units: &[Vec<u8>], ways: &[(u8, usize)]) -> Vec<Vec<u8>> {
    let (mut packets, mut at) = (Vec::new(), 0);
    for (way, size) in ways.iter().cycle() {
        let Some(unit) = units.get(at) else { return packets };
        let head = unit[0];
        match way % 3 {
            0 => packets.push(unit.clone()),
            1 if unit.len() > 2 => {
                let fragments = pieces(&unit[1..], (*size).clamp(1, unit.len() - 2));
                let last = fragments.len() - 1;
                packets.extend(fragments.iter().enumerate().map(|(number, octets)| {
                    let ends = u8::from(number == 0) << 7 | u8::from(number == last) << 6;
                    [&[head & 0xe0 | 28, ends | head & 0x1f][..], octets].concat()
                }));
            }
            _ => {
                let together = &units[at..units.len().min(at + 1 + size % 3)];
                let mut packet = vec![0x78];
                for unit in together {
                    packet.extend((unit.len() as u16).to_be_bytes());
                    packet.extend(unit);
                }
                packets.push(packet);
                at += together.len() - 1;
            }
        }
        at += 1;
    }
    packets
}

fn unit(kind: impl Strategy<Value = u8>) -> impl Strategy<Value = Vec<u8>> {
    (kind, prop::collection::vec(any::<u8>(), 4..200))
        .prop_map(|(kind, octets)| [vec![0x60 | kind], octets].concat())
}

fn h264() -> impl Strategy<Value = Sent> {
    let slices = any::<bool>().prop_flat_map(|is_key| {
        let slices = prop::collection::vec(unit(Just(if is_key { 5u8 } else { 1 })), 1..4);
        (Just(is_key), slices, unit(Just(7)), unit(Just(8)))
    });
    let ways = prop::collection::vec((any::<u8>(), 1..100usize), 1..5);
    (slices, prop::collection::vec(unit(Just(6u8)), 0..2), ways).prop_map(
        |((is_key, slices, sps, pps), others, ways)| {
            let parameters = if is_key { vec![sps, pps] } else { Vec::new() };
            let units = [parameters, others, slices].concat();
            Sent { frame: stream(&units), packets: h264_packets(&units, &ways), is_key }
        },
    )
}

fn vp8() -> impl Strategy<Value = Sent> {
    let octets = prop::collection::vec(any::<u8>(), 1..500);
    (any::<bool>(), octets, 1..100usize, any::<bool>()).prop_map(|(is_key, octets, size, has_number)| {
        let head = if is_key { vec![0x10, 0, 0, 0x9d, 0x01, 0x2a, 64, 0, 48, 0] } else { vec![0x11] };
        let frame = [head, octets].concat();
        let packet = |(number, octets): (usize, Vec<u8>)| {
            let first = u8::from(number == 0) << 4;
            let descriptor = if has_number { vec![first | 0x80, 0x80, 0x81, 7] } else { vec![first] };
            [descriptor, octets].concat()
        };
        let packets = pieces(&frame, size).into_iter().enumerate().map(packet).collect();
        Sent { frame, packets, is_key }
    })
}

/// Pushes packets but those that are lost, and gives what comes of them.
fn assembled(
    codec: Codec,
    sent: &[Sent],
    has_markers: bool,
    mut is_lost: impl FnMut() -> bool,
) -> Vec<Result<Frame, Fault>> {
    let mut assembler = Assembler::new(codec, LONGEST).unwrap();
    let mut made = Vec::new();
    for (number, one) in sent.iter().enumerate() {
        for (at, payload) in one.packets.iter().enumerate() {
            let marker = has_markers && at == one.packets.len() - 1;
            if is_lost() {
                assembler.lose();
            } else {
                let timestamp = number as u32 * 3000;
                made.extend(assembler.push(Packet { payload, timestamp, marker }).into_iter().flatten());
            }
        }
    }
    made
}

fn is_whole(sent: &[Sent], frame: &Frame) -> bool {
    let one = &sent[frame.timestamp as usize / 3000];
    frame.octets[HEAD..] == one.frame[..] && frame.is_key == one.is_key
}

fn arrive(codec: Codec, sent: &[Sent], has_markers: bool) -> Result<(), TestCaseError> {
    let made = assembled(codec, sent, has_markers, || false);
    // Without markers, the last is only known to end when there is another.
    prop_assert_eq!(made.len(), sent.len() - usize::from(!has_markers));
    for (number, made) in made.iter().enumerate() {
        match made {
            Ok(frame) => prop_assert!(frame.timestamp == number as u32 * 3000 && is_whole(sent, frame)),
            // A slice may be any packet's but the first's; without parameters before it, nobody knows.
            Err(fault) => prop_assert!(number == 0 && codec == Codec::H264 && *fault == Fault::Lost),
        }
    }
    Ok(())
}

fn arrive_in_part(codec: Codec, sent: &[Sent], losses: &[bool]) -> Result<(), TestCaseError> {
    let mut losses = losses.iter().copied().cycle();
    for made in assembled(codec, sent, true, || losses.next().unwrap_or_default()) {
        match made {
            // What stood in front of the slices may be missing, and its parameters be those of another.
            Ok(frame) if codec == Codec::H264 => {
                let one = &sent[frame.timestamp as usize / 3000];
                let slices = |octets: &[u8]| {
                    octets
                        .windows(5)
                        .filter(|at| at[..4] == [0, 0, 0, 1] && matches!(at[4] & 0x1f, 1 | 5))
                        .count()
                };
                prop_assert!(frame.is_key == one.is_key);
                prop_assert!(slices(&frame.octets[HEAD..]) >= slices(&one.frame));
            }
            Ok(frame) => prop_assert!(is_whole(sent, &frame)),
            Err(fault) => prop_assert!(matches!(fault, Fault::Lost | Fault::NoParameters)),
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn access_units_are_the_same_in_packets_of_any_form(
        sent in prop::collection::vec(h264(), 1..6), has_markers in any::<bool>(),
    ) {
        arrive(Codec::H264, &sent, has_markers)?;
    }

    #[test]
    fn frames_of_vp8_are_the_same_in_packets_of_any_form(
        sent in prop::collection::vec(vp8(), 1..6), has_markers in any::<bool>(),
    ) {
        arrive(Codec::Vp8, &sent, has_markers)?;
    }

    #[test]
    fn after_losses_there_are_whole_access_units_or_none(
        sent in prop::collection::vec(h264(), 1..6), losses in prop::collection::vec(prop::bool::weighted(0.2), 1..40),
    ) {
        arrive_in_part(Codec::H264, &sent, &losses)?;
    }

    #[test]
    fn after_losses_there_are_whole_frames_of_vp8_or_none(
        sent in prop::collection::vec(vp8(), 1..6), losses in prop::collection::vec(prop::bool::weighted(0.2), 1..40),
    ) {
        arrive_in_part(Codec::Vp8, &sent, &losses)?;
    }

    #[test]
    fn whatever_comes_nothing_is_kept_beyond_a_frame(
        payloads in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), 0..3u32, any::<bool>()), 0..60),
        codec in prop::sample::select(vec![Codec::H264, Codec::Vp8, Codec::Opus]),
    ) {
        let mut assembler = Assembler::new(codec, 1000).unwrap();
        for (payload, timestamp, marker) in &payloads {
            for made in assembler.push(Packet { payload, timestamp: *timestamp, marker: *marker }).into_iter().flatten() {
                prop_assert!(made.is_err() || made.is_ok_and(|frame| frame.octets.len() <= 1000 + HEAD));
            }
            prop_assert!(assembler.open.as_ref().is_none_or(|open| open.octets.len() <= 1000 + HEAD));
        }
    }
}

#[test]
fn other_codecs_have_none() {
    for codec in [Codec::Vp9, Codec::Av1, Codec::Pcmu, Codec::Pcma] {
        assert!(Assembler::new(codec, LONGEST).is_none() && !is_bridged(codec));
    }
}
