//! The worker.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use expressway_gateway::Http3;
use expressway_gateway::quic::{Endpoint, Message, RetryPolicy, Settings, Setup, Shared};
use expressway_netio::{Mailbox, SliceLimit, Worker, WorkerOptions, mailbox};
use expressway_web::{
    BodyError, Exchange, Handler, RequestBody, RequestHead, ResponseHead, ResponseSource, Wake,
};
use http::{HeaderMap, StatusCode};

use super::{CLIENT, TURN};
use crate::cost::Account;
use crate::identity::TLS;
use crate::io::Memory;

/// Where the server listens.
pub(super) const LOCAL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 443);

/// Turns after the last datagram.
const LAST_TURNS: usize = 16;

/// Answers a request with a KiB; the path `/wait` with nothing, ever.
struct Answers;

struct Never;

impl ResponseSource for Never {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        Poll::Pending
    }

    fn poll_body(&mut self, _: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        Poll::Pending
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

impl Handler for Answers {
    fn start(&self, request: &RequestHead, _: RequestBody, _: Wake) -> Exchange {
        if request.target == "/wait" {
            return Exchange::new(Box::new(Never));
        }
        static BODY: [u8; 1024] = [b'x'; 1024];
        Exchange::fixed(&request.method, StatusCode::OK, HeaderMap::new(), Bytes::from_static(&BODY))
    }
}

static SETUP: LazyLock<Arc<Setup>> = LazyLock::new(|| {
    let settings =
        Settings { retry: RetryPolicy::UnderLoad { handshaking: 64 }, ..Settings::new(Arc::clone(&TLS)) };
    settings.check().expect("settings that can be");
    let http = Http3 { handler: Arc::new(Answers), access_log: None, io_mode: Arc::from("fuzz") };
    Arc::new(Setup { settings, application: Arc::new(http) })
});

/// A worker with one endpoint.
pub(super) struct Server {
    worker: Worker<Endpoint, Memory>,
    account: Account,
}

impl Server {
    /// Of HTTP/3.
    pub(super) fn new() -> Self {
        Self::of(&SETUP)
    }

    /// Of any application.
    pub(super) fn of(setup: &Arc<Setup>) -> Self {
        let shared = Shared::new(setup, 1).expect("secrets");
        let (sender, inbox) = mailbox(16).expect("a descriptor for a mailbox");
        let peers: Arc<[Mailbox<Message>]> = Arc::from([sender.clone()]);
        let endpoint = Endpoint::new(0, shared, sender).expect("an endpoint");
        // Without slices, so that a turn costs what came in it.
        let slice = SliceLimit::Pieces(1 << 20);
        let options = WorkerOptions { timer_tokens: 64, slice, ..WorkerOptions::default() };
        let worker = Worker::new(options, Instant::now(), endpoint, Memory::default(), inbox, peers);
        Self { worker, account: Account::default() }
    }

    /// Has datagrams received, in as many turns as that takes, and gives what the worker sent meanwhile.
    pub(super) fn receive(
        &mut self,
        datagrams: impl IntoIterator<Item = (Vec<u8>, SocketAddr)>,
    ) -> Vec<Vec<u8>> {
        let incoming = datagrams.into_iter().map(|(payload, remote)| (payload, remote, LOCAL));
        self.worker.io_mut().incoming.extend(incoming);
        while !self.worker.io().incoming.is_empty() {
            self.turn();
        }
        self.turn();
        std::mem::take(&mut self.worker.io_mut().sent).into_iter().map(|(_, payload)| payload).collect()
    }

    /// Takes a turn. Whether anything was sent.
    pub(super) fn turn(&mut self) -> bool {
        let Self { worker, account: whole } = self;
        let (size, before) = (worker.io().coming(), worker.io().sent.len());
        let mut account = Account::default();
        let turn = whole.run(size, || account.run(size, || worker.turn(Instant::now())));
        turn.expect("memory does not fail");
        account.settle(&TURN);
        worker.io().sent.len() > before
    }

    /// Lets it send what there is, and settles the account.
    pub(super) fn finish(mut self) {
        for _ in 0..LAST_TURNS {
            if !self.turn() {
                break;
            }
        }
        self.account.settle(&CLIENT);
    }
}
