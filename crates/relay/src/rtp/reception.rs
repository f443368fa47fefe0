//! Reception statistics of a stream (RFC 3550, appendices A.1, A.3 and A.8).

/// Packets by which a number may be ahead of the highest one and still be of the same run (`MAX_DROPOUT`).
const AHEAD: u16 = 3000;
/// Packets by which it may be behind (`MAX_MISORDER`).
const BEHIND: u16 = 100;

/// How a packet's number stands to those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The next, or behind a gap of so many.
    Ahead {
        /// Packets between it and the highest number so far.
        gap: u16,
    },
    /// Late: behind the highest number.
    Late,
    /// So far away that the sender seems to have begun anew.
    Restart,
}

/// Counts of a stream.
#[derive(Clone, Debug)]
pub struct Reception {
    /// Where it began.
    base: u64,
    /// The highest number, extended by the times that numbers wrapped.
    highest: u64,
    received: u64,
    /// As of the last report.
    prior: (u64, u64),
    /// Arrival less timestamp, of the last packet, in units of the clock.
    transit: u32,
    /// In 1/16 of a unit.
    jitter: u32,
}

/// What a report block says (RFC 3550, section 6.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Lost since the last report, in 1/256 of what was expected.
    pub fraction: u8,
    /// Lost in all: 23 bits and no sign, as duplicates are not counted.
    pub cumulative: u32,
    /// The highest number with its cycles.
    pub highest: u32,
    /// In units of the clock.
    pub jitter: u32,
}

impl Reception {
    /// Begins with a packet of that number, which is not counted yet.
    pub fn new(sequence: u16, transit: u32) -> Self {
        // One cycle ahead, so that late packets are not before the beginning of numbers.
        let first = 0x1_0000 + u64::from(sequence);
        Self { base: first, highest: first - 1, received: 0, prior: (0, 0), transit, jitter: 0 }
    }

    /// Where a number stands; nothing is counted.
    pub fn order(&self, sequence: u16) -> Order {
        let ahead = sequence.wrapping_sub(self.highest as u16);
        match ahead {
            1..=AHEAD => Order::Ahead { gap: ahead - 1 },
            0 => Order::Late,
            _ if ahead >= BEHIND.wrapping_neg() => Order::Late,
            _ => Order::Restart,
        }
    }

    /// Counts a packet that is no duplicate. `transit` is its time of arrival less its timestamp, in units of the clock.
    pub fn count(&mut self, sequence: u16, transit: u32) {
        match self.order(sequence) {
            Order::Ahead { gap } => self.highest += u64::from(gap) + 1,
            Order::Late => {}
            Order::Restart => {
                *self = Self { highest: 0x1_0000 + u64::from(sequence), ..Self::new(sequence, transit) }
            }
        }
        self.received += 1;
        let difference = (transit.wrapping_sub(self.transit) as i32).unsigned_abs();
        self.transit = transit;
        // A step of the clock is no jitter, and may not overflow what is in sixteenths.
        let difference = difference.min(u32::MAX >> 5);
        self.jitter = self.jitter + difference - ((self.jitter + 8) >> 4);
    }

    /// Packets received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Packets lost so far; late ones may still come.
    pub fn lost(&self) -> u64 {
        self.expected().saturating_sub(self.received)
    }

    /// Interarrival jitter, in units of the clock.
    pub fn jitter(&self) -> u32 {
        self.jitter >> 4
    }

    /// For a report block, with what was lost since this was last asked for.
    pub fn report(&mut self) -> Loss {
        let expected = self.expected();
        let of = expected.saturating_sub(self.prior.0);
        let lost = of.saturating_sub(self.received.saturating_sub(self.prior.1));
        self.prior = (expected, self.received);
        let fraction = (lost * 256).checked_div(of).unwrap_or(0).min(255) as u8;
        Loss {
            fraction,
            cumulative: self.lost().min(0x7f_ffff) as u32,
            highest: (self.highest - 0x1_0000) as u32,
            jitter: self.jitter(),
        }
    }

    fn expected(&self) -> u64 {
        (self.highest + 1).saturating_sub(self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u16, numbers: impl IntoIterator<Item = u16>) -> Reception {
        let mut reception = Reception::new(first, 0);
        numbers.into_iter().for_each(|number| reception.count(number, 0));
        reception
    }

    #[test]
    fn numbers_wrap_and_losses_are_counted() {
        let mut reception = run(65_534, [65_534, 65_535, 0, 3]);
        assert_eq!((reception.received(), reception.lost()), (4, 2));
        let report = reception.report();
        assert_eq!((report.highest, report.cumulative), (0x1_0003, 2));
        assert_eq!(report.fraction, (2 * 256 / 6) as u8);
        assert_eq!(reception.report().fraction, 0, "nothing was lost since");
        assert_eq!(reception.order(1), Order::Late);
        reception.count(1, 0);
        assert_eq!(reception.lost(), 1, "a late one is no loss any more");
        assert_eq!(reception.report().fraction, 0, "more came than was expected");
    }

    #[test]
    fn a_late_packet_before_the_first_is_no_loss() {
        let reception = run(0, [0, 65_535, 1]);
        assert_eq!((reception.received(), reception.lost()), (3, 0));
    }

    #[test]
    fn a_jump_begins_anew() {
        let reception = run(10, [10, 11]);
        assert_eq!(reception.order(12), Order::Ahead { gap: 0 });
        assert_eq!(reception.order(11 + AHEAD), Order::Ahead { gap: AHEAD - 1 });
        assert_eq!(reception.order(12 + AHEAD), Order::Restart);
        assert_eq!(reception.order(11u16.wrapping_sub(BEHIND)), Order::Late);
        assert_eq!(reception.order(10u16.wrapping_sub(BEHIND)), Order::Restart);
        let mut reception = run(10, [10, 11, 20_000, 20_001, 20_003]);
        assert_eq!((reception.received(), reception.lost()), (3, 1));
        assert_eq!(reception.report().highest, 20_003);
    }

    #[test]
    fn jitter_is_the_mean_deviation() {
        let mut reception = Reception::new(0, 0);
        (0..1000u16).for_each(|number| reception.count(number, u32::from(number % 2) * 160));
        assert!((150..=160).contains(&reception.jitter()), "{}", reception.jitter());
        let mut still = Reception::new(0, 7);
        (0..100).for_each(|number| still.count(number, 7));
        assert_eq!(still.jitter(), 0);
        // A clock that is set does not overflow.
        (0..u16::MAX).for_each(|number| still.count(number, if number % 2 == 0 { 0 } else { 0x7fff_ffff }));
    }
}
