//! A worker: a thread with a single-threaded runtime, its listening sockets and connections.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use expressway_netio::trace::Tracer;
use expressway_web::memory::Ledger;
use tokio::sync::watch::Receiver;
use tokio::task::JoinSet;

use crate::accept::{self, Door};
use crate::listener::{Listen, Socket};
use crate::places::{Addresses, Places};
use crate::setup::Setup;
use crate::stats::Stats;

/// How often a worker that drains looks whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// What the tasks of a worker have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) number: u16,
    pub(crate) setup: Arc<ArcSwap<Setup>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) places: Arc<Places>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) tracer: Tracer,
}

/// Serves until `drain` says by when to end, and everything has ended or that time has come.
pub(crate) fn run(
    shared: Arc<Shared>,
    sockets: Vec<(Arc<Listen>, Socket)>,
    mut drain: Receiver<Option<Instant>>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let mut doors = JoinSet::new();
        for (listen, socket) in sockets {
            let door = Door::open(socket)?;
            doors.spawn(accept::run(Arc::clone(&shared), door, listen));
        }
        // Gone with the server, it is to end at once.
        let deadline = match drain.wait_for(Option::is_some).await {
            Ok(deadline) => *deadline,
            Err(_) => None,
        };
        doors.shutdown().await;
        shared.places.close();
        while !shared.places.is_empty() && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    })
}
