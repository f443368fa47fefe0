//! Asks nginx and Expressway the same questions and compares the answers.
//!
//! The questions are data: see `tests/nginx_semantics/README.md` at the top of the repository.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig, Symlinks};
use expressway_web::{SiteConfig, Sites};
use http::{HeaderName, HeaderValue};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use serde::Deserialize;

use crate::common;

const MODIFIED: i64 = 784_111_777;

/// Fields that are compared where there is no error.
const SUCCESS_FIELDS: [&str; 3] = ["content-type", "content-length", "vary"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tree {
    entry: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    path: String,
    size: Option<usize>,
    text: Option<String>,
    #[serde(default)]
    directory: bool,
    #[serde(default)]
    fifo: bool,
    link: Option<String>,
    mode: Option<String>,
    modified: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Case {
    target: String,
    #[serde(default = "get")]
    method: String,
    #[serde(default = "plain")]
    site: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    /// Fields in which our answer is another on purpose; empty means not there.
    #[serde(default)]
    ours: BTreeMap<String, toml::Value>,
    reason: Option<String>,
}

fn get() -> String {
    "GET".to_owned()
}

fn plain() -> String {
    "plain.test".to_owned()
}

/// What of an answer is compared.
#[derive(PartialEq, Eq)]
struct Answer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: Option<Vec<u8>>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.status, self.fields)?;
        let Some(body) = &self.body else { return Ok(()) };
        write!(f, " {} octets: {}", body.len(), body[..body.len().min(200)].escape_ascii())
    }
}

impl Answer {
    fn new(status: u16, all: &[(String, String)], body: Vec<u8>) -> Self {
        let success = status < 300;
        let mut names = vec![
            "etag",
            "last-modified",
            "content-range",
            "accept-ranges",
            "content-encoding",
            "location",
            "cache-control",
        ];
        if success || status == 304 {
            names.extend(SUCCESS_FIELDS);
        }
        let mut fields: BTreeMap<_, _> =
            all.iter().filter(|(name, _)| names.contains(&name.as_str())).cloned().collect();
        if let Some(location) = fields.get_mut("location")
            && let Some(rest) = location.strip_prefix("http://")
        {
            *location = rest[rest.find('/').unwrap_or(rest.len())..].to_owned();
        }
        let mut body = success.then_some(body);
        // nginx counts boundaries, ours are random; both are 20 digits.
        if let Some(content_type) = fields.get_mut("content-type")
            && let Some(boundary) = content_type.strip_prefix("multipart/byteranges; boundary=")
        {
            assert!(boundary.len() == 20 && boundary.bytes().all(|b| b.is_ascii_digit()), "{boundary}");
            if let Some(body) = &mut body {
                *body = String::from_utf8_lossy(body).replace(boundary, "BOUNDARY").into_bytes();
            }
            *content_type = "multipart/byteranges".to_owned();
        }
        Self { status, fields, body }
    }

    /// The differences that `case` lists, applied to nginx's answer. A listed difference that nginx does
    /// not show is an error. A different coding is another representation, so its fields come from ours.
    fn adjust(&mut self, case: &Case, ours: &Self) -> Result<(), String> {
        for (name, value) in &case.ours {
            if let toml::Value::Integer(status) = value {
                let status = u16::try_from(*status).map_err(|_| "status out of range".to_owned())?;
                if self.status == status {
                    return Err(format!("nginx's status is {status} too: drop the difference"));
                }
                self.status = status;
                if status < 300 {
                    // Only an empty one may stand where nginx has an error's.
                    self.body.get_or_insert_default();
                } else {
                    self.body = None;
                    self.fields.retain(|name, _| !SUCCESS_FIELDS.contains(&name.as_str()));
                }
                continue;
            }
            let value = value.as_str().unwrap_or_default();
            if self.fields.get(name).map_or("", String::as_str) == value {
                return Err(format!("nginx's {name} is {value:?} too: drop the difference"));
            }
            self.fields.remove(name);
            if !value.is_empty() {
                self.fields.insert(name.clone(), value.to_owned());
            }
            if name == "content-encoding" {
                for name in ["etag", "last-modified", "content-length", "accept-ranges"] {
                    self.fields.remove(name);
                    self.fields.extend(ours.fields.get(name).map(|value| (name.to_owned(), value.clone())));
                }
                self.body.clone_from(&ours.body);
            }
        }
        Ok(())
    }
}

