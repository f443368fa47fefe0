//! The request as its transport polls it.

use std::task::{Poll, Waker, ready};

use bytes::Bytes;
use expressway_web::memory::Account;
use expressway_web::{BodyError, ResponseHead, ResponseSource, Upstream};
use http::HeaderMap;

use super::{CachedExchange, State};
use crate::body::ReadContext;
use crate::disk::Id;
use crate::heads::Heads;
use crate::purge;

/// What a body is read with, beside the state that has it.
macro_rules! context {
    ($exchange:ident) => {
        ReadContext {
            site: &$exchange.site,
            key: &$exchange.key,
            request: $exchange.request.as_ref(),
            wake: &$exchange.wake,
            waker: &$exchange.waker,
            account: $exchange.account.as_ref(),
        }
    };
}

impl CachedExchange {
    fn waker(&self) -> &Waker {
        self.waker.get_or_init(|| self.wake.waker())
    }

    /// Goes on until the head is there.
    fn advance(&mut self) -> Poll<()> {
        let waker = self.waker().clone();
        loop {
            match &mut self.state {
                State::Fixed(_) | State::Body(_) => return Poll::Ready(()),
                State::Decide => self.decide(),
                State::Look(reading) => {
                    let cache = &self.site.cache;
                    let Some(disk) = &cache.disk else {
                        self.state = State::Decide;
                        continue;
                    };
                    let work = || disk.read(Id::Record(self.key.hash), cache.store.blocks());
                    let record = Heads::record(&self.key);
                    let read =
                        ready!(reading.poll(&cache.store, record, self.account.as_ref(), &self.wake, work));
                    if let Ok(block) = read {
                        cache.heads.take_in(&self.key, &block);
                    }
                    self.state = State::Decide;
                }
                State::Wait(ticket, _) => {
                    let answer = ready!(ticket.poll_answer(&waker));
                    let State::Wait(ticket, old) = std::mem::replace(&mut self.state, State::Decide) else {
                        continue;
                    };
                    self.take_answer(answer, ticket, old);
                }
                State::Line(place) => {
                    ready!(place.poll(&waker));
                    let State::Line(place) = std::mem::replace(&mut self.state, State::Decide) else {
                        continue;
                    };
                    if let Some(request) = self.request.clone() {
                        self.pass(&request, Some(place));
                    }
                }
                State::Pass(pass) => {
                    if self.head.is_none() {
                        let mut head = match pass.head.take() {
                            Some(head) => head,
                            None => ready!(pass.exchange.poll_head()),
                        };
                        if let Some(key) = &pass.invalidates {
                            purge::invalidate(&self.site, key, &head);
                        }
                        self.word = pass.status.word();
                        pass.status.append(&mut head.headers);
                        self.head = Some(head);
                    }
                    return Poll::Ready(());
                }
            }
        }
    }
}

impl ResponseSource for CachedExchange {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if self.head.is_none() {
            ready!(self.advance());
        }
        self.head.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.state {
            State::Fixed(octets) if octets.is_empty() => Poll::Ready(None),
            State::Fixed(octets) => {
                let octets = octets.split_to(octets.len().min(max));
                Poll::Ready(Some(Ok(self
                    .account
                    .as_ref()
                    .map_or_else(|| octets.clone(), |account| account.own(octets.clone())))))
            }
            State::Body(body) => body.poll(max, context!(self)),
            State::Pass(pass) => pass.exchange.poll_body(max),
            State::Decide | State::Look(_) | State::Wait(..) | State::Line(_) => Poll::Pending,
        }
    }

    fn poll_copy(&mut self, max: usize, out: &mut Vec<u8>) -> Poll<Option<Result<(), BodyError>>> {
        match &mut self.state {
            State::Body(body) => body.poll_copy(max, out, context!(self)),
            State::Pass(pass) => pass.exchange.poll_copy(max, out),
            _ => self.poll_body(max).map_ok(|chunk| out.extend_from_slice(&chunk)),
        }
    }

    fn remaining(&self) -> Option<u64> {
        match &self.state {
            State::Fixed(octets) => Some(octets.len() as u64),
            State::Body(body) => body.remaining(),
            State::Pass(pass) => pass.exchange.remaining(),
            State::Decide | State::Look(_) | State::Wait(..) | State::Line(_) => None,
        }
    }

    fn release(&mut self) {
        match &mut self.state {
            State::Body(body) => body.release(),
            State::Pass(pass) => pass.exchange.release(),
            _ => {}
        }
    }

    fn rest(&mut self) {
        match &mut self.state {
            State::Body(body) => body.rest(self.account.as_ref()),
            State::Pass(pass) => pass.exchange.rest(),
            _ => {}
        }
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.state {
            State::Pass(pass) => pass.exchange.take_trailers(),
            _ => None,
        }
    }

    fn upstream(&self) -> Option<Upstream> {
        match &self.state {
            State::Pass(pass) => pass.exchange.upstream(),
            _ => None,
        }
    }

    fn cache(&self) -> &'static str {
        self.word
    }

    fn charge_to(&mut self, account: &Account) -> bool {
        self.account = Some(account.clone());
        if let Some(request) = &self.request {
            self.charge = Some(account.charge_request(request.footprint()));
        }
        if let State::Pass(pass) = &mut self.state {
            pass.exchange.charge_to(account);
        }
        true
    }
}
