//! Inputs of the bridge's target: a byte that says stream, end and number; a length; and a payload.

const H264: u8 = 0;
const VP8: u8 = 2;
const OPUS: u8 = 3;
/// Bits: the frame ends; the next number but one; an earlier one; one far away; some time later.
const END: u8 = 0x18;
const GAP: u8 = 4 << 5;
const BACK: u8 = 5 << 5;
const JUMP: u8 = 6 << 5;
const LATER: u8 = 7 << 5;

fn step(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, payload.len() as u8], payload].concat()
}

/// One for each form of packet, and what happens to them.
pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let sps: &[u8] = &[0x67, 0x64, 0, 0x1f, 0xac];
    let pps: &[u8] = &[0x68, 0xee];
    let key = [step(H264, sps), step(H264, pps), step(H264 | END, &[0x65, 1])].concat();
    let aggregate = [&[0x78, 0, 5], sps, &[0, 2], pps, &[0, 2, 0x65, 7]].concat();
    let fragments =
        [step(H264, &[0x7c, 0x85, 1, 2]), step(H264, &[0x7c, 0x05, 3]), step(H264 | END, &[0x7c, 0x45, 4])];
    let delta = step(H264 | END, &[0x41, 1]);
    let vp8 = [0x90, 0x80, 0x81, 0x11, 0x10, 0, 0, 0x9d, 0x01, 0x2a, 64, 0, 48, 0, 1];
    let sound = step(OPUS, &[0xfc, 1]);
    vec![
        ("h264", [key.clone(), sound.clone(), delta.clone(), delta.clone(), key.clone()].concat()),
        ("aggregate", step(H264 | END, &aggregate)),
        ("fragments", [key.clone(), fragments.concat(), delta.clone()].concat()),
        (
            "vp8",
            [step(VP8 | END, &vp8), sound.clone(), step(VP8, &[0x10, 1]), step(VP8 | END, &[0, 2])].concat(),
        ),
        (
            "sound",
            [sound.clone(), step(OPUS | LATER, &[1]), step(OPUS | LATER, &[1]), sound.repeat(30)].concat(),
        ),
        (
            "lost",
            [
                key.clone(),
                sound.clone(),
                step(H264 | END | GAP, &[0x41, 1]),
                step(H264 | END | LATER, &[0x41, 2]),
                key.clone(),
            ]
            .concat(),
        ),
        (
            "late",
            [
                key.clone(),
                step(H264 | END | GAP, &[0x41, 2]),
                step(H264 | END | BACK, &[0x41, 1]),
                delta.clone(),
            ]
            .concat(),
        ),
        ("jump", [key.clone(), step(H264 | JUMP, sps), delta.clone()].concat()),
        ("codecs", [key.clone(), step(4, &[1]), step(7, &[1]), step(5, sps), step(6 | END, &vp8)].concat()),
        ("other-stream", [key.clone(), step(1 | END, sps), step(1 | END | LATER, &[0x65, 1])].concat()),
        (
            "long",
            [key.clone(), sound.clone(), step(H264, &[0x7c, 0x81, 1]), step(H264, &[0x7c; 250]).repeat(20)]
                .concat(),
        ),
        ("many", [key, sound, step(H264 | END, &[0x41; 250]).repeat(200)].concat()),
        ("cut", [step(H264, &[0x78, 0, 9, 1]), step(VP8, &[0x90]), step(H264 | END, &[0x7c])].concat()),
    ]
}
