//! Medians, spreads, percentiles, and fairness.

/// The median of some samples, and their range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Computes the spread of `samples`. Returns `None` if there are none.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[upper]
        } else {
            f64::midpoint(sorted[upper - 1], sorted[upper])
        };
        Some(Self { median, least, most })
    }
}

/// Returns the value below which `percent` of the samples lie, by the nearest rank. Returns `None` if there are no
/// samples.
pub(crate) fn percentile(samples: &mut [f64], percent: f64) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * samples.len() as f64).ceil() as usize;
    samples.get(rank.max(1) - 1).copied()
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything. Returns `None` if all are
/// zero.
pub(crate) fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_have_a_middle_and_two_ends() {
        let spread = |samples: &[f64]| Spread::of(samples.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[f64::NAN]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
    }

    #[test]
    fn percentiles_are_samples() {
        let mut samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let mut at = |percent| percentile(&mut samples, percent);
        assert_eq!(
            (at(50.0), at(99.0), at(100.0), at(0.0)),
            (Some(50.0), Some(99.0), Some(100.0), Some(1.0))
        );
        assert_eq!(percentile(&mut [], 50.0), None);
        assert_eq!(percentile(&mut [7.0], 99.0), Some(7.0));
    }

    #[test]
    fn jains_index_is_between_one_nth_and_one() {
        assert_eq!(jain(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(jain(&[8, 0, 0, 0]), Some(0.25));
        assert_eq!(jain(&[1, 3]), Some(0.8));
        assert_eq!(jain(&[0, 0]), None);
        assert_eq!(jain(&[]), None);
    }
}
