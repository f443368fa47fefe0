//! The cost of an XDP program by itself: BPF_PROG_TEST_RUN runs it on one frame again and again, without a driver.
//!
//! The kernel runs a program on the frame as the previous run has left it. Programs that lower the TTL would soon refuse it, so
//! they get fewer runs per call, and the next hop has the hardware address of the router itself.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use expressway_lab::Role;
use serde_json::Value as Json;

use super::bed::{self, End, PORT, VethBed};
use super::service::{self, CID, NODES, SERVICES};
use super::tables::{self, PREFIXES, ROUTES, RULES};
use super::{ACTION, WAY, lacks, program};
use crate::kind::{Better, Kind, Metric, Outcome, Run, Table, pinned_lab};
use crate::packet_path::PacketPath;
use crate::peers::Program;
use crate::process::Logged;
use crate::scenario::{Case, Form, Parameter, Value};
use crate::statistic::median;
use crate::{BenchError, Tools, io_error};

/// The kind.
pub(crate) struct ProgRun;

static PARAMETERS: [Parameter; 10] = [
    WAY,
    ACTION,
    RULES,
    PREFIXES,
    ROUTES,
    SERVICES,
    NODES,
    CID,
    // Bytes of UDP payload.
    Parameter::new("size", Form::Bytes(24, 1472), Value::Count(24)),
    // Calls of the kernel, each on another frame where there are several.
    Parameter::new("calls", Form::Count(1, 10_000), Value::Count(40)),
];

static METRICS: [Metric; 2] = [
    Metric::new("ns_per_packet", "the program alone", "ns", Better::Lower, 0),
    Metric::new("best_ns", "its best call", "ns", Better::Neither, 0),
];

static TABLE: Table = Table { name: "prog-run", parameters: &PARAMETERS, metrics: &METRICS };

/// Runs a call; of programs that age packets, below what a TTL of 255 bears.
const REPEAT: u64 = 100_000;
const REPEAT_AGING: u64 = 250;

/// How long tables take at most.
const FILLED: Duration = Duration::from_secs(5);

/// What became of the last frame (`enum xdp_action`).
const DROP: u64 = 1;
const PASS: u64 = 2;
const TX: u64 = 3;
const REDIRECT: u64 = 4;

impl Kind for ProgRun {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        service::check(case)
    }

    fn lab(&self, _: &Case) -> expressway_lab::LabConfig {
        pinned_lab()
    }

    fn lacks(&self, _: &Tools, case: &Case) -> Option<String> {
        if !crate::packet_path::is_program("bpftool") {
            return Some("bpftool: no such program; on Debian: apt-get install bpftool".into());
        }
        lacks(case)
    }

    fn program(&self, tools: &Tools, case: &Case) -> Option<(String, Program)> {
        program(tools, case)
    }

    fn measure(&self, run: &Run<'_>) -> Result<Outcome, BenchError> {
        let case = run.case;
        let bed = VethBed::make(run, End::Through, 1)?;
        let path = PacketPath::named(case.text("way"))?;
        bed.prepare(&path)?;
        bed.route_to_itself()?;
        // A veth says that it sends redirected frames when its peer has a program.
        let _sink = bed.sink()?;
        let mut process = bed.start(&path, case.text("action"))?;
        let interface = run.lab.interface(Role::Server);
        let program = bed::program_on(run.lab, Role::Server, interface)?.ok_or_else(|| {
            BenchError::Missing(format!("{interface}: no XDP program that BPF_PROG_TEST_RUN could run"))
        })?;
        let calls = case.count("calls") as usize;
        // Each call is for another, if there are several.
        let frames: Vec<Vec<u8>> = tables::destinations(case.count("routes"), case.count("calls"))
            .into_iter()
            .map(|to| frame(&bed, case, to))
            .collect::<Result<_, _>>()?;
        let ages = path.ages;
        // Its tables may be filled shortly after it says that it is ready.
        let first = &frames[0];
        let deadline = Instant::now() + FILLED;
        while ages && bed.prog_run(program, first, 1)?.verdict == PASS && Instant::now() < deadline {
            sleep(FILLED / 50);
        }
        let mut each = Vec::new();
        for call in 0..calls {
            let frame = &frames[call % frames.len()];
            let run = bed.prog_run(program, frame, if ages { REPEAT_AGING } else { REPEAT })?;
            let aging = matches!(run.verdict, TX | REDIRECT);
            if aging != ages || !matches!(run.verdict, DROP | PASS | TX | REDIRECT) {
                let problem = format!("the last of its runs ended with XDP verdict {}", run.verdict);
                return Err(BenchError::Server { contestant: case.text("way").into(), problem });
            }
            each.push(run.nanoseconds);
        }
        if let Some(process) = &mut process {
            end(case, process)?;
        }
        let best = each.iter().copied().fold(f64::INFINITY, f64::min);
        let values = BTreeMap::from([("ns_per_packet", median(&each)), ("best_ns", best)]);
        Ok(Outcome { values, detail: serde_json::json!({ "calls": each, "ages": ages }) })
    }
}

