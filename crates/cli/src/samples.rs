//! Repeated measurements: how many, and how long one takes.

use std::time::{Duration, Instant};

pub use thinwire_report::figures::median;

/// Returns the number of repetitions of work that takes `seconds`: for about `budget`, at least 3
/// and at most 50 times.
pub fn repetitions(seconds: f64, budget: Duration) -> usize {
    ((budget.as_secs_f64() / seconds.max(1e-9)) as usize).clamp(3, 50)
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
    fn short_work_is_repeated_more_often() {
        assert_eq!(repetitions(10.0, Duration::from_secs(1)), 3);
        assert_eq!(repetitions(0.0, Duration::from_secs(1)), 50);
    }
}
