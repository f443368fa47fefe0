//! Round trips as a client sees them: one question at a time over a kernel socket, spun on, so that what varies is the
//! server.

use std::error::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// A question without an answer for this long is lost.
const LOST: Duration = Duration::from_millis(50);
/// Round trips that are not counted: the first ones resolve neighbours and warm caches.
const WARM_UP: u64 = 50;

/// Asks for `time` and reports the distribution in nanoseconds.
pub(crate) fn run(
    to: SocketAddr,
    size: usize,
    pause: Duration,
    time: Duration,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0".parse()? } else { "[::]:0".parse()? };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    let mut histogram = Histogram::<u64>::new_with_bounds(100, 10_000_000_000, 3)?;
    let (mut question, mut answer) = (vec![0; size.max(8)], vec![0; 65_536]);
    let (mut number, mut lost) = (0u64, 0u64);
    let end = Instant::now() + time;
    while Instant::now() < end {
        question[..8].copy_from_slice(&number.to_be_bytes());
        let asked = Instant::now();
        socket.send(&question)?;
        let answered = loop {
            match socket.recv(&mut answer) {
                // A late answer to a question that was given up has another number.
                Ok(length) if answer[..length] == question[..] => break true,
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) =>
                {
                    if asked.elapsed() > LOST {
                        break false;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        };
        let took = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match answered {
            true if number >= WARM_UP => histogram.saturating_record(took),
            true => {}
            false => lost += 1,
        }
        number += 1;
        let resume = Instant::now() + pause;
        while Instant::now() < resume {
            std::hint::spin_loop();
        }
    }
    Ok(serde_json::json!({
        "round_trips": histogram.len(),
        "lost": lost,
        "p50_ns": histogram.value_at_quantile(0.5),
        "p99_ns": histogram.value_at_quantile(0.99),
        "max_ns": histogram.max(),
    }))
}
