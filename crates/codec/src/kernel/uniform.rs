//! Uniform quantisation with a dead zone: symbols of one byte, and reconstruction at centroids.
//!
//! Symbol 128 + l is level l, from -127 to 127. Symbol 0 is an escape: a value beyond all levels, which is
//! sent as it is.

use std::ops::{AddAssign, Mul};

use super::dispatch::Work;
use crate::Write;

/// Symbol of level 0.
pub(crate) const ZERO: u8 = 128;
/// Symbol of values beyond all levels.
pub(crate) const ESCAPE: u8 = 0;
/// Level beyond which there are escapes.
const LEVEL_MAX: f32 = 127.0;
/// Dead zone: part of a step by which a magnitude must exceed the middle between two levels to reach the
/// upper one. Upper levels are rarer, and cost more bits than they save error.
pub(crate) const DEAD_ZONE: f32 = 0.1;

/// Lanes of sums: a fixed number, so that every machine adds in the same order.
const LANES: usize = 16;
/// Number of elements that are summed in lanes of f32, whose sum is then added to one in f64.
pub(super) const CHUNK: usize = 4096;

/// Addition of a residual; returns the sum of the squares.
pub(crate) struct AddSquares<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) residual: &'a [f32],
}

impl Work for AddSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let chunks = self.values.chunks_mut(CHUNK).zip(self.residual.chunks(CHUNK));
        let sums = chunks.map(|(values, residual)| {
            values.iter_mut().zip(residual).for_each(|(x, residual)| *x += residual);
            chunk_squares(values)
        });
        sums.fold(0.0, |sum, of_chunk| sum + of_chunk)
    }
}

/// Sum of the squares of values: of each chunk in lanes, the lanes in order, then the chunks in order. A
/// device adds in the same order, with a thread for each lane of a chunk.
pub(crate) struct Squares<'a>(pub(crate) &'a [f32]);

impl Work for Squares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        self.0.chunks(CHUNK).map(chunk_squares).fold(0.0, |sum, of_chunk| sum + of_chunk)
    }
}

#[inline(always)]
fn chunk_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    let (groups, rest) = values.as_chunks::<LANES>();
    groups.iter().for_each(|group| add_squares(&mut sums, group));
    add_squares(&mut sums, rest);
    sums.iter().sum()
}

#[inline(always)]
fn add_squares(sums: &mut [f64; LANES], values: &[f32]) {
    for (sum, x) in sums.iter_mut().zip(values) {
        *sum += f64::from(*x) * f64::from(*x);
    }
}

/// Places of the symbols that are escapes.
pub(crate) struct Escapes<'a>(pub(crate) &'a [u8]);

impl Work for Escapes<'_> {
    type Output = Vec<usize>;

    #[inline(always)]
    fn run(self) -> Vec<usize> {
        /// Symbols that are looked at together: escapes are rare.
        const GROUP: usize = 128;
        let mut places = Vec::new();
        for (group, first) in self.0.chunks(GROUP).zip((0..).step_by(GROUP)) {
            if group.iter().fold(u8::MAX, |least, symbol| least.min(*symbol)) == ESCAPE {
                let escapes = (first..).zip(group).filter(|(_, symbol)| **symbol == ESCAPE);
                places.extend(escapes.map(|(place, _)| place));
            }
        }
        places
    }
}

/// Sums of magnitudes, in steps, from which centroids follow: of level 1, of level 2, and of the
/// differences between the magnitudes of further levels and the numbers of these levels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) first: f64,
    pub(crate) second: f64,
    pub(crate) further: f64,
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Sums) {
        self.first += other.first;
        self.second += other.second;
        self.further += other.further;
    }
}

impl Mul<f64> for Sums {
    type Output = Sums;

    fn mul(self, factor: f64) -> Sums {
        Sums {
            first: self.first * factor,
            second: self.second * factor,
            further: self.further * factor,
        }
    }
}

/// Quantisation: writes one symbol per value, and returns the sums from which centroids follow.
pub(crate) struct Quantise<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) symbols: &'a mut [u8],
    /// 1 over the step; 0 where all values are 0.
    pub(crate) inverse: f32,
}

