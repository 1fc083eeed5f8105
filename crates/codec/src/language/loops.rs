//! The loops of the operators, over as many blocks as are worked on at once.
//!
//! They are plain and always inlined, so that [`crate::kernel::wide`] compiles them for the
//! machine's vectors. A [`View`] says how an operand is spread over the blocks.

/// Numbers of several blocks: `step` of them per block, or one for all where `step` is 0.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, T> {
    pub data: &'a [T],
    pub step: usize,
}

impl<'a, T: Copy> View<'a, T> {
    /// The numbers of a block of `length`.
    #[inline(always)]
    fn many(&self, block: usize, length: usize) -> &'a [T] {
        &self.data[block * length..][..length]
    }

    /// The one number of a block.
    #[inline(always)]
    pub(crate) fn one(&self, block: usize) -> T {
        self.data[block * self.step]
    }
}

/// `to = f(a)`; both have the same numbers per block, or `a` is one for all.
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

/// `to = f(a, b)`, where what is one per block meets every element of the block.
#[inline(always)]
pub(crate) fn zip<A: Copy, B: Copy, C>(
    to: &mut [C],
    blocks: usize,
    (a, b): (View<'_, A>, View<'_, B>),
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

/// `to = a` where the mask is not 0, else `b`.
#[inline(always)]
pub(crate) fn select<T: Copy>(
    to: &mut [T],
    blocks: usize,
    mask: View<'_, i32>,
    (a, b): (View<'_, T>, View<'_, T>),
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

/// Reduces every block: in lanes, then by halving their number. What is left over at the end of a
/// block goes to the first lanes.
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

/// The largest magnitude, as bits: above those of infinity if there is a NaN.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> u32 {
    let mut largest = 0;
    for x in values {
        let bits = x.to_bits() & !SIGN;
        largest = if bits > largest { bits } else { largest };
    }
    largest
}

/// Adds the residual; the largest magnitude of the sums, as bits.
#[inline(always)]
pub(crate) fn add_largest(values: &mut [f32], residual: &[f32]) -> u32 {
    let mut largest = 0;
    let count = values.len();
    let residual = &residual[..count];
    for at in 0..count {
        let sum = values[at] + residual[at];
        values[at] = sum;
        let bits = sum.to_bits() & !SIGN;
        largest = if bits > largest { bits } else { largest };
    }
    largest
}

pub(crate) const SIGN: u32 = 1 << 31;

/// 1.5 · 2^23: the adder rounds what is added to it, to nearest, ties to even.
const SHIFT: f32 = 12_582_912.0;

/// The nearest whole number, ties to even, cut off at ± 2^22 - 1.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    const MOST: f32 = 4_194_303.0;
    let x = if x < MOST { x } else { MOST };
    let x = if x > -MOST { x } else { -MOST };
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// Either whole number beside one of magnitude 127 at most: so many digits are compared with random
/// ones.
#[inline(always)]
pub(crate) fn round_random(x: f32, random: i32) -> i32 {
    (round(x * 32768.0).clamp(-127 << 15, 127 << 15) + random) >> 15
}

/// Below this a number with few digits becomes 0: its inverse would overflow.
const SMALLEST: f32 = 7.888_609e-31; // 2^-100

/// So many leading binary digits.
#[inline(always)]
pub(crate) fn digits(x: f32, count: u32) -> f32 {
    let unused = (1 << (24 - count)) - 1;
    if x.abs() < SMALLEST { 0.0 } else { f32::from_bits(x.to_bits() & !unused) }
}

/// The same, rounded away from 0 unless that is infinite.
#[inline(always)]
pub(crate) fn digits_up(x: f32, count: u32) -> f32 {
    let unused = (1 << (24 - count)) - 1;
    let up = f32::from_bits((x.to_bits().wrapping_add(unused)) & !unused);
    if up.is_finite() && x.abs() >= SMALLEST { up } else { digits(x, count) }
}
