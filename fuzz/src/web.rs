//! Targets of `expressway-web`: a request's head as any transport hands it over, and what is logged of it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use expressway_web::access_log::{AccessLog, AccessLogOptions, Format, Record, Target};
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig};
use expressway_web::{
    Cors, Exchange, Handler, Notify, PathPattern, PathRule, Protocol, RequestBody, RequestHead, Scheme,
    SiteConfig, SiteContent, Sites, Template, TokenKey, TokenKeys, TokenRule, Wake,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tempfile::TempDir;

use crate::cost::{self, Account, Bound};

/// A request from its head to the first 256 KiB of its body, per byte of what the client says.
const REQUEST: Bound =
    Bound { steps: (200, 60_000), allocations: (2, 400), bytes: (200, 1 << 20), peak: (40, 1 << 20) };

/// One call of a handler or an exchange: what a worker does before it looks at anything else.
const CALL: Bound =
    Bound { steps: (200, 40_000), allocations: (2, 300), bytes: (200, 600 << 10), peak: (40, 600 << 10) };

/// A line of an access log, whose thread is made for it.
const LINE: Bound =
    Bound { steps: (100, 20_000), allocations: (1, 200), bytes: (40, 128 << 10), peak: (20, 128 << 10) };

/// Bytes read from files: at most sixteen times as many as are sent (the share of `expressway_web::files`), those of a block
/// around them at both ends, and a few for each byte that the client says. No instruction shows them, for the kernel copies
/// them.
const READ: (u64, u64) = (16, 512 << 10);

/// Blocks are read up to this multiple of what is sent of them.
const READ_SHARE: u64 = 16;

/// Fields that a transport takes at most; what a section holds more is refused before.
const MAX_FIELDS: usize = 128;

/// What is read of a body; of most of the tree that is all.
const MAX_BODY: usize = 256 << 10;

/// What a transport asks for at once.
const CHUNK: usize = 16 << 10;

/// Tells the thread that polls to go on.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Notify for Bell {
    fn notify(&self, _: u64) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl Bell {
    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rung, waited) = self
            .changed
            .wait_timeout_while(rung, Duration::from_secs(30), |rung| !*rung)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "an exchange is pending, and nothing wakes it");
        *rung = false;
    }
}

/// Sites over a tree that has something of everything. Nothing is cached, so that a request costs the same each time.
struct World {
    sites: Sites,
    _tree: TempDir,
}

static WORLD: LazyLock<World> =
    LazyLock::new(|| World::new().expect("a tree in the folder for temporary files"));

impl World {
    fn new() -> std::io::Result<Self> {
        let tree = TempDir::new()?;
        let at = |name: &str| tree.path().join(name);
        for folder in ["dir/sub/deep", "with space", "a/b/c/d/e/f/g/h", ".hidden", ".well-known"] {
            fs::create_dir_all(at(folder))?;
        }
        for file in ["index.html", "a.js", "a.js.br", "a.js.gz", "only.css.gz", "dir/index.html", ".hidden/x"]
        {
            fs::write(at(file), vec![b'x'; 1024])?;
        }
        fs::write(at("empty.txt"), "")?;
        // A block and a half of the default, and many blocks of holes.
        File::create(at("block.mp4"))?.set_len(384 << 10)?;
        File::create(at("media.mp4"))?.set_len(64 << 20)?;
        symlink("a.js", at("link.js"))?;
        symlink("..", at("dir/up"))?;
        let options =
            FileOptions { cache_bytes: 0, open_files: 0, reader_threads: 1, ..FileOptions::default() };
        let store = FileStore::new(options)?;
        let site = |hosts: &[&str], tune: fn(&mut FilesConfig)| {
            let mut files = FilesConfig::new(tree.path());
            files.precompressed = vec![Encoding::Brotli, Encoding::Gzip];
            files.headers = vec![(http::header::CACHE_CONTROL, HeaderValue::from_static("max-age=60"))];
            tune(&mut files);
            SiteConfig::new(hosts.iter().map(|host| (*host).to_owned()).collect(), files)
        };
        let sites = [
            site(&["edge.example", "www.edge.example"], |_| {}),
            site(&["*.example", "*.b.a.test"], |files| files.hidden = true),
            site(&["links.test", "[2001:db8::1]"], |files| {
                files.symlinks = expressway_web::files::Symlinks::Beneath
            }),
        ];
        let sites = Sites::new(&sites, &store).map_err(std::io::Error::other)?;
        Ok(Self { sites, _tree: tree })
    }
}