impl Work for Quantise<'_> {
    type Output = Sums;

    #[inline(always)]
    fn run(self) -> Sums {
        let mut sums = Sums::default();
        let chunks = self.values.chunks(CHUNK).zip(self.symbols.chunks_mut(CHUNK));
        for (values, symbols) in chunks {
            let mut lanes = [[0.0_f32; LANES]; 3];
            let (groups, rest) = values.as_chunks::<LANES>();
            let (places, rest_places) = symbols.as_chunks_mut::<LANES>();
            for (group, places) in groups.iter().zip(places) {
                quantise(group, places, self.inverse, &mut lanes);
            }
            let (mut last, mut last_places) = ([0.0; LANES], [0; LANES]);
            last[..rest.len()].copy_from_slice(rest);
            quantise(&last, &mut last_places, self.inverse, &mut lanes);
            rest_places.copy_from_slice(&last_places[..rest.len()]);
            let [first, second, further] = lanes.map(|lanes| f64::from(lanes.iter().sum::<f32>()));
            sums += Sums { first, second, further };
        }
        sums
    }
}

#[inline(always)]
fn quantise(
    values: &[f32; LANES],
    symbols: &mut [u8; LANES],
    inverse: f32,
    sums: &mut [[f32; LANES]; 3],
) {
    // Adding 1.5 * 2^23 rounds to the nearest, ties to even, and leaves the integer in the last digits.
    const SHIFT: f32 = 12_582_912.0;
    // Beyond all levels there is one more, whose symbol is that of an escape for either sign.
    let steps = values.map(|x| {
        let steps = x.abs() * inverse;
        if steps < LEVEL_MAX + 1.0 { steps } else { LEVEL_MAX + 1.0 }
    });
    let shifted = steps.map(|steps| steps - DEAD_ZONE + SHIFT);
    for lane in 0..LANES {
        let level = shifted[lane].to_bits().wrapping_sub(SHIFT.to_bits());
        let negative = values[lane].to_bits() >> 31;
        let signed = (level ^ negative.wrapping_neg()).wrapping_add(negative);
        symbols[lane] = signed.wrapping_add(ZERO.into()) as u8;
    }
    for lane in 0..LANES {
        let (steps, level) = (steps[lane], shifted[lane] - SHIFT);
        sums[0][lane] += if level == 1.0 { steps } else { 0.0 };
        sums[1][lane] += if level == 2.0 { steps } else { 0.0 };
        let further = if level <= LEVEL_MAX { steps - level } else { 0.0 };
        sums[2][lane] += if level > 2.0 { further } else { 0.0 };
    }
}

/// Values that levels are decoded to, in steps: those of levels 1 and 2, and the offset that is added to
/// the number of each further level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Levels {
    pub(crate) first: f32,
    pub(crate) second: f32,
    pub(crate) further: f32,
}

impl Levels {
    /// Returns the value of a symbol; for an escape a placeholder, finite if the step is.
    #[inline(always)]
    fn value(self, symbol: u8, step: f32) -> f32 {
        let level = (i32::from(symbol) - i32::from(ZERO)) as f32;
        let number = level.abs();
        let upper = if number == 2.0 { self.second } else { number + self.further };
        let steps = if number <= 1.0 { self.first * number } else { upper };
        let magnitude = steps * step;
        let magnitude = if magnitude < f32::MAX { magnitude } else { f32::MAX };
        if level < 0.0 { -magnitude } else { magnitude }
    }
}

/// Reconstruction: writes the values of symbols, or adds them.
pub(crate) struct Restore<'a> {
    pub(crate) symbols: &'a [u8],
    pub(crate) levels: Levels,
    pub(crate) step: f32,
    pub(crate) write: Write,
    pub(crate) values: &'a mut [f32],
}

impl Work for Restore<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pairs = self.values.iter_mut().zip(self.symbols);
        match self.write {
            Write::Set => pairs.for_each(|(x, symbol)| *x = self.levels.value(*symbol, self.step)),
            Write::Add => pairs.for_each(|(x, symbol)| *x += self.levels.value(*symbol, self.step)),
        }
    }
}

/// Subtraction of the values of symbols, which leaves the residual.
pub(crate) struct Subtract<'a> {
    pub(crate) symbols: &'a [u8],
    pub(crate) levels: Levels,
    pub(crate) step: f32,
    pub(crate) values: &'a mut [f32],
}

impl Work for Subtract<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pairs = self.values.iter_mut().zip(self.symbols);
        pairs.for_each(|(x, symbol)| *x -= self.levels.value(*symbol, self.step));
    }
}
