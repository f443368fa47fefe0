//! The admin listener: metrics, health and the current configuration, over HTTP/1.1 by TCP or a unix socket.
//!
//! It runs on its own thread, never on a worker, with a lower priority than theirs, and answers from shared
//! counters only. A client can cost it what [`Limits`] allow and no more; it takes nothing from workers.
//!
//! [`Listener`] is the socket, `access` decides who may use it, `service` answers requests, `page` is an answer.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use expressway_netio::priority;
use expressway_settings::admin::{Address, Section};
use tokio::sync::oneshot;

use access::Access;
use expressway_metrics::Registry;
use listener::SocketFile;
use service::AdminService;
use slots::Slots;

mod access;
mod dashboard;
mod feed;
mod host;
mod listener;
mod page;
mod service;
mod slots;
mod write_timeout;

pub use expressway_settings::admin::Limits;
pub use feed::{Feed, Piece};
pub use listener::{ListenError, Listener};

/// What the thread is set back by: on a core that is short, workers have nine parts in ten.
const NICE: i32 = 10;

/// How long whoever is connected to a listener that has retired may take to read its answer, and how often that is looked at.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// What the admin pages show.
pub trait State: Send + Sync + 'static {
    /// `Ok` while the process serves; else why it does not, for `/healthz`.
    fn health(&self) -> Result<(), String>;

    /// The configuration file in force, for `/config`.
    fn configuration(&self) -> String;

    /// How packets move, as a JSON document, for `/io`; `None` where there is no such page.
    fn io(&self) -> Option<String> {
        None
    }

    /// Puts another process in this one's place, for `POST /upgrade`, and tells how far that has come; as [`State::trace`].
    fn upgrade(&self, _order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        None
    }

    /// This process among those that follow each other, as a JSON document, for `/generations`; `None` where there is no such page.
    fn generations(&self) -> Option<String> {
        None
    }

    /// Purges what `order`, a JSON document, names, for `POST /purge`: a JSON document of what that did, or why it is refused;
    /// `None` where there is nothing to purge. Called on the listener's thread.
    fn purge(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Starts what `order`, a JSON document, asks to be traced, for `POST /trace`; `None` where nothing can be. Called on the
    /// listener's thread.
    fn trace(&self, _order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        None
    }

    /// Records the qlog of a connection that `order`, a JSON document, names, for `POST /qlog`; as [`State::trace`].
    fn qlog(&self, _order: &[u8]) -> Option<Result<Box<dyn Feed>, Refusal>> {
        None
    }

    /// Drains a node, or ends that, as `order`, a JSON document, says, for `POST /drain`; as [`State::purge`].
    fn drain(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Bans the sources that `order` names, for `POST /ban`; as [`State::purge`].
    fn ban(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Ends bans, as `order` says, for `POST /unban`; as [`State::purge`].
    fn unban(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Sources that are banned, as a JSON document, for `/bans`; `None` where there is no such page.
    fn bans(&self) -> Option<String> {
        None
    }

    /// Says that there is an attack, or none, for `POST /attack`; as [`State::purge`].
    fn attack(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Takes proofs that sources have their addresses, for `POST /learn`; as [`State::purge`].
    fn learn(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Fetches lists at once, for `POST /refresh`; as [`State::purge`].
    fn refresh(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Gives a node another weight, as `order`, a JSON document, says, for `POST /weight`; as [`State::purge`].
    fn weight(&self, _order: &[u8]) -> Option<Result<String, String>> {
        None
    }

    /// Services with their nodes and statistics, as a JSON document, for `/services`; `None` where there is no such page.
    fn services(&self) -> Option<String> {
        None
    }

    /// Rooms of a relay with their receivers, as a JSON document, for `/rooms`; `None` where there is no such page.
    fn rooms(&self) -> Option<String> {
        None
    }

    /// Statistics of each subscriber, as a JSON document, for `/subscribers`; `None` where there is no such page.
    fn subscribers(&self) -> Option<String> {
        None
    }
}

/// Why an order is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is wrong.
    Invalid(String),
    /// It has to wait for another.
    Busy(String),
}

/// A running admin listener; dropping it stops the listener and waits for its thread.
pub struct Admin {
    address: Address,
    /// Of a unix socket.
    name: Option<SocketFile>,
    access: Arc<Access>,
    /// For who is answered still.
    slots: Slots,
    retire: Option<oneshot::Sender<SyncSender<()>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Why the admin listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Of `token_file`.
    #[error("{0}")]
    Tokens(String),
    /// Of the thread and what it waits by.
    #[error("starting the thread: {0}")]
    Thread(#[from] io::Error),
}

impl Admin {
    /// Serves on a new thread what `section` asks for, at a listener that was bound to it.
    ///
    /// # Errors
    /// The tokens cannot be read, or the thread cannot be started.
    pub fn start(
        listener: Listener,
        section: &Section,
        registry: Registry,
        state: Arc<dyn State>,
    ) -> Result<Self, StartError> {
        let address = listener.address().clone();
        let access = Arc::new(Access::of(section).map_err(StartError::Tokens)?);
        if access.is_for_everybody() && !is_of_this_machine(&address) {
            tracing::warn!(
                %address,
                "anyone who reaches the admin listener can query and control this process: set token_file, or listen on a unix socket"
            );
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (acceptor, name) = {
            let _entered = runtime.enter();
            listener.into_parts()?
        };
        let (stop, stopped) = oneshot::channel();
        let (retire, retired) = oneshot::channel::<SyncSender<()>>();
        let service = Arc::new(AdminService::new(section.limits(), access.clone(), registry, state));
        let slots = service.slots();
        let thread = std::thread::Builder::new().name("expressway-admin".into()).spawn(move || {
            if let Err(error) = priority::stand_back(NICE) {
                tracing::debug!(%error, "setpriority failed: the admin listener runs at the workers' priority");
            }
            runtime.block_on(async {
                let accepting = async move {
                    let retired = tokio::select! {
                        () = service::serve(&acceptor, service) => return,
                        told = retired => told,
                    };
                    drop(acceptor);
                    if let Ok(done) = retired {
                        let _ = done.send(());
                    }
                    // Those who are connected are still answered.
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        })?;
        let (retire, stop) = (Some(retire), Some(stop));
        Ok(Self { address, name, access, slots, retire, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Takes over the name of an adopted socket, which goes with this process from now on. The one before has left it.
    pub fn take_name(&mut self) {
        if let (None, Address::Unix(path)) = (&self.name, &self.address) {
            self.name = SocketFile::of(path)
                .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "the admin socket's file was removed or replaced"))
                .ok();
        }
    }

    /// Accepts nobody any more, because another process does on the same socket, whose name is that one's from now on. Who is
    /// connected is answered until this is dropped, and for a moment more.
    pub fn retire(&mut self) {
        if let Some(name) = self.name.take() {
            name.leave();
        }
        let (done, is_done) = sync_channel(1);
        if let Some(retire) = self.retire.take()
            && retire.send(done).is_ok()
        {
            // The thread only ever answers from memory.
            let _ = is_done.recv_timeout(LAST_WORDS);
        }
    }

    /// Reads the tokens again. What is wrong with their file is logged, and the earlier ones stay.
    pub fn reload(&self) {
        match self.access.reload() {
            Ok(true) => tracing::info!("admin tokens reloaded"),
            Ok(false) => {}
            Err(problem) => tracing::error!("admin tokens not reloaded; keeping the earlier ones: {problem}"),
        }
    }
}

/// Whether only programs of this machine reach it.
fn is_of_this_machine(address: &Address) -> bool {
    match address {
        Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
        Address::Unix(_) => true,
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Before its socket: see [`SocketFile`].
        drop(self.name.take());
        if self.retire.is_none() {
            let until = Instant::now() + LAST_WORDS;
            while self.slots.taken() > 0 && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        }
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
