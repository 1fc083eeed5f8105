//! Operators that choose among a block's elements, block by block.

use super::loops::View;
use crate::{Input, select};

/// The places of the largest magnitudes, of equals the first ones, in order.
pub(crate) fn largest(to: &mut [i32], blocks: usize, a: View<'_, f32>) {
    let count = to.len() / blocks;
    for (to, block) in to.chunks_exact_mut(count).zip(a.data.chunks_exact(a.step)) {
        let chosen = select::largest(&mut Input::Plain(block), count);
        to.iter_mut().zip(chosen).for_each(|(to, chosen)| *to = chosen.index as i32);
    }
}

/// The first places where the mask holds; if they are too few, the first others as well. In order.
pub(crate) fn locate(to: &mut [i32], blocks: usize, mask: View<'_, i32>) {
    let count = to.len() / blocks;
    for (to, mask) in to.chunks_exact_mut(count).zip(mask.data.chunks_exact(mask.step)) {
        let found = mask.iter().filter(|holds| **holds != 0).count();
        let mut others = count.saturating_sub(found);
        let mut places = to.iter_mut();
        for (index, holds) in (0..).zip(mask) {
            if *holds == 0 {
                if others == 0 {
                    continue;
                }
                others -= 1;
            }
            let Some(place) = places.next() else { break };
            *place = index;
        }
    }
}

/// The elements at indices.
#[inline(always)]
pub(crate) fn gather<T: Copy>(to: &mut [T], a: View<'_, T>, indices: View<'_, i32>) {
    let blocks = to.chunks_exact_mut(indices.step).zip(indices.data.chunks_exact(indices.step));
    for ((to, indices), block) in blocks.zip(a.data.chunks_exact(a.step)) {
        to.iter_mut().zip(indices).for_each(|(to, index)| *to = block[*index as usize]);
    }
}

/// The `count`-th largest number of every block, counted from 1.
pub(crate) fn rank(to: &mut [f32], a: View<'_, f32>, count: i32) {
    for (to, block) in to.iter_mut().zip(a.data.chunks_exact(a.step)) {
        let at = (count.max(1) as usize).min(block.len()) - 1;
        let mut numbers = block.to_vec();
        let (_, found, _) = numbers.select_nth_unstable_by(at, |x, y| y.total_cmp(x));
        *to = *found;
    }
}

/// One element of every equal part, where in the part by a fixed jitter: gradients may have a period.
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

/// Running sums, from the first element on.
pub(crate) fn scan(to: &mut [f32], a: View<'_, f32>) {
    for (to, block) in to.chunks_exact_mut(a.step).zip(a.data.chunks_exact(a.step)) {
        let mut sum = 0.0;
        for (to, x) in to.iter_mut().zip(block) {
            sum += x;
            *to = sum;
        }
    }
}
