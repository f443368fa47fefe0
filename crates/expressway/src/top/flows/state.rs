//! What is shown and how, and what keys change of it; those of iftop and htop, where they have one for it.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use expressway_observe::flows::{Group, Model, Row, Show, Window};

use super::filter::Filter;
use super::names::Names;
use crate::args::TopBy;
use crate::top::drops::ProcessDrop;

/// Characters of a filter at most.
const FILTER: usize = 200;

/// What the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Flows,
    Queues,
    Sockets,
    Drops,
    Cpus,
    Process,
}

impl Pane {
    pub(super) const ALL: [Self; 6] =
        [Self::Flows, Self::Queues, Self::Sockets, Self::Drops, Self::Cpus, Self::Process];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Queues => "queues",
            Self::Sockets => "AF_XDP sockets",
            Self::Drops => "drops",
            Self::Cpus => "CPUs",
            Self::Process => "process",
        }
    }

    fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|pane| *pane == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Rate(Window),
    Packets,
    Total,
    Local,
    Remote,
}

/// Which direction's lines a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// One for both.
    One,
    /// Received and sent.
    Two,
}

/// What a key leads to beside another picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
}

/// What is shown and how.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub(super) struct State {
    pub(super) pane: Pane,
    pub(super) group: Group,
    pub(super) show: Show,
    pub(super) sort: Sort,
    pub(super) lines: Lines,
    pub(super) filter: Filter,
    /// The filter while it is typed.
    pub(super) typed: Option<String>,
    pub(super) paused: bool,
    pub(super) frozen: bool,
    pub(super) help: bool,
    pub(super) host_names: bool,
    pub(super) port_names: bool,
    pub(super) bars: bool,
    pub(super) totals: bool,
    pub(super) octets: bool,
    /// The first row shown.
    pub(super) scroll: usize,
    pub(super) message: Option<String>,
    pub(super) process: Vec<String>,
    /// What the process at the admin listener dropped; `None`: there is none.
    pub(super) process_drops: Option<Vec<ProcessDrop>>,
    pub(super) names: Names,
    /// The rows in the order they had last, which `frozen` keeps.
    pub(super) rows: Vec<Row>,
}

/// What a frozen screen shows, whatever comes meanwhile: all panes, however they are grouped, sorted and filtered.
#[derive(Debug, Default)]
pub(super) struct Frozen(Option<Box<Model>>);

impl Frozen {
    /// What is to be shown: `live`, or as it was when the screen was frozen.
    pub(super) fn shown<'a>(&'a mut self, live: &'a Model, paused: bool) -> &'a Model {
        if !paused {
            self.0 = None;
            return live;
        }
        self.0.get_or_insert_with(|| Box::new(live.clone()))
    }
}

impl State {
    pub(super) fn new(by: TopBy, filter: Filter) -> Self {
        Self {
            pane: Pane::Flows,
            group: match by {
                TopBy::Flow => Group::Flow,
                TopBy::Host => Group::Host,
                TopBy::Port => Group::Port,
                TopBy::Connection => Group::Connection,
            },
            show: Show::default(),
            sort: Sort::Rate(Window::Middle),
            lines: Lines::One,
            filter,
            typed: None,
            paused: false,
            frozen: false,
            help: false,
            host_names: false,
            port_names: false,
            bars: true,
            totals: false,
            octets: false,
            scroll: 0,
            message: None,
            process: Vec::new(),
            process_drops: None,
            names: Names::default(),
            rows: Vec::new(),
        }
    }

    /// Shows a line until the next key.
    pub(super) fn say(&mut self, message: &str) {
        self.message = Some(message.to_owned());
    }

