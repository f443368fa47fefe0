//! The access log as its users see it: a file that fills, moves, and sometimes cannot be written.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use expressway_web::access_log::{AccessLog, AccessLogOptions, Format, Record, Target};
use expressway_web::{Protocol, Scheme};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

fn record(target: &str) -> Record<'_> {
    Record {
        time: UNIX_EPOCH,
        duration: Duration::ZERO,
        remote: ([192, 0, 2, 1], 1).into(),
        method: "GET",
        scheme: Scheme::Https,
        host: "h",
        target,
        protocol: Protocol::H3,
        status: 200,
        body_bytes: 5,
        complete: true,
        range: "",
        referer: "",
        user_agent: "",
        tls_version: "",
        tls_cipher: "",
        client_subject: "",
        io_mode: "",
        cmcd: None,
        worker: 0,
        cache: "",
        upstream: "",
        upstream_status: 0,
        upstream_time: Duration::ZERO,
    }
}

fn open(path: &Path, queue: usize) -> AccessLog {
    let target = Target::File(path.to_owned());
    AccessLog::open(AccessLogOptions { queue, ..AccessLogOptions::new(target, Format::Combined) }).unwrap()
}

/// Drops the log and waits until everything is written.
fn finish(log: AccessLog) {
    let ending = log.ending();
    assert!(!ending.is_over());
    drop(log);
    assert!(ending.wait(Duration::from_secs(60)), "the thread did not end");
    assert_eq!(ending.queued_bytes(), 0);
}

fn metric(log: &AccessLog, name: &str) -> u64 {
    log.metrics().iter().find(|metric| metric.name == name).expect(name).value
}

fn wait_for(log: &AccessLog, name: &str, value: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while metric(log, name) < value {
        assert!(Instant::now() < deadline, "{name} is {}, not {value}", metric(log, name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn targets(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(' ').nth(6).unwrap().to_owned()).collect()
}

#[test]
fn every_line_is_written_in_order_before_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let log = open(&path, 10_000);
    let expected: Vec<_> = (0..5000).map(|i| format!("/{i}")).collect();
    for target in &expected {
        log.log(&record(target));
    }
    finish(log);
    assert_eq!(targets(&path), expected);
}

#[test]
fn reopening_follows_a_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
    let log = open(&path, 100);
    log.log(&record("/before"));
    wait_for(&log, "access_log_lines", 1);
    std::fs::rename(&path, &moved).unwrap();
    log.reopen();
    wait_for(&log, "access_log_reopened", 1);
    log.log(&record("/after"));
    finish(log);
    assert_eq!(targets(&moved), ["/before"]);
    assert_eq!(targets(&path), ["/after"]);
}

#[test]
fn a_failed_reopen_keeps_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("logs");
    std::fs::create_dir(&inner).unwrap();
    let log = open(&inner.join("access.log"), 100);
    let moved = directory.path().join("moved");
    std::fs::rename(&inner, &moved).unwrap();
    log.reopen();
    wait_for(&log, "access_log_reopen_failed", 1);
    log.log(&record("/kept"));
    finish(log);
    assert_eq!(targets(&moved.join("access.log")), ["/kept"]);
}

#[test]
fn a_full_disk_costs_lines_and_nothing_else() {
    let log = open(Path::new("/dev/full"), 100);
    for _ in 0..10 {
        log.log(&record("/lost"));
    }
    wait_for(&log, "access_log_failed", 10);
    assert_eq!(metric(&log, "access_log_lines"), 0);
    assert_eq!(metric(&log, "access_log_queued_bytes"), 0);
}

/// The log's thread is stuck in a pipe that nobody reads, so the queue fills.
#[test]
fn a_full_queue_drops_and_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let mut reader = std::fs::File::options().read(true).custom_flags(nonblocking).open(&path).unwrap();
    let log = open(&path, 16);
    let long = format!("/{}", "x".repeat(8000));
    // 64 KiB of pipe, one batch and the queue hold far less than this.
    for _ in 0..1000 {
        log.log(&record(&long));
    }
    assert!(metric(&log, "access_log_dropped") > 0);
    let drain = std::thread::spawn(move || {
        let mut text = Vec::new();
        while let Err(error) = reader.read_to_end(&mut text) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            std::thread::sleep(Duration::from_millis(1));
        }
        text
    });
    let dropped = metric(&log, "access_log_dropped") as usize;
    finish(log);
    let text = drain.join().unwrap();
    assert_eq!(
        text.iter().filter(|&&b| b == b'\n').count(),
        1000 - dropped,
        "every other line arrives whole"
    );
}

/// A worker may be the last to have a log whose thread is stuck.
#[test]
fn dropping_a_log_that_nobody_reads_waits_for_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let mut reader = std::fs::File::options().read(true).custom_flags(nonblocking).open(&path).unwrap();
    let log = open(&path, 1000);
    let long = format!("/{}", "x".repeat(8000));
    (0..100).for_each(|_| log.log(&record(&long)));
    let ending = log.ending();
    let (sender, dropped) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        drop(log);
        sender.send(()).unwrap();
    });
    dropped.recv_timeout(Duration::from_secs(60)).expect("the worker goes on");
    worker.join().unwrap();
    assert!(
        !ending.wait(Duration::from_millis(50)) && ending.queued_bytes() > 0,
        "there is more than the pipe takes"
    );
    let mut text = Vec::new();
    while !ending.is_over() || reader.read_to_end(&mut text).is_err() {
        let _ = reader.read_to_end(&mut text);
        std::thread::yield_now();
    }
    assert_eq!(text.iter().filter(|&&b| b == b'\n').count(), 100, "who comes to read it finds every line");
}

#[test]
fn a_pipe_that_nobody_reads_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let target = Target::File(path);
    let error = AccessLog::open(AccessLogOptions::new(target, Format::Json)).unwrap_err();
    assert!(error.to_string().contains("this pipe has no reader"), "{error}");
}

#[test]
fn the_queue_is_bounded_by_octets_too() {
    let directory = tempfile::tempdir().unwrap();
    let target = Target::File(directory.path().join("access.log"));
    let options = AccessLogOptions { queue_bytes: 10, ..AccessLogOptions::new(target, Format::Json) };
    let log = AccessLog::open(options).unwrap();
    log.log(&record("/much-longer-than-ten-octets"));
    assert_eq!(metric(&log, "access_log_dropped"), 1);
    log.log(&record("/short"));
    wait_for(&log, "access_log_lines", 1);
}

#[test]
fn a_target_that_cannot_be_opened_is_an_error() {
    let target = Target::File("/nonexistent/access.log".into());
    assert!(AccessLog::open(AccessLogOptions::new(target, Format::Json)).is_err());
}