/// Ends the program. A connection ID that the balancer could not read would have been measured as none.
fn end(case: &Case, process: &mut Logged) -> Result<(), BenchError> {
    let said = process.end()?;
    if case.text("way") != "expressway-balance" || case.text("cid") == "none" {
        return Ok(());
    }
    let status: Json =
        said.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let count = |key: &str| status.pointer(&format!("/services/0/{key}")).and_then(Json::as_u64);
    match (count("packets_by_id"), count("packets")) {
        (Some(by_id), Some(packets)) if by_id > 0 && by_id == packets => Ok(()),
        (by_id, packets) => {
            let problem = format!("sent {by_id:?} packets by their connection ID, of {packets:?}");
            Err(BenchError::Server { contestant: case.text("way").into(), problem })
        }
    }
}

/// A UDP frame from behind the client, with all the hops that there can be. With a list of prefixes its source is one of those that
/// need the most to be looked up.
fn frame(bed: &VethBed<'_>, case: &Case, to: Ipv4Addr) -> Result<Vec<u8>, BenchError> {
    let payload = case.count("size") as u16;
    let source = match case.count("prefixes") {
        0 => None,
        _ => tables::sources(1).next(),
    };
    let mut ip = vec![0x45, 0];
    ip.extend((28 + payload).to_be_bytes());
    ip.extend([0, 0, 0, 0, 255, 17, 0, 0]);
    ip.extend(source.unwrap_or(bed::SOURCE_ADDRESS).octets());
    ip.extend(to.octets());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let mut frame = bed.addresses().concat();
    frame.extend([0x08, 0x00]);
    frame.extend(ip);
    frame.extend([50_000, PORT, 8 + payload, 0].map(u16::to_be_bytes).concat());
    let whole = frame.len() + usize::from(payload);
    frame.extend(service::payload(case)?);
    frame.resize(whole, 0);
    Ok(frame)
}

/// `struct xdp_md` of a frame of a length that came by an interface.
pub(super) fn context(length: usize, interface: u32) -> Vec<u8> {
    [0, length as u32, 0, interface, 0, 0].map(u32::to_ne_bytes).concat()
}

/// Writes what a call reads.
pub(super) fn write(folder: &std::path::Path, name: &str, bytes: &[u8]) -> Result<String, BenchError> {
    let file = folder.join(name);
    std::fs::write(&file, bytes).map_err(io_error(file.display().to_string()))?;
    Ok(file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_the_kernels_structure() {
        let context = context(66, 7);
        assert_eq!(context.len(), 24);
        assert_eq!(context[4..8], 66u32.to_ne_bytes());
        assert_eq!(context[12..16], 7u32.to_ne_bytes());
    }
}
