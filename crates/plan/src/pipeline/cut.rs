//! Where a chain of blocks is cut into stages so that the slowest is as fast as can be.

use std::ops::Range;

/// The number of times that the bounds of the slowest stage's time are halved.
const ROUNDS: usize = 60;

/// Seconds of a block, the second number, on a stage, the first.
type Seconds<'a> = &'a dyn Fn(usize, usize) -> f64;

/// The first block from which on a stage, the first number, has room for all up to an end, the
/// second; the end itself where it has room for none.
type Capacity<'a> = &'a dyn Fn(usize, usize) -> usize;

/// The blocks of each of `stages` stages, one at least; none if there are fewer blocks.
///
/// Law: no cut has a faster slowest stage.
pub fn cut(seconds: &[f64], stages: usize) -> Option<Vec<Range<usize>>> {
    let blocks = seconds.len();
    if stages == 0 || blocks < stages {
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
    for stage in (0..stages).rev() {
        let (mut start, mut sum) = (end, 0.0);
        while start > stage && (start == end || sum + seconds[start - 1] <= most) {
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

/// Cuts a chain whose blocks take other times on every stage, and whose stages have not room for all;
/// none
/// if no cut has. Whatever a stage has room for, it has room for a part of.
///
/// Law: of all cuts whose stages have room none has a faster slowest stage.
pub fn cut_by(
    seconds: Seconds<'_>,
    capacity: Capacity<'_>,
    [blocks, stages]: [usize; 2],
) -> Option<Vec<Range<usize>>> {
    if stages == 0 || blocks < stages {
        return None;
    }
    // Of so many first stages with so many first blocks, the slowest.
    let mut least = vec![vec![f64::INFINITY; blocks + 1]; stages + 1];
    least[0][0] = 0.0;
    for stage in 0..stages {
        for end in stage + 1..=blocks + stage + 1 - stages {
            let (mut best, mut sum) = (f64::INFINITY, 0.0);
            for start in (capacity(stage, end).max(stage)..end).rev() {
                sum += seconds(stage, start);
                if sum >= best {
                    break;
                }
                best = best.min(sum.max(least[stage][start]));
            }
            least[stage + 1][end] = best;
        }
    }
    let most = least[stages][blocks];
    most.is_finite().then(|| filled(seconds, capacity, &least, most))
}

/// The cut whose stages take `most` seconds at most, the later ones filled first.
fn filled(
    seconds: Seconds<'_>,
    capacity: Capacity<'_>,
    least: &[Vec<f64>],
    most: f64,
) -> Vec<Range<usize>> {
    let stages = least.len() - 1;
    let mut end = least[0].len() - 1;
    let mut found = Vec::with_capacity(stages);
    for stage in (0..stages).rev() {
        let (mut first, mut sum) = (end, 0.0);
        for start in (capacity(stage, end).max(stage)..end).rev() {
            sum += seconds(stage, start);
            if sum > most {
                break;
            }
            if least[stage][start] <= most {
                first = start;
            }
        }
        found.push(first..end);
        end = first;
    }
    found.reverse();
    found
}
