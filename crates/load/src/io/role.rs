//! What a worker does with packets: echo, count, send.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_dataplane::WorkerIo;
use expressway_netio::{
    Context, Datagram, Flow, IoError, IoStats, PacketIo, Service, Transmit, Worker, WorkerOptions, mailbox,
};
use rustix::time::{ClockId, clock_gettime};

use super::PathArguments;
use super::backend;

/// Answers that wait for a turn's end, more than any batch.
const WAITING: usize = 4096;
/// Datagrams of one burst.
const BURST: usize = 64;
const END: usize = 0;
/// Datagrams between two looks at the turn's slice: what is done with one costs little more than such a look.
const CHEAP: usize = 64;

/// Runs a service on this thread. Reports what was moved, and the CPU time of the process between the first turn
/// and the end.
pub(crate) fn run<S: Service<Message = ()>>(
    options: &PathArguments,
    service: S,
) -> Result<serde_json::Value, Box<dyn Error>> {
    run_with(options, service, |_, moved| moved)
}

/// The same with a report of the service's own, which is given what was moved.
pub(crate) fn run_with<S: Service<Message = ()>>(
    options: &PathArguments,
    service: S,
    report: impl FnOnce(&S, serde_json::Value) -> serde_json::Value,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let (mut path, io) = backend::open(options)?;
    let obtained = backend::obtained(&path);
    let mut report = match io {
        WorkerIo::Kernel(io) => drive(options, service, *io, report),
        WorkerIo::Xsk(io) => drive(options, service, *io, report),
    }?;
    path.finish();
    report["obtained"] = obtained.into();
    Ok(report)
}

fn drive<S: Service<Message = ()>, P: PacketIo>(
    options: &PathArguments,
    service: S,
    io: P,
    report: impl FnOnce(&S, serde_json::Value) -> serde_json::Value,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let (sender, inbox) = mailbox(4)?;
    let options = WorkerOptions { wait: options.wait.into(), ..WorkerOptions::default() };
    let mut worker = Worker::new(options, Instant::now(), service, io, inbox, Arc::from([sender]));
    println!("ready");
    let (began, cpu) = (Instant::now(), cpu_time());
    // Lets a service arm its timer: a turn without packets does.
    worker.with_service(began, |service, context| service.handle_timer(context, usize::MAX));
    worker.run()?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_time() - cpu);
    let stats: IoStats = worker.io().stats();
    let moved = serde_json::json!({
        "seconds": seconds,
        "cpu_ns": cpu,
        "received": stats.rx_xsk_packets + stats.rx_kernel_packets,
        "received_xsk": stats.rx_xsk_packets,
        "sent": stats.tx_xsk_packets + stats.tx_kernel_packets,
        "sent_xsk": stats.tx_xsk_packets,
    });
    Ok(report(worker.service(), moved))
}

/// Nanoseconds that this process has run, user and kernel.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sends everything back.
#[derive(Default)]
pub(crate) struct Echo {
    answers: Vec<(Flow, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Service for Echo {
    type Message = ();

    const DATAGRAMS_A_LOOK: usize = CHEAP;

    fn handle_datagram(&mut self, _: &mut Context<'_, ()>, datagram: Datagram<'_>) {
        if self.answers.len() < WAITING {
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(datagram.payload);
            self.answers.push((Flow::new(datagram.local, datagram.remote), copy));
        }
    }

    fn handle_message(&mut self, _: &mut Context<'_, ()>, (): ()) {}

    fn handle_timer(&mut self, _: &mut Context<'_, ()>, _: usize) {}

    fn poll_transmit(&mut self, _: &mut Context<'_, ()>, io: &mut dyn PacketIo) -> Result<Transmit, IoError> {
        for (flow, payload) in self.answers.drain(..) {
            io.send(&flow, &payload)?;
            self.spare.push(payload);
        }
        Ok(Transmit::Done)
    }

    fn is_finished(&self) -> bool {
        false
    }
}

/// Counts until its time is over; the backend keeps the count.
pub(crate) struct Sink {
    time: Duration,
    finished: bool,
}

impl Sink {
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, finished: false }
    }
}

impl Service for Sink {
    type Message = ();

    const DATAGRAMS_A_LOOK: usize = CHEAP;

    fn handle_datagram(&mut self, _: &mut Context<'_, ()>, _: Datagram<'_>) {}

    fn handle_message(&mut self, _: &mut Context<'_, ()>, (): ()) {}

    fn handle_timer(&mut self, context: &mut Context<'_, ()>, token: usize) {
        match token {
            END => self.finished = true,
            _ => context.timers.arm(END, context.now + self.time),
        }
    }

    fn poll_transmit(&mut self, _: &mut Context<'_, ()>, _: &mut dyn PacketIo) -> Result<Transmit, IoError> {
        Ok(Transmit::Done)
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

/// Sends bursts until its time is over.
pub(crate) struct Send {
    flow: Flow,
    size: usize,
    sink: Sink,
}

impl Send {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, size: usize, time: Duration) -> Self {
        Self { flow: Flow::new(from, to), size: size.max(1), sink: Sink::new(time) }
    }
}

impl Service for Send {
    type Message = ();

    const DATAGRAMS_A_LOOK: usize = CHEAP;

    fn handle_datagram(&mut self, _: &mut Context<'_, ()>, _: Datagram<'_>) {}

    fn handle_message(&mut self, _: &mut Context<'_, ()>, (): ()) {}

    fn handle_timer(&mut self, context: &mut Context<'_, ()>, token: usize) {
        self.sink.handle_timer(context, token);
    }

    fn poll_transmit(&mut self, _: &mut Context<'_, ()>, io: &mut dyn PacketIo) -> Result<Transmit, IoError> {
        let mut left = BURST;
        io.transmit(&self.flow, self.size, &mut |slot| {
            if left == 0 {
                return 0;
            }
            left -= 1;
            slot.fill(left as u8);
            slot.len()
        })?;
        Ok(Transmit::Blocked)
    }

    fn is_finished(&self) -> bool {
        self.sink.finished
    }
}
