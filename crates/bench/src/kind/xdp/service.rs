//! What the balancer is configured as: services and nodes in a given number, and packets of one of them whose connection ID
//! names a node (draft-ietf-quic-load-balancers) in clear, encrypted, or not at all.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use boring::symm::{Cipher, Crypter, Mode};
use data_encoding::HEXLOWER as HEX;

use super::bed::PORT;
use crate::peers::Placeholders;
use crate::scenario::{Case, Form, Parameter, Value, text};
use crate::{BenchError, io_error};

/// Services of the balancer, of which the first is sent to.
pub(super) const SERVICES: Parameter = Parameter::new("services", Form::Count(1, 128), Value::Count(1));
/// Nodes of each, the same ones: neighbours by the second link.
pub(super) const NODES: Parameter = Parameter::new("nodes", Form::Count(1, 200), Value::Count(1));
/// How packets name a node: not at all, so that their flow decides; by a connection ID in clear; by one that is one AES block.
pub(super) const CID: Parameter =
    Parameter::new("cid", Form::Choice(&["none", "clear", "encrypted"]), text("none"));

/// The first node.
const NODE: Ipv4Addr = Ipv4Addr::new(198, 18, 64, 3);
/// Bytes of a server ID, and of the nonce that makes a block with it.
const SERVER_ID: usize = 3;
const NONCE: usize = 13;
/// The key of encrypted IDs. Nothing is secret here.
const KEY: [u8; 16] = *b"expressway bench";
const KEY_FILE: &str = "quic-lb.key";

/// A number that not every kind has a parameter for.
fn number(case: &Case, key: &str) -> u64 {
    case.given(key).map_or(1, |number| number as u64)
}

/// How packets name a node: only single ones do, not what the generator sends.
fn cid(case: &Case) -> &str {
    if case.0.contains_key("cid") { case.text("cid") } else { "none" }
}

/// The balancer takes so many nodes, each counted once a service.
const MOST: u64 = 2048;

/// Whether it takes a case's services and nodes.
pub(super) fn check(case: &Case) -> Result<(), String> {
    let nodes = number(case, "services") * number(case, "nodes");
    if nodes > MOST {
        return Err(format!("`services` times `nodes` are {nodes}: the balancer takes {MOST}"));
    }
    Ok(())
}

/// A node's server ID.
fn server_id(node: u64) -> [u8; SERVER_ID] {
    [0xed, 0x79, node as u8]
}

fn nodes(case: &Case) -> impl Iterator<Item = (Ipv4Addr, [u8; SERVER_ID])> {
    (0..number(case, "nodes")).map(|node| ((NODE.to_bits() + node as u32).into(), server_id(node)))
}

/// The balancer's file. Services differ in the port, and count down from the first one's: nothing else is sent there.
pub(super) fn configuration(case: &Case, places: &Placeholders) -> String {
    let (interface, to) = (&places["interface"], &places["to"]);
    let mut out = format!("interfaces = [\"{interface}\"]\nmode = \"native\"\n");
    for service in 0..number(case, "services") {
        let port = u64::from(PORT) - service;
        let _ = writeln!(
            out,
            "[[service]]\nname = \"{service}\"\nprotocol = \"udp\"\nlisten = [\"{to}:{port}\"]"
        );
        if cid(case) != "none" {
            out += "route = \"quic-lb\"\n[[service.quic_lb]]\nconfig = 0\n";
        }
        if cid(case) == "encrypted" {
            let _ = writeln!(out, "key_file = \"{KEY_FILE}\"\nnonce = {NONCE}");
        }
        for (address, id) in nodes(case) {
            let _ = writeln!(out, "[[service.node]]\naddress = \"{address}\"");
            if cid(case) != "none" {
                let _ = writeln!(out, "server_id = \"{}\"", HEX.encode(&id));
            }
        }
    }
    out
}

