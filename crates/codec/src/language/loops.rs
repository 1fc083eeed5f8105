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

impl<T: Copy> View<'_, T> {
    /// The number of element `at` of a block.
    #[inline(always)]
    fn get(&self, block: usize, at: usize) -> T {
        match self.step {
            0 | 1 => self.data[block * self.step],
            _ => self.data[block * self.step + at],
        }
    }
}

/// `to = f(a)`; both have the same numbers per block, or `a` is one for all.
#[inline(always)]
pub(crate) fn map<A: Copy, C>(to: &mut [C], a: View<'_, A>, f: impl Fn(A) -> C) {
    if a.step == 0 {
        return to.iter_mut().for_each(|to| *to = f(a.data[0]));
    }
    for (to, a) in to.iter_mut().zip(a.data) {
        *to = f(*a);
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
    let length = to.len() / blocks;
    if a.step == length && b.step == length {
        for ((to, a), b) in to.iter_mut().zip(a.data).zip(b.data) {
            *to = f(*a, *b);
        }
        return;
    }
    for (block, to) in to.chunks_exact_mut(length).enumerate() {
        let at = block * length;
        if a.step == length {
            let (a, b) = (&a.data[at..at + length], b.get(block, 0));
            to.iter_mut().zip(a).for_each(|(to, a)| *to = f(*a, b));
        } else if b.step == length {
            let (a, b) = (a.get(block, 0), &b.data[at..at + length]);
            to.iter_mut().zip(b).for_each(|(to, b)| *to = f(a, *b));
        } else {
            let (a, b) = (a.get(block, 0), b.get(block, 0));
            to.iter_mut().for_each(|to| *to = f(a, b));
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
    let per_element = |step| step == length;
    for (block, to) in to.chunks_exact_mut(length).enumerate() {
        let range = block * length..(block + 1) * length;
        if !per_element(mask.step) {
            let chosen = if mask.get(block, 0) != 0 { a } else { b };
            to.iter_mut().enumerate().for_each(|(at, to)| *to = chosen.get(block, at));
            continue;
        }
        let places = to.iter_mut().zip(&mask.data[range.clone()]);
        match (per_element(a.step), per_element(b.step)) {
            (false, false) => {
                let (a, b) = (a.get(block, 0), b.get(block, 0));
                places.for_each(|(to, mask)| *to = if *mask != 0 { a } else { b });
            }
            (true, false) => {
                let (a, b) = (&a.data[range], b.get(block, 0));
                places.zip(a).for_each(|((to, mask), a)| *to = if *mask != 0 { *a } else { b });
            }
            (false, true) => {
                let (a, b) = (a.get(block, 0), &b.data[range]);
                places.zip(b).for_each(|((to, mask), b)| *to = if *mask != 0 { a } else { *b });
            }
            (true, true) => {
                let pairs = a.data[range.clone()].iter().zip(&b.data[range]);
                let choose = |mask: i32, a: T, b: T| if mask != 0 { a } else { b };
                places.zip(pairs).for_each(|((to, mask), (a, b))| *to = choose(*mask, *a, *b));
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
    for (to, block) in to.iter_mut().zip(a.data.chunks_exact(a.step)) {
        let mut lanes = [start; LANES];
        let vectors = block.chunks_exact(LANES);
        let rest = vectors.remainder();
        for vector in vectors {
            for lane in 0..LANES {
                lanes[lane] = fold(lanes[lane], term(vector[lane]));
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane = fold(*lane, term(*x));
        }
        let lanes: [T; 16] = halves(&lanes, &fold);
        let lanes: [T; 8] = halves(&lanes, &fold);
        let lanes: [T; 4] = halves(&lanes, &fold);
        let lanes: [T; 2] = halves(&lanes, &fold);
        *to = fold(lanes[0], lanes[1]);
    }
}

/// The first half with the second.
#[inline(always)]
fn halves<T: Copy, const N: usize>(lanes: &[T], fold: impl Fn(T, T) -> T) -> [T; N] {
    std::array::from_fn(|lane| fold(lanes[lane], lanes[lane + N]))
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
    for (x, residual) in values.iter_mut().zip(residual) {
        let sum = *x + *residual;
        *x = sum;
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
