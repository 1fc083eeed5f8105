//! One byte per element, finest near zero.
//!
//! Dettmers et al., "8-bit optimizers via block-wise quantization" (2021, section 2.1), with a symmetric
//! table. Magnitudes up to the largest one of the block are divided into seven decades; decade `i` has
//! `2^i` evenly spaced magnitudes. With 0, that makes 128 magnitudes. A code is a number from -127 to
//! 127.
//!
//! Law: every value becomes the nearest number of the table.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::kernel::bits::{SIGN, round};
use crate::kernel::codes::Code;
use crate::kernel::{Rounding, Scale};
use crate::{Bound, Claims};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "dynamic8",
    summary: "seven decades of levels, 132 bytes per 128 elements",
    examples: &["dynamic8"],
    parse: |parameter| without_parameter("dynamic8", parameter, Coded(Dynamic8)),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Dynamic8;

const DECADES: usize = 7;
/// Largest magnitude of the table before it is normalised to 1.
const TOP: f64 = 0.1 + 0.9 * 63.5 / 64.0;

/// Returns magnitude `index` of decade `decade`.
const fn magnitude(decade: usize, index: usize) -> f64 {
    let mut unit = 1.0 / TOP;
    let mut at = decade;
    while at < DECADES - 1 {
        unit /= 10.0;
        at += 1;
    }
    unit * (0.1 + 0.9 * (index as f64 + 0.5) / (1 << decade) as f64)
}

/// Magnitudes of the codes 0..=127.
pub(crate) const MAGNITUDES: [f32; 128] = {
    let mut table = [0.0; 128];
    let mut code = 1;
    while code < 128usize {
        let decade = code.ilog2() as usize;
        table[code] = magnitude(decade, code - (1 << decade)) as f32;
        code += 1;
    }
    table
};

/// Start of every decade, half-way to the largest magnitude of the one below; magnitude of the first
/// code of the decade; and codes per unit.
pub(crate) const STARTS: [(f32, f32, f32); DECADES] = {
    let mut starts = [(0.0, 0.0, 0.0); DECADES];
    let mut decade = 0;
    while decade < DECADES {
        let first = 1usize << decade;
        let below = if decade == 0 { 0.0 } else { magnitude(decade - 1, first / 2 - 1) };
        let own = magnitude(decade, 0);
        let step = own - 0.1 * own / (0.1 + 0.45 / first as f64);
        starts[decade] = (((below + own) / 2.0) as f32, own as f32, (0.5 / step) as f32);
        decade += 1;
    }
    starts
};

impl Code for Dynamic8 {
    const SCALED: bool = true;

    fn name(&self) -> String {
        "dynamic8".to_owned()
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        8
    }

    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        Scale::of(max, 1, Rounding::Nearest)
    }

    #[inline(always)]
    fn code(&self, x: f32, scale: Scale, _random: u32) -> u32 {
        // The decade is found by comparisons, the place in it by arithmetic: vectors have no search.
        let y = x.abs() * scale.inverse;
        let (mut place, mut last) = (0.0, 0.0f32);
        for (decade, (start, first, per_unit)) in STARTS.into_iter().enumerate() {
            let codes = (1 << decade) as f32;
            let own = codes + ((y - first) * per_unit).max(0.0);
            place = if y >= start { own } else { place };
            last = if y >= start { 2.0 * codes - 1.0 } else { last };
        }
        let code = round(place.min(last));
        (if x.to_bits() & SIGN == 0 { code } else { -code }) as u32
    }

    #[inline(always)]
    fn value(&self, code: u32, scale: f32) -> f32 {
        let code = code as u8 as i8;
        let magnitude = MAGNITUDES[usize::from(code.unsigned_abs() & 0x7f)] * scale;
        if code < 0 { -magnitude } else { magnitude }
    }

    fn bound(&self, elements: usize) -> Bound {
        // The largest element is exact, and no other is farther from the table than half of the
        // widest step.
        let step = 0.45 / 64.0 / TOP;
        Bound::Contraction(1.0 - (elements - 1) as f64 * step * step)
    }

    fn claims(&self) -> Claims {
        Claims { exact: false, ..Claims::ALL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_grows_from_zero_to_one() {
        assert_eq!((MAGNITUDES[0], MAGNITUDES[127]), (0.0, 1.0));
        assert!(MAGNITUDES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn arithmetic_finds_what_a_search_finds() {
        let scale = Scale { scale: 1.0, inverse: 1.0 };
        for i in 0..200_000u32 {
            let x = (i as f32 / 200_000.0).powi(3);
            let found = Dynamic8.value(Dynamic8.code(x, scale, 0), 1.0);
            let best = MAGNITUDES.iter().map(|y| (x - y).abs()).fold(f32::MAX, f32::min);
            assert!((x - found).abs() <= best * 1.0001 + 1e-9, "{x} became {found}");
        }
    }
}
