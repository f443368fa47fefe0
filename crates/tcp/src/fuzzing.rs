//! The parts that fuzz targets reach: what precedes TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::proxy;

/// Reads a PROXY header from `octets`: whom it speaks for, and what follows it.
///
/// # Errors
/// As for a connection that ends with them.
pub fn proxy_header(octets: &[u8]) -> (io::Result<Option<SocketAddr>>, &[u8]) {
    let mut rest = octets;
    let said = match pin!(proxy::read(&mut rest)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(said) => said,
        // A slice is never pending.
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    };
    (said, rest)
}
