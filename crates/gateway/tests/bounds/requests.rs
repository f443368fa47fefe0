//! Random requests, well formed and with extreme fields, many at once and in odd orders: no turn is long.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::bed::{BLOCK, BLOCKS, BOUND, clients, longest, world};
use crate::support::client::{Client, Options};

/// Octets of header fields that a request may have, less what it has besides.
const ROOM: usize = 31_000;

/// A request, and what its client does with it.
#[derive(Clone, Debug)]
struct Ask {
    method: &'static str,
    authority: String,
    path: String,
    fields: Vec<(&'static str, String)>,
    body: usize,
    /// The response is given up.
    stops: bool,
}

impl Ask {
    fn get(path: impl Into<String>) -> Self {
        Self {
            method: "GET",
            authority: "edge.example".to_owned(),
            path: path.into(),
            fields: Vec::new(),
            body: 0,
            stops: false,
        }
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.fields.push((name, value));
        self
    }
}

/// `unit` again and again, to a share of the room.
fn filled(unit: &str, share: f64) -> String {
    let count = (ROOM as f64 * share) as usize / unit.len();
    unit.repeat(count).trim_end_matches([',', ' ']).to_owned()
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec!["/small", "/page.js", "/a/b/c/", "/a/b/c", "/large", "/missing", "/"])
            .prop_map(str::to_owned),
        2 => (prop::sample::select(vec!["a/", "../", "./", "/", "%2e%2e/", "a/../", "%41/", "a%2fb/", "\\/"]), 0.0..1.0)
            .prop_map(|(unit, share)| format!("/{}small", unit.repeat((ROOM as f64 * share) as usize / unit.len()))),
        1 => (prop::sample::select(vec!["?", "?a=b&", "?%00", "?%zz"]), 0.0..1.0)
            .prop_map(|(unit, share)| format!("/small?{}", filled(unit, share))),
    ]
}

fn ranges() -> impl Strategy<Value = String> {
    let end = BLOCKS * BLOCK;
    prop_oneof![
        // One octet in each of many blocks.
        (1..=BLOCKS, 0..BLOCK).prop_map(|(count, within)| {
            let list: Vec<_> =
                (0..count).map(|block| block * BLOCK + within).map(|at| format!("{at}-{at}")).collect();
            format!("bytes={}", list.join(","))
        }),
        // Any, in any order.
        prop::collection::vec((0..end, 0..end), 1..400).prop_map(|pairs| {
            let list: Vec<_> = pairs.iter().map(|(one, other)| format!("{one}-{other}")).collect();
            format!("bytes={}", list.join(","))
        }),
        (
            prop::sample::select(vec!["0-0,", "-1,", "0-,", "5-3,", ",", " , ", "99999999999999999999-,"]),
            0.0..1.0
        )
            .prop_map(|(unit, share)| format!("bytes={}", filled(unit, share))),
    ]
}

