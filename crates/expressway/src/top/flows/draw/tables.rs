//! The tables of the panes.

use expressway_observe::Direction;
use expressway_observe::flows::{Drop, Group, Model, PathRate, Row as Flow, Window};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Text;
use ratatui::widgets::{Cell, Row, Table};

use super::super::columns;
use super::super::state::{Lines, Sort, State};
use super::{BAD, EXPRESS, HEADER, STRONG};
use crate::top::short;

/// Cells of a bar.
const BAR: usize = 12;

/// Keeps the scrolled-to row within the table, and leaves out what is above it.
fn scrolled<T>(rows: Vec<T>, state: &mut State, area: Rect, lines: usize) -> Vec<T> {
    let shown = usize::from(area.height.saturating_sub(1)) / lines;
    state.scroll = state.scroll.min(rows.len().saturating_sub(shown.max(1)));
    rows.into_iter().skip(state.scroll).take(shown).collect()
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Text::from(text).right_aligned())
}

pub(super) fn flows(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &mut State) {
    let rows = state.sorted(model);
    let at = match state.sort {
        Sort::Rate(window) => Window::ALL.iter().position(|one| *one == window).unwrap_or(1),
        _ => 1,
    };
    let most = rows.iter().map(|row| row.rates[at].bits()).fold(0.0, f64::max);
    let lines = if state.lines == Lines::Two { 2 } else { 1 };
    let rows = scrolled(rows, state, area, lines);
    let connections = state.group == Group::Connection;
    let mut widths = vec![Constraint::Fill(3), Constraint::Fill(3), Constraint::Length(5)];
    let mut titles = vec!["local", "remote", "proto"];
    if connections {
        widths.push(Constraint::Fill(2));
        titles.push("connection ID");
    }
    widths.extend([Constraint::Length(8), Constraint::Length(8), Constraint::Length(8)]);
    titles.extend(["2s", "10s", "40s"]);
    widths.extend([Constraint::Length(8), Constraint::Length(6), Constraint::Length(7)]);
    titles.extend(["pkt/s", "AF_XDP", "drop/s"]);
    if state.totals {
        widths.push(Constraint::Length(8));
        titles.push("octets");
    }
    if state.bars {
        widths.push(Constraint::Length(BAR as u16));
        titles.push("");
    }
    let body = rows.iter().map(|row| {
        let cells = flow(row, state, connections, most, at);
        Row::new(cells).height(lines as u16)
    });
    let header = Row::new(titles).style(HEADER);
    frame.render_widget(Table::new(body, widths).header(header).column_spacing(1), area);
}

/// The cells of a row; with two lines, what was received is below what was sent.
fn flow(row: &Flow, state: &State, connections: bool, most: f64, at: usize) -> Vec<Cell<'static>> {
    let two = state.lines == Lines::Two;
    let rates = if two {
        let sent = columns::rates(row, |rate| rate.sent, state.octets);
        let received = columns::rates(row, |rate| rate.received, state.octets);
        [0, 1, 2].map(|at| format!("{}\n{}", sent[at], received[at]))
    } else {
        columns::rates(row, expressway_observe::flows::Rate::bits, state.octets)
    };
    let middle = &row.rates[1];
    let packets = match two {
        true => format!("{}\n{}", short(middle.sent_packets), short(middle.received_packets)),
        false => short(middle.packets()),
    };
    let local = columns::end(row.local, row.local_port, state);
    let remote = columns::end(row.remote, row.remote_port, state);
    let mut cells = vec![
        Cell::from(if two { format!("{local}\n  => sent") } else { local }),
        Cell::from(if two { format!("{remote}\n  <= received") } else { remote }),
        Cell::from(row.protocol.clone()),
    ];
    if connections {
        cells.push(Cell::from(row.cid.clone().unwrap_or_default()));
    }
    cells.extend(rates.map(right));
    let dropped = if middle.dropped > 0.0 { BAD } else { Style::new() };
    cells.extend([
        right(packets),
        right(columns::share(middle)).style(EXPRESS),
        right(short(middle.dropped)).style(dropped),
    ]);
    if state.totals {
        cells.push(right(format!("{}B", short(row.bytes() as f64))));
    }
    if state.bars {
        let part = if most > 0.0 { row.rates[at].bits() / most } else { 0.0 };
        cells.push(Cell::from("█".repeat((part * BAR as f64).round() as usize)).style(EXPRESS));
    }
    cells
}

