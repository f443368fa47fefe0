//! Many TCP subscribers of a fan-out, whose stream is generated datagrams of one size without framing.
//!
//! The latency of a datagram is counted from when it was due to be sent, which its header says
//! (`expressway_feed::probe`), to the kernel's receive timestamp of its segment. The kernel gives one timestamp per read,
//! that of the last segment in it. Datagrams that waited for the reader together therefore have the timestamp of the
//! newest, which is never too early.

use std::error::Error;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use expressway_feed::probe::Probe;
use hdrhistogram::Histogram;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes taken by one read.
const READ: usize = 64 << 10;

const EVENTS: usize = 256;

/// What to do.
pub(crate) struct Subscribe {
    pub(crate) to: SocketAddr,
    pub(crate) subscribers: usize,
    /// Bytes of each datagram.
    pub(crate) size: usize,
    /// From the first datagram on, what is not counted.
    pub(crate) warmup: Duration,
    /// The datagrams that are counted are those due in this time behind it.
    pub(crate) seconds: Duration,
    /// How long is waited for the last of them.
    pub(crate) drain: Duration,
}

struct Subscriber {
    stream: TcpStream,
    /// The beginning of a datagram whose end has not come.
    part: Vec<u8>,
    next: Option<u64>,
    /// Part of a datagram was lost in its stream, at least once.
    torn: bool,
}

#[derive(Default)]
struct Seen {
    /// Datagrams due in the measured time: the first and the last number, over all subscribers.
    numbers: Option<(u64, u64)>,
    delivered: u64,
    torn: u64,
    ended: u64,
    reads: u64,
    sum_ns: u128,
}

/// Connects, says `ready`, and reads until the time limit was reached.
pub(crate) fn run(what: &Subscribe) -> Result<serde_json::Value, Box<dyn Error>> {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard })?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut subscribers = Vec::with_capacity(what.subscribers);
    for index in 0..what.subscribers {
        let stream = TcpStream::connect(what.to)?;
        stream.set_nonblocking(true)?;
        setsockopt(&stream, sockopt::ReceiveTimestampns, &true)?;
        epoll::add(&epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
        subscribers.push(Subscriber { stream, part: Vec::new(), next: None, torn: false });
    }
    println!("ready");
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut seen = Seen::default();
    let mut buffer = vec![0; READ];
    let mut began: Option<(u64, Instant)> = None;
    let pause = Timespec::try_from(Duration::from_millis(100))?;
    let ends = what.warmup + what.seconds + what.drain;
    let idle = Instant::now();
    loop {
        let over = match began {
            Some((_, began)) => began.elapsed() >= ends,
            // Nothing comes at all.
            None => idle.elapsed() > ends + Duration::from_secs(30),
        };
        if over {
            break;
        }
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let (events, _) = epoll::wait(&epoll, &mut events, Some(&pause))?;
        for event in events.iter() {
            let subscriber = &mut subscribers[event.data.u64() as usize];
            match read(subscriber, &mut buffer) {
                Ok(Some((length, stamp))) => {
                    seen.reads += 1;
                    let window = |time| {
                        let (first, _) = *began.get_or_insert_with(|| (time, Instant::now()));
                        let from = first + what.warmup.as_nanos() as u64;
                        (from..from + what.seconds.as_nanos() as u64).contains(&time)
                    };
                    take(subscriber, &buffer[..length], stamp, what.size, window, &mut seen, &mut latencies);
                }
                Ok(None) => {}
                Err(_) => {
                    seen.ended += 1;
                    epoll::delete(&epoll, &subscriber.stream)?;
                }
            }
        }
    }
    let datagrams = seen.numbers.map_or(0, |(first, last)| last - first + 1);
    let expected = datagrams * what.subscribers as u64;
    let mean = if seen.delivered == 0 { 0.0 } else { seen.sum_ns as f64 / seen.delivered as f64 };
    Ok(serde_json::json!({
        "datagrams": datagrams,
        "expected": expected,
        "delivered": seen.delivered,
        "torn": seen.torn,
        "ended": seen.ended,
        "reads": seen.reads,
        "mean_ns": mean,
        "p50_ns": latencies.value_at_quantile(0.5),
        "p99_ns": latencies.value_at_quantile(0.99),
        "max_ns": latencies.max(),
    }))
}

