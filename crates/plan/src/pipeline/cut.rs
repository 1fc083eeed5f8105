//! Cuts a chain of blocks into stages so that the slowest stage is as fast as possible.

use std::ops::Range;

/// Number of times that the interval of the slowest stage's time is halved.
const ROUNDS: usize = 60;

/// Function from a stage and a block to the seconds of the block on this stage.
type Seconds<'a> = &'a dyn Fn(usize, usize) -> f64;

/// Function from a stage and an end to the first block such that the stage has room for all blocks from there
/// to the end; the end itself if the stage has room for none.
type Capacity<'a> = &'a dyn Fn(usize, usize) -> usize;

/// Returns the blocks of each of `stages` stages, at least one each; `None` if there are fewer blocks.
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

/// Returns stages that take at most `most` seconds, if there are enough stages. The later ones are filled
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

/// Cuts a chain whose blocks take a different time on every stage, and whose stages may not have memory
/// for all blocks. Returns `None` if no cut has enough memory. The caller must ensure that a stage with
/// memory for some blocks also has memory for any part of them.
///
/// Law: of all cuts whose stages have enough memory, none has a faster slowest stage.
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

/// Returns the cut whose stages take at most `most` seconds, with the later stages filled first.
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
