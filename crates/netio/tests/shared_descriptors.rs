//! Readers that come when the receiver has no file descriptor left. Alone in its process, whose descriptors it
//! takes.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use expressway_netio::xsk::{ReaderAccess, SharedUmem, UmemConfig};

#[test]
fn a_reader_that_finds_no_descriptor_is_turned_away_and_the_next_is_admitted() {
    let directory = std::env::temp_dir();
    let (path, binary) = ["sock", "bin"]
        .map(|kind| directory.join(format!("expressway-fds-{}.{kind}", std::process::id())))
        .into();
    let root = env!("CARGO_MANIFEST_DIR");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-I", &format!("{root}/include"), "-o"])
        .arg(&binary)
        .arg(format!("{root}/examples/c/reader.c"))
        .status()
        .expect("a C compiler is there: libbpf needs one too");
    assert!(compiled.success());
    let mut umem =
        SharedUmem::new(&UmemConfig { frames: 256, shareable: true, ..UmemConfig::default() }).unwrap();
    umem.share(ReaderAccess { quota: 8, ..ReaderAccess::new(&path) }).unwrap();
    // Both wait for a line before they connect: starting them takes descriptors.
    let mut readers = [0, 1].map(|_| {
        Command::new("sh")
            .args(["-c", "read line; exec \"$0\" \"$1\""])
            .arg(&binary)
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    });
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(64), maximum: Some(64) },
    )
    .unwrap();
    let hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!hoard.is_empty());
    let start = Instant::now();
    let turn = |umem: &mut SharedUmem, done: &dyn Fn(&SharedUmem) -> bool| {
        while !done(umem) {
            assert!(start.elapsed() < Duration::from_secs(60), "never; {:?}", umem.share_stats());
            umem.wait(Some(Duration::from_millis(10))).unwrap();
        }
    };
    readers[0].stdin.as_ref().unwrap().write_all(b"go\n").unwrap();
    turn(&mut umem, &|umem| umem.share_stats().readers_refused == 1);
    assert_eq!(readers[0].wait().unwrap().code(), Some(1), "it was told");
    umem.wait(Some(Duration::ZERO)).unwrap();
    assert_eq!((umem.share_stats().readers_refused, umem.readers().count()), (1, 0));
    drop(hoard);
    readers[1].stdin.as_ref().unwrap().write_all(b"go\n").unwrap();
    turn(&mut umem, &|umem| umem.readers().count() == 1);
    drop(umem);
    assert_eq!(readers[1].wait().unwrap().code(), Some(0), "its receiver ended");
    std::fs::remove_file(&binary).unwrap();
}
