//! A packet as a JSON document.

use expressway_observe::file::Seen;
use expressway_observe::text::{Printer, verdict_name};
use expressway_observe::{Direction, Point, TxMetadata, Verdict};
use serde_json::{Value, json};

/// The document of a packet, on one line.
pub(super) fn line(printer: &mut Printer, seen: &Seen<'_>) -> String {
    let Seen { interface, directed, packet } = seen;
    let mut summary = String::new();
    let addresses = printer.summarize(packet, &mut summary);
    let (seconds, nanos) = (packet.time / 1_000_000_000, packet.time % 1_000_000_000);
    let mut document = json!({
        // A number would lose the nanoseconds in most readers.
        "time": format!("{seconds}.{nanos:09}"),
        "interface": interface,
        "length": packet.length,
        "captured": packet.data.len(),
        "summary": summary,
    });
    let mut add = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            document[key] = value;
        }
    };
    if *directed {
        let direction = match packet.point.direction() {
            Direction::In => "in",
            Direction::Out => "out",
        };
        add("direction", Some(direction.into()));
        add("point", Some(point_name(packet.point).into()));
    }
    add("id", packet.id.map(Value::from));
    add("queue", packet.queue.map(Value::from));
    add("verdict", packet.verdict.map(|verdict| verdict_name(verdict).into()));
    if let Some(Verdict::Redirect { error }) = packet.verdict {
        add("redirect_error", error.map(Value::from));
    }
    add("tx_metadata", packet.metadata.map(metadata));
    add("dropped", packet.drop.map(Value::from));
    add("process", packet.process.map(|process| json!({ "pid": process.id, "name": process.name })));
    if let Some(addresses) = addresses {
        add("protocol", Some(addresses.protocol.into()));
        add("source", Some(addresses.source.to_string().into()));
        add("destination", Some(addresses.destination.to_string().into()));
        add("source_port", addresses.ports.map(|(source, _)| source.into()));
        add("destination_port", addresses.ports.map(|(_, destination)| destination.into()));
    }
    format!("{document}\n")
}

/// As `struct xsk_tx_metadata` names it, where it was asked for.
fn metadata(metadata: TxMetadata) -> Value {
    let TxMetadata { checksum, timestamp, launch_time } = metadata;
    json!({
        "checksum": checksum.map(|(start, offset)| json!({ "csum_start": start, "csum_offset": offset })),
        "timestamp": timestamp,
        // A number would lose the nanoseconds in most readers.
        "launch_time": launch_time.map(|time| time.to_string()),
    })
}

fn point_name(point: Point) -> &'static str {
    match point {
        Point::XdpEntry => "xdp_entry",
        Point::XdpExit => "xdp_exit",
        Point::XskTransmit { zero_copy: true } => "xsk_zero_copy",
        Point::XskTransmit { zero_copy: false } => "xsk_copy",
        Point::KernelReceive => "kernel_receive",
        Point::KernelTransmit => "kernel_transmit",
        Point::XdpTransmit => "xdp_transmit",
    }
}
