//! Nanoseconds a packet, printed.

use expressway_xbpf::{BalanceListener, BalanceMethod::*, BalanceProtocol, BalanceQuic};

use super::bed::*;
use super::quic::{KEY, quic};

/// What a packet costs, by the kernel's clock over 200 runs, as many as its hop limit allows; the least of 200. Prints, and
/// asserts nothing: `cargo test -p expressway-xbpf --test xbpf balance::cost -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn the_cost_of_a_packet() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let least = |mut frame: Vec<u8>| {
        frame[22] = 255;
        let runs = (0..200).map(|_| bed.balance.prog_test_run(&frame, 200).unwrap().duration.as_nanos());
        runs.min().unwrap()
    };
    println!("no service: {} ns", least(udp("192.0.2.11:443".parse().unwrap(), 1, &[0; 64])));
    bed.establish(1);
    println!("UDP, established flow, layer 2: {} ns", least(udp(vip4(), 1, &[0; 64])));
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    bed.balance.set_quic(0, 0, BalanceQuic::clear(4).as_ref()).unwrap();
    bed.balance.set_server_id(0, 0, &[1, 2, 3, 4], 1).unwrap();
    let cid = [&[0, 1, 2, 3, 4][..], &[9; 11]].concat();
    println!("QUIC by connection ID, layer 2: {} ns", least(quic(false, &cid, 2)));
    let encrypted = |nonce, cid: &[u8]| {
        bed.balance.set_quic(0, 0, BalanceQuic::encrypted(3, nonce, KEY).as_ref()).unwrap();
        least(quic(false, cid, 3))
    };
    // That an ID names no node costs a look-up more than that it does.
    println!("  encrypted, one pass: {} ns", encrypted(13, &[&[0][..], &[7; 16]].concat()));
    println!("  encrypted, three passes: {} ns", encrypted(9, &[&[0][..], &[7; 12]].concat()));
}
