//! What hyper has read of a connection and nobody has taken from it, as its octets and the requests tell: hyper does not say.
//!
//! Over HTTP/1 it reads when it has nothing left to go on with, so that this is the part of a head that there is, or what it read last.
//! Over HTTP/2 it reads whatever comes, so that [`frames`] are counted: bodies until they are taken or dropped, a frame or a header block
//! until it is whole.

use expressway_web::memory::{Account, Charge};

use frames::Frames;

mod frames;

/// See the module.
#[derive(Debug)]
pub(crate) struct Unread {
    charge: Charge,
    protocol: Protocol,
}

#[derive(Debug)]
enum Protocol {
    /// What is unread, and how much was read last.
    H1 {
        octets: usize,
        last: usize,
    },
    H2(Box<Frames>),
}

impl Unread {
    /// Nothing so far. Over HTTP/2, `window` octets of bodies may be unread, and header sections have `section` decoded at most.
    pub(crate) fn new(account: &Account, is_h2: bool, window: usize, section: usize) -> Self {
        let protocol = if is_h2 {
            Protocol::H2(Box::new(Frames::new(window, section)))
        } else {
            Protocol::H1 { octets: 0, last: 0 }
        };
        Self { charge: account.charge_received(), protocol }
    }

    /// Octets, with what they take beside.
    pub(crate) fn octets(&self) -> usize {
        self.charge.octets()
    }

    /// Some have come, while there is no request (`is_idle`) or while there is.
    pub(crate) fn receive(&mut self, came: &[u8], is_idle: bool) {
        match &mut self.protocol {
            Protocol::H1 { octets, last } => {
                *last = came.len();
                *octets = if is_idle { *octets + came.len() } else { came.len() };
            }
            Protocol::H2(frames) => frames.receive(came),
        }
        self.count();
    }

    /// Some have gone.
    pub(crate) fn send(&mut self, went: &[u8]) {
        if let Protocol::H2(frames) = &mut self.protocol {
            frames.send(went);
            self.count();
        }
    }

    /// A request has come, and with it its head. The stream that its body is on.
    pub(crate) fn take_head(&mut self) -> u32 {
        match &mut self.protocol {
            Protocol::H1 { octets, last } => {
                *octets = *last;
                self.count();
                0
            }
            Protocol::H2(frames) => frames.pass_on(),
        }
    }

    /// A piece of a body was taken.
    pub(crate) fn take(&mut self, stream: u32, taken: usize) {
        match &mut self.protocol {
            Protocol::H1 { octets, .. } => *octets = octets.saturating_sub(taken),
            Protocol::H2(frames) => frames.take(stream, taken),
        }
        self.count();
    }

    /// Nobody reads a body any more.
    pub(crate) fn drop_body(&mut self, stream: u32) {
        if let Protocol::H2(frames) = &mut self.protocol {
            frames.drop_body(stream);
            self.count();
        }
    }

    /// No request is under way any more.
    pub(crate) fn rest(&mut self) {
        if let Protocol::H2(frames) = &mut self.protocol {
            frames.rest();
            self.count();
        }
    }

    /// The number of the header section that has begun and is not whole (HTTP/2).
    pub(crate) fn open_section(&self) -> Option<u64> {
        match &self.protocol {
            Protocol::H1 { .. } => None,
            Protocol::H2(frames) => frames.open_section(),
        }
    }

