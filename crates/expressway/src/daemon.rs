//! What `guard`, `forward`, `balance` and `relay` share: each runs until a signal says stop, reads its configuration again on SIGHUP,
//! prints statistics on SIGUSR1, and has an admin listener. `serve` and `fanout` have that listener from here, too.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use expressway_gateway::admin::{Admin, Listener, StartError, State};
use expressway_metrics::{Registry, Sample};
use expressway_settings::admin::Section;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::fail::Failure;
use crate::signals;

/// A command that runs until it is told to stop.
pub(crate) trait Daemon: State {
    /// How often [`Daemon::upkeep`] is due.
    const UPKEEP: Duration;

    /// Follows interfaces, neighbours, health and time. What fails is logged and tried again the next time.
    fn upkeep(&self);

    /// Whether it has ended by itself.
    fn has_ended(&self) -> bool {
        false
    }

    /// Reads the configuration again. What is wrong with it is logged, and the earlier one stays.
    fn reload(&self);

    /// Prints statistics.
    ///
    /// # Errors
    /// The kernel does not tell them, or nobody reads.
    fn print(&self) -> Result<(), Failure>;

    /// Adds what the metrics page shows.
    fn samples(&self, out: &mut Vec<Sample>);
}

/// The signals that [`watch`] serves. Asked for before anything is attached, so that none ends the process without cleaning up.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn signals() -> Result<Receiver<i32>, Failure> {
    signals::receiver(&[SIGTERM, SIGINT, SIGHUP, SIGUSR1])
}

/// Serves signals until one says stop or the daemon has ended, and does the upkeep between them.
pub(crate) fn watch<T: Daemon>(daemon: &T, admin: Option<&Admin>, signals: &Receiver<i32>) {
    let mut next = Instant::now() + T::UPKEEP;
    loop {
        match signals.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(SIGHUP) => {
                daemon.reload();
                if let Some(admin) = admin {
                    admin.reload();
                }
            }
            Ok(SIGUSR1) => {
                // Perhaps nobody reads any more; the program is needed still.
                if let Err(error) = daemon.print() {
                    tracing::warn!("statistics not printed: {error}");
                }
            }
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                daemon.upkeep();
                if daemon.has_ended() {
                    return;
                }
                next = Instant::now() + T::UPKEEP;
            }
        }
    }
}

/// What asks for an admin listener and for its tokens, as errors name it.
pub(crate) type Keys = (&'static str, &'static str);

/// A configuration file.
pub(crate) const OF_FILE: Keys = ("[admin] listen", "[admin] token_file");

/// The admin listener that `section` asks for, if there is to be one. `register` adds what its metrics page shows besides.
///
/// # Errors
/// The address cannot be bound, or the tokens cannot be read.
pub(crate) fn admin<T: Daemon>(
    section: Option<&Section>,
    daemon: &Arc<T>,
    register: impl FnOnce(&Registry),
) -> Result<Option<Admin>, Failure> {
    let Some(section) = section else { return Ok(None) };
    let listener = listener(section, OF_FILE)?;
    let registry = Registry::with_summary(crate::metrics::drops);
    register(&registry);
    let source = Arc::clone(daemon);
    registry.register(move |out: &mut Vec<Sample>| source.samples(out));
    serve(listener, section, registry, Arc::clone(daemon) as Arc<dyn State>, OF_FILE).map(Some)
}

/// The socket of an admin listener, for who gives up the privilege to bind it.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn listener(section: &Section, keys: Keys) -> Result<Listener, Failure> {
    Listener::bind(section).map_err(|error| Failure::run_time(format!("{} {error}", keys.0)))
}

/// Serves at that socket.
///
/// # Errors
/// The tokens cannot be read.
pub(crate) fn serve(
    listener: Listener,
    section: &Section,
    registry: Registry,
    state: Arc<dyn State>,
    keys: Keys,
) -> Result<Admin, Failure> {
    Admin::start(listener, section, registry, state).map_err(|error| {
        Failure::run_time(match error {
            StartError::Tokens(problem) => format!("{} {problem}", keys.1),
            StartError::Thread(error) => format!("the admin listener's thread: {error}"),
        })
    })
}

/// Locks what the admin listener's threads share. A thread that panicked leaves nothing half done that matters here.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
