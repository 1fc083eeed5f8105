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

/// Writes the values of the element that is `by` places before, 0 where there is none in the block.
pub(crate) fn shift<T: Copy + Default>(to: &mut [T], a: View<'_, T>, by: i32) {
    let places = (by.unsigned_abs() as usize).min(a.step);
    to.fill(T::default());
    for (to, block) in to.chunks_exact_mut(a.step).zip(a.data.chunks_exact(a.step)) {
        match by < 0 {
            true => to[..a.step - places].copy_from_slice(&block[places..]),
            false => to[places..].copy_from_slice(&block[..a.step - places]),
        }
    }
}

/// Writes the orthonormal Walsh-Hadamard transform of every block: of the largest power of two of its
/// elements, then of the largest of the rest. Scaled numbers are added and subtracted in pairs, neighbours
/// first.
pub(crate) fn transform(to: &mut [f32], a: View<'_, f32>) {
    to.copy_from_slice(&a.data[..to.len()]);
    for mut rest in to.chunks_exact_mut(a.step) {
        while let Some(log) = rest.len().checked_ilog2() {
            let (piece, others) = rest.split_at_mut(1 << log);
            let odd = if log % 2 == 1 { std::f32::consts::FRAC_1_SQRT_2 } else { 1.0 };
            let factor = f32::from_bits((127 - log / 2) << 23) * odd;
            piece.iter_mut().for_each(|x| *x *= factor);
            for half in (0..log).map(|log| 1 << log) {
                for pair in piece.chunks_exact_mut(2 * half) {
                    let (low, high) = pair.split_at_mut(half);
                    for (x, y) in low.iter_mut().zip(high) {
                        (*x, *y) = (*x + *y, *x - *y);
                    }
                }
            }
            rest = others;
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
