use super::*;

/// Buffers without a kernel: records with a length in front of each.
#[derive(Default)]
struct Buffers {
    octets: Vec<Vec<u8>>,
    released: Vec<u64>,
    size: usize,
}

impl Buffers {
    fn new(rings: usize, size: usize) -> Self {
        Self { octets: vec![Vec::new(); rings], released: vec![0; rings], size }
    }

    fn push(&mut self, ring: usize, record: &[u8]) {
        let buffer = &mut self.octets[ring];
        buffer.extend((record.len() as u32).to_ne_bytes());
        buffer.extend(record);
    }
}

impl Rings for Buffers {
    fn count(&self) -> usize {
        self.octets.len()
    }

    fn size(&self) -> usize {
        self.size
    }

    fn head(&self, ring: usize) -> u64 {
        self.octets[ring].len() as u64
    }

    fn tail(&self, ring: usize) -> u64 {
        self.released[ring]
    }

    fn record<'a>(
        &'a self,
        ring: usize,
        position: u64,
        head: u64,
        _: &'a mut Vec<u8>,
    ) -> Option<(&'a [u8], u64)> {
        let rest = self.octets[ring].get(position as usize..head as usize)?;
        let (length, rest) = rest.split_first_chunk()?;
        let record = rest.get(..u32::from_ne_bytes(*length) as usize)?;
        Some((record, position + 4 + record.len() as u64))
    }

    fn release(&mut self, ring: usize, position: u64) {
        self.released[ring] = position;
    }
}

/// A packet as it was handed over: its time, what became of it, its length and octets.
type Seen = (u64, Outcome, u32, Vec<u8>);

fn deliver(merge: &mut Merge, buffers: &mut Buffers, until: u64) -> Vec<Seen> {
    let mut seen = Vec::new();
    let count = merge.deliver(buffers, until, &mut |record, outcome, pieces| {
        let octets = if record.more { pieces } else { record.payload };
        seen.push((record.time, *outcome, record.length, octets.to_vec()));
    });
    assert_eq!(count, seen.len());
    seen
}

fn record(kind: CaptureKind, (time, id): (u64, u64), more: bool, result: i32, payload: &[u8]) -> Vec<u8> {
    CaptureRecord::written(kind, (time, id), more, result, payload)
}

fn packet(time: u64, id: u64) -> Vec<u8> {
    record(CaptureKind::XdpEntry, (time, id), false, 0, &[id as u8; 60])
}

fn times(seen: &[Seen]) -> Vec<u64> {
    seen.iter().map(|seen| seen.0).collect()
}

#[test]
fn packets_of_all_cpus_come_by_time_and_those_too_young_wait() {
    let mut buffers = Buffers::new(3, 1 << 20);
    let mut merge = Merge::new(&buffers);
    for (ring, own) in [[10, 40, 70], [20, 30, 90], [5, 60, 80]].into_iter().enumerate() {
        own.into_iter().for_each(|time| buffers.push(ring, &packet(time, time)));
    }
    assert_eq!(times(&deliver(&mut merge, &mut buffers, 60)), [5, 10, 20, 30, 40, 60]);
    // What another CPU had begun to write meanwhile.
    buffers.push(0, &packet(75, 1));
    assert_eq!(times(&deliver(&mut merge, &mut buffers, 60)), [0; 0]);
    assert_eq!(times(&deliver(&mut merge, &mut buffers, u64::MAX)), [70, 75, 80, 90]);
    assert_eq!(buffers.released, [0, 1, 2].map(|ring| buffers.head(ring)), "the kernel has all back");
}

#[test]
fn a_buffer_that_fills_up_waits_for_nobody() {
    let mut buffers = Buffers::new(2, 4096);
    let mut merge = Merge::new(&buffers);
    (0..20).for_each(|number| buffers.push(0, &packet(100 + number, number)));
    buffers.push(1, &packet(200, 1));
    let seen = times(&deliver(&mut merge, &mut buffers, 0));
    assert!(!seen.is_empty() && seen.len() < 20 && seen[0] == 100, "{seen:?}");
    // The last has room, and waits for its time.
    assert!(buffers.head(0) - buffers.released[0] <= 4096 / 4, "{seen:?}");
}

