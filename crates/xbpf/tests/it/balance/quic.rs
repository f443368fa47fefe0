//! Connection IDs: in clear and encrypted, by the vectors of draft-ietf-quic-load-balancers.

use expressway_xbpf::{
    BalanceCounter::*, BalanceListener, BalanceMethod::*, BalanceNode, BalanceProtocol, BalanceQuic,
    BalanceState,
};

use super::bed::*;

/// A QUIC packet with this connection ID; a long header gives its length.
pub(crate) fn quic(long: bool, cid: &[u8], port: u16) -> Vec<u8> {
    let mut payload = if long { vec![0xc0, 0, 0, 0, 1, cid.len() as u8] } else { vec![0x40] };
    payload.extend(cid);
    payload.extend([0; 40]);
    udp(vip4(), port, &payload)
}

#[test]
fn quic_goes_by_its_connection_id() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    for (config, length) in [(0u8, 1usize), (1, 4), (2, 8), (3, 9), (6, 15)] {
        bed.balance.set_quic(0, config, BalanceQuic::clear(length as u8).as_ref()).unwrap();
        let server = |slot: u8| vec![0x80 | slot; length];
        for slot in [1u8, 2, 3] {
            bed.balance.set_server_id(0, config, &server(slot), slot.into()).unwrap();
        }
        for slot in [1u8, 2, 3] {
            let mut cid = vec![config << 5 | 0x13];
            cid.extend(server(slot));
            cid.extend([0x77; 5]);
            for long in [false, true] {
                let frame = quic(long, &cid, 4000 + u16::from(slot));
                assert_eq!(bed.to(&frame), (TxQuicLb, slot.into()), "config {config} long {long}");
            }
            let mut elsewhere = quic(false, &cid, 999);
            elsewhere[29] = 99;
            assert_eq!(bed.to(&elsewhere), (TxQuicLb, slot.into()), "a client that has moved");
            cid[length] ^= 0x40;
            assert_eq!(bed.to(&quic(false, &cid, 7000)).0, TxNew, "no node has this ID");
            let frame = quic(false, &cid, 7000);
            for _ in 0..3 {
                bed.to(&frame);
            }
            assert_eq!(bed.to(&frame).0, TxFlow);
            bed.balance
                .set_listener(vip4(), BalanceProtocol::Udp, &BalanceListener { service: 0, ..by_id })
                .unwrap();
            // Forget the flow for the next round: another generation of all nodes.
            let generation = 2 + u32::from(config) * 10 + u32::from(slot);
            (1..=3).for_each(|slot| {
                bed.balance.set_node(slot, &BalanceNode { generation, ..node(slot, L2, false) }).unwrap();
            });
        }
    }
    let id = |rotation: u8| [&[rotation << 5][..], &[0x81; 16]].concat();
    assert_eq!(bed.to(&quic(false, &id(7), 8000)).0, TxNew, "marked as not routable");
    assert_eq!(bed.to(&quic(false, &id(5), 8001)).0, TxNew, "no such configuration");
    assert_eq!(bed.to(&quic(true, &id(0)[..5], 8002)).0, TxNew, "too short for a server ID and a nonce");
    let tiny = udp(vip4(), 8003, &[0x40, 0, 0x81]);
    assert_eq!(bed.to(&tiny).0, TxNew);
    bed.state(1, BalanceState::Draining);
    assert_eq!(bed.to(&quic(false, &id(0), 8004)), (TxQuicLb, 1));
    bed.ring(0, &[2]);
    bed.state(1, BalanceState::Down);
    let (counter, slot) = bed.to(&quic(false, &id(0), 8005));
    assert_eq!((counter, slot), (TxNew, 2), "its node is dead");
    bed.balance.remove_server_id(0, 0, &[0x81]).unwrap();
    bed.balance.set_quic(0, 1, None).unwrap();
    assert_eq!(bed.to(&quic(false, &id(1), 8006)).0, TxNew);
    assert!(bed.balance.service_traffic(0).unwrap().by_id > 0);
}

/// The rows in clear of appendix B.1 of draft-ietf-quic-load-balancers-21: the whole connection ID.
#[test]
fn the_drafts_connection_ids_are_read() {
    let Some(bed) = Bed::new(L2, false) else { return };
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    let first = [0x07, 0xc4, 0x60, 0x5e, 0x45, 0x04, 0xcc, 0x4f];
    let second = [0x2a, 0x35, 0x0d, 0x28, 0xb4, 0x20, 0x34, 0x87, 0xd9, 0x70, 0x0b];
    for (config, cid, length, slot) in [(0, &first[..], 3, 1), (1, &second[..], 5, 3)] {
        bed.balance.set_quic(0, config, BalanceQuic::clear(length).as_ref()).unwrap();
        bed.balance.set_server_id(0, config, &cid[1..1 + usize::from(length)], slot).unwrap();
        for long in [false, true] {
            assert_eq!(bed.to(&quic(long, cid, 4000)), (TxQuicLb, slot));
        }
    }
}

