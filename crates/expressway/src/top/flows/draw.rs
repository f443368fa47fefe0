//! The picture.

mod tables;

use expressway_observe::flows::{Group, Model, Rate, Window};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::columns;
use super::help::KEYS;
use super::state::{Lines, Pane, State};
use crate::top::short;

/// Lines above the table, with its notes, and below it.
const ABOVE: u16 = 4;
const BELOW: u16 = 2;
/// Notes shown.
const NOTES: usize = 3;

/// What stands out.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const HEADER: Style = Style::new().fg(Color::Black).bg(Color::Green);
pub(super) const QUIET: Style = Style::new().fg(Color::DarkGray);
pub(super) const EXPRESS: Style = Style::new().fg(Color::Cyan);
pub(super) const BAD: Style = Style::new().fg(Color::Red);
const WARN: Style = Style::new().fg(Color::Yellow);

/// Lines that a picture with everything in it has.
pub(super) fn height(model: &Model, state: &State) -> usize {
    let rows = match state.pane {
        Pane::Flows => {
            model.rows(state.group, state.show).len() * if state.lines == Lines::Two { 2 } else { 1 }
        }
        Pane::Sockets => model.last().sockets.len(),
        Pane::Queues => model.queues().len(),
        Pane::Drops => model.last().drops.len() + state.process_drops.as_ref().map_or(0, Vec::len),
        Pane::Cpus => model.last().cpus.len(),
        Pane::Process => state.process.len(),
    };
    rows.max(1) + 1 + usize::from(ABOVE + BELOW) + model.last().notes.len().min(NOTES)
}

/// Draws what `state` says of `model`.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, state: &mut State) {
    let notes = model.last().notes.len().min(NOTES) as u16;
    let [above, middle, below] =
        Layout::vertical([Constraint::Length(ABOVE + notes), Constraint::Min(1), Constraint::Length(BELOW)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(head(model, state)), above);
    match state.pane {
        Pane::Flows => tables::flows(frame, middle, model, state),
        Pane::Sockets => tables::sockets(frame, middle, model, state),
        Pane::Queues => tables::queues(frame, middle, model, state),
        Pane::Drops => tables::drops(frame, middle, model, state),
        Pane::Cpus => tables::cpus(frame, middle, model, state),
        Pane::Process => {
            let skipped = state.scroll.min(state.process.len().saturating_sub(1));
            state.scroll = skipped;
            let lines = state.process.iter().skip(skipped).map(|line| Line::raw(line.as_str()));
            frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), middle);
        }
    }
    frame.render_widget(Paragraph::new(foot(model, state)), below);
    if state.help {
        help(frame);
    }
}

/// The interface, its rates by path, the panes.
fn head<'a>(model: &'a Model, state: &'a State) -> Vec<Line<'a>> {
    let sample = model.last();
    let mut first = vec![Span::styled(sample.interface.as_str(), STRONG)];
    if !sample.present {
        first.push(Span::styled("  gone", BAD));
    }
    first.push(match &sample.program {
        None => Span::raw("  no XDP program"),
        Some(program) if program.traced => {
            Span::raw(format!("  XDP {} ({}, id {})", program.name, program.mode, program.id))
        }
        Some(program) => Span::styled(
            format!("  XDP {} ({}, id {}), not traced", program.name, program.mode, program.id),
            WARN,
        ),
    });
    if state.paused {
        first.push(Span::styled("  FROZEN", WARN));
    }
    if state.frozen {
        first.push(Span::styled("  order frozen", WARN));
    }
    let (paths, _) = model.paths(Window::Middle);
    let mut lines = vec![
        Line::from(first),
        direction("in ", &paths, |rate| (rate.received, rate.received_packets), state),
        direction("out", &paths, |rate| (rate.sent, rate.sent_packets), state),
    ];
    lines.extend(sample.notes.iter().take(NOTES).map(|note| Line::styled(note.as_str(), WARN)));
    let mut panes = Vec::new();
    for pane in Pane::ALL {
        let style = if pane == state.pane { STRONG.add_modifier(Modifier::REVERSED) } else { QUIET };
        panes.extend([Span::styled(pane.name(), style), Span::raw("  ")]);
    }
    if state.pane == Pane::Flows {
        let by = match state.group {
            Group::Flow => "by flow",
            Group::Host => "by host",
            Group::Port => "by port",
            Group::Connection => "by QUIC connection",
        };
        panes.push(Span::raw(by));
    }
    lines.push(Line::from(panes));
    lines
}