/// What is there, with the kernel's stamp in ns of CLOCK_REALTIME; `None` when there is nothing now.
fn read(subscriber: &Subscriber, buffer: &mut [u8]) -> Result<Option<(usize, u64)>, Errno> {
    let mut control = cmsg_space!(TimeSpec);
    let mut slices = [IoSliceMut::new(buffer)];
    let fd = subscriber.stream.as_raw_fd();
    let message = match recvmsg::<()>(fd, &mut slices, Some(&mut control), MsgFlags::MSG_DONTWAIT) {
        Ok(message) => message,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(error) => return Err(error),
    };
    if message.bytes == 0 {
        return Err(Errno::ECONNRESET);
    }
    let stamp = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time).as_nanos() as u64),
        _ => None,
    });
    // The kernel stamps from the moment on at which somebody asks; what came just before has none.
    Ok(Some((message.bytes, stamp.unwrap_or_else(Probe::now))))
}

/// Cuts a stream into datagrams and counts those of the window.
fn take(
    subscriber: &mut Subscriber,
    bytes: &[u8],
    stamp: u64,
    size: usize,
    mut window: impl FnMut(u64) -> bool,
    seen: &mut Seen,
    latencies: &mut Histogram<u64>,
) {
    subscriber.part.extend_from_slice(bytes);
    let part = std::mem::take(&mut subscriber.part);
    let mut rest = &part[..];
    while let Some((datagram, behind)) = rest.split_at_checked(size) {
        let in_order = |probe: &Probe| subscriber.next.is_none_or(|next| probe.sequence >= next);
        let Some(probe) = Probe::parse(datagram).filter(in_order) else {
            if !subscriber.torn {
                subscriber.torn = true;
                seen.torn += 1;
            }
            rest = resume(rest);
            continue;
        };
        rest = behind;
        subscriber.next = Some(probe.sequence + 1);
        if window(probe.time) {
            let latency = stamp.saturating_sub(probe.time);
            seen.delivered += 1;
            seen.sum_ns += u128::from(latency);
            // It grows with what it is given.
            let _ = latencies.record(latency);
            let (first, last) = seen.numbers.unwrap_or((probe.sequence, probe.sequence));
            seen.numbers = Some((first.min(probe.sequence), last.max(probe.sequence)));
        }
    }
    subscriber.part.extend_from_slice(rest);
}

/// A torn stream from its next header on. Where there is none yet: its last bytes, which may be the first of one.
fn resume(stream: &[u8]) -> &[u8] {
    let header = stream.windows(Probe::LENGTH).skip(1).position(|bytes| Probe::parse(bytes).is_some());
    &stream[header.map_or(stream.len() - (Probe::LENGTH - 1), |before| before + 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber() -> Subscriber {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Subscriber { stream, part: Vec::new(), next: None, torn: false }
    }

    fn datagram(sequence: u64, time: u64) -> Vec<u8> {
        let mut datagram = Probe { sequence, time, flow: 0 }.to_bytes().to_vec();
        datagram.resize(40, 0);
        datagram
    }

    #[test]
    fn datagrams_are_counted_wherever_reads_cut_them_and_a_torn_stream_is_told() {
        let (mut one, mut seen) = (subscriber(), Seen::default());
        let mut latencies = Histogram::<u64>::new(3).unwrap();
        let stream: Vec<u8> = (0..4u64).flat_map(|number| datagram(number, 1000 * (number + 1))).collect();
        for part in [&stream[..7], &stream[7..100], &stream[100..]] {
            take(&mut one, part, 10_000, 40, |time| time > 1000, &mut seen, &mut latencies);
        }
        assert_eq!((seen.delivered, seen.numbers, seen.sum_ns), (3, Some((1, 3)), 8000 + 7000 + 6000));
        // A datagram without its last byte shifts all behind it, of which the first is lost.
        for torn in [4, 8] {
            let stream =
                [&datagram(torn, 5000)[..39], &datagram(torn + 1, 5000), &datagram(torn + 2, 5000)].concat();
            for part in stream.chunks(30) {
                take(&mut one, part, 10_000, 40, |_| true, &mut seen, &mut latencies);
            }
            assert_eq!((one.torn, one.next, one.part.len()), (true, Some(torn + 3), 0));
        }
        assert_eq!((seen.torn, seen.delivered, seen.numbers), (1, 3 + 2 * 2, Some((1, 10))));
    }
}