/// Fields whose values are lists or long.
fn long_field() -> impl Strategy<Value = (&'static str, String)> {
    let units = vec![
        ("if-none-match", "a,"),
        ("if-none-match", "\"\","),
        ("if-none-match", "W/\"x\", "),
        ("if-none-match", "\"a,"),
        ("if-match", "\"x\","),
        ("if-match", "*,"),
        ("if-range", "\"x"),
        ("if-modified-since", "Sun, "),
        ("accept-encoding", "br;q=0,"),
        ("accept-encoding", "gzip , "),
        ("accept-encoding", "x;q=0.001;"),
        ("cookie", "a=b; "),
        ("priority", "u=1, i, "),
        ("priority", "u=9;x=\"y\","),
        ("user-agent", "x"),
        ("referer", "https://"),
        ("te", "trailers"),
        ("host", "edge.example"),
    ];
    (prop::sample::select(units), 0.0..1.0).prop_map(|((name, unit), share)| {
        let value = match name {
            "te" | "host" => unit.to_owned(),
            _ => filled(unit, share),
        };
        (name, if value.is_empty() { "x".to_owned() } else { value })
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    let asked = prop_oneof![
        3 => path().prop_map(Ask::get),
        3 => (path(), long_field()).prop_map(|(path, (name, value))| {
            // The two share the room.
            let path = if path.len() + value.len() > ROOM { "/small".to_owned() } else { path };
            Ask::get(path).with(name, value)
        }),
        3 => ranges().prop_map(|ranges| Ask::get("/large").with("range", ranges)),
        2 => (prop::sample::select(vec!["a.", "-.", "1.", "xn--.", "a.b.c."]), 0.0..1.0, any::<bool>()).prop_map(
            |(unit, share, known)| {
                let end = if known { "edge.example" } else { "nowhere:443" };
                let labels = unit.repeat((ROOM as f64 * share) as usize / unit.len());
                Ask { authority: format!("{labels}{end}"), ..Ask::get("/small") }
            }
        ),
        // Many fields, and cookies in crumbs.
        2 => (1..127usize, any::<bool>()).prop_map(|(count, crumbs)| {
            let name = if crumbs { "cookie" } else { "x-field" };
            (0..count).fold(Ask::get("/small"), |ask, number| ask.with(name, format!("n={number}")))
        }),
        1 => (0..60_000usize).prop_map(|body| Ask { method: "POST", body, ..Ask::get("/small") }),
        1 => prop::sample::select(vec!["HEAD", "OPTIONS", "DELETE", "TRACE", "X"])
            .prop_map(|method| Ask { method, ..Ask::get("/large") }),
    ];
    (asked, prop::bool::weighted(0.1), 0..8u8, any::<bool>()).prop_map(
        |(mut ask, stops, urgency, incremental)| {
            ask.stops = stops;
            if ask.fields.iter().all(|(name, _)| *name != "priority") {
                ask = ask.with("priority", format!("u={urgency}{}", if incremental { ", i" } else { "" }));
            }
            ask
        },
    )
}

/// What the clients of a case have in common.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// Bytes that each takes of a stream, and of all.
    stream_window: u64,
    window: u64,
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![
        3 => Just(Manner { stream_window: 1 << 20, window: 8 << 20 }),
        1 => Just(Manner { stream_window: 300, window: 1 << 20 }),
        1 => (1..5000u64).prop_map(|stream_window| Manner { stream_window, window: 100_000 }),
    ]
}

/// Lets the clients ask it all at once; the longest turn.
fn run(asked: &[Vec<Ask>], manner: Manner) -> Duration {
    let mut world = world(|settings| settings.max_connections = 100);
    let ids = clients(&mut world, 0, Options::default);
    assert!(ids.is_empty());
    let port = |number: usize| 5000 + number as u16;
    for number in 0..asked.len() {
        let Manner { stream_window, window } = manner;
        let options = Options { max_stream_data: stream_window, max_data: window, ..Options::default() };
        crate::bed::client(&mut world, port(number), options);
    }
    world.until("connections", |world| world.clients.iter().all(|client| client.http.is_some()));
    for (number, asked) in asked.iter().enumerate() {
        for ask in asked {
            let mut fields = vec![
                (":method", ask.method),
                (":scheme", "https"),
                (":authority", &ask.authority),
                (":path", &ask.path),
            ];
            fields.extend(ask.fields.iter().map(|(name, value)| (*name, value.as_str())));
            world.clients[number].raw(&fields, &vec![7; ask.body]);
        }
    }
    // A large file need not arrive whole.
    let end = Instant::now() + Duration::from_millis(300);
    let mut stopped = false;
    world.until("some of it", |world| {
        if !stopped && world.clients.iter().all(|client| !client.streams.is_empty()) {
            stopped = true;
            for (client, asked) in world.clients.iter_mut().zip(asked) {
                for (stream, _) in client.streams.clone().iter().zip(asked).filter(|(_, ask)| ask.stops) {
                    let _ = client.quic.stream_shutdown(*stream, quiche::Shutdown::Read, 0x10c);
                }
            }
        }
        Instant::now() > end || world.clients.iter().all(Client::is_done)
    });
    world.most(0).time
}

proptest! {
    #![proptest_config(Config { cases: 24, max_shrink_iters: 40, failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_turn_is_long_whatever_is_asked(
        asked in prop::collection::vec(prop::collection::vec(ask(), 1..24), 1..5),
        manner in manner(),
    ) {
        let longest = longest(|| run(&asked, manner));
        prop_assert!(longest <= BOUND, "the longest turn took {:?}", longest);
    }
}
