//! `h3i-player ADDRESS NAME`: plays the cases on standard input, each on a connection of its own, and prints what came
//! of each, as one JSON document.

use std::collections::BTreeMap;
use std::sync::Mutex;

use h3i::actions::h3::{Action, ExpectedStreamSendResult, StreamEvent, StreamEventType, WaitType};
use h3i::client::connection_summary::ConnectionSummary;
use h3i::client::sync_client;
use h3i::config::Config;
use h3i::frame::H3iFrame;
use h3i::quiche::ConnectionError;

/// Cases at a time: most of one is waiting.
const THREADS: usize = 8;
/// Long past what a case that is answered takes, in milliseconds.
const IDLE: u64 = 30_000;
const H3_NO_ERROR: u64 = 0x100;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    expect: String,
    actions: Vec<Step>,
}

#[derive(serde::Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Step {
    Bytes { stream: u64, hex: String, fin: bool },
    Reset { stream: u64, code: u64 },
    Answer,
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn wait_for_end() -> Action {
    let event = StreamEvent { stream_id: 0, event_type: StreamEventType::Finished };
    Action::Wait { wait_type: WaitType::StreamEvent(event) }
}

fn action(step: &Step) -> Action {
    match step {
        Step::Bytes { stream, hex, fin } => Action::StreamBytes {
            stream_id: *stream,
            fin_stream: *fin,
            bytes: bytes(hex),
            expected_result: ExpectedStreamSendResult::Ok,
        },
        Step::Reset { stream, code } => Action::ResetStream { stream_id: *stream, error_code: *code },
        Step::Answer => wait_for_end(),
    }
}

fn outcome(summary: &ConnectionSummary) -> String {
    if let Some(error) = summary.conn_close_details.peer_error() {
        let space = if error.is_app { "application" } else { "transport" };
        return format!("{space} {:#x}", error.error_code);
    }
    for frame in summary.stream_map.stream(0) {
        match frame {
            H3iFrame::ResetStream(reset) => return format!("reset {:#x}", reset.error_code),
            H3iFrame::Headers(headers) => {
                let status = headers.status_code().map(|code| String::from_utf8_lossy(code).into_owned());
                return format!("status {}", status.unwrap_or_default());
            }
            H3iFrame::QuicheH3(_) => {}
        }
    }
    "nothing".into()
}

fn play(address: &str, name: &str, case: &Case) -> String {
    let config = Config::new()
        .with_host_port(format!("{name}:443"))
        .with_connect_to(address.to_owned())
        .verify_peer(false)
        .with_idle_timeout(IDLE)
        // What a case sends goes out whole, whatever the congestion window.
        .with_send_capacity_factor(100.0)
        .build()
        .expect("a host is given");
    let mut actions: Vec<Action> = case.actions.iter().map(action).collect();
    // Where the connection is to be closed, a response may come before.
    if !["application", "transport"].iter().any(|space| case.expect.starts_with(space)) {
        let error = ConnectionError { is_app: true, error_code: H3_NO_ERROR, reason: Vec::new() };
        actions.extend([wait_for_end(), Action::ConnectionClose { error }]);
    }
    match sync_client::connect(config, actions, None) {
        Ok(summary) => outcome(&summary),
        Err(error) => format!("{error:?}"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, name] = &arguments[..] else {
        eprintln!("usage: h3i-player ADDRESS NAME < CASES");
        std::process::exit(2);
    };
    let cases: Vec<Case> = serde_json::from_reader(std::io::stdin()).expect("cases on standard input");
    let left = Mutex::new(cases.iter());
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let next = left.lock().expect("nobody panics with it").next();
                    let Some(case) = next else { return };
                    let outcome = std::panic::catch_unwind(|| play(address, name, case))
                        .unwrap_or_else(|_| "the client panicked".into());
                    outcomes.lock().expect("nobody panics with it").insert(&case.name, outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("nobody panics with it");
    println!("{}", serde_json::to_string(&outcomes).expect("text"));
}