#[test]
fn what_became_of_a_packet_is_found_behind_it() {
    let mut buffers = Buffers::new(1, 1 << 20);
    let mut merge = Merge::new(&buffers);
    buffers.push(0, &packet(1, 7));
    // An interrupt has put another packet between.
    buffers.push(0, &packet(2, 8));
    buffers.push(0, &record(CaptureKind::Verdict, (3, 7), false, 4, &[]));
    buffers.push(0, &record(CaptureKind::Redirect, (4, 7), false, -105, &[]));
    buffers.push(0, &record(CaptureKind::Verdict, (5, 8), false, 2, &[]));
    buffers.push(0, &record(CaptureKind::XskCopy, (6, 9), false, 0, b"x"));
    buffers.push(0, &record(CaptureKind::Sent, (7, 9), false, 1, &[]));
    buffers.push(0, &record(CaptureKind::XdpTransmit, (8, 10), false, 0, b"y"));
    buffers.push(0, &record(CaptureKind::XdpTransmit, (9, 11), false, 0, b"z"));
    buffers.push(0, &record(CaptureKind::Sent, (10, 11), false, 1, &[]));
    let outcomes: Vec<_> =
        deliver(&mut merge, &mut buffers, u64::MAX).into_iter().map(|seen| seen.1).collect();
    assert_eq!(
        outcomes,
        [
            Outcome { verdict: Some(4), redirect: Some(105), ..Outcome::default() },
            Outcome { verdict: Some(2), ..Outcome::default() },
            Outcome { sent: Some(1), ..Outcome::default() },
            Outcome::default(),
            Outcome { sent: Some(1), ..Outcome::default() },
        ]
    );
}

#[test]
fn what_is_told_too_late_is_nobodys() {
    let mut buffers = Buffers::new(1, 1 << 20);
    let mut merge = Merge::new(&buffers);
    buffers.push(0, &packet(1, 7));
    for number in 0..BEHIND as u64 {
        buffers.push(0, &packet(2 + number, 100 + number));
    }
    buffers.push(0, &record(CaptureKind::Verdict, (90, 7), false, 1, &[]));
    let seen = deliver(&mut merge, &mut buffers, u64::MAX);
    assert_eq!((seen.len(), seen[0].1), (1 + BEHIND, Outcome::default()));
}

/// A packet of several descriptors, with other packets of its CPU between its pieces.
fn pieces(buffers: &mut Buffers, count: usize, each: usize) -> Vec<u8> {
    let octets: Vec<u8> = (0..count * each).map(|at| (at / 3) as u8).collect();
    for (number, piece) in octets.chunks(each).enumerate() {
        let kind = if number == 0 { CaptureKind::XskZeroCopy } else { CaptureKind::Piece };
        let more = number + 1 < count;
        buffers.push(0, &record(kind, (10 + number as u64, 7), more, 0, piece));
        buffers.push(0, &packet(10 + number as u64, 100));
    }
    octets
}

#[test]
fn pieces_are_put_together_whatever_lies_between() {
    for count in [2, 3, BEHIND] {
        let mut buffers = Buffers::new(2, 1 << 20);
        let mut merge = Merge::new(&buffers);
        let octets = pieces(&mut buffers, count, 700);
        let seen = deliver(&mut merge, &mut buffers, u64::MAX);
        assert_eq!(seen.len(), 1 + count);
        let (_, outcome, length, whole) = &seen[0];
        assert_eq!((outcome.incomplete, *length as usize, whole), (false, count * 700, &octets), "{count}");
    }
}

#[test]
fn a_packet_whose_pieces_did_not_all_find_room_is_incomplete() {
    let mut buffers = Buffers::new(1, 1 << 20);
    let mut merge = Merge::new(&buffers);
    buffers.push(0, &record(CaptureKind::XskZeroCopy, (1, 7), true, 0, b"head"));
    buffers.push(0, &record(CaptureKind::Piece, (2, 7), true, 0, b"middle"));
    // Another's last piece is not its own.
    buffers.push(0, &record(CaptureKind::Piece, (3, 8), false, 0, b"end"));
    let seen = deliver(&mut merge, &mut buffers, u64::MAX);
    assert_eq!(seen.len(), 1);
    assert!(seen[0].1.incomplete);
    assert_eq!((seen[0].2, &*seen[0].3), (10, &b"headmiddle"[..]));
}

#[test]
fn what_is_no_record_is_passed_over() {
    let mut buffers = Buffers::new(1, 1 << 20);
    let mut merge = Merge::new(&buffers);
    for nonsense in [&[][..], &[0xff; 7], &[0; 300]] {
        buffers.push(0, nonsense);
    }
    buffers.push(0, &packet(1, 1));
    buffers.push(0, &record(CaptureKind::Piece, (2, 5), false, 0, b"of nothing"));
    assert_eq!(times(&deliver(&mut merge, &mut buffers, u64::MAX)), [1]);
    // A length that leads beyond what is there.
    buffers.octets[0].extend([0xff; 6]);
    assert_eq!(times(&deliver(&mut merge, &mut buffers, u64::MAX)), [0; 0]);
    assert_eq!(buffers.released[0], buffers.head(0));
}
