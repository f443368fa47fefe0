//! A worker: a thread with a single-threaded runtime, its listening sockets and connections.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use expressway_netio::trace::Tracer;
use expressway_web::memory::Ledger;
use tokio::sync::watch::Receiver;
use tokio::task::JoinSet;

use crate::accept::{self, Acceptor};
use crate::connections::{Addresses, Connections};
use crate::listener::{Listen, Socket};
use crate::server::Ending;
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
    pub(crate) connections: Arc<Connections>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) tracer: Tracer,
}

/// Serves until `drain` says by when to end, and everything has ended or that time has come.
pub(crate) fn run(
    shared: Arc<Shared>,
    sockets: Vec<(Arc<Listen>, Socket)>,
    mut drain: Receiver<Option<Ending>>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let mut acceptors = JoinSet::new();
        for (listen, socket) in sockets {
            let acceptor = Acceptor::open(socket)?;
            acceptors.spawn(accept::run(Arc::clone(&shared), acceptor, listen));
        }
        let _ = drain.wait_for(Option::is_some).await;
        acceptors.shutdown().await;
        loop {
            let ending = *drain.borrow_and_update();
            let deadline = match ending {
                Some(Ending::Retire(deadline)) => {
                    shared.connections.retire();
                    deadline
                }
                Some(Ending::Finish(deadline)) => {
                    shared.connections.close();
                    deadline
                }
                // Gone with the server, it is to end at once.
                None => return Ok(()),
            };
            while !drain.has_changed().unwrap_or(false) {
                if shared.connections.is_empty() || Instant::now() >= deadline {
                    return Ok(());
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    })
}
