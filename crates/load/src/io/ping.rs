//! Round trips over a plain kernel socket that is polled without sleeping: the side that asks, one question at a
//! time, and the side that answers.

use std::error::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// A question without an answer for this long is lost.
pub(crate) const LOST: Duration = Duration::from_millis(50);
/// Round trips that are not counted: the first ones resolve neighbours and warm caches.
const WARM_UP: u64 = 50;

/// Round trips of questions asked one at a time.
pub(crate) struct Trips {
    histogram: Histogram<u64>,
    asked: u64,
    lost: u64,
}

impl Default for Trips {
    fn default() -> Self {
        // Bounds and digits are constants that it accepts.
        let histogram = Histogram::new_with_bounds(100, 10_000_000_000, 3)
            .unwrap_or_else(|error| unreachable!("{error}"));
        Self { histogram, asked: 0, lost: 0 }
    }
}

impl Trips {
    /// Takes note of a question that was answered in that time, or not at all.
    pub(crate) fn record(&mut self, took: Option<Duration>) {
        match took {
            Some(took) if self.asked >= WARM_UP => {
                self.histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            Some(_) => {}
            None => self.lost += 1,
        }
        self.asked += 1;
    }

    /// Questions asked: the number of the next one.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }

    /// Its report.
    pub(crate) fn document(&self) -> serde_json::Value {
        serde_json::json!({
            "round_trips": self.histogram.len(),
            "lost": self.lost,
            "p50_ns": self.histogram.value_at_quantile(0.5),
            "p99_ns": self.histogram.value_at_quantile(0.99),
            "max_ns": self.histogram.max(),
        })
    }
}

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
    let mut trips = Trips::default();
    let (mut question, mut answer) = (vec![0; size.max(8)], vec![0; 65_536]);
    let end = Instant::now() + time;
    while Instant::now() < end {
        question[..8].copy_from_slice(&trips.asked().to_be_bytes());
        let asked = Instant::now();
        socket.send(&question)?;
        let took = loop {
            match socket.recv(&mut answer) {
                // A late answer to a question that was given up has another number.
                Ok(length) if answer[..length] == question[..] => break Some(asked.elapsed()),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) =>
                {
                    if asked.elapsed() > LOST {
                        break None;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        };
        trips.record(took);
        let resume = Instant::now() + pause;
        while Instant::now() < resume {
            std::hint::spin_loop();
        }
    }
    Ok(trips.document())
}

/// Answers until it is killed, with nothing between `recvfrom` and `sendto`.
pub(crate) fn answer(listen: SocketAddr) -> Result<std::convert::Infallible, Box<dyn Error>> {
    let socket = UdpSocket::bind(listen)?;
    socket.set_nonblocking(true)?;
    println!("ready");
    let mut buffer = vec![0; 65_536];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => drop(socket.send_to(&buffer[..length], from)?),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
