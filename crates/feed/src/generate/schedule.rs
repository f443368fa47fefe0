//! When datagrams are due.

use expressway_netio::sim::Random;

/// Nanoseconds in a second.
const SECOND: f64 = 1e9;

/// How the times of bursts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Evenly.
    Even,
    /// As a Poisson process: the gaps are distributed exponentially.
    Poisson,
}

/// Times of datagrams, in nanoseconds from the start; they never decrease.
#[derive(Clone, Debug)]
pub struct Schedule {
    pace: Pace,
    /// Mean nanoseconds from burst to burst.
    gap: f64,
    burst: u32,
    /// Datagrams of the burst that are left.
    left: u32,
    /// Bursts begun.
    bursts: u64,
    time: f64,
    random: Random,
}

impl Schedule {
    /// `rate` datagrams a second (more than 0) in bursts of `burst` (at least 1) that are due at once. `seed`
    /// decides the gaps of [`Pace::Poisson`].
    pub fn new(pace: Pace, rate: f64, burst: u32, seed: u64) -> Self {
        let burst = burst.max(1);
        let gap = f64::from(burst) * SECOND / rate;
        Self { pace, gap, burst, left: 0, bursts: 0, time: 0.0, random: Random::new(seed) }
    }

    /// When the next datagram is due.
    #[inline]
    pub fn next_time(&mut self) -> u64 {
        if self.left == 0 {
            self.left = self.burst;
            self.time = match self.pace {
                // A product rather than a sum: no error adds up.
                Pace::Even => self.bursts as f64 * self.gap,
                Pace::Poisson => self.time + self.exponential(),
            };
            self.bursts += 1;
        }
        self.left -= 1;
        self.time as u64
    }

    /// A gap of mean [`Self::gap`], by inversion: the logarithm of a uniform number from (0, 1].
    fn exponential(&mut self) -> f64 {
        const SCALE: f64 = 1.0 / (1u64 << 53) as f64;
        let uniform = ((self.random.next_u64() >> 11) + 1) as f64 * SCALE;
        -uniform.ln() * self.gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(mut schedule: Schedule, count: usize) -> Vec<u64> {
        (0..count).map(|_| schedule.next_time()).collect()
    }

    #[test]
    fn even_datagrams_stand_at_multiples_of_the_interval() {
        assert_eq!(times(Schedule::new(Pace::Even, 1e6, 1, 0), 4), [0, 1000, 2000, 3000]);
        // A third of a second: rounding never adds up.
        assert_eq!(
            times(Schedule::new(Pace::Even, 3.0, 1, 0), 4),
            [0, 333_333_333, 666_666_666, 1_000_000_000]
        );
        let late = times(Schedule::new(Pace::Even, 3.0, 1, 0), 3_000_001);
        assert_eq!(late[3_000_000], 1_000_000 * 1_000_000_000);
    }

    #[test]
    fn bursts_keep_the_rate() {
        assert_eq!(times(Schedule::new(Pace::Even, 1e6, 3, 0), 7), [0, 0, 0, 3000, 3000, 3000, 6000]);
    }

    #[test]
    fn poisson_gaps_have_mean_and_deviation_of_the_rate() {
        let times = times(Schedule::new(Pace::Poisson, 1e5, 1, 7), 200_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1e4 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / 1e4 - 1.0).abs() < 0.02, "{}", variance.sqrt());
    }

    #[test]
    fn a_seed_gives_the_same_schedule_again() {
        let one = times(Schedule::new(Pace::Poisson, 1e5, 2, 7), 1000);
        assert_eq!(one, times(Schedule::new(Pace::Poisson, 1e5, 2, 7), 1000));
        assert_ne!(one, times(Schedule::new(Pace::Poisson, 1e5, 2, 8), 1000));
        assert!(one.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
