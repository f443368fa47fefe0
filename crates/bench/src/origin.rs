//! An origin for caches: serves files over HTTP/1.1, fresh for an hour, and counts the requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use expressway_lab::{Lab, Role};
use rustix::net::{Shutdown, shutdown};

use crate::{BenchError, io_error};

/// Its port on the server's loopback.
pub(crate) const PORT: u16 = 8080;

/// An origin beside the server; dropping it ends it. Its connections end with those who made them.
pub(crate) struct Origin {
    listener: Arc<TcpListener>,
    requests: Arc<AtomicU64>,
}

impl Origin {
    /// Starts one in the server's namespace, whose answers take that long.
    pub(crate) fn start(lab: &Lab, root: PathBuf, delay: Duration) -> Result<Self, BenchError> {
        let listener = lab.run(Role::Server, || TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)))?;
        let listener = Arc::new(listener.map_err(io_error("origin"))?);
        let origin = Self { listener: Arc::clone(&listener), requests: Arc::default() };
        let requests = Arc::clone(&origin.requests);
        spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (root, requests) = (root.clone(), Arc::clone(&requests));
                // A connection that fails is the client's to notice.
                spawn(move || serve(&stream, &root, delay, &requests));
            }
        });
        Ok(origin)
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // Ends `accept` with EINVAL (net/ipv4/inet_connection_sock.c, inet_csk_accept).
        let _ = shutdown(&*self.listener, Shutdown::Both);
    }
}

/// Answers requests until the connection ends.
fn serve(mut stream: &TcpStream, root: &Path, delay: Duration, requests: &AtomicU64) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next().transpose()? {
        let path = line.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
        while lines.next().transpose()?.is_some_and(|field| !field.is_empty()) {}
        requests.fetch_add(1, Ordering::Relaxed);
        let body = std::fs::read(root.join(path))?;
        sleep(delay);
        let fields = "Content-Type: application/octet-stream\r\nCache-Control: max-age=3600";
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n\r\n", body.len())?;
        stream.write_all(&body)?;
    }
    Ok(())
}