    /// A key was pressed.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::None };
        }
        self.message = None;
        if self.typed.is_some() {
            self.edit(key.code);
            return Action::None;
        }
        if self.help {
            self.help = false;
            return Action::None;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Action::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('/' | 'l') | KeyCode::F(4) => self.typed = Some(self.filter.text().to_owned()),
            KeyCode::Esc => self.filter = Filter::default(),
            KeyCode::Char('P' | ' ') => self.paused = !self.paused,
            KeyCode::Char('o') => self.frozen = !self.frozen,
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(Pane::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(20),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(20),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = usize::MAX,
            KeyCode::Char(character) => self.option(character),
            _ => {}
        }
        Action::None
    }

    /// Keys that change how the flows are shown.
    fn option(&mut self, key: char) {
        match key {
            'v' => {
                self.group = match self.group {
                    Group::Flow => Group::Host,
                    Group::Host => Group::Port,
                    Group::Port => Group::Connection,
                    Group::Connection => Group::Flow,
                };
                self.scroll = 0;
            }
            's' => self.show.local = !self.show.local,
            'd' => self.show.remote = !self.show.remote,
            'S' => self.show.local_port = !self.show.local_port,
            'D' => self.show.remote_port = !self.show.remote_port,
            'p' => {
                let shown = !(self.show.local_port || self.show.remote_port);
                (self.show.local_port, self.show.remote_port) = (shown, shown);
            }
            'n' => self.host_names = !self.host_names,
            'N' => self.port_names = !self.port_names,
            't' => self.lines = if self.lines == Lines::One { Lines::Two } else { Lines::One },
            'T' => self.totals = !self.totals,
            'b' => self.bars = !self.bars,
            'u' => self.octets = !self.octets,
            '1' => self.sort = Sort::Rate(Window::Short),
            '2' => self.sort = Sort::Rate(Window::Middle),
            '3' => self.sort = Sort::Rate(Window::Long),
            '4' => self.sort = Sort::Packets,
            '5' => self.sort = Sort::Total,
            '<' => self.sort = Sort::Local,
            '>' => self.sort = Sort::Remote,
            _ => {}
        }
        if matches!(key, 'n' | 'N') {
            self.names = Names::read();
        }
        if !matches!(key, 'T' | 'b' | 'u' | 'n' | 'N' | 't') {
            // Other rows, or another order.
            self.frozen = false;
        }
    }

    fn turn(&mut self, by: usize) {
        self.pane = self.pane.step(by);
        self.scroll = 0;
    }

    /// A key of the line in which the filter is typed.
    fn edit(&mut self, key: KeyCode) {
        let Some(typed) = &mut self.typed else { return };
        match key {
            KeyCode::Enter => match Filter::parse(typed) {
                Ok(filter) => {
                    self.filter = filter;
                    self.typed = None;
                    self.scroll = 0;
                }
                Err(problem) => self.message = Some(problem),
            },
            KeyCode::Esc => self.typed = None,
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(character) if typed.len() < FILTER => typed.push(character),
            _ => {}
        }
    }

    /// The rows to show, in their order.
    pub(super) fn sorted(&mut self, model: &Model) -> Vec<Row> {
        let mut rows = model.rows(self.group, self.show);
        rows.retain(|row| self.filter.takes(row));
        if self.frozen {
            let name = |row: &Row| {
                let port = |port: Option<u16>| port.unwrap_or(0);
                let key = (row.protocol.clone(), row.local, port(row.local_port));
                (key, row.remote, port(row.remote_port))
            };
            let places: std::collections::HashMap<_, usize> =
                self.rows.iter().enumerate().map(|(place, row)| (name(row), place)).collect();
            rows.sort_by_cached_key(|row| (places.get(&name(row)).copied().unwrap_or(usize::MAX), name(row)));
            return rows;
        }
        sort(&mut rows, self.sort);
        self.rows.clone_from(&rows);
        rows
    }
}

/// Largest first, names from a to z; equal ones by name, so that they do not change places.
pub(super) fn sort(rows: &mut [Row], by: Sort) {
    let at = |window: Window| Window::ALL.iter().position(|one| *one == window).unwrap_or(0);
    let named = |row: &Row| (row.remote, row.remote_port, row.local, row.local_port);
    rows.sort_by(|a, b| {
        let first = match by {
            Sort::Rate(window) => b.rates[at(window)].bits().total_cmp(&a.rates[at(window)].bits()),
            Sort::Packets => b.rates[1].packets().total_cmp(&a.rates[1].packets()),
            Sort::Total => b.bytes().cmp(&a.bytes()),
            Sort::Local => (a.local, a.local_port).cmp(&(b.local, b.local_port)),
            Sort::Remote => (a.remote, a.remote_port).cmp(&(b.remote, b.remote_port)),
        };
        first.then_with(|| named(a).cmp(&named(b)))
    });
}

#[cfg(test)]
mod tests {
    use expressway_observe::flows::{Address, Conversation, Counts, Flow, Paths, Sample};

    use super::*;

    fn press(state: &mut State, keys: &str) {
        for key in keys.chars() {
            let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
            assert_eq!(state.press(KeyEvent::from(code)), Action::None);
        }
    }

    #[test]
    fn a_filter_is_typed_and_a_wrong_one_is_told() {
        let mut state = State::new(TopBy::Flow, Filter::default());
        press(&mut state, "/udp q\n");
        assert_eq!((state.filter.text(), state.typed.as_deref()), ("udp q", None));
        press(&mut state, "/ !\n");
        assert_eq!(state.typed.as_deref(), Some("udp q !"));
        assert!(state.message.is_some());
        state.press(KeyEvent::from(KeyCode::Esc));
        assert_eq!((state.filter.text(), state.typed.as_deref()), ("udp q", None));
        press(&mut state, &format!("/{}", "a".repeat(2 * FILTER)));
        assert_eq!(state.typed.as_deref().map(str::len), Some(FILTER));
    }

    #[test]
    fn keys_do_what_they_do_in_iftop() {
        let mut state = State::new(TopBy::Flow, Filter::default());
        press(&mut state, "sDtTP1");
        assert_eq!((state.show.local, state.show.remote_port), (false, false));
        assert_eq!((state.lines, state.totals, state.paused), (Lines::Two, true, true));
        assert_eq!(state.sort, Sort::Rate(Window::Short));
        press(&mut state, "pp");
        assert_eq!((state.show.local_port, state.show.remote_port), (true, true));
        press(&mut state, "vvv");
        assert_eq!(state.group, Group::Connection);
        press(&mut state, "hx");
        assert!(!state.help);
        assert_eq!(state.press(KeyEvent::from(KeyCode::Char('q'))), Action::Quit);
        assert_eq!(state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Action::Quit);
    }

