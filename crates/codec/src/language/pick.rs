//! Operators that select elements of a block.

use super::loops::View;
use crate::crowd::Crowd;
use crate::kernel::Candidate;
use crate::{Input, select};

/// Writes the indices of the largest magnitudes, of equal ones the first, in order.
pub(crate) fn largest(to: &mut [i32], blocks: usize, a: View<'_, f32>) {
    let count = to.len() / blocks;
    for (to, block) in to.chunks_exact_mut(count).zip(a.data.chunks_exact(a.step)) {
        let chosen = select::largest(&mut Input::Plain(block), count);
        to.iter_mut().zip(chosen).for_each(|(to, chosen)| *to = chosen.index as i32);
    }
}

/// Writes the indices of the largest magnitudes where a mask holds; if it holds for too few elements,
/// those of [`locate`].
pub(crate) fn largest_where(
    to: &mut [i32],
    blocks: usize,
    a: View<'_, f32>,
    mask: View<'_, i32>,
    draw: impl Fn(usize) -> u32,
) {
    let count = to.len() / blocks;
    for (block, to) in to.chunks_exact_mut(count).enumerate() {
        let numbers = &a.data[block * a.step..][..a.step];
        let mask = &mask.data[block * mask.step..][..mask.step];
        let all = (0..).zip(numbers.iter().zip(mask)).filter(|(_, (_, holds))| **holds != 0);
        let all = all.map(|(index, (x, _))| Candidate { index, bits: x.to_bits() });
        let candidates: Vec<Candidate> = all.collect();
        if candidates.len() <= count {
            locate_block(to, mask, draw(block));
            continue;
        }
        let chosen = select::largest_of(candidates, count);
        to.iter_mut().zip(chosen).for_each(|(to, chosen)| *to = chosen.index as i32);
    }
}

/// Writes the indices of [`locate`] or [`largest_where`] for the mask of magnitudes that reach a
/// threshold.
pub(crate) fn above(
    to: &mut [i32],
    blocks: usize,
    a: View<'_, f32>,
    threshold: View<'_, f32>,
    draw: impl Fn(usize) -> u32,
    crowd: Crowd,
) {
    let count = to.len() / blocks;
    for (block, to) in to.chunks_exact_mut(count).enumerate() {
        let numbers = &a.data[block * a.step..][..a.step];
        let threshold = threshold.data[block * threshold.step];
        // A threshold of zero or less is reached by all, NaN by none.
        let bits = if threshold.is_nan() { u32::MAX >> 1 } else { threshold.max(0.0).to_bits() };
        let passed = match bits {
            0 => (0..)
                .zip(numbers)
                .map(|(index, x)| Candidate { index, bits: x.to_bits() })
                .collect(),
            bits => select::reaching(&mut Input::Plain(numbers), bits, count + count / 2),
        };
        let chosen = crowd.choose(passed, count, draw(block), numbers);
        to.iter_mut().zip(chosen).for_each(|(to, chosen)| *to = chosen.index as i32);
    }
}

/// Writes indices where a mask holds, from a random position on, cyclically; if it holds for too few,
/// other indices from there on as well. In order.
pub(crate) fn locate(
    to: &mut [i32],
    blocks: usize,
    mask: View<'_, i32>,
    draw: impl Fn(usize) -> u32,
) {
    let count = to.len() / blocks;
    for (block, to) in to.chunks_exact_mut(count).enumerate() {
        locate_block(to, &mask.data[block * mask.step..][..mask.step], draw(block));
    }
}

fn locate_block(to: &mut [i32], mask: &[i32], first: u32) {
    let around = || (first as usize..mask.len()).chain(0..first as usize);
    let holding = around().filter(|index| mask[*index] != 0);
    let others = around().filter(|index| mask[*index] == 0);
    for (to, index) in to.iter_mut().zip(holding.chain(others)) {
        *to = index as i32;
    }
    to.sort_unstable();
}

/// Writes the elements at indices.
#[inline(always)]
pub(crate) fn gather<T: Copy>(to: &mut [T], a: View<'_, T>, indices: View<'_, i32>) {
    let blocks = to.chunks_exact_mut(indices.step).zip(indices.data.chunks_exact(indices.step));
    for ((to, indices), block) in blocks.zip(a.data.chunks_exact(a.step)) {
        to.iter_mut().zip(indices).for_each(|(to, index)| *to = block[*index as usize]);
    }
}

/// Writes the `count`-th largest number of every block, counted from 1.
pub(crate) fn rank(to: &mut [f32], a: View<'_, f32>, count: i32) {
    for (to, block) in to.iter_mut().zip(a.data.chunks_exact(a.step)) {
        let at = (count.max(1) as usize).min(block.len()) - 1;
        let mut numbers = block.to_vec();
        let (_, found, _) = numbers.select_nth_unstable_by(at, |x, y| y.total_cmp(x));
        *to = *found;
    }
}

/// Writes one element of every equal part of a block, with a fixed jitter within the part, since
/// gradients may have a period.
pub(crate) fn sample(to: &mut [f32], blocks: usize, a: View<'_, f32>) {
    let count = to.len() / blocks;
    let stride = a.step / count;
    for (to, block) in to.chunks_exact_mut(count).zip(a.data.chunks_exact(a.step)) {
        for (at, to) in to.iter_mut().enumerate() {
            let jitter = ((at as u32).wrapping_mul(0x9e37_79b9) >> 8) as usize % stride;
            *to = block[at * stride + jitter];
        }
    }
}

/// Writes running sums, from the first element on.
pub(crate) fn scan(to: &mut [f32], a: View<'_, f32>) {
    for (to, block) in to.chunks_exact_mut(a.step).zip(a.data.chunks_exact(a.step)) {
        let mut sum = 0.0;
        for (to, x) in to.iter_mut().zip(block) {
            sum += x;
            *to = sum;
        }
    }
}