pub(crate) const KEY: [u8; 16] = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn by_id() -> Option<Bed> {
    let bed = Bed::new(L2, false)?;
    let by_id = BalanceListener { quic_lb: true, ..listener(0) };
    bed.balance.set_listener(vip4(), BalanceProtocol::Udp, &by_id).unwrap();
    Some(bed)
}

/// Appendix B.2 of draft-ietf-quic-load-balancers-21: seven bytes, fifteen of which the server ID has ten, one AES block, and
/// eighteen.
#[test]
fn the_drafts_encrypted_connection_ids_are_read() {
    let Some(bed) = by_id() else { return };
    for (codepoint, server_id, nonce, cid) in [
        (0, "ed793a", 4, "0720b1d07b359d3c"),
        (1, "ed793a51d49b8f5fab65", 5, "2fcc381bc74cb4fbad2823a3d1f8fed2"),
        (2, "ed793a51d49b8f5f", 8, "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
        (0, "ed793a51d49b8f5fab", 9, "125779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"),
    ] {
        let (server_id, cid) = (bytes(server_id), bytes(cid));
        let quic_lb = BalanceQuic::encrypted(server_id.len() as u8, nonce, KEY).unwrap();
        bed.balance.set_quic(0, codepoint, Some(&quic_lb)).unwrap();
        bed.balance.set_server_id(0, codepoint, &server_id, 3).unwrap();
        // The draft's last row has the first byte of its length and, other than the column says, codepoint 0.
        assert_eq!(cid[0] >> 5, codepoint);
        for long in [false, true] {
            assert_eq!(bed.to(&quic(long, &cid, 4000)), (TxQuicLb, 3), "codepoint {codepoint} long {long}");
        }
        for at in 1..cid.len() {
            let mut other = cid.clone();
            other[at] ^= 0x11;
            assert_eq!(bed.to(&quic(true, &other, 5000)).0.verdict(), "tx");
        }
        let mut wrong = cid.clone();
        wrong[1] ^= 1;
        assert_ne!(bed.to(&quic(true, &wrong, 6000)).0, TxQuicLb, "another server's ID, or nobody's");
        assert_ne!(bed.to(&quic(true, &cid[..cid.len() - 1], 6001)).0, TxQuicLb, "too short");
        bed.balance.remove_server_id(0, codepoint, &server_id).unwrap();
    }
}

/// Section 5.4.2.4.
#[test]
fn the_drafts_example_is_read() {
    let Some(bed) = by_id() else { return };
    let key = 0xfdf7_26a9_893e_c05c_0632_d395_6680_baf0_u128.to_be_bytes();
    bed.balance.set_quic(0, 0, BalanceQuic::encrypted(3, 4, key).as_ref()).unwrap();
    bed.balance.set_server_id(0, 0, &[0x31, 0x44, 0x1a], 2).unwrap();
    assert_eq!(bed.to(&quic(false, &bytes("0767947d29be054a"), 1)), (TxQuicLb, 2));
}

/// Next, current and previous configuration, each with a key of its own, at once.
#[test]
fn keys_are_changed_while_ids_of_the_old_one_are_about() {
    let Some(bed) = by_id() else { return };
    let id = |codepoint: u8| [&[codepoint << 5][..], &bytes("4dd2d05a7b0de9b2b9907afb5ecf8cc3")].concat();
    let server_id = bytes("ed793a51d49b8f5f");
    for codepoint in 0..3 {
        let key = if codepoint == 1 { KEY } else { [codepoint; 16] };
        bed.balance.set_quic(0, codepoint, BalanceQuic::encrypted(8, 8, key).as_ref()).unwrap();
        bed.balance.set_server_id(0, codepoint, &server_id, 1 + u32::from(codepoint)).unwrap();
    }
    assert_eq!(bed.to(&quic(false, &id(1), 1)), (TxQuicLb, 2));
    assert_eq!(bed.to(&quic(false, &id(0), 2)).0, TxNew, "another key");
    assert_eq!(bed.to(&quic(false, &id(2), 3)).0, TxNew, "another key");
    bed.balance.set_quic(0, 2, BalanceQuic::encrypted(8, 8, KEY).as_ref()).unwrap();
    assert_eq!(bed.to(&quic(false, &id(2), 4)), (TxQuicLb, 3), "the new key");
    bed.balance.set_quic(0, 1, None).unwrap();
    assert_eq!(bed.to(&quic(false, &id(1), 5)).0, TxNew, "the old one has gone");
}
