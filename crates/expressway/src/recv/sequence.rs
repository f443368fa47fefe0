//! `--sequence`: from the command line to what puts a feed together, and what it reports.

use std::fmt::Write;
use std::time::Duration;

use expressway_feed::sequence::{
    Arbiter, ArbiterConfig, Framing, Line, Replies, RerequestClient, RerequestConfig, Sequencer,
};
use serde_json::{Map, Value, json};

use super::sink::Sink;
use crate::args::{Recv as Arguments, Sequence};
use crate::fail::Failure;

/// How long a missing message is waited for; with a re-request server, which is to be asked several times meanwhile.
const HOLD: Duration = Duration::from_millis(10);
const HOLD_WITH_SERVER: Duration = Duration::from_millis(200);

/// Checks what belongs to `--sequence`.
pub(super) fn check(arguments: &Arguments) -> Result<(), Failure> {
    let needs = |option: &str, what: &str| Err(Failure::usage(format!("{option}: needs {what}")));
    if arguments.sequence == Sequence::None {
        let given = [
            ("--line-b", arguments.line_b.is_some()),
            ("--first", arguments.first.is_some()),
            ("--hold", arguments.hold.is_some()),
            ("--window", arguments.window.is_some()),
            ("--rerequest", arguments.rerequest.is_some()),
        ];
        return match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => needs(option, "--sequence seq64 or moldudp64"),
            None => Ok(()),
        };
    }
    if arguments.listen.len() > 1 {
        return Err(Failure::usage(
            "--listen: a sequenced feed takes one address per line; give the second line's with --line-b",
        ));
    }
    if let Some(line) = arguments.line_b.filter(|line| arguments.listen.contains(line)) {
        return Err(Failure::usage(format!("--line-b {line}: same address as --listen")));
    }
    if arguments.rerequest.is_some() && arguments.sequence != Sequence::Moldudp64 {
        return needs("--rerequest", "--sequence moldudp64");
    }
    Ok(())
}

/// What puts the feed together; `None` for one that is not numbered.
pub(super) fn open(arguments: &Arguments) -> Result<Option<Box<Sequencer>>, Failure> {
    let framing = match arguments.sequence {
        Sequence::None => return Ok(None),
        Sequence::Seq64 => Framing::Seq64,
        Sequence::Moldudp64 => Framing::MoldUdp64,
    };
    let hold = if arguments.rerequest.is_some() { HOLD_WITH_SERVER } else { HOLD };
    let defaults = ArbiterConfig::new(framing);
    let config = ArbiterConfig {
        lines: 1 + u8::from(arguments.line_b.is_some()),
        window: arguments.window.unwrap_or(defaults.window),
        start: arguments.first,
        hold: arguments.hold.map_or(hold, |hold| hold.0),
        ..defaults
    };
    let arbiter = Arbiter::new(config).map_err(|error| Failure::usage(format!("--{error}")))?;
    let mut sequencer = Box::new(Sequencer::new(arbiter, arguments.addresses()));
    if let Some(server) = arguments.rerequest {
        let client = RerequestClient::connect(server, RerequestConfig::default())
            .map_err(|error| Failure::run_time(format!("--rerequest {server}: {error}")))?;
        sequencer.ask(client);
    }
    Ok(Some(sequencer))
}

/// What the report says of a sequenced feed; null of another.
pub(super) fn document(arguments: &Arguments, sink: &Sink, replies: Option<&Replies>) -> Value {
    let Some(sequencer) = &sink.sequencer else { return Value::Null };
    let arbiter = sequencer.arbiter();
    let lines = lines(arguments).map(|line| (line.name(), json!(arbiter.line_stats(line))));
    let rerequest = sequencer.client().map(|client| {
        let mut all = json!(client.stats());
        all["unsent"] = client.unsent().into();
        all["dropped_replies"] = replies.map(Replies::dropped).into();
        all
    });
    let mut all = json!(arbiter.stats());
    all["session"] = arbiter.session().map(|session| session.to_string()).into();
    all["expected"] = arbiter.expected().into();
    all["first_gaps"] = json!(sink.output.gaps);
    all["other_address"] = sequencer.dropped_address().into();
    all["lines"] = Value::Object(lines.collect::<Map<_, _>>());
    all["rerequest"] = rerequest.into();
    all
}

/// The lines that the feed has.
fn lines(arguments: &Arguments) -> impl Iterator<Item = Line> {
    let b = arguments.line_b.map(|_| Line::Feed(1));
    let reply = arguments.rerequest.map(|_| Line::Reply);
    [Some(Line::Feed(0)), b, reply].into_iter().flatten()
}

/// The same as text: of every line what it brought, and what is missing.
pub(super) fn text(out: &mut String, document: &Value) {
    let Some(lines) = document["lines"].as_object() else { return };
    let _ = writeln!(
        out,
        "sequence: {} messages in order, {} late, {} recovered; {} lost in {} gaps; {} resets",
        document["messages"],
        document["late"],
        document["recovered"],
        document["lost"],
        document["gaps"],
        document["resets"]
    );
    if let Some(session) = document["session"].as_str() {
        let _ = writeln!(out, "  session {session}, {} sessions ended", document["ended"]);
    }
    for (name, line) in lines {
        let _ = writeln!(
            out,
            "  line {name}: {} datagrams, {} messages first, {} duplicates, {} numbers skipped, {} malformed, {} stale",
            line["datagrams"],
            line["first"],
            line["duplicates"],
            line["skipped"],
            line["malformed"],
            line["stale"]
        );
    }
    if let Some(rerequest) = document["rerequest"].as_object() {
        let count = |name: &str| rerequest.get(name).and_then(Value::as_u64).unwrap_or(0);
        let _ = writeln!(
            out,
            "  requests: {}, {} replies, {} timed out, {} given up",
            count("requests"),
            count("replies"),
            count("timeouts"),
            count("abandoned")
        );
    }
    let gaps = document["first_gaps"].as_array().map(Vec::as_slice).unwrap_or_default();
    for gap in gaps {
        let _ = writeln!(out, "  gap: {} messages starting at {}", gap[1], gap[0]);
    }
}