/// What tokens are signed with.
const KEY: &[u8; 32] = &[0x42; 32];

/// A site of rules alone, all that answer without a file.
static RULED: LazyLock<Sites> = LazyLock::new(|| {
    let rule = |path: &str, change: fn(&mut PathRule)| {
        let mut rule = PathRule::new(PathPattern::parse(path).expect("a pattern"));
        change(&mut rule);
        rule
    };
    let mut site = SiteConfig::new(Vec::new(), SiteContent::Nothing);
    site.rules = vec![
        rule("*", |rule| rule.cors = Some(Cors::default())),
        rule("/old/*", |rule| rule.rewrite = Some(Template::parse("/new/*.x", true).expect("a template"))),
        rule("/new/*.x.x", |rule| {
            rule.redirect = Some((
                Template::parse("https://a.example/*/b", false).expect("a template"),
                StatusCode::FOUND,
            ));
        }),
        rule("/signed/*", |rule| {
            let keys = TokenKeys::new(vec![TokenKey::from_hex(&"42".repeat(32)).expect("a key"); 8]);
            rule.token = Some(TokenRule { name: "token".to_owned(), keys, set_cookie: true });
        }),
        rule("*.m3u8", |rule| rule.respond = Some(StatusCode::NO_CONTENT)),
        rule("/a/*/b", |rule| rule.respond = Some(StatusCode::GONE)),
    ];
    let store = FileStore::new(FileOptions { cache_bytes: 0, reader_threads: 1, ..FileOptions::default() });
    Sites::new(&[site], &store.expect("threads")).expect("rules")
});

/// A head from text: method and target, the authority, then a field a line; lines that no transport would hand over are
/// left out.
fn head(data: &[u8]) -> Option<RequestHead> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let method = Method::from_bytes(&first[..space]).ok()?;
    let graphic =
        |text: &[u8]| text.iter().all(u8::is_ascii_graphic).then(|| String::from_utf8(text.to_vec()).ok())?;
    let target = graphic(&first[space + 1..])?;
    let authority = graphic(lines.next().unwrap_or_default())?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        if headers.len() < MAX_FIELDS
            && let Ok(name) = HeaderName::from_bytes(&line[..colon])
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            headers.append(name, value);
        }
    }
    let remote = ([192, 0, 2, 1], 4433).into();
    Some(RequestHead {
        method,
        scheme: Scheme::Https,
        authority,
        target,
        headers,
        protocol: Protocol::H3,
        remote,
        client_subject: None,
    })
}

/// Bytes that a client says at least: of method, target and authority, and of fields.
fn size(head: &RequestHead) -> usize {
    let fields: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 2).sum();
    head.method.as_str().len() + head.target.len() + head.authority.len() + fields
}

/// A request for files.
pub fn request(data: &[u8]) {
    if let Some(head) = head(data) {
        answer(&WORLD.sites, &head);
    }
}

/// A request for paths with rules. A token that ends in `~hmac=*` is signed.
pub fn rules(data: &[u8]) {
    let Some(mut head) = head(data) else { return };
    if let Some((before, after)) = head.target.split_once("~hmac=*")
        && let Some((_, signed)) = before.rsplit_once("token=")
    {
        let signature = boring::hash::hmac_sha256(KEY, signed.as_bytes()).expect("a signature");
        let digits: String = signature.iter().map(|octet| format!("{octet:02x}")).collect();
        head.target = format!("{before}~hmac={digits}{after}");
    }
    answer(&RULED, &head);
}

