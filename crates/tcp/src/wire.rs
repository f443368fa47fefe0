//! A connection's octets, counted and watched.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_boring::SslStream;

use crate::watch::Watch;

/// Octets of a TLS record.
const RECORD: usize = 16 << 10;

/// Octets that a client may send after its last answer before the connection is reset.
const LINGER: usize = 1 << 20;

thread_local! {
    /// Where a record is put together. A write that found no room is repeated from the same pieces.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(RECORD));
}

/// A socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The same call of either.
macro_rules! either {
    ($stream:expr, $call:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).$call($($argument),*),
            Self::Unix(stream) => Pin::new(stream).$call($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, poll_write(context, octets))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown(context))
    }
}

/// A socket with TLS or without.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Stream),
    Tls(Box<SslStream<Stream>>),
}

/// What hyper reads from and writes to.
pub(crate) struct Wire {
    transport: Transport,
    watch: Arc<Watch>,
    is_shut: bool,
    lingered: usize,
}

impl Wire {
    pub(crate) fn new(transport: Transport, watch: Arc<Watch>) -> Self {
        Self { transport, watch, is_shut: false, lingered: 0 }
    }

    /// Reads and discards what the client still sends: closed with something unread, TCP would take back the answer.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 4096];
        while self.lingered < LINGER {
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = match &mut self.transport {
                Transport::Plain(stream) => Pin::new(stream).poll_read(context, &mut buffer),
                Transport::Tls(stream) => Pin::new(stream.get_mut()).poll_read(context, &mut buffer),
            };
            match ready!(read) {
                Ok(()) if !buffer.filled().is_empty() => self.lingered += buffer.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(octets)) => self.watch.sent(Some(*octets)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.watch.sent(None),
        }
        written
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        ready!(read)?;
        let octets = buffer.filled().len() - before;
        if octets > 0 && !self.watch.received(octets) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, octets),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, octets),
        };
        self.note(written)
    }

    /// With TLS, a record is made of what is there, so that a frame's header has none of its own. A full one is
    /// encrypted from where it is.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Transport::Tls(stream) => {
                let mut some = slices.iter().filter(|slice| !slice.is_empty());
                match (some.next(), some.next()) {
                    (None, _) => Poll::Ready(Ok(0)),
                    (Some(first), None) => Pin::new(stream).poll_write(context, first),
                    (Some(first), _) if first.len() >= RECORD => Pin::new(stream).poll_write(context, first),
                    _ => SCRATCH.with_borrow_mut(|record| {
                        record.clear();
                        for slice in slices {
                            let room = RECORD - record.len();
                            record.extend_from_slice(&slice[..slice.len().min(room)]);
                        }
                        Pin::new(stream).poll_write(context, record)
                    }),
                }
            }
        };
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            let shut = match &mut self.transport {
                Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
                Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            };
            ready!(shut)?;
            self.is_shut = true;
        }
        if self.watch.lingers() {
            self.watch.close();
            ready!(self.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}