    /// A sample of a second: flows from the hosts 192.0.2.`host`, each with packets and octets.
    fn sample(flows: &[(u8, u64, u64)]) -> Sample {
        let address = |last| Address::Ip([192, 0, 2, last].into());
        let flow = |(host, packets, bytes): &(u8, u64, u64)| Flow {
            conversation: Conversation {
                ethertype: 0x0800,
                protocol: 17,
                local: address(100 - host),
                local_port: 443,
                remote: address(*host),
                remote_port: 5000,
            },
            received: Paths { kernel: Counts { packets: *packets, bytes: *bytes }, ..Paths::default() },
            sent: Paths::default(),
            dropped: 0,
            cid: String::new(),
            quic: false,
        };
        let flows = flows.iter().map(flow).collect();
        Sample { elapsed: 1_000_000_000, present: true, flows, ..Sample::default() }
    }

    fn model(samples: &[&[(u8, u64, u64)]]) -> Model {
        let mut model = Model::new(&[]);
        samples.iter().for_each(|flows| model.add(sample(flows)));
        model
    }

    /// The last number of each row's remote address.
    fn hosts(state: &mut State, model: &Model) -> Vec<u8> {
        let last = |row: Row| match row.remote {
            Some(Address::Ip(std::net::IpAddr::V4(address))) => address.octets()[3],
            other => panic!("{other:?}"),
        };
        state.sorted(model).into_iter().map(last).collect()
    }

    #[test]
    fn each_key_sorts_by_what_it_names() {
        // A heavy one of some seconds ago, many small packets, and one that has just begun; two alike.
        let model = model(&[
            &[(1, 10, 90_000)],
            &[(1, 1, 100)],
            &[(1, 1, 100)],
            &[(2, 500, 30_000), (4, 1, 200), (5, 1, 200)],
            &[(3, 1, 40_000), (4, 1, 200), (5, 1, 200)],
        ]);
        let mut state = State::new(TopBy::Flow, Filter::default());
        for (key, order) in [
            ("1", [3, 2, 4, 5, 1]),
            ("2", [1, 3, 2, 4, 5]),
            ("3", [1, 3, 2, 4, 5]),
            ("4", [2, 1, 4, 5, 3]),
            ("5", [1, 3, 2, 4, 5]),
            ("<", [5, 4, 3, 2, 1]),
            (">", [1, 2, 3, 4, 5]),
        ] {
            press(&mut state, key);
            assert_eq!(hosts(&mut state, &model), order, "{key}");
        }
    }

    #[test]
    fn a_frozen_order_has_new_rows_behind_it() {
        let mut model = model(&[&[(1, 1, 900), (2, 1, 500), (3, 1, 100)]]);
        let mut state = State::new(TopBy::Flow, Filter::default());
        assert_eq!(hosts(&mut state, &model), [1, 2, 3]);
        press(&mut state, "o");
        model.add(sample(&[(3, 1, 9000), (5, 1, 70_000), (4, 1, 80_000)]));
        // By name: those of 5 go to a lower local address.
        assert_eq!(hosts(&mut state, &model), [1, 2, 3, 5, 4]);
        // What changes the figures leaves it, what changes the rows does not.
        press(&mut state, "T");
        assert_eq!(hosts(&mut state, &model), [1, 2, 3, 5, 4]);
        press(&mut state, "2");
        assert_eq!(hosts(&mut state, &model), [4, 5, 3, 1, 2]);
    }

    #[test]
    fn a_frozen_screen_shows_what_there_was_however_it_is_looked_at() {
        let mut live = model(&[&[(1, 1, 900), (2, 1, 500)]]);
        let mut state = State::new(TopBy::Flow, Filter::default());
        let mut frozen = Frozen::default();
        assert_eq!(hosts(&mut state, frozen.shown(&live, false)), [1, 2]);
        press(&mut state, "P");
        frozen.shown(&live, state.paused);
        live.add(sample(&[(2, 1, 9000), (3, 1, 9000)]));
        for (keys, order) in
            [("4", vec![1, 2]), (">", vec![1, 2]), ("v", vec![1, 2]), ("/192.0.2.2\n", vec![2])]
        {
            press(&mut state, keys);
            let shown = frozen.shown(&live, state.paused);
            assert_eq!(shown.rows(state.group, state.show).len(), 2);
            assert_eq!(hosts(&mut state, shown), order, "{keys}");
        }
        state.press(KeyEvent::from(KeyCode::Esc));
        press(&mut state, "P2");
        let shown = frozen.shown(&live, state.paused);
        assert_eq!(hosts(&mut state, shown), [2, 3, 1]);
    }
}