/// A request is answered, with as many bytes as are announced, and no call takes long.
fn answer(sites: &Sites, head: &RequestHead) {
    let (size, mut whole) = (size(head), Account::default());
    whole.run(size, || ());
    let (bell, before) = (Arc::new(Bell::default()), bytes_read());
    let mut exchange =
        call(&mut whole, size, || sites.start(head, RequestBody::empty(), Wake::new(bell.clone(), 0)));
    let response = loop {
        match call(&mut whole, size, || exchange.poll_head()) {
            Poll::Ready(response) => break response,
            Poll::Pending => bell.wait(),
        }
    };
    let mut received = 0;
    while received < MAX_BODY {
        match call(&mut whole, size, || exchange.poll_body(CHUNK)) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(chunk)) => {
                let length = chunk.expect("nobody changes the files").len();
                assert!((1..=CHUNK).contains(&length), "a chunk of {length} bytes");
                received += length;
            }
            Poll::Pending => bell.wait(),
        }
    }
    if received < MAX_BODY
        && let Some(length) = response.body_length
    {
        assert_eq!(length, received as u64);
    }
    let read = bytes_read() - before;
    let limit = READ.0 * size as u64 + READ.1 + READ_SHARE * received as u64;
    assert!(
        read <= limit,
        "{size} bytes had {read} read from files for {received} sent, {limit} are allowed"
    );
    check_release(&mut whole, &mut exchange);
    whole.settle(&REQUEST);
}

/// Bytes that the process has had from the kernel by calls that read; 0 where the kernel does not count them
/// (CONFIG_TASK_IO_ACCOUNTING).
fn bytes_read() -> u64 {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Runs one call, on its own account and on that of the whole.
fn call<T>(whole: &mut Account, size: usize, action: impl FnOnce() -> T) -> T {
    let mut account = Account::default();
    let result = whole.run(0, || account.run(size, action));
    account.settle(&CALL);
    result
}

fn check_release(whole: &mut Account, exchange: &mut Exchange) {
    let before = exchange.remaining();
    whole.run(0, || exchange.release());
    assert_eq!(exchange.remaining(), before);
}

/// A line of either format, of a record with texts from lines.
pub fn access_log(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let texts: Vec<_> = rest.split(|byte| *byte == b'\n').map(String::from_utf8_lossy).collect();
    let text = |index: usize| texts.get(index).map_or("", |text| text);
    let format = if first & 1 == 0 { Format::Json } else { Format::Combined };
    let record = Record {
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(first) << 24),
        duration: Duration::from_micros(u64::from(first) << 8),
        remote: ([192, 0, 2, 1], 4433).into(),
        method: text(0),
        scheme: Scheme::Https,
        host: text(1),
        target: text(2),
        protocol: Protocol::H3,
        status: 200,
        body_bytes: u64::from(first),
        complete: first & 2 == 0,
        range: text(3),
        referer: text(4),
        user_agent: text(5),
        tls_version: "TLSv1.3",
        tls_cipher: "TLS_AES_128_GCM_SHA256",
        client_subject: "",
        io_mode: "udp",
        cmcd: Some([text(6), text(7), text(8), text(9)]),
        worker: 0,
        upstream: "",
        upstream_status: 0,
        upstream_time: Duration::ZERO,
        cache: "",
    };
    let size = texts.iter().map(|text| text.len()).sum();
    cost::hold(&LINE, size, || {
        let target = Target::File("/dev/null".into());
        let options = AccessLogOptions { queue: 1, ..AccessLogOptions::new(target, format) };
        let log = AccessLog::open(options).expect("a thread");
        log.log(&record);
        let ending = log.ending();
        drop(log);
        assert!(ending.wait(Duration::from_secs(60)), "the line is written");
    });
}
