//! What a trace has shown: a table, a time line, a document.

use expressway_observe::trace::{Model, Request, Row, Stamp};
use serde_json::{Value, json};

use crate::screen::printable;

/// The table of steps, and the slowest request; `is_over` of a trace to which nothing will be added.
pub(super) fn lines(model: &Model, under_way: usize, is_over: bool) -> Vec<String> {
    let seconds = model.time.saturating_sub(model.began) as f64 / 1e9;
    let word = if is_over { "unfinished" } else { "under way" };
    let mut lines = vec![format!(
        "{seconds:.1} s  connections {}  requests {}  failed {}  {word} {under_way}  events {}  lost {}",
        model.connections(),
        model.finished,
        model.failed,
        model.events,
        model.lost
    )];
    if model.left_out > 0 {
        lines.push(format!("{} connections, requests and bursts left out: too many", model.left_out));
    }
    if model.uncompleted > 0 {
        lines.push(format!("{} bursts whose completion was never reported", model.uncompleted));
    }
    for (title, rows) in [("request", model.steps()), ("packets", model.packets())] {
        if !rows.is_empty() {
            lines.push(String::new());
            lines.push(format!(
                "{title:<18}{:>9}{:>11}{:>11}{:>11}{:>11}  {SCALE}",
                "count", "p50", "p90", "p99", "max"
            ));
            lines.extend(rows.iter().map(row));
        }
    }
    if let Some(slowest) = model.slowest() {
        lines.push(String::new());
        lines.extend(time_line(slowest));
    }
    lines
}

fn row(row: &Row) -> String {
    let Row { step, count, p50, p90, p99, max, .. } = row;
    let [p50, p90, p99, max] = [p50, p90, p99, max].map(|time| short(*time));
    let line = format!("{step:<18}{count:>9}{p50:>11}{p90:>11}{p99:>11}{max:>11}  {}", bar(&row.counts()));
    line.trim_end().to_owned()
}

/// Columns of a bar: up to 1 µs, 2 µs and so on, the last for 4 s and more; and where 1 µs, 1 ms and 1 s are.
const COLUMNS: usize = 24;
const SCALE: &str = "1µs       1ms       1s";

/// How many took how long: the highest column is the most.
fn bar(counts: &[u64; COLUMNS]) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    // What there is shows.
    let level = |count: &u64| LEVELS[(u128::from(*count) * 8).div_ceil(u128::from(most)) as usize];
    counts.iter().map(level).collect()
}

/// A request, hop by hop.
fn time_line(request: &Request) -> Vec<String> {
    let Request { worker, stream, text, status, source, bytes, .. } = request;
    let client = request.client.as_ref();
    let client = client.map_or_else(|| "-".to_owned(), |(remote, id)| format!("{remote} {id}"));
    let status = if *status == 0 { "no answer".to_owned() } else { format!("{status} ({source})") };
    let whole = if request.complete { "" } else { ", incomplete" };
    let mut lines = vec![
        format!("slowest  {text}"),
        format!("         {status}  {bytes} bytes{whole}  client {client}  stream {stream}  worker {worker}"),
    ];
    let began = request.began();
    let mut before = began;
    for (time, stamp) in request.line() {
        let (at, took) = (short(time - began), short(time - before));
        lines.push(format!("{at:>11} {:>11}  {}", format!("+{took}"), request.hop(stamp)));
        before = time;
    }
    // Text of another process, and by it of strangers.
    lines.iter().map(|line| printable(line, usize::MAX)).collect()
}

/// A time in nanoseconds, in the unit that suits it.
fn short(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000 => format!("{nanoseconds} ns"),
        10_000..10_000_000 => format!("{:.1} µs", nanoseconds as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.1} s", nanoseconds as f64 / 1e9),
    }
}

