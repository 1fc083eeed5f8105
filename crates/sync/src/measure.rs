//! Measurements by all ranks together: the speed of links and codecs, means that outliers do not move,
//! and processor time.

pub(crate) mod codecs;
pub(crate) mod hosts;
pub(crate) mod link;
pub(crate) mod pairs;
pub(crate) mod units;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time that this thread has used.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns the median of `values`, which are left sorted: the larger of the two middle ones, or 0 if
/// there are no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the mean of the middle half of `values`, which are left sorted; 0 if there are no values. It
/// is nearly as robust as the median, and less noisy.
pub(crate) fn midmean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let cut = values.len().div_ceil(4).min(values.len().saturating_sub(1) / 2);
    let middle = &values[cut..values.len() - cut];
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_move_no_middle() {
        for count in 1..12 {
            let mut values: Vec<f64> = (0..count).map(f64::from).collect();
            assert_eq!(median(&mut values), f64::from(count / 2));
            assert_eq!(midmean(&mut values), f64::from(count - 1) / 2.0);
        }
        let mut values = [3.0, 1.0, 900.0, 2.0, -7.0, 2.0];
        assert_eq!((median(&mut values), midmean(&mut values)), (2.0, 2.0));
        assert_eq!((median(&mut []), midmean(&mut [])), (0.0, 0.0));
    }
}
