//! Medians and their confidence intervals.

/// Resamples of a bootstrap: enough that the ends of an interval do not depend on the seed.
const RESAMPLES: usize = 10_000;

/// The seed of every bootstrap, so that a report of a raw file is the same each time.
const SEED: u64 = 0x6578_7072_6573_7377;

/// The share of resamples that an interval holds.
const LEVEL: f64 = 0.95;

/// Rounds below which no interval of this kind holds the true median in 95 of 100 cases: of n values, all are on one
/// side of it with probability 2/2^n.
pub const ROUNDS_FOR_A_VERDICT: usize = 6;

/// A value with the interval that it may as well be in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Lower end.
    pub low: f64,
    /// The median.
    pub mid: f64,
    /// Upper end.
    pub high: f64,
    /// Of how many values.
    pub count: usize,
}

impl Estimate {
    /// Whether the interval has this value in it.
    pub fn includes(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The median; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// The `part` quantile of sorted values, between neighbours in proportion; NaN of nothing.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// The median with its percentile bootstrap interval (Efron and Tibshirani 1993, section 13.3).
pub fn estimate(values: &[f64]) -> Estimate {
    let mut random = Random(SEED);
    let mut resample = vec![0.0; values.len()];
    let medians = (0..RESAMPLES).map(|_| {
        random.fill(&mut resample, values);
        median_in_place(&mut resample)
    });
    interval(medians.collect(), median(values), values.len())
}

/// The ratio of two medians whose values do not belong together in pairs: both are resampled.
pub fn ratio_of_medians(over: &[f64], under: &[f64]) -> Estimate {
    let mut random = Random(SEED);
    let (mut one, mut other) = (vec![0.0; over.len()], vec![0.0; under.len()]);
    let ratios = (0..RESAMPLES).map(|_| {
        random.fill(&mut one, over);
        random.fill(&mut other, under);
        median_in_place(&mut one) / median_in_place(&mut other)
    });
    interval(ratios.collect(), median(over) / median(under), over.len().min(under.len()))
}

fn interval(mut resampled: Vec<f64>, mid: f64, count: usize) -> Estimate {
    resampled.sort_by(f64::total_cmp);
    let tail = (1.0 - LEVEL) / 2.0;
    Estimate { low: quantile(&resampled, tail), mid, high: quantile(&resampled, 1.0 - tail), count }
}

fn median_in_place(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(values, 0.5)
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws with replacement.
    fn fill(&mut self, resample: &mut [f64], values: &[f64]) {
        for place in resample {
            // The high half of a product: uniform up to 2^-64 times the count.
            *place = values[((u128::from(self.next()) * values.len() as u128) >> 64) as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        let mut random = Random(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], expected);
    }

    #[test]
    fn intervals_are_those_of_the_exact_bootstrap() {
        // Of 3 values, a resample's median is the least with probability 7/27, so the interval is all of them.
        let three = estimate(&[2.0, 1.0, 3.0]);
        assert_eq!((three.low, three.mid, three.high), (1.0, 2.0, 3.0));
        // Of 1 to 9 it is at most 1 with probability P(B(9, 1/9) > 4) = 0.0014 and at most 2 with
        // P(B(9, 2/9) > 4) = 0.030: the lower end is 2, and by symmetry the upper end 8.
        let nine = estimate(&[9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]);
        assert_eq!((nine.low, nine.mid, nine.high, nine.count), (2.0, 5.0, 8.0, 9));
        let same = estimate(&[4.0; 7]);
        assert_eq!((same.low, same.high), (4.0, 4.0));
    }

    #[test]
    fn unpaired_ratios_vary_with_both_sides() {
        let fixed = ratio_of_medians(&[2.0; 6], &[1.0; 6]);
        assert_eq!((fixed.low, fixed.mid, fixed.high), (2.0, 2.0, 2.0));
        let loose = ratio_of_medians(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
        assert!(loose.includes(1.0) && loose.low < 0.5 && loose.high > 2.0, "{loose:?}");
    }

    #[test]
    fn nothing_has_no_median() {
        assert!(estimate(&[]).mid.is_nan());
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 5.0], 0.5), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.25), 1.5);
    }
}