    fn count(&mut self) {
        let octets = match &self.protocol {
            Protocol::H1 { octets, .. } => *octets,
            Protocol::H2(frames) => frames.held(),
        };
        if octets != self.charge.octets() {
            self.charge.resize(octets);
        }
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::memory::Memory;

    use super::frames::{FRAME, HEADER, LARGEST, PREFACE};
    use super::*;

    const WINDOW: usize = 100_000;
    const SECTION: usize = 64 << 10;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const CONTINUATION: u8 = 9;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const PADDED: u8 = 8;

    fn unread(is_h2: bool) -> (Unread, Account) {
        let account = Account::new(&Memory::new(1 << 30).ledger(), 1 << 20, 1 << 20);
        (Unread::new(&account, is_h2, WINDOW, SECTION), account)
    }

    fn on(stream: u32, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        on(1, kind, flags, &vec![0; payload])
    }

    /// A connection on which requests with bodies have come on these streams.
    fn with_bodies(streams: &[u32]) -> (Unread, Account) {
        let (mut unread, account) = unread(true);
        unread.receive(&[0; PREFACE], true);
        for stream in streams {
            unread.receive(&on(*stream, HEADERS, END_HEADERS, b"head"), true);
            assert_eq!(unread.take_head(), *stream);
        }
        (unread, account)
    }

    fn followed(unread: &Unread) -> (usize, usize) {
        let Protocol::H2(frames) = &unread.protocol else { panic!("of HTTP/2") };
        frames.followed()
    }

    #[test]
    fn a_head_counts_while_it_comes_and_a_body_until_it_is_taken() {
        let (mut unread, account) = unread(false);
        for _ in 0..3 {
            unread.receive(&[0; 1000], true);
        }
        assert_eq!((unread.octets(), account.received(), account.requests()), (3000, 3000, 0));
        unread.take_head();
        assert_eq!(account.received(), 1000, "more may have come with the end of the head");
        unread.receive(&[0; 5000], false);
        assert_eq!(account.received(), 5000, "hyper reads when it has nothing left");
        unread.take(0, 4000);
        assert_eq!(account.received(), 1000);
        drop(unread);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn bodies_count_in_whatever_pieces_their_frames_come() {
        let stream: Vec<u8> = [
            [0; PREFACE].to_vec(),
            frame(HEADERS, END_HEADERS, 50),
            frame(DATA, 0, 1000),
            frame(6, 0, 8),
            frame(DATA, 0, 1),
        ]
        .concat();
        for size in [1, 2, 7, 100, stream.len()] {
            let (mut unread, account) = unread(true);
            stream.chunks(size).for_each(|piece| unread.receive(piece, false));
            assert_eq!((account.received(), unread.take_head()), (1001 + 2 * FRAME, 1), "{size}");
            unread.take(1, 1000);
            assert_eq!(account.received(), 1 + 2 * FRAME, "places are kept");
            // No more than the window is kept.
            (0..100).for_each(|_| unread.receive(&frame(DATA, 0, LARGEST), false));
            assert_eq!(account.received(), WINDOW + 101 * FRAME);
            unread.rest();
            assert_eq!(account.received(), 101 * FRAME);
        }
    }

    #[test]
    fn a_body_that_is_given_up_counts_no_more_while_others_go_on() {
        let (mut unread, account) = with_bodies(&[1, 3, 5]);
        unread.receive(&on(1, DATA, 0, &[0; 300]), false);
        for stream in [3, 5] {
            unread.receive(&on(stream, DATA, 0, &[0; 4000]), false);
            unread.take(stream, 4000);
        }
        // One more has begun to come when its reader gives up, and goes on: hyper drops it.
        let late = on(3, DATA, 0, &[0; 2000]);
        unread.receive(&late[..HEADER + 10], false);
        assert_eq!(account.received(), 2300 + 2 * FRAME);
        unread.drop_body(3);
        unread.receive(&late[HEADER + 10..], false);
        (0..1000).for_each(|_| unread.receive(&on(3, DATA, 0, b"x"), false));
        assert_eq!(account.received(), 300 + 2 * FRAME, "the first is still there, and no place was needed");
        // The client has reset the third, which its reader has not heard of.
        unread.receive(&on(5, DATA, 0, &[0; 10]), false);
        unread.receive(&on(5, RST_STREAM, 0, &[0; 4]), false);
        unread.receive(&on(5, DATA, 0, &[0; 1000]), false);
        assert_eq!(account.received(), 310 + 2 * FRAME);
        unread.drop_body(5);
        unread.drop_body(1);
        assert_eq!((account.received(), followed(&unread)), (2 * FRAME, (0, 0)));
    }

    #[test]
    fn requests_that_are_refused_are_not_taken_for_others() {
        let (mut unread, account) = with_bodies(&[]);
        for stream in [1, 3, 5] {
            unread.receive(&on(stream, HEADERS, END_HEADERS, b"head"), true);
            unread.receive(&on(stream, DATA, 0, &[0; 100]), false);
        }
        // In whatever pieces that goes.
        for octet in [on(0, 4, 0, &[0; 12]), on(3, RST_STREAM, 0, &[0; 4])].concat() {
            unread.send(&[octet]);
        }
        assert_eq!((unread.take_head(), unread.take_head()), (1, 5));
        assert_eq!(account.received(), 200 + 3 * FRAME);
        unread.take(1, 100);
        unread.take(5, 100);
        // Trailers are no request, and one that has no body has nothing to be read.
        unread.receive(&on(1, HEADERS, END_HEADERS | END_STREAM, b"trailers"), false);
        unread.receive(&on(7, HEADERS, END_HEADERS | END_STREAM, b"head"), false);
        assert_eq!((unread.take_head(), account.received()), (7, 3 * FRAME));
        assert_eq!(followed(&unread), (2, 0));
        // Those whose requests are on their way to us stay.
        unread.receive(&on(9, HEADERS, END_HEADERS, b"head"), false);
        unread.rest();
        assert_eq!(followed(&unread), (1, 1));
    }

    #[test]
    fn padding_and_empty_frames_of_a_body_are_nobodys() {
        for size in [1, 1000] {
            let (mut unread, account) = with_bodies(&[1]);
            let padded = on(1, DATA, PADDED, &[&[200][..], &[0; 300]].concat());
            let only_padding = on(1, DATA, PADDED, &[&[99][..], &[0; 99]].concat());
            let all = [padded, only_padding.repeat(50), frame(DATA, 0, 0).repeat(50)].concat();
            all.chunks(size).for_each(|piece| unread.receive(piece, false));
            assert!(account.received() <= 100 + 2 * FRAME, "{}", account.received());
            unread.take(1, 100);
            assert!(account.received() <= 2 * FRAME);
            unread.receive(&frame(DATA, END_STREAM, 0), false);
            unread.take(1, 0);
            unread.receive(&frame(DATA, 0, 0), false);
            assert!(account.received() <= 2 * FRAME);
        }
    }

    #[test]
    fn frames_and_sections_count_until_they_are_whole() {
        let (mut unread, account) = unread(true);
        unread.receive(&[0; PREFACE], true);
        let settings = frame(4, 0, 12_000);
        unread.receive(&settings[..HEADER], true);
        assert_eq!(account.received(), 12_000);
        unread.receive(&settings[HEADER..], true);
        assert_eq!((account.received(), unread.open_section()), (0, None));
        unread.receive(&frame(HEADERS, 0, 10), true);
        assert_eq!((account.received(), unread.open_section()), (SECTION, Some(1)));
        unread.receive(&frame(CONTINUATION, END_HEADERS, 10), true);
        assert_eq!((account.received(), unread.open_section()), (0, None));
        // Within the only frame of a section it is one, too.
        let section = frame(HEADERS, END_HEADERS, 10);
        unread.receive(&section[..HEADER + 1], true);
        assert_eq!((account.received(), unread.open_section()), (10, Some(2)));
        // The next begins where it ends.
        unread.receive(&[&section[HEADER + 1..], &on(3, HEADERS, 0, b"x")].concat(), true);
        assert_eq!((account.received(), unread.open_section()), (SECTION, Some(3)));
    }
}
