//! The worker.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use expressway_netio::{Mailbox, SliceLimit, Worker, WorkerOptions, mailbox};
use expressway_relay::config::Config;
use expressway_relay::service::{Message, Relay, status};
use expressway_relay::webrtc::answer::{Identity, Role, Wanted, answer};
use expressway_relay::webrtc::fuzzing::identity;
use expressway_relay::webrtc::table::{Join, ReplySender, SessionTable};
use expressway_settings::SourceFile;
use expressway_web::{Notify, Wake};

use super::plain::without_srtp;
use super::{PEER, TURN};
use crate::cost::Account;
use crate::io::Memory;

/// Where media of sessions come to, and those of the room's own publisher.
const MEDIA: &str = "192.0.2.1:3478";
const FEED: &str = "192.0.2.1:5004";

/// Turns after the last datagram.
const LAST_TURNS: usize = 16;

static IDENTITY: LazyLock<Arc<Identity>> =
    LazyLock::new(|| Arc::new(identity(without_srtp()).expect("a certificate")));

/// Rooms that sessions publish into and that they receive from, each with data and without.
static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let room = |name: &str, more: &str| {
        format!(
            "[[room]]\nname = \"{name}\"\nhistory = 64\nmax_packet = 1200\ncodecs = {{ 96 = \"vp8\" }}\n{more}\n"
        )
    };
    let feed = format!("whep = true\nrtp_in = \"{FEED}\"");
    let text = [
        format!("[webrtc]\nlisten = [\"{MEDIA}\"]\nhttp = \"192.0.2.1:80\"\n"),
        room("publish", "whip = true\nwhep = true\ndata = \"all\""),
        room("play", &format!("{feed}\ndata = \"all\"")),
    ];
    let source = SourceFile { file: "relay.toml".into(), text: text.concat() };
    Config::parse(&source).expect("rooms")
});

pub(super) fn media() -> SocketAddr {
    MEDIA.parse().expect("an address")
}

pub(super) fn feed() -> SocketAddr {
    FEED.parse().expect("an address")
}

struct Silent;

impl Notify for Silent {
    fn notify(&self, _: u64) {}
}

/// A worker with the rooms.
pub(super) struct Server {
    worker: Worker<Relay, Memory>,
    mailbox: Mailbox<Message>,
    table: Arc<SessionTable>,
    account: Account,
    pub(super) now: Instant,
}

impl Server {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let (sender, inbox) = mailbox(16).expect("a descriptor for a mailbox");
        let peers: Arc<[Mailbox<Message>]> = Arc::from([sender.clone()]);
        let mut relay = Relay::new(&CONFIG, 0, 1, status(&CONFIG), now);
        relay.set_sessions(&CONFIG, Arc::clone(&IDENTITY));
        // Without slices, so that a turn costs what came in it.
        let slice = SliceLimit::Pieces(1 << 20);
        let options = WorkerOptions { timer_tokens: 64, slice, ..WorkerOptions::default() };
        let worker = Worker::new(options, now, relay, Memory::default(), inbox, peers);
        let limits = CONFIG.webrtc.as_ref().expect("WebRTC").limits;
        Self { worker, mailbox: sender, table: SessionTable::new(limits), account: Account::default(), now }
    }

    /// Has a session join whose peer offers that. The answer.
    pub(super) fn join(&mut self, offer: &str, role: Role, source: SocketAddr) -> String {
        let room = usize::from(role == Role::Play);
        let announce = [media()];
        let wanted =
            Wanted { role, worker: 0, room: &CONFIG.rooms[room], announce: &announce, highest: None };
        let agreed = answer(&IDENTITY, offer, wanted).expect("an offer of str0m's");
        let registration = self.table.admit(room, role, source.ip()).expect("a place");
        let (reply, _receiver) = ReplySender::new(Wake::new(Arc::new(Silent), 0));
        let sdp = agreed.sdp.clone();
        let join = Join { room, role, agreed, registration, reply };
        self.mailbox.try_send(Message::Join(Box::new(join))).expect("an empty mailbox");
        self.turn();
        sdp
    }

    /// Whether the session is still there.
    pub(super) fn has_session(&self) -> bool {
        !self.table.is_empty()
    }

    /// Has datagrams received, in as many turns as that takes, and gives what the worker sent meanwhile.
    pub(super) fn receive(
        &mut self,
        datagrams: impl IntoIterator<Item = (Vec<u8>, SocketAddr, SocketAddr)>,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        self.worker.io_mut().incoming.extend(datagrams);
        while !self.worker.io().incoming.is_empty() {
            self.turn();
        }
        self.turn();
        std::mem::take(&mut self.worker.io_mut().sent)
    }

    /// Takes a turn. Whether anything was sent.
    pub(super) fn turn(&mut self) -> bool {
        let Self { worker, account: whole, now, .. } = self;
        let (size, before) = (worker.io().coming(), worker.io().sent.len());
        let mut account = Account::default();
        let turn = whole.run(size, || account.run(size, || worker.turn(*now)));
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
        self.account.settle(&PEER);
    }
}
