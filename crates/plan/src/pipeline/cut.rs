//! Where a chain of blocks is cut into stages so that the slowest is as fast as can be.

use std::ops::Range;

/// How often the slowest stage's time is halved in on.
const ROUNDS: usize = 60;

/// The blocks of each of `stages` stages, one at least; none if there are fewer blocks.
///
/// Law: no cut has a faster slowest stage.
pub fn cut(seconds: &[f64], stages: usize) -> Option<Vec<Range<usize>>> {
    if stages == 0 || seconds.len() < stages {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0 + 2.0 * seconds.iter().sum::<f64>());
    let mut best = pack(seconds, stages, high)?;
    for _ in 0..ROUNDS {
        let middle = 0.5 * (low + high);
        match pack(seconds, stages, middle) {
            Some(found) => (best, high) = (found, middle),
            None => low = middle,
        }
    }
    Some(best)
}

/// Stages that take `most` seconds at most, if there are enough of them; the later ones are filled
/// first, because the earlier ones keep more micro-batches.
fn pack(seconds: &[f64], stages: usize, most: f64) -> Option<Vec<Range<usize>>> {
    let mut end = seconds.len();
    let mut found = Vec::with_capacity(stages);
    for left in (0..stages).rev() {
        let (mut start, mut sum) = (end, 0.0);
        while start > left && (start == end || sum + seconds[start - 1] <= most) {
            start -= 1;
            sum += seconds[start];
        }
        if sum > most {
            return None;
        }
        found.push(start..end);
        end = start;
    }
    found.reverse();
    (end == 0).then_some(found)
}
