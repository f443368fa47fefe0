//! TCP transactions: one byte each way, repeatedly, on connections that stay open, like netperf's TCP_RR.

use std::cell::RefCell;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

/// How long a connection may take before there is any attack.
const CONNECT: Duration = Duration::from_secs(10);

/// What to do.
pub(crate) struct Transact {
    pub(crate) to: SocketAddr,
    pub(crate) connections: usize,
    /// From when all are connected, what is not counted.
    pub(crate) warmup: Duration,
    pub(crate) seconds: Duration,
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Answers each byte on each connection, until it is killed.
pub(crate) fn serve(listen: SocketAddr) -> Result<std::convert::Infallible, Box<dyn Error>> {
    LocalSet::new().block_on(&runtime()?, async {
        let listener = TcpListener::bind(listen).await?;
        println!("ready");
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(async move {
                let mut byte = [0; 1];
                // A client that has gone is not worth a word.
                while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
            });
        }
    })
}

/// Asks on all connections for its time. Says `ready` when each has had an answer.
pub(crate) fn run(options: &Transact) -> Result<serde_json::Value, Box<dyn Error>> {
    let times = Rc::new(RefCell::new(Histogram::<u64>::new_with_bounds(100, 60_000_000_000, 3)?));
    let lost = LocalSet::new().block_on(&runtime()?, async {
        let mut streams = Vec::new();
        for _ in 0..options.connections {
            let connected = tokio::time::timeout(CONNECT, TcpStream::connect(options.to)).await;
            let mut stream =
                connected.map_err(|_| format!("{}: no answer to a connection", options.to))??;
            stream.set_nodelay(true)?;
            transaction(&mut stream).await?;
            streams.push(stream);
        }
        println!("ready");
        let from = Instant::now() + options.warmup;
        let until = from + options.seconds;
        let work = streams
            .into_iter()
            .map(|stream| tokio::task::spawn_local(ask(stream, from, until, times.clone())));
        let work: Vec<_> = work.collect();
        let mut lost = 0;
        for one in work {
            lost += usize::from(!one.await?);
        }
        Ok::<usize, Box<dyn Error>>(lost)
    })?;
    let times = times.borrow();
    Ok(serde_json::json!({
        "transactions": times.len(),
        "seconds": options.seconds.as_secs_f64(),
        "connections": options.connections,
        "connections_lost": lost,
        "p50_ns": times.value_at_quantile(0.5),
        "p99_ns": times.value_at_quantile(0.99),
        "max_ns": times.max(),
    }))
}

async fn transaction(stream: &mut TcpStream) -> io::Result<()> {
    let mut byte = [1; 1];
    stream.write_all(&byte).await?;
    stream.read_exact(&mut byte).await.map(drop)
}

/// One connection's transactions that end between two times. False if it broke.
async fn ask(
    mut stream: TcpStream,
    from: Instant,
    until: Instant,
    times: Rc<RefCell<Histogram<u64>>>,
) -> bool {
    loop {
        let asked = Instant::now();
        match tokio::time::timeout_at(until.into(), transaction(&mut stream)).await {
            Err(_) => return true,
            Ok(Err(_)) => return false,
            Ok(Ok(())) if asked >= from => {
                let took = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
                times.borrow_mut().saturating_record(took);
            }
            Ok(Ok(())) => {}
        }
    }
}
