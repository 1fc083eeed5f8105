//! Loops of the operators, over as many blocks as are worked on at once.
//!
//! Every loop is plain and always inlined, so that it is compiled for the machine as part of a
//! [`Work`](crate::kernel::Work). A [`View`] describes the place of an operand's numbers in the blocks.

use crate::kernel::{SMALLEST, bits};

/// Numbers of several blocks: `step` per block, or one for all blocks where `step` is 0.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, T> {
    pub data: &'a [T],
    pub step: usize,
}

impl<'a, T: Copy> View<'a, T> {
    /// Returns the numbers of a block of `length`.
    #[inline(always)]
    fn many(&self, block: usize, length: usize) -> &'a [T] {
        &self.data[block * length..][..length]
    }

    /// Returns the one number of a block.
    #[inline(always)]
    pub(crate) fn one(&self, block: usize) -> T {
        self.data[block * self.step]
    }
}

/// Computes `to = f(a)`; `a` has as many numbers as `to`, or one for all.
#[inline(always)]
pub(crate) fn map<A: Copy, C>(to: &mut [C], a: View<'_, A>, f: impl Fn(A) -> C) {
    let count = to.len();
    if a.step == 0 {
        for to in to {
            *to = f(a.data[0]);
        }
        return;
    }
    let a = &a.data[..count];
    for at in 0..count {
        to[at] = f(a[at]);
    }
}

/// Computes `to = f(a, b)`, where one number per block is combined with every element of the block.
#[inline(always)]
pub(crate) fn zip<A: Copy, B: Copy, C>(
    to: &mut [C],
    blocks: usize,
    a: View<'_, A>,
    b: View<'_, B>,
    f: impl Fn(A, B) -> C,
) {
    let count = to.len();
    let length = count / blocks;
    if a.step == length && b.step == length {
        let (a, b) = (&a.data[..count], &b.data[..count]);
        for at in 0..count {
            to[at] = f(a[at], b[at]);
        }
        return;
    }
    for block in 0..blocks {
        let to = &mut to[block * length..][..length];
        if a.step == length {
            let (a, b) = (a.many(block, length), b.one(block));
            for at in 0..length {
                to[at] = f(a[at], b);
            }
        } else if b.step == length {
            let (a, b) = (a.one(block), b.many(block, length));
            for at in 0..length {
                to[at] = f(a, b[at]);
            }
        } else {
            let (a, b) = (a.one(block), b.one(block));
            for to in to {
                *to = f(a, b);
            }
        }
    }
}

/// Computes `to = a` where the mask is not 0, else `b`.
#[inline(always)]
pub(crate) fn select<T: Copy>(
    to: &mut [T],
    blocks: usize,
    mask: View<'_, i32>,
    a: View<'_, T>,
    b: View<'_, T>,
) {
    let length = to.len() / blocks;
    for block in 0..blocks {
        let to = &mut to[block * length..][..length];
        if mask.step != length {
            let chosen = if mask.one(block) != 0 { a } else { b };
            match chosen.step == length {
                true => to.copy_from_slice(chosen.many(block, length)),
                false => to.fill(chosen.one(block)),
            }
            continue;
        }
        let mask = mask.many(block, length);
        if a.step == length && b.step == length {
            let (a, b) = (a.many(block, length), b.many(block, length));
            for at in 0..length {
                to[at] = if mask[at] != 0 { a[at] } else { b[at] };
            }
        } else if a.step == length {
            let (a, b) = (a.many(block, length), b.one(block));
            for at in 0..length {
                to[at] = if mask[at] != 0 { a[at] } else { b };
            }
        } else if b.step == length {
            let (a, b) = (a.one(block), b.many(block, length));
            for at in 0..length {
                to[at] = if mask[at] != 0 { a } else { b[at] };
            }
        } else {
            let (a, b) = (a.one(block), b.one(block));
            for at in 0..length {
                to[at] = if mask[at] != 0 { a } else { b };
            }
        }
    }
}

/// Lanes in which a block is reduced.
const LANES: usize = 32;

/// Reduces every block: in lanes, then by halving their number. Elements that are left over at the end
/// of a block go to the first lanes.
#[inline(always)]
pub(crate) fn reduce<T: Copy>(
    to: &mut [T],
    a: View<'_, T>,
    start: T,
    term: impl Fn(T) -> T,
    fold: impl Fn(T, T) -> T,
) {
    for (block, to) in to.iter_mut().enumerate() {
        let numbers = &a.data[block * a.step..][..a.step];
        let (vectors, rest) = numbers.as_chunks::<LANES>();
        let mut lanes = [start; LANES];
        for vector in vectors {
            for lane in 0..LANES {
                lanes[lane] = fold(lanes[lane], term(vector[lane]));
            }
        }
        for lane in 0..rest.len() {
            lanes[lane] = fold(lanes[lane], term(rest[lane]));
        }
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = fold(lanes[lane], lanes[lane + half]);
            }
            half /= 2;
        }
        *to = lanes[0];
    }
}

/// Rounds to the nearest integer, ties to even, clipped to ± 2^22 - 1.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    const MAX: f32 = 4_194_303.0;
    let x = if x < MAX { x } else { MAX };
    bits::round(if x > -MAX { x } else { -MAX })
}

/// Rounds a number, clipped to ± 127, to either neighbouring integer: 15 digits behind the point and
/// as many random ones carry.
#[inline(always)]
pub(crate) fn round_random(x: f32, random: i32) -> i32 {
    (round(x * 32768.0).clamp(-127 << 15, 127 << 15) + random) >> 15
}

/// Keeps `count` leading binary digits; numbers below 2^-100, whose inverse could overflow, become 0.
#[inline(always)]
pub(crate) fn digits(x: f32, count: u32) -> f32 {
    let unused = (1 << (24 - count)) - 1;
    if x.abs() < SMALLEST { 0.0 } else { f32::from_bits(x.to_bits() & !unused) }
}

/// Keeps `count` leading binary digits as [`digits`] does, rounded away from 0 unless that is infinite.
#[inline(always)]
pub(crate) fn digits_up(x: f32, count: u32) -> f32 {
    let unused = (1 << (24 - count)) - 1;
    let up = f32::from_bits((x.to_bits().wrapping_add(unused)) & !unused);
    if up.is_finite() && x.abs() >= SMALLEST { up } else { digits(x, count) }
}