pub(super) fn sockets(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &mut State) {
    let sample = model.last();
    let rows = sample.sockets.iter().map(|socket| {
        let place = match socket.interface {
            None => "unbound".to_owned(),
            Some(index) if socket.own_namespace => format!("{} q{}", name(index), socket.queue),
            Some(index) => format!("(other netns) {index} q{}", socket.queue),
        };
        let lost = socket.statistics.rx_dropped + socket.statistics.rx_ring_full;
        let invalid = socket.statistics.rx_invalid_descriptors + socket.statistics.tx_invalid_descriptors;
        let count = |count: u64, style: Style| {
            right(short(count as f64)).style(if count > 0 { style } else { Style::new() })
        };
        Row::new(vec![
            Cell::from(place),
            Cell::from(columns::holders(socket)),
            Cell::from(if socket.zero_copy { "zero-copy" } else { "copy" }),
            right(columns::ring(socket.rx)),
            right(columns::ring(socket.tx)),
            right(columns::ring(socket.fill)),
            right(columns::ring(socket.completion)),
            count(lost, BAD),
            count(socket.statistics.fill_ring_empty, BAD),
            count(invalid, BAD),
        ])
    });
    let rows = scrolled(rows.collect(), state, area, 1);
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Length(9),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(8),
    ];
    let titles =
        ["queue", "process", "mode", "rx", "tx", "fill", "completion", "lost", "fill empty", "invalid"];
    frame.render_widget(Table::new(rows, widths).header(Row::new(titles).style(HEADER)), area);
}

/// The interface's name, or its index where it has none any more.
fn name(index: u32) -> String {
    expressway_xbpf::interface_name(index).unwrap_or_else(|| index.to_string())
}

pub(super) fn drops(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &mut State) {
    let mut drops = model.last().drops.clone();
    // Of a process since its own start; what its XDP programs dropped meanwhile is in both.
    drops.extend(state.process_drops.iter().flatten().map(|drop| Drop {
        by: format!("process {}", drop.layer),
        reason: drop.reason.clone(),
        packets: drop.count as u64,
        bytes: 0,
    }));
    drops.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.reason.cmp(&b.reason)));
    let rows = drops.into_iter().map(|drop| {
        let octets = if drop.bytes > 0 { format!("{}B", short(drop.bytes as f64)) } else { "-".to_owned() };
        Row::new(vec![
            Cell::from(drop.by).style(STRONG),
            Cell::from(drop.reason),
            right(short(drop.packets as f64)),
            right(octets),
        ])
    });
    let rows = scrolled(rows.collect(), state, area, 1);
    let widths =
        [Constraint::Length(14), Constraint::Fill(1), Constraint::Length(12), Constraint::Length(12)];
    let header = Row::new(["by", "reason", "packets", "octets"]).style(HEADER);
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

pub(super) fn queues(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &mut State) {
    let octets = state.octets;
    let rows = model.queues().into_iter().map(|row| {
        let direction = match row.direction {
            Direction::In => "rx",
            Direction::Out => "tx",
        };
        let number = row.queue.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
        let rate =
            |rate: PathRate| format!("{} {:>6}", columns::rate(rate.bits, octets), short(rate.packets));
        let mut cells = vec![Cell::from(format!("{} {direction} {number}", row.device)).style(STRONG)];
        cells.extend(row.rates.map(|rate| right(columns::rate(rate.bits, octets))));
        cells.extend([
            right(short(row.rates[1].packets)),
            right(format!("{:.0}%", row.share * 100.0)),
            right(rate(row.af_xdp)).style(EXPRESS),
            right(rate(row.kernel)),
            right(rate(row.xdp)),
            right(rate(row.dropped)).style(if row.dropped.packets > 0.0 { BAD } else { Style::new() }),
            Cell::from("█".repeat((row.share * BAR as f64).round() as usize)).style(EXPRESS),
        ]);
        Row::new(cells)
    });
    let rows = scrolled(rows.collect(), state, area, 1);
    let mut widths = vec![Constraint::Fill(1)];
    widths.extend([8, 8, 8, 7, 6, 15, 15, 15, 15, BAR as u16].map(Constraint::Length));
    // By path over 10 seconds: bits and packets a second.
    let titles = ["queue", "2s", "10s", "40s", "pkt/s", "share", "AF_XDP", "kernel", "XDP", "dropped", ""];
    frame.render_widget(Table::new(rows, widths).header(Row::new(titles).style(HEADER)), area);
}

pub(super) fn cpus(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &mut State) {
    let width = usize::from(area.width).saturating_sub(45).max(BAR);
    let rows = model.last().cpus.iter().enumerate().map(|(number, cpu)| {
        let busy = cpu.user + cpu.system + cpu.interrupts;
        let percent = |share: f64| right(format!("{:.0}%", share * 100.0));
        Row::new(vec![
            right(number.to_string()),
            percent(busy),
            percent(cpu.user),
            percent(cpu.system),
            percent(cpu.interrupts),
            Cell::from("█".repeat((busy.min(1.0) * width as f64).round() as usize)).style(EXPRESS),
        ])
    });
    let rows = scrolled(rows.collect(), state, area, 1);
    let widths = [
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(10),
        Constraint::Fill(1),
    ];
    let header = Row::new(["CPU", "busy", "user", "system", "interrupts", ""]).style(HEADER);
    frame.render_widget(Table::new(rows, widths).header(header), area);
}
