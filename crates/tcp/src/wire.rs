//! A connection's octets, counted and watched.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_boring::SslStream;

use crate::turn::poll_slice;
use crate::watch::Watch;

/// Octets of a TLS record.
const RECORD: usize = 16 << 10;

/// Octets that are encrypted where they are, and those before them in a record of their own: a copy of as many costs more than
/// a record.
const LARGE: usize = 8 << 10;

/// Encrypted octets that wait for those that follow: such a record, of a frame's header or a response's head.
const HELD: usize = 4 << 10;

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

/// Octets of room for held records that an idle connection keeps.
const KEPT: usize = 512;

/// A socket below TLS: a small record goes in one call with the next, or when it is flushed.
#[derive(Debug)]
pub(crate) struct Records {
    stream: Stream,
    held: Vec<u8>,
}

impl Records {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, held: Vec::new() }
    }

    /// Writes what is held and `octets` after it; ready when something of these went.
    fn poll_write_with_held(&mut self, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        while !self.held.is_empty() {
            let slices = [IoSlice::new(&self.held), IoSlice::new(octets)];
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_held = written.min(self.held.len());
            self.held.drain(..of_held);
            if written > of_held {
                return Poll::Ready(Ok(written - of_held));
            }
        }
        Pin::new(&mut self.stream).poll_write(context, octets)
    }

    fn poll_write_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.drain(..written);
        }
        if self.held.capacity() > KEPT {
            self.held = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Records {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Records {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.held.len() + octets.len() <= HELD {
            self.held.extend_from_slice(octets);
            return Poll::Ready(Ok(octets.len()));
        }
        self.poll_write_with_held(context, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_held(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_held(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A socket with TLS or without.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Stream),
    Tls(Box<SslStream<Records>>),
}

/// What hyper reads from and writes to.
pub(crate) struct Wire {
    transport: Transport,
    watch: Arc<Watch>,
    /// The last flush found no room.
    is_blocked: bool,
    is_shut: bool,
    lingered: usize,
}

impl Wire {
    pub(crate) fn new(transport: Transport, watch: Arc<Watch>) -> Self {
        Self { transport, watch, is_blocked: false, is_shut: false, lingered: 0 }
    }

    /// Reads and discards what the client still sends: closed with something unread, TCP would take back the answer.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 4096];
        while self.lingered < LINGER {
            ready!(poll_slice(context));
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

    /// The time, if somebody traces; else 0.
    fn began(&self) -> u64 {
        let (_, about) = self.watch.follow();
        if about.tracer.is_on() { about.tracer.now() } else { 0 }
    }

    fn note(&self, began: u64, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(octets)) => {
                self.watch.sent(Some(*octets));
                if began != 0 && *octets > 0 {
                    let (follow, about) = self.watch.follow();
                    follow.written(about, began);
                }
            }
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
        ready!(poll_slice(context));
        let (before, began) = (buffer.filled().len(), self.began());
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        ready!(read)?;
        let octets = buffer.filled().len() - before;
        if began != 0 && octets > 0 {
            let (follow, about) = self.watch.follow();
            follow.read(about, began);
        }
        if octets > 0 && !self.watch.received(&buffer.filled()[before..]) {
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
        ready!(poll_slice(context));
        let began = self.began();
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, octets),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, octets),
        };
        self.note(began, written)
    }

    /// With TLS, a record is made of what is there. Large pieces are encrypted from where they are, and what stands before them,
    /// such as a frame's header, is a record that goes with theirs.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(poll_slice(context));
        let began = self.began();
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Transport::Tls(stream) => {
                let mut some = slices.iter().filter(|slice| !slice.is_empty());
                match (some.next(), some.next()) {
                    (None, _) => Poll::Ready(Ok(0)),
                    (Some(first), None) => Pin::new(stream).poll_write(context, first),
                    (Some(first), Some(next)) if first.len() >= LARGE || next.len() >= LARGE => {
                        Pin::new(stream).poll_write(context, first)
                    }
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
        self.note(began, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        };
        if flushed.is_pending() || self.is_blocked {
            self.is_blocked = flushed.is_pending();
            self.watch.sent(flushed.is_ready().then_some(0));
        }
        flushed
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use super::*;

    fn read(stream: &UnixStream) -> Vec<u8> {
        let mut octets = vec![0; 64 << 10];
        let length = stream.try_read(&mut octets).unwrap_or(0);
        octets.truncate(length);
        octets
    }

    #[tokio::test]
    async fn a_small_record_goes_with_the_next_or_when_it_is_flushed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut records = Records::new(Stream::Unix(ours));
        let (small, large) = (vec![1; HELD], vec![2; RECORD]);
        let written = poll_fn(|context| Pin::new(&mut records).poll_write(context, &small)).await;
        assert_eq!(written.unwrap(), HELD);
        assert!(read(&theirs).is_empty());
        let written = poll_fn(|context| Pin::new(&mut records).poll_write(context, &large)).await.unwrap();
        theirs.readable().await.unwrap();
        assert_eq!(read(&theirs), [&small[..], &large[..written]].concat());
        assert!(written > 0 && records.held.is_empty());
        let written = poll_fn(|context| Pin::new(&mut records).poll_write(context, &[3])).await;
        assert_eq!(written.unwrap(), 1);
        poll_fn(|context| Pin::new(&mut records).poll_flush(context)).await.unwrap();
        theirs.readable().await.unwrap();
        assert_eq!(read(&theirs), [3]);
    }

    #[tokio::test]
    async fn what_finds_no_room_is_not_lost() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut records = Records::new(Stream::Unix(ours));
        let mut context = Context::from_waker(Waker::noop());
        let (small, large) = (vec![1; 8], vec![2; RECORD]);
        let mut sent = Vec::new();
        for octets in [&small, &large].into_iter().cycle() {
            let Poll::Ready(written) = Pin::new(&mut records).poll_write(&mut context, octets) else { break };
            sent.extend_from_slice(&octets[..written.unwrap()]);
        }
        assert!(Pin::new(&mut records).poll_flush(&mut context).is_pending());
        let mut came = Vec::new();
        while came.len() < sent.len() {
            came.extend(read(&theirs));
            if let Poll::Ready(flushed) = Pin::new(&mut records).poll_flush(&mut context) {
                flushed.unwrap();
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(came, sent);
    }
}
