//! Medians of repeated measurements.

use std::time::{Duration, Instant};

/// Returns the number of repetitions of work that takes `seconds`: for about `budget`, at least 3
/// and at most 50 times.
pub fn repetitions(seconds: f64, budget: Duration) -> usize {
    ((budget.as_secs_f64() / seconds.max(1e-9)) as usize).clamp(3, 50)
}

/// The median; NaN of nothing.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples {
        [] => f64::NAN,
        samples if samples.len() % 2 == 1 => samples[middle],
        samples => (samples[middle - 1] + samples[middle]) / 2.0,
    }
}

/// Returns the seconds that `work` takes.
///
/// # Errors
/// Errors of `work`.
pub fn timed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
        assert_eq!(repetitions(10.0, Duration::from_secs(1)), 3);
        assert_eq!(repetitions(0.0, Duration::from_secs(1)), 50);
    }
}