/// The nodes as orders to `ip -batch`: all are at the far end.
pub(super) fn neighbours(case: &Case, places: &Placeholders) -> String {
    let (mac, out) = (&places["next_mac"], &places["out"]);
    let entry = |(address, _)| format!("neighbour replace {address} lladdr {mac} dev {out} nud permanent\n");
    nodes(case).map(entry).collect()
}

/// Writes the key, for its owner only: the balancer takes no other.
pub(super) fn write_key(folder: &Path) -> Result<(), BenchError> {
    let file = folder.join(KEY_FILE);
    let failed = io_error(file.display().to_string());
    let mut options = std::fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&file);
    let written =
        opened.and_then(|mut file| std::io::Write::write_all(&mut file, HEX.encode(&KEY).as_bytes()));
    written.map_err(failed)
}

/// What the UDP payload begins with: a short header and its connection ID, which names the last node.
pub(super) fn payload(case: &Case) -> Result<Vec<u8>, BenchError> {
    let mut id = server_id(number(case, "nodes") - 1).to_vec();
    id.resize(SERVER_ID + NONCE, 0x5a);
    match cid(case) {
        "none" => return Ok(Vec::new()),
        "encrypted" => id = encrypted(&id).map_err(|error| BenchError::Missing(format!("AES: {error}")))?,
        _ => {}
    }
    // Fixed bit; codepoint 0, of an ID that does not say its length.
    Ok([&[0x40, 0][..], &id].concat())
}

/// Section 5.4.1 of the draft: server ID and nonce as one block.
fn encrypted(id: &[u8]) -> Result<Vec<u8>, boring::error::ErrorStack> {
    let mut aes = Crypter::new(Cipher::aes_128_ecb(), Mode::Encrypt, &KEY, None)?;
    aes.pad(false);
    // `update` wants room for a block that it might have held back.
    let mut block = vec![0; 2 * id.len()];
    let length = aes.update(id, &mut block)?;
    block.truncate(length);
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(services: u64, nodes: u64, cid: &'static str) -> Case {
        let values =
            [("services", Value::Count(services)), ("nodes", Value::Count(nodes)), ("cid", text(cid))];
        Case(values.map(|(key, value)| (key.to_owned(), value)).into())
    }

    #[test]
    fn services_and_nodes_are_as_many_as_asked_for() {
        let places: Placeholders =
            [("interface", "eth0"), ("to", "198.18.64.2"), ("next_mac", "02::"), ("out", "eth1")]
                .map(|(name, value)| (name, value.to_owned()))
                .into();
        let text = configuration(&case(2, 3, "none"), &places);
        assert_eq!((text.matches("[[service]]").count(), text.matches("[[service.node]]").count()), (2, 6));
        assert!(text.contains("\"198.18.64.2:4433\"") && text.contains("\"198.18.64.2:4432\""));
        assert!(!text.contains("server_id") && !text.contains("quic"));
        let text = configuration(&case(1, 200, "encrypted"), &places);
        assert!(
            text.contains("198.18.64.202")
                && text.contains(KEY_FILE)
                && text.contains(&format!("nonce = {NONCE}\n"))
        );
        assert_eq!(neighbours(&case(1, 3, "none"), &places).lines().count(), 3);
    }

    #[test]
    fn nodes_are_as_many_as_the_balancer_takes() {
        assert_eq!(check(&case(20, 100, "none")), Ok(()));
        assert!(check(&case(20, 200, "none")).unwrap_err().contains("4000: the balancer takes 2048"));
    }

    #[test]
    fn connection_ids_name_the_last_node() {
        assert!(payload(&case(1, 1, "none")).unwrap().is_empty());
        let clear = payload(&case(1, 200, "clear")).unwrap();
        assert_eq!((clear.len(), &clear[..5]), (18, &[0x40, 0, 0xed, 0x79, 199][..]));
        let hidden = payload(&case(1, 200, "encrypted")).unwrap();
        assert_eq!((hidden.len(), &hidden[..2]), (18, &[0x40, 0][..]));
        assert_ne!(hidden[2..], clear[2..]);
    }
}
