use std::fs::File;
use std::io::Cursor;
use std::path::Path;

use super::*;
use crate::file::Reader;
use crate::{Point, Process, Verdict};

fn packet(time: u64, data: &[u8]) -> Packet<'_> {
    Packet {
        time,
        interface: 7,
        queue: None,
        point: Point::KernelReceive,
        id: None,
        verdict: None,
        metadata: None,
        drop: None,
        process: None,
        length: data.len() as u32 + 10,
        data,
    }
}

fn writer(path: &Path, rotation: Rotation, secrets: Option<KeyLog>) -> Writer {
    let section = ["machine".into(), "Linux".into(), "expressway".into()];
    Writer::create(WriterOptions {
        target: Target::File(path.to_owned()),
        rotation,
        secrets,
        section,
        resume: false,
    })
    .unwrap()
}

/// A packet of a file as text: interface, time, and all that its record says.
fn read(path: &Path) -> Vec<String> {
    let mut reader = Reader::open(path).unwrap();
    let mut found = Vec::new();
    while reader.next(&mut |seen| found.push(format!("{} {:?}", seen.interface, seen.packet))).unwrap() {}
    assert_eq!(reader.skipped(), 0);
    found
}

/// The types of a file's blocks.
fn kinds(path: &Path) -> Vec<u32> {
    let bytes = std::fs::read(path).unwrap();
    let (mut rest, mut kinds) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let length = word(4) as usize;
        kinds.push(word(0));
        assert_eq!(word(length - 4) as usize, length);
        rest = &rest[length..];
    }
    kinds
}

const SECTION: u32 = 0x0a0d_0d0a;

#[test]
fn what_is_written_is_read_again_with_all_that_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcapng");
    let mut writer = writer(&path, Rotation::default(), None);
    let ids = ["one", "two"].map(|name| writer.interface(Interface::named(name, 96)));
    assert_eq!(writer.interface(Interface::named("one", 96)), ids[0]);
    let mut given = Vec::new();
    let process = Process { id: 5, name: "a, b" };
    for (number, point) in [
        Point::KernelReceive,
        Point::KernelTransmit,
        Point::XdpEntry,
        Point::XdpExit,
        Point::XskTransmit { zero_copy: false },
        Point::XskTransmit { zero_copy: true },
        Point::XdpTransmit,
    ]
    .into_iter()
    .enumerate()
    {
        for verdict in [None, Some(Verdict::Pass), Some(Verdict::Redirect { error: Some(28) })] {
            if verdict.is_some() && !matches!(point, Point::XdpEntry | Point::XdpExit | Point::XdpTransmit) {
                continue;
            }
            let mut packet = packet(1_800_000_000_123_456_789 + number as u64, b"0123456789abcd");
            (packet.point, packet.verdict, packet.queue) = (point, verdict, Some(3));
            packet.id = (point == Point::XdpEntry).then_some(9);
            packet.interface = number as u32 % 2;
            (packet.drop, packet.process) = (Some("ring full"), Some(process));
            writer.packet(ids[number % 2], &packet, 0).unwrap();
            given.push(format!("{} {packet:?}", ["one", "two"][number % 2]));
        }
    }
    writer.finish().unwrap();
    assert_eq!((writer.taken(), writer.written()), (13, 13));
    assert_eq!(read(&path), given);
    assert_eq!(kinds(&path), [vec![SECTION, 1, 1], vec![6; 13], vec![5, 5]].concat());
}

#[test]
fn each_file_of_a_ring_is_complete_and_the_oldest_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    let rotation = Rotation { size: Some(1000), count: Some(3), ..Rotation::default() };
    let mut writer = writer(&path, rotation, None);
    let id = writer.interface(Interface::named("eth0", 96));
    for time in 0..100 {
        assert_eq!(writer.packet(id, &packet(time, &[0; 100]), 0).unwrap(), Ended::No);
        writer.tick(Instant::now()).unwrap();
    }
    writer.finish().unwrap();
    let mut times = Vec::new();
    for number in 0..3 {
        let file = folder.path().join(format!("ring{number}"));
        let kinds = kinds(&file);
        assert_eq!((kinds[0], kinds[1], kinds[2], kinds.last()), (SECTION, 1, 6, Some(&5)), "{kinds:?}");
        assert!(std::fs::metadata(&file).unwrap().len() < 1000 + 300);
        let packets = read(&file);
        times.extend(packets.iter().map(|packet| {
            packet.split("time: ").nth(1).unwrap().split(',').next().unwrap().parse::<u64>().unwrap()
        }));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    times.sort_unstable();
    let first = times[0];
    assert!(first > 50, "{times:?}");
    assert_eq!(times, (first..100).collect::<Vec<_>>());
}

#[test]
fn a_period_ends_a_file_and_a_count_of_them_the_capture() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let rotation = Rotation { period: Some(Duration::from_secs(60)), count: Some(2), ..Rotation::default() };
    let mut writer = writer(&path, rotation, None);
    let id = writer.interface(Interface::named("eth0", 96));
    let later = |seconds| Instant::now() + Duration::from_secs(seconds);
    writer.packet(id, &packet(1, b"x"), 0).unwrap();
    assert_eq!(writer.tick(later(59)).unwrap(), Ended::No);
    assert_eq!(writer.tick(later(61)).unwrap(), Ended::No);
    writer.packet(id, &packet(2, b"x"), 0).unwrap();
    assert_eq!(writer.tick(later(61)).unwrap(), Ended::LastFile);
    writer.finish().unwrap();
    for file in ["a", "a1"] {
        assert_eq!(kinds(&folder.path().join(file)), [SECTION, 1, 6, 5]);
    }
}

