//! Where a chain of blocks is cut into stages so that the slowest is as fast as can be.

use std::ops::Range;

/// How often the slowest stage's time is halved in on.
const ROUNDS: usize = 60;

/// Seconds of a block, the second number, on a stage, the first.
type Seconds<'a> = &'a dyn Fn(usize, usize) -> f64;

/// The blocks of each of `stages` stages, one at least; none if there are fewer blocks.
///
/// Law: no cut has a faster slowest stage.
pub fn cut(seconds: &[f64], stages: usize) -> Option<Vec<Range<usize>>> {
    cut_by(&|_, block| seconds[block], seconds.len(), stages)
}

/// The same where a block takes another time on every stage.
pub fn cut_by(seconds: Seconds<'_>, blocks: usize, stages: usize) -> Option<Vec<Range<usize>>> {
    if stages == 0 || blocks < stages {
        return None;
    }
    let of_stage = |stage| (0..blocks).map(|block| seconds(stage, block)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0 + 2.0 * (0..stages).map(of_stage).fold(0.0, f64::max));
    let mut best = pack(seconds, blocks, stages, high)?;
    for _ in 0..ROUNDS {
        let middle = 0.5 * (low + high);
        match pack(seconds, blocks, stages, middle) {
            Some(found) => (best, high) = (found, middle),
            None => low = middle,
        }
    }
    Some(best)
}

/// Stages that take `most` seconds at most, if there are enough of them; the later ones are filled
/// first, because the earlier ones keep more micro-batches.
fn pack(
    seconds: Seconds<'_>,
    blocks: usize,
    stages: usize,
    most: f64,
) -> Option<Vec<Range<usize>>> {
    let mut end = blocks;
    let mut found = Vec::with_capacity(stages);
    for stage in (0..stages).rev() {
        let (mut start, mut sum) = (end, 0.0);
        while start > stage && (start == end || sum + seconds(stage, start - 1) <= most) {
            start -= 1;
            sum += seconds(stage, start);
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
