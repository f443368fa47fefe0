//! Echoes UDP datagrams over kernel sockets on one worker: `cargo run --example echo 127.0.0.1:7777`.

use std::sync::Arc;
use std::time::Instant;

use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::{Context, Datagram, Flow, IoError, PacketIo, Service, Transmit};
use expressway_netio::{Worker, WorkerOptions, mailbox};

/// What is to be echoed at the end of the turn. Both buffers are reused.
#[derive(Default)]
struct Echo {
    replies: Vec<(Flow, usize)>,
    bytes: Vec<u8>,
}

impl Service for Echo {
    type Message = ();

    fn handle_datagram(&mut self, _: &mut Context<'_, ()>, datagram: Datagram<'_>) {
        if datagram.payload.is_empty() {
            return; // An empty datagram cannot be built.
        }
        self.replies.push((Flow::new(datagram.local, datagram.remote), datagram.payload.len()));
        self.bytes.extend_from_slice(datagram.payload);
    }

    fn poll_transmit(&mut self, _: &mut Context<'_, ()>, io: &mut dyn PacketIo) -> Result<Transmit, IoError> {
        let mut bytes = self.bytes.as_slice();
        for (flow, len) in self.replies.drain(..) {
            let (reply, rest) = bytes.split_at(len);
            // Without a free buffer the reply is lost, as UDP may.
            io.send(&flow, reply)?;
            bytes = rest;
        }
        self.bytes.clear();
        Ok(Transmit::Done)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: echo ADDRESS:PORT")?.parse()?;
    let io = UdpIo::bind(&UdpConfig::new(vec![address]))?;
    let (mailbox, inbox) = mailbox(1)?;
    let (options, echo) = (WorkerOptions::default(), Echo::default());
    Ok(Worker::new(options, Instant::now(), echo, io, inbox, Arc::from([mailbox])).run()?)
}