#[test]
fn secrets_stand_before_the_packets_that_came_before_them() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, keys) = (folder.path().join("a"), folder.path().join("keys"));
    std::fs::write(&path, "was there").unwrap();
    let rotation = Rotation { size: Some(700), ..Rotation::default() };
    let mut writer = writer(&path, rotation, Some(KeyLog::follow(&keys).unwrap()));
    let id = writer.interface(Interface::named("eth0", 96));
    writer.packet(id, &packet(1, &[0; 100]), 0).unwrap();
    writer.tick(Instant::now()).unwrap();
    assert_eq!(kinds(&path), [SECTION, 1], "it is held back");
    let line = format!("CLIENT_TRAFFIC_SECRET_0 {} {}\n", "0a".repeat(32), "0b".repeat(48));
    std::fs::write(&keys, &line).unwrap();
    writer.tick(Instant::now() + HOLD).unwrap();
    assert_eq!(kinds(&path), [SECTION, 1, 10, 6]);
    for time in 2..5 {
        writer.packet(id, &packet(time, &[0; 300]), 0).unwrap();
    }
    writer.finish().unwrap();
    let next = folder.path().join("a1");
    assert_eq!(kinds(&next)[..4], [SECTION, 1, 10, 6], "a file is complete by itself");
    for file in [&path, &next] {
        let bytes = std::fs::read(file).unwrap();
        assert!(bytes.windows(line.len()).any(|part| part == line.as_bytes()));
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!((writer.taken(), writer.written()), (4, 4));
}

#[test]
fn files_that_are_cut_or_nonsense_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let mut writer = writer(&path, Rotation::default(), None);
    let id = writer.interface(Interface::named("eth0", 96));
    writer.packet(id, &packet(1, &[0; 100]), 0).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let (mut ended, mut failed) = (0, 0);
    for length in 0..bytes.len() {
        let Ok(mut reader) = Reader::read(Path::new("f"), Cursor::new(bytes[..length].to_vec())) else {
            failed += 1;
            continue;
        };
        loop {
            match reader.next(&mut |_| {}) {
                Ok(true) => {}
                Ok(false) => break ended += 1,
                Err(_) => break failed += 1,
            }
        }
    }
    // A file may end between blocks: behind the section, the interface and the packet.
    assert_eq!((ended, failed), (3, bytes.len() - 3));
}

#[test]
fn a_ring_goes_on_behind_the_newest_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring");
    let rotation = Rotation { size: Some(1000), count: Some(3), ..Rotation::default() };
    let options = || WriterOptions {
        target: Target::File(path.clone()),
        rotation,
        secrets: None,
        section: section("test"),
        resume: true,
    };
    let file = |number: u32| folder.path().join(format!("ring{number}"));
    Writer::create(options()).unwrap().finish().unwrap();
    assert_eq!(kinds(&file(0)), [SECTION], "there was none");
    for newest in 0..3 {
        for number in 0..3 {
            std::fs::write(file(number), "of before").unwrap();
            let age = Duration::from_secs(if number == newest { 10 } else { 100 });
            let changed = SystemTime::now() - age;
            File::options().write(true).open(file(number)).unwrap().set_modified(changed).unwrap();
        }
        Writer::create(options()).unwrap().finish().unwrap();
        for number in 0..3 {
            let is_next = number == (newest + 1) % 3;
            assert_eq!(std::fs::read(file(number)).unwrap() != b"of before", is_next, "{newest}, {number}");
        }
    }
}

#[test]
fn what_follows_an_error_is_a_section_of_its_own() {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let come = |mut reader: &File| {
        let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = reader.read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..length]);
        }
        let seen = folder.path().join("seen");
        std::fs::write(&seen, bytes).unwrap();
        kinds(&seen)
    };
    let reader = open();
    let mut writer = writer(&path, Rotation::default(), None);
    let id = writer.interface(Interface::named("one", 96));
    writer.packet(id, &packet(1, b"x"), 0).unwrap();
    writer.tick(Instant::now()).unwrap();
    assert_eq!(come(&reader), [SECTION, 1, 6]);
    drop(reader);
    writer.packet(id, &packet(2, b"x"), 0).unwrap();
    assert!(writer.tick(Instant::now()).is_err());
    let other = writer.interface(Interface::named("two", 96));
    let reader = open();
    writer.packet(other, &packet(3, b"x"), 0).unwrap();
    writer.tick(Instant::now()).unwrap();
    assert_eq!(come(&reader), [SECTION, 1, 1, 6]);
    assert_eq!((writer.taken(), writer.written()), (3, 2));
    writer.finish().unwrap();
    assert_eq!(come(&reader), [5, 5]);
}

#[test]
fn what_happened_is_said_by_the_next_packet_of_its_interface_or_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes");
    let mut writer = writer(&path, Rotation::default(), None);
    let ids = ["one", "two"].map(|name| writer.interface(Interface::named(name, 96)));
    writer.packet(ids[0], &packet(1, b"first"), 0).unwrap();
    writer.note(ids[0], "gap: one");
    writer.note(ids[1], "gap: two");
    for time in 2..4 {
        writer.packet(ids[0], &packet(time, b"later"), 0).unwrap();
    }
    writer.finish().unwrap();
    // A note is no part of the packet.
    assert_eq!(read(&path).len(), 3);
    let bytes = std::fs::read(&path).unwrap();
    let (mut rest, mut said) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        let text = String::from_utf8_lossy(&rest[..length]);
        said.push((u32::from_le_bytes(rest[..4].try_into().unwrap()), text.matches("gap: ").count()));
        rest = &rest[length..];
    }
    assert_eq!(said[3..], [(6, 0), (6, 1), (6, 0), (5, 0), (5, 1)]);
}
