use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::service::MAX_ORDER;
use super::*;
use expressway_metrics as metrics;

/// Reached only by what hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// More than the kernel holds for a connection.
const LONG: usize = 32 << 20;

struct Fixed(AtomicBool);

impl State for Fixed {
    fn health(&self) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err("draining".into()) }
    }
    fn configuration(&self) -> String {
        "[server]\n".into()
    }
    fn io(&self) -> Option<String> {
        Some("{}\n".into())
    }
    fn purge(&self, order: &[u8]) -> Option<Result<String, String>> {
        Some(if order == b"{}" { Ok("[]".into()) } else { Err("what?".into()) })
    }
    fn subscribers(&self) -> Option<String> {
        Some("a".repeat(LONG))
    }
    /// Two lines and the end, or lines without end; the state's flag says whether one is under way.
    fn trace(&self, order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        Some(match order {
            b"{}" => Ok(Box::new(Counting(0..2))),
            b"endless" => {
                ENDLESS.store(true, Ordering::Relaxed);
                Ok(Box::new(Endless))
            }
            b"busy" => Err(Refusal::Busy("wait".into())),
            _ => Err(Refusal::Invalid("what?".into())),
        })
    }
}

struct Counting(std::ops::Range<u32>);

impl Feed for Counting {
    fn poll(&mut self) -> Piece {
        self.0.next().map_or(Piece::End, |number| Piece::Data(format!("{number}\n").into_bytes()))
    }
}

/// One is under way.
static ENDLESS: AtomicBool = AtomicBool::new(false);

struct Endless;

impl Feed for Endless {
    fn poll(&mut self) -> Piece {
        Piece::Nothing
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        ENDLESS.store(false, Ordering::Relaxed);
    }
}

/// A listener on a port of this machine.
fn local() -> Section {
    Section::at("127.0.0.1:0".parse().unwrap())
}

fn start(section: &Section, registry: Registry, state: Arc<Fixed>) -> Admin {
    Admin::start(Listener::bind(section).unwrap(), section, registry, state).unwrap()
}

/// Where a listener of [`local`] is.
fn address(admin: &Admin) -> SocketAddr {
    match admin.address() {
        Address::Tcp(address) => *address,
        Address::Unix(path) => panic!("{}", path.display()),
    }
}

fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A page of somebody's domain that resolves to this listener (DNS rebinding).
#[test]
fn other_names_get_metrics_and_health_and_nothing_else() {
    let state = Arc::new(Fixed(AtomicBool::new(true)));
    let admin = start(&local(), Registry::default(), state);
    let named = |head: &str, more: &str| {
        let mut stream = TcpStream::connect(address(&admin)).unwrap();
        let head =
            format!("{head} HTTP/1.1\r\nhost: rebound.example:9180\r\nconnection: close\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for page in ["/metrics", "/healthz"] {
        assert!(named(&format!("GET {page}"), "").starts_with("HTTP/1.1 200"), "{page}");
    }
    for page in ["/", "/config", "/io", "/subscribers", "/services", "/none"] {
        assert!(named(&format!("GET {page}"), "").starts_with("HTTP/1.1 421"), "{page}");
    }
    for order in ["/purge", "/drain", "/trace"] {
        let answer =
            named(&format!("POST {order}"), "content-type: application/json\r\ncontent-length: 0\r\n");
        assert!(answer.starts_with("HTTP/1.1 421"), "{order}: {answer}");
    }
}

#[test]
fn pages_answer_and_health_follows_the_state() {
    let registry = Registry::default();
    registry.register(|out: &mut Vec<metrics::Sample>| out.push(metrics::Sample::counter("x", "X.", 1)));
    let state = Arc::new(Fixed(AtomicBool::new(true)));
    let admin = start(&local(), registry, state.clone());
    let address = address(&admin);
    let metrics = ask(address, "GET /metrics");
    assert!(metrics.contains("expressway_x_total 1"), "{metrics}");
    assert!(metrics.contains("expressway_admin_accepted_total 1"), "{metrics}");
    assert!(ask(address, "GET /healthz").starts_with("HTTP/1.1 200"));
    state.0.store(false, Ordering::Relaxed);
    let ill = ask(address, "GET /healthz");
    assert!(ill.starts_with("HTTP/1.1 503") && ill.ends_with("draining\n"), "{ill}");
    assert!(ask(address, "GET /config").ends_with("[server]\n"));
    let io = ask(address, "GET /io");
    assert!(io.contains("application/json") && io.ends_with("{}\n"), "{io}");
    assert!(ask(address, "GET /nothing").starts_with("HTTP/1.1 404"));
    let refused = ask(address, "DELETE /metrics");
    assert!(refused.starts_with("HTTP/1.1 405") && refused.contains("allow: GET, HEAD"), "{refused}");
    drop(admin);
    assert!(TcpStream::connect(address).is_err(), "the listener outlived its handle");
}

#[test]
fn orders_are_json_by_name_and_short() {
    let admin = listener(|_| {});
    let order = |more: &str, body: &str| {
        let mut stream = connect(&admin);
        let head = format!(
            "POST /purge HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{more}\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let json = "content-type: application/json\r\n";
    let done = order(json, "{}");
    assert!(done.starts_with("HTTP/1.1 200") && done.ends_with("[]\n"), "{done}");
    let refused = order(json, "[");
    assert!(refused.starts_with("HTTP/1.1 400") && refused.ends_with("what?\n"), "{refused}");
    // What a page of another origin may send without asking.
    assert!(order("content-type: text/plain\r\n", "{}").starts_with("HTTP/1.1 415"));
    assert!(order(json, &" ".repeat(MAX_ORDER + 1)).starts_with("HTTP/1.1 400"));
}

fn order_trace(stream: &mut TcpStream, content_type: &str, order: &str) {
    let length = order.len();
    let head = format!(
        "POST /trace HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n"
    );
    stream.write_all(format!("{head}content-type: {content_type}\r\n\r\n{order}").as_bytes()).unwrap();
}

#[test]
fn a_feed_comes_piece_by_piece_and_refusals_are_told() {
    let admin = listener(|_| {});
    let answer = |content_type: &str, order: &str| {
        let mut stream = connect(&admin);
        order_trace(&mut stream, content_type, order);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let json = "application/json";
    let whole = answer(json, "{}");
    assert!(whole.starts_with("HTTP/1.1 200") && whole.contains("transfer-encoding: chunked"), "{whole}");
    assert!(whole.ends_with("2\r\n0\n\r\n2\r\n1\n\r\n0\r\n\r\n"), "{whole}");
    assert!(answer(json, "busy").starts_with("HTTP/1.1 409"));
    let refused = answer(json, "[");
    assert!(refused.starts_with("HTTP/1.1 400") && refused.ends_with("what?\n"), "{refused}");
    // What a page of another origin may send without asking.
    assert!(answer("text/plain", "{}").starts_with("HTTP/1.1 415"));
    assert!(ask(address(&admin), "GET /trace").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_feed_ends_when_its_reader_goes() {
    let admin = listener(|_| {});
    let mut stream = connect(&admin);
    order_trace(&mut stream, "application/json", "endless");
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 200"));
    assert!(ENDLESS.load(Ordering::Relaxed));
    // Others are answered meanwhile.
    drop(connect_and_ask(&admin));
    drop(stream);
    let limit = Instant::now() + LIMIT;
    while ENDLESS.load(Ordering::Relaxed) {
        assert!(Instant::now() < limit, "it goes on without a reader");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn listener(change: impl FnOnce(&mut Limits)) -> Admin {
    let mut limits = Limits::default();
    change(&mut limits);
    let state = Arc::new(Fixed(AtomicBool::new(true)));
    start(&local().with_limits(limits), Registry::default(), state)
}

fn connect(admin: &Admin) -> TcpStream {
    let stream = TcpStream::connect(address(admin)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A connection that the listener has accepted: it has answered.
fn connect_and_ask(admin: &Admin) -> TcpStream {
    let mut stream = connect(admin);
    stream.write_all(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 200"));
    stream
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Reads to the end of a connection, whether in order or by a reset. How many bytes there were.
fn read_to_end(stream: &mut impl Read) -> usize {
    let (mut length, mut scratch) = (0, vec![0; 1 << 16]);
    loop {
        match stream.read(&mut scratch) {
            Ok(0) => return length,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return length,
            Err(error) => panic!("after {length} bytes: {error}"),
        }
    }
}

fn count(admin: &Admin, metric: &str) -> u64 {
    let page = ask(address(admin), "GET /metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("expressway_{metric} ")));
    line.unwrap_or_else(|| panic!("no {metric}: {page}")).parse().unwrap()
}

fn wait_for(admin: &Admin, metric: &str, value: u64) {
    let deadline = Instant::now() + LIMIT;
    while count(admin, metric) != value {
        assert!(Instant::now() < deadline, "{metric} never is {value}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_head_has_to_come_in_time_whole() {
    let admin = listener(|limits| limits.header_timeout = Duration::from_millis(300));
    // Nothing, a byte now and then, and nothing after a request.
    let (mut silent, mut slow, mut idle) = (connect(&admin), connect(&admin), connect_and_ask(&admin));
    let dripping = slow.try_clone().unwrap();
    let drips = std::thread::spawn(move || {
        let head = b"GET /metrics HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'a'));
        head.take(6000).all(|byte| {
            std::thread::sleep(Duration::from_millis(10));
            (&dripping).write_all(&[*byte]).is_ok()
        })
    });
    for stream in [&mut silent, &mut slow, &mut idle] {
        assert_eq!(read_to_end(stream), 0);
    }
    assert!(!drips.join().unwrap(), "a minute of drips was taken");
    wait_for(&admin, "admin_timeouts_total", 3);
}

#[test]
fn a_head_of_too_many_bytes_or_lines_is_refused() {
    let admin = listener(|_| {});
    for head in [format!("x: {}\r\n", "a".repeat(20_000)), "x: a\r\n".repeat(65)] {
        let mut stream = connect(&admin);
        let _ = stream.write_all(format!("GET / HTTP/1.1\r\n{head}\r\n").as_bytes());
        let answer = read_head(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert_eq!(read_to_end(&mut stream), 0);
    }
    assert!(ask(address(&admin), &format!("GET /?{}", "a".repeat(8000))).starts_with("HTTP/1.1 200"));
}

#[test]
fn who_takes_an_answer_too_slowly_is_cut_off_however_steadily_it_does() {
    let admin = listener(|limits| limits.write_timeout = Duration::from_millis(500));
    for more in ["", "connection: close\r\n"] {
        let mut stream = connect(&admin);
        let timeouts = count(&admin, "admin_timeouts_total");
        stream
            .write_all(format!("GET /subscribers HTTP/1.1\r\nhost: localhost\r\n{more}\r\n").as_bytes())
            .unwrap();
        while count(&admin, "admin_timeouts_total") == timeouts {
            // With a page of metrics in between, some 100 KB a second at most.
            assert_ne!(stream.read(&mut [0; 64]).unwrap(), 0);
        }
        assert!(read_to_end(&mut stream) < LONG);
    }
}

#[test]
fn pages_that_nobody_takes_take_a_bounded_memory() {
    let admin = listener(|limits| limits.pages = LONG + (1 << 20));
    let mut greedy = connect(&admin);
    greedy.write_all(b"GET /subscribers HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    assert!(read_head(&mut greedy).starts_with("HTTP/1.1 200"));
    let refused = ask(address(&admin), "GET /subscribers");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{} bytes", refused.len());
    // What is small is there all the same.
    assert_eq!(count(&admin, "admin_refused_pages_total"), 1);
    assert_eq!(read_to_end(&mut greedy), LONG);
    assert!(ask(address(&admin), "GET /subscribers").starts_with("HTTP/1.1 200 "));
    // A page of more than there may be of all is let through alone.
    let admin = listener(|limits| limits.pages = 1 << 20);
    assert!(ask(address(&admin), "GET /subscribers").starts_with("HTTP/1.1 200 "));
}

#[test]
fn those_who_only_sit_there_keep_nobody_out() {
    let admin = listener(|limits| limits.connections = 3);
    let mut quietest = connect_and_ask(&admin);
    let (mut second, mut third) = (connect_and_ask(&admin), connect_and_ask(&admin));
    quietest.write_all(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(read_head(&mut quietest).starts_with("HTTP/1.1 200"));
    assert_eq!(count(&admin, "admin_displaced_total"), 1);
    assert_eq!(read_to_end(&mut second), 0, "now the quietest");
    // The first has asked since, and the third has come since.
    for stream in [&mut quietest, &mut third] {
        stream.write_all(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        assert!(read_head(stream).starts_with("HTTP/1.1 200"));
    }
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(&admin)).collect();
    assert!(ask(address(&admin), "GET /healthz").starts_with("HTTP/1.1 200"));
    assert!(count(&admin, "admin_connections") <= 3);
    drop(silent);
    wait_for(&admin, "admin_connections", 1);
}

#[test]
fn bodies_are_not_read() {
    let admin = listener(|_| {});
    for framing in ["content-length: 1000000000000", "transfer-encoding: chunked\r\nexpect: 100-continue"] {
        let mut stream = connect(&admin);
        stream
            .write_all(format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n").as_bytes())
            .unwrap();
        let chunk = [&b"10000\r\n"[..], &[b'a'; 1 << 16], b"\r\n"].concat();
        let sent = (0..1000).take_while(|_| stream.write_all(&chunk).is_ok()).count();
        assert!(sent < 1000, "64 MiB were taken of a body");
    }
    wait_for(&admin, "admin_connections", 1);
}

#[test]
fn the_thread_stands_back_for_workers() {
    let own = i64::from(rustix::process::getpriority_process(None).unwrap());
    let admin = listener(|_| {});
    assert!(ask(address(&admin), "GET /healthz").starts_with("HTTP/1.1 200"));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let nices: Vec<i64> = tasks
        // The kernel keeps 15 letters.
        .filter(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "expressway-admi\n")
        })
        .filter_map(|task| std::fs::read_to_string(task.join("stat")).ok())
        // The 19th, of which the first two are before the last bracket.
        .map(|stat| stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().parse().unwrap())
        .collect();
    assert!(
        !nices.is_empty() && nices.iter().all(|nice| *nice == (own + i64::from(NICE)).min(19)),
        "{nices:?}"
    );
}

/// What a listener at a unix socket answers.
fn ask_unix(path: &std::path::Path, head: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_unix_socket_answers_by_any_name_and_goes_with_the_listener() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let section = Section::at(Address::Unix(path.clone()));
    let admin = start(&section, Registry::default(), Arc::new(Fixed(AtomicBool::new(true))));
    let page = ask_unix(&path, "GET /config HTTP/1.1\r\nhost: anything.example\r\n");
    assert!(page.starts_with("HTTP/1.1 200") && page.ends_with("[server]\n"), "{page}");
    drop(admin);
    assert!(!path.exists());
}

#[test]
fn with_tokens_pages_and_orders_take_one() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let path = folder.path().join("admin.sock");
    let mut section = Section::at(Address::Unix(path.clone()));
    section.token_file = Some(toml::Spanned::new(0..0, file.clone()));
    let admin = start(&section, Registry::default(), Arc::new(Fixed(AtomicBool::new(true))));
    let asked =
        |line: &str, fields: &str| ask_unix(&path, &format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}"));
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    let order = "content-type: application/json\r\ncontent-length: 0\r\n";
    for line in
        ["GET /metrics", "GET /config", "GET /", "GET /nothing", "POST /trace", "POST /purge", "DELETE /x"]
    {
        let refused = asked(line, order);
        assert!(refused.starts_with("HTTP/1.1 401 "), "{line}: {refused}");
        assert!(refused.contains("www-authenticate: Bearer realm=\"expressway\"\r\n"), "{refused}");
        let wrong = asked(line, &with("0123456789abcdef0123456789abcdee"));
        assert!(wrong.starts_with("HTTP/1.1 401 ") && wrong.contains("error=\"invalid_token\""), "{wrong}");
    }
    // An order that is refused is read, so that its client, which sends it after the head, is told why.
    let mut stream = UnixStream::connect(&path).unwrap();
    let head = "POST /ban HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"{}").unwrap();
    let mut refused = String::new();
    stream.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    // Nothing of the process, and what is open.
    assert!(asked("GET /dashboard", "").starts_with("HTTP/1.1 200 "));
    assert!(asked("GET /healthz", "").starts_with("HTTP/1.1 200 "));
    let page = asked("GET /metrics", &with(TOKEN));
    assert!(page.contains("\nexpressway_admin_unauthorized_total 15\n"), "{page}");
    // Read again when one says so.
    std::fs::write(&file, "another-token-of-somebody").unwrap();
    assert!(asked("GET /config", &with(TOKEN)).starts_with("HTTP/1.1 200 "));
    admin.reload();
    assert!(asked("GET /config", &with(TOKEN)).starts_with("HTTP/1.1 401 "));
    assert!(asked("GET /config", &with("another-token-of-somebody")).starts_with("HTTP/1.1 200 "));
}
