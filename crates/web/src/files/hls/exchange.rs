//! A held request.

use std::task::{Poll, ready};

use bytes::Bytes;
use http::HeaderMap;

use super::watch::{Registration, Verdict};
use crate::files::site::Files;
use crate::memory::{Account, Charge};
use crate::{BodyError, Exchange, RequestHead, ResponseHead, ResponseSource, Wake};

/// Octets that a held request takes elsewhere.
const ELSEWHERE: usize = 512;

/// A request that waits, and then its answer.
pub(crate) struct HeldExchange {
    account: Option<Account>,
    state: State,
}

enum State {
    Held(Box<Held>),
    Answered(Exchange),
}

struct Held {
    registration: Registration,
    files: Files,
    request: RequestHead,
    wake: Wake,
    charge: Option<Charge>,
}

impl HeldExchange {
    pub(crate) fn start(
        registration: Registration,
        files: &Files,
        request: &RequestHead,
        wake: Wake,
    ) -> Exchange {
        let held = Held { registration, files: files.clone(), request: request.clone(), wake, charge: None };
        Exchange::new(Box::new(Self { account: None, state: State::Held(Box::new(held)) }))
    }
}

impl ResponseSource for HeldExchange {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if let State::Held(held) = &mut self.state {
            let Some(verdict) = held.registration.poll() else { return Poll::Pending };
            let mut exchange = match verdict {
                Verdict::Answer => held.files.start(&held.request, held.wake.clone()),
                Verdict::Refuse(status) => Exchange::error(&held.request.method, status, HeaderMap::new()),
            };
            if let Some(account) = &self.account {
                exchange.charge_to(account);
            }
            self.state = State::Answered(exchange);
        }
        match &mut self.state {
            State::Held(_) => Poll::Pending,
            State::Answered(exchange) => exchange.poll_head(),
        }
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.state {
            State::Held(_) => Poll::Pending,
            State::Answered(exchange) => Poll::Ready(ready!(exchange.poll_body(max))),
        }
    }

    fn remaining(&self) -> Option<u64> {
        match &self.state {
            State::Held(_) => None,
            State::Answered(exchange) => exchange.remaining(),
        }
    }

    fn release(&mut self) {
        if let State::Answered(exchange) = &mut self.state {
            exchange.release();
        }
    }

    fn rest(&mut self) {
        if let State::Answered(exchange) = &mut self.state {
            exchange.rest();
        }
    }

    fn charge_to(&mut self, account: &Account) -> bool {
        self.account = Some(account.clone());
        match &mut self.state {
            State::Held(held) => {
                held.charge = Some(account.charge_request(held.request.footprint() + ELSEWHERE));
            }
            State::Answered(exchange) => exchange.charge_to(account),
        }
        true
    }
}