/// The same as a document. Times are in nanoseconds.
pub(super) fn document(model: &Model, unfinished: usize) -> Value {
    json!({
        "seconds": model.time.saturating_sub(model.began) as f64 / 1e9,
        "ended": model.ended,
        "connections": model.connections(),
        "requests": model.finished,
        "failed": model.failed,
        "unfinished": unfinished,
        "events": model.events,
        "lost": model.lost,
        "left_out": model.left_out,
        "uncompleted": model.uncompleted,
        "request_steps": model.steps(),
        "packet_steps": model.packets(),
        "slowest": model.slowest().map(request),
    })
}

fn request(request: &Request) -> Value {
    let line = request.line();
    let hop = |(time, stamp): &(u64, Stamp)| {
        let mut hop = json!({"hop": stamp.name(), "time": time});
        if let (Stamp::Arrived, Some(receiver)) = (stamp, request.receiver) {
            hop["by"] = receiver.name().into();
        }
        hop
    };
    let hops: Vec<_> = line.iter().map(hop).collect();
    json!({
        "request": request.text,
        "client": request.client.as_ref().map(|(remote, _)| remote),
        "connection": request.client.as_ref().map(|(_, id)| id),
        "worker": request.worker,
        "stream": request.stream,
        "status": request.status,
        "source": request.source,
        "bytes": request.bytes,
        "complete": request.complete,
        "in": request.way_in,
        "out": request.way_out,
        "duration": request.duration(),
        "hops": hops,
    })
}

#[cfg(test)]
mod tests {
    use expressway_netio::trace::{Arrival, Channel, Event, Hop};
    use expressway_observe::trace::{Control, Line, Model, Recorded};

    use super::{COLUMNS, SCALE, bar, lines, short};

    #[test]
    fn nothing_that_a_process_tells_controls_the_terminal() {
        let mut model = Model::default();
        let way = Some(Channel::Xsk(0));
        let evil = "\x1b]0;x\x07\r\n\u{9b}2J";
        model.take(Line::Control(Control::Place { worker: 0, xsk: 0, interface: evil.into(), queue: 0 }));
        let remote = "192.0.2.7:4433".parse().unwrap();
        let datagram = Arrival { taken: 1, opened: 1, way, ..Arrival::default() };
        for hop in [
            Hop::Connection { remote, id: evil.into() },
            Hop::Request { stream: 0, request: evil.into(), datagram },
            Hop::Answered { stream: 0, status: 200, source: evil.into() },
            Hop::Burst { mark: 1, began: 2, way: Channel::Xsk(0), packets: 1, bytes: 1 },
            Hop::Closed,
        ] {
            model.take(Line::Recorded(Recorded { worker: 0, event: Event { time: 2, connection: 1, hop } }));
        }
        let shown = lines(&model, 0, true);
        assert!(!shown.iter().any(|line| line.contains(char::is_control)), "{shown:?}");
        assert_eq!(
            shown.iter().map(|line| line.matches("?]0;x????2J").count()).sum::<usize>(),
            5,
            "{shown:?}"
        );
    }

    #[test]
    fn bars_stand_below_their_scale() {
        let mut counts = [0; COLUMNS];
        (counts[0], counts[10], counts[20], counts[23]) = (1, 80, 40, u64::MAX / 2);
        let drawn: Vec<char> = bar(&counts).chars().collect();
        assert_eq!((drawn[0], drawn[10], drawn[20], drawn[23]), ('▁', '▁', '▁', '█'));
        counts[23] = 0;
        let drawn: Vec<char> = bar(&counts).chars().collect();
        assert_eq!((drawn[0], drawn[1], drawn[10], drawn[20]), ('▁', ' ', '█', '▄'));
        let at = |text| SCALE.chars().collect::<String>().find(text).map(|at| SCALE[..at].chars().count());
        assert_eq!((at("1µs"), at("1ms"), at("1s")), (Some(0), Some(10), Some(20)));
        assert_eq!(bar(&[0; COLUMNS]).trim(), "");
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        for (time, text) in [
            (0, "0 ns"),
            (9_999, "9999 ns"),
            (12_340, "12.3 µs"),
            (45_600_000, "45.6 ms"),
            (12_000_000_000, "12.0 s"),
        ] {
            assert_eq!(short(time), text);
        }
    }
}
