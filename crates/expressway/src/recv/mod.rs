//! `expressway recv`: receives datagrams, counts and measures them, until a signal, a number or a time.

mod feed_log;
mod losses;
mod options;
mod output;
mod plot;
mod report;
mod sequence;
mod sink;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver as Events, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use expressway_dataplane::{DataPath, Provider, WorkerIo};
use expressway_feed::receive::{Counters, Latency, Options, Receiver, Stopper, Watch};
use expressway_feed::sequence::Replies;
use expressway_netio::udp::group::Keeper;
use expressway_netio::worker::WorkerStats;
use expressway_netio::xsk::{LendReport, XskIo};
use expressway_netio::{IoError, IoStats, PacketIo};
use rustix::mm::{MlockAllFlags, mlockall};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::Recv as Arguments;
use crate::fail::Failure;
use crate::signals;
use output::Output;
use sink::Sink;

/// How often the data path and memberships are looked after, and progress is shown.
const UPKEEP: Duration = Duration::from_secs(1);

/// What ends the command.
enum Event {
    Signal,
    /// The receiving thread has ended.
    Ended,
}

/// What the receiving thread leaves.
struct Outcome {
    counters: Counters,
    io: IoStats,
    worker: WorkerStats,
    span: Option<Duration>,
    sink: Sink,
    /// Readers in other processes and what they were lent.
    lent: Option<LendReport>,
    /// Replies of a re-request server.
    replies: Option<Replies>,
    result: Result<(), IoError>,
}

/// Receives until told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    options::check(arguments)?;
    if arguments.lock_memory {
        lock_memory()?;
    }
    let (events, happens) = channel();
    signals::follow(&[SIGINT, SIGTERM], events.clone(), |_| Event::Signal)?;
    let (sequencer, output) = (sequence::open(arguments)?, Output::open(arguments)?);
    let provider = Provider::agent_or_own(arguments.agent.as_deref(), "recv")?;
    let (mut path, mut ios) = DataPath::open(options::path(arguments), provider, 1)?;
    let io = ios.remove(0);
    let mut keepers = join(arguments, &io)?;
    if options::timestamps(arguments) && !path.stamps() {
        tracing::warn!(
            "datagrams received by AF_XDP have no timestamp: that needs our own XDP program, alone on its \
             interface (Linux 6.1)"
        );
    }
    let latency = arguments.latency.then(|| Box::new(Latency::new(arguments.nic_clock.0)));
    let sink = Sink { latency, sequencer, output };
    let receiving = match io {
        WorkerIo::Kernel(io) => Receiving::start(*io, options::receiver(arguments), sink, events, |_| None),
        WorkerIo::Xsk(io) => {
            let lent = arguments.lend.is_some();
            let report = move |io: &mut XskIo| lent.then(|| io.lend_report());
            Receiving::start(*io, options::receiver(arguments), sink, events, report)
        }
    }?;
    if arguments.lend.is_some() && path.queue_modes().is_empty() {
        tracing::warn!("--lend: no interface has AF_XDP sockets, so nothing is lent; see the step-downs");
    }
    let started = Instant::now();
    report::ready(arguments, &path)?;
    receiving.until_told(arguments, &mut path, &mut keepers, &happens);
    let elapsed = started.elapsed();
    let outcome = receiving.end()?;
    report::print(arguments, &path, &outcome, elapsed)?;
    if let (Some(file), Some(latency)) = (&arguments.plot, &outcome.sink.latency) {
        plot::write(file, latency)?;
    }
    path.finish();
    outcome.result.map(|()| ExitCode::SUCCESS).map_err(Failure::run_time)
}

/// Everything stays in memory, also what is mapped later: no page fault between packets.
fn lock_memory() -> Result<(), Failure> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(|errno| {
        Failure::run_time(format!(
            "--lock-memory: mlockall: {}: needs CAP_IPC_LOCK or a higher limit (ulimit -l)",
            std::io::Error::from(errno)
        ))
    })
}

/// A membership, and a descriptor of the kernel socket that holds it.
type Kept = (Keeper, OwnedFd);

/// Joins the multicast groups among the addresses, on the kernel sockets that are bound to them: whichever way
/// datagrams come, the kernel asks the network for them.
fn join(arguments: &Arguments, io: &WorkerIo) -> Result<Vec<Kept>, Failure> {
    let kernel = io.kernel();
    let mut kept = Vec::new();
    for (index, membership) in options::memberships(arguments) {
        let group = membership.group;
        let failed = |error: std::io::Error| {
            let way = match &arguments.interface {
                Some(name) => format!("on {name} (see `ip link`)"),
                None => "on the interface of its route (give --interface to choose another)".to_owned(),
            };
            Failure::run_time(format!("--listen: joining {group} {way}: {error}"))
        };
        let Some(socket) = kernel.socket(index) else { continue };
        let socket = socket.try_clone_to_owned().map_err(failed)?;
        kept.push((Keeper::join(membership, socket.as_fd()).map_err(failed)?, socket));
    }
    Ok(kept)
}

/// The receiving thread.
struct Receiving {
    thread: JoinHandle<Outcome>,
    stopper: Stopper,
    watch: Watch,
}

impl Receiving {
    fn start<P: PacketIo + Send + 'static>(
        io: P,
        options: Options,
        sink: Sink,
        events: Sender<Event>,
        lent: impl FnOnce(&mut P) -> Option<LendReport> + Send + 'static,
    ) -> Result<Self, Failure> {
        let mut receiver = Receiver::new(io, options, sink).map_err(Failure::run_time)?;
        let (stopper, watch) = (receiver.stopper(), receiver.watch());
        let client = receiver.handler().sequencer.as_ref().and_then(|sequencer| sequencer.client());
        let replies = client.map(|client| client.listen(receiver.poster())).transpose();
        let replies =
            replies.map_err(|error| Failure::run_time(format!("starting the reply thread: {error}")))?;
        let receive = move || {
            let result = receiver.run();
            // Nobody listens any more only if the command is ending.
            let _ = events.send(Event::Ended);
            let (counters, io) = (receiver.counters(), receiver.io_stats());
            let (worker, span) = (receiver.worker_stats(), receiver.span());
            let (mut backend, mut sink) = receiver.into_parts();
            sink.finish();
            Outcome { counters, io, worker, span, sink, lent: lent(&mut backend), replies, result }
        };
        let thread = std::thread::Builder::new()
            .name("expressway-recv".into())
            .spawn(receive)
            .map_err(|error| Failure::run_time(format!("starting the receiving thread: {error}")))?;
        Ok(Self { thread, stopper, watch })
    }

    /// Looks after what is not the receiving thread's to do, until it is time to end.
    fn until_told(
        &self,
        arguments: &Arguments,
        path: &mut DataPath,
        keepers: &mut [Kept],
        events: &Events<Event>,
    ) {
        let end = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.0));
        let mut progress = report::Progress::new();
        let mut upkeep = Instant::now() + UPKEEP;
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| end <= now) {
                return;
            }
            if upkeep <= now {
                upkeep = now + UPKEEP;
                path.maintain();
                for (keeper, socket) in keepers.iter_mut() {
                    keeper.look_after(socket.as_fd());
                }
                progress.show(&self.watch);
            }
            let until = end.map_or(upkeep, |end| end.min(upkeep));
            match events.recv_timeout(until.saturating_duration_since(now)) {
                Ok(Event::Signal | Event::Ended) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Ends the thread, if it has not ended yet.
    fn end(self) -> Result<Outcome, Failure> {
        self.stopper.stop();
        self.thread.join().map_err(|_| Failure::run_time("the receiving thread panicked"))
    }
}