struct Nginx {
    child: Child,
    socket: PathBuf,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGQUIT would wait for connections; SIGTERM ends master and worker at once.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

impl Nginx {
    fn start(directory: &Path, root: &Path) -> Option<Self> {
        let version = Command::new("nginx").arg("-V").output().ok()?;
        let version = String::from_utf8_lossy(&version.stderr).into_owned();
        if !version.contains("--with-http_gzip_static_module") {
            return None;
        }
        let user = if rustix::process::geteuid().is_root() { "user nobody nogroup;" } else { "" };
        let config = std::fs::read_to_string(data("nginx.conf")).unwrap();
        let config = config
            .replace("{user}", user)
            .replace("{root}", root.to_str().unwrap())
            .replace("{directory}", directory.to_str().unwrap());
        let path = directory.join("nginx.conf");
        std::fs::write(&path, config).unwrap();
        let child = Command::new("nginx")
            .arg("-p")
            .arg(directory)
            .arg("-c")
            .arg(&path)
            .arg("-e")
            .arg(directory.join("error.log"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut nginx = Self { child, socket: directory.join("socket") };
        let deadline = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(&nginx.socket).is_err() {
            let exited = nginx.child.try_wait().unwrap();
            let log = || std::fs::read_to_string(directory.join("error.log")).unwrap_or_default();
            assert!(
                exited.is_none() && Instant::now() < deadline,
                "nginx did not start: {exited:?} {}",
                log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(nginx)
    }

    fn ask(&self, case: &Case) -> Answer {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut request = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", case.method, case.target, case.site);
        for (name, value) in &case.headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("a complete head");
        let head = std::str::from_utf8(&response[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields: Vec<_> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Answer::new(status, &fields, response[end + 4..].to_vec())
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/nginx_semantics").join(name)
}

fn grow(root: &Path) {
    let tree: Tree = toml::from_str(&std::fs::read_to_string(data("tree.toml")).unwrap()).unwrap();
    for entry in &tree.entry {
        let path = root.join(&entry.path);
        if entry.directory {
            std::fs::create_dir_all(&path).unwrap();
        } else {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        if let Some(link) = &entry.link {
            symlink(link, &path).unwrap();
            continue;
        }
        if entry.fifo {
            mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        } else if !entry.directory {
            let text = entry.text.as_ref().map(|text| text.clone().into_bytes());
            std::fs::write(&path, text.unwrap_or_else(|| common::pattern(entry.size.unwrap()))).unwrap();
        }
        let time = Timespec { tv_sec: entry.modified.unwrap_or(MODIFIED), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        if let Some(mode) = &entry.mode {
            let mode = u32::from_str_radix(mode, 8).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

fn sites(root: &Path) -> Sites {
    let site = |host: &str, change: &dyn Fn(&mut FilesConfig)| {
        let mut files = FilesConfig::new(root);
        files.index = vec!["index.html".to_owned(), "index.htm".to_owned()];
        files.symlinks = Symlinks::Follow;
        files.hidden = true;
        change(&mut files);
        SiteConfig::new(vec![host.to_owned()], files)
    };
    let options = FileOptions { open_file_valid: Duration::from_secs(60), ..FileOptions::default() };
    let cached = HeaderValue::from_static("max-age=60");
    Sites::new(
        &[
            site("plain.test", &|_| {}),
            site("coded.test", &|files| files.precompressed = vec![Encoding::Gzip]),
            site("locked.test", &|files| files.symlinks = Symlinks::Deny),
            site("guarded.test", &|files| files.hidden = FilesConfig::new(root).hidden),
            site("few.test", &|files| files.max_ranges = 2),
            site("none.test", &|files| files.max_ranges = 0),
            site("headed.test", &|files| {
                files.headers = vec![(HeaderName::from_static("cache-control"), cached.clone())];
            }),
        ],
        &FileStore::new(options).unwrap(),
    )
    .unwrap()
}

fn ask_ours(sites: &Sites, case: &Case) -> Answer {
    let headers: Vec<_> = case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let request = common::request(&case.method, &case.site, &case.target, &headers);
    let (head, body) = common::fetch(sites, &request);
    let fields: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    Answer::new(head.status.as_u16(), &fields, body)
}

/// Opens what the tree closed, so that the temporary directory can be removed.
struct Reopen(PathBuf);

impl Drop for Reopen {
    fn drop(&mut self) {
        let _ = std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(0o755));
    }
}

#[test]
fn answers_are_nginxs() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    grow(&root);
    let _reopen = Reopen(root.join("private/closed"));
    let Some(nginx) = Nginx::start(directory.path(), &root) else {
        return common::skip("nginx with the gzip_static module (Debian: nginx-light)");
    };
    common::drop_file_capabilities();
    let sites = sites(&root);
    let cases: Cases = toml::from_str(&std::fs::read_to_string(data("cases.toml")).unwrap()).unwrap();
    assert!(cases.case.len() > 200, "the cases are there");
    let mut failures = Vec::new();
    for case in &cases.case {
        assert_eq!(
            case.ours.is_empty(),
            case.reason.is_none(),
            "a difference and its reason belong together"
        );
        let mut expected = nginx.ask(case);
        // The second time comes from the open-file cache.
        for time in ["first", "second"] {
            let ours = ask_ours(&sites, case);
            if time == "first"
                && let Err(error) = expected.adjust(case, &ours)
            {
                failures.push(format!("{case:?}: {error}"));
            }
            if ours != expected {
                failures.push(format!("{case:?} ({time} time)\n  ours  {ours:?}\n  nginx {expected:?}"));
                break;
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} differ:\n{}",
        failures.len(),
        cases.case.len(),
        failures.join("\n")
    );
}