/// One direction by path, over ten seconds.
fn direction<'a>(
    name: &'a str,
    paths: &[Rate; 4],
    of: impl Fn(&Rate) -> (f64, f64),
    state: &State,
) -> Line<'a> {
    let all = paths.iter().map(&of).fold((0.0, 0.0), |sum, path| (sum.0 + path.0, sum.1 + path.1));
    let mut spans = vec![
        Span::styled(name, STRONG),
        Span::raw(format!(" {:>8}/s {:>7} pkt/s ", columns::rate(all.0, state.octets), short(all.1))),
    ];
    let styles = [EXPRESS, Style::new(), Style::new(), BAD];
    for (at, word) in ["AF_XDP", "kernel", "XDP", "dropped"].into_iter().enumerate() {
        let (bits, packets) = of(&paths[at]);
        if at > 1 && packets == 0.0 {
            continue;
        }
        let text = format!("  {word} {}/s {} pkt/s", columns::rate(bits, state.octets), short(packets));
        spans.push(Span::styled(text, styles[at]));
    }
    Line::from(spans)
}

/// Sums, what has no row, and what is typed.
fn foot<'a>(model: &'a Model, state: &'a State) -> Vec<Line<'a>> {
    let totals = &model.last().totals;
    let rates = Window::ALL.map(|window| columns::rate(model.rate(window).bits(), state.octets));
    let others = model.others(Window::Middle);
    let (received, sent) = (totals.received.all(), totals.sent.all());
    let sums = format!(
        "total in {}B {} pkt  out {}B {} pkt  2/10/40s {}  peak {}  other flows {}/s ({} pkt unplaced)",
        short(received.bytes as f64),
        short(received.packets as f64),
        short(sent.bytes as f64),
        short(sent.packets as f64),
        rates.join(" "),
        columns::rate(model.highest(), state.octets),
        columns::rate(others.bits(), state.octets),
        short(totals.not_held as f64),
    );
    let second = match (&state.typed, &state.message) {
        (Some(typed), None) => {
            Line::from(vec![Span::styled("filter: ", STRONG), Span::raw(format!("{typed}█"))])
        }
        (_, Some(message)) => Line::styled(message.as_str(), WARN),
        (None, None) if !state.filter.text().is_empty() => {
            Line::styled(format!("filter: {}  (Esc removes it)", state.filter.text()), EXPRESS)
        }
        (None, None) => {
            Line::styled("h help  Tab pane  v view  / filter  P freeze  1 2 3 sort  q quit", QUIET)
        }
    };
    vec![Line::raw(sums), second]
}

/// The keys, on top of everything.
fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (64.min(area.width), (KEYS.len() as u16 + 2).min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let lines = KEYS
        .iter()
        .map(|(key, what)| Line::from(vec![Span::styled(format!("{key:>9}  "), STRONG), Span::raw(*what)]));
    let block = Block::bordered().title(" keys ");
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), place);
}

#[cfg(test)]
mod tests {
    use expressway_observe::flows::{Address, Conversation, Counts, Drop, Flow, Paths, Sample};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::filter::Filter;
    use super::*;
    use crate::args::TopBy;

    fn model() -> Model {
        let address = |last| Address::Ip([192, 0, 2, last].into());
        let conversation = Conversation {
            ethertype: 0x0800,
            protocol: 17,
            local: address(1),
            local_port: 443,
            remote: address(2),
            remote_port: 5000,
        };
        let received = Paths { af_xdp: Counts { packets: 10, bytes: 1_000_000 }, ..Paths::default() };
        let flow = Flow {
            conversation,
            received,
            sent: Paths::default(),
            dropped: 0,
            cid: String::new(),
            quic: false,
        };
        let drop =
            Drop { by: "kernel".to_owned(), reason: "no\x1b[2Jsocket".to_owned(), packets: 3, bytes: 180 };
        let mut sample = Sample {
            elapsed: 1_000_000_000,
            interface: "eth0".to_owned(),
            present: true,
            flows: vec![flow],
            drops: vec![drop],
            ..Sample::default()
        };
        sample.totals.received = received;
        let mut model = Model::new(&[]);
        model.add(sample);
        model
    }

    fn picture(state: &mut State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &model(), state)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn panes_show_what_there_is() {
        let mut state = State::new(TopBy::Flow, Filter::default());
        let flows = picture(&mut state, 160, 20);
        for text in ["eth0", "192.0.2.1:443", "192.0.2.2:5000", "8.00Mb", "100%"] {
            assert!(flows.contains(text), "{text} in {flows}");
        }
        state.lines = Lines::Two;
        assert!(picture(&mut state, 160, 20).contains("192.0.2.2:5000"));
        state.pane = Pane::Drops;
        let drops = picture(&mut state, 160, 20);
        assert!(drops.contains("socket") && !drops.contains('\x1b'), "{drops}");
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        for pane in Pane::ALL {
            for help in [false, true] {
                for (width, height) in [(1, 1), (5, 3), (20, 8), (400, 100)] {
                    let mut state = State::new(TopBy::Connection, Filter::default());
                    (state.pane, state.help, state.scroll) = (pane, help, usize::MAX);
                    picture(&mut state, width, height);
                }
            }
        }
    }
}
