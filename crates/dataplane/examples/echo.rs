//! Echoes UDP by the best mode of this host: `cargo run --example dataplane_echo 192.0.2.1:7777`.

use expressway_dataplane::{Config, DataPath, Maintainer, Provider};
use expressway_netio::{Context, Datagram, Flow, IoError, PacketIo, Service, Transmit};

#[derive(Default)]
struct Echo(Vec<(Flow, Vec<u8>)>);

impl Service for Echo {
    type Message = ();

    fn handle_datagram(&mut self, _: &mut Context<'_, ()>, datagram: Datagram<'_>) {
        self.0.push((Flow::new(datagram.local, datagram.remote), datagram.payload.to_vec()));
    }

    fn poll_transmit(&mut self, _: &mut Context<'_, ()>, io: &mut dyn PacketIo) -> Result<Transmit, IoError> {
        for (flow, payload) in self.0.drain(..) {
            io.send(&flow, &payload)?;
        }
        Ok(Transmit::Done)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: echo ADDRESS:PORT")?.parse()?;
    let (path, mut workers) = DataPath::open(Config::new(vec![address]), Provider::Own, 1)?;
    let _maintainer = Maintainer::start(path)?;
    Ok(workers.remove(0).run(Echo::default(), Default::default())?)
}
