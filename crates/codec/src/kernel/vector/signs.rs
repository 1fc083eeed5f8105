//! Loops of `signs` in vectors.

use super::lanes::Lanes;
use super::source::{Source, rest};
use crate::kernel::bits::read_f32;
use crate::kernel::levels::{LANES, SCALE_BYTES};
use crate::kernel::scalar::SUMS;
use crate::kernel::signs::{self, BLOCK, SHARE, Signs, Unit};
use crate::{Finite, Input, Write};

#[inline(always)]
pub(in crate::kernel) unsafe fn sign_encode<L: Lanes, S: Signs>(
    mut input: Input<'_>,
    output: &mut [u8],
) -> Finite {
    let blocks = input.len() / BLOCK;
    let source = Source::of(&mut input);
    let mut finite = Finite::Yes;
    for block in 0..blocks {
        let bytes = &mut output[block * S::BLOCK_BYTES..][..S::BLOCK_BYTES];
        finite = finite.and(match input {
            Input::Plain(_) => encode_block::<L, S, false>(source, block * BLOCK, bytes),
            Input::Feedback { .. } => encode_block::<L, S, true>(source, block * BLOCK, bytes),
        });
    }
    let output = &mut output[blocks * S::BLOCK_BYTES..];
    finite.and(signs::encode::<S>(rest(input, blocks * BLOCK), output))
}

/// Encodes a block in two passes; after the first one it is in the nearest cache.
#[inline(always)]
unsafe fn encode_block<L: Lanes, S: Signs, const FEEDBACK: bool>(
    source: Source,
    first: usize,
    bytes: &mut [u8],
) -> Finite {
    let (head, codes) = bytes.split_at_mut(SCALE_BYTES);
    let Some(unit) = Unit::of::<S>(shares::<L, FEEDBACK>(source, first), BLOCK) else {
        head.copy_from_slice(&f32::NAN.to_le_bytes());
        codes.fill(0);
        return Finite::No;
    };
    head.copy_from_slice(&unit.one.to_le_bytes());
    let (vectors, most) = (Units::<L>::of(unit), L::splat_int(unit.most.wrapping_add(1)));
    for plane in 0..BLOCK / S::PLANE {
        let mut together = L::splat_int(0);
        for vector in (0..S::PLANE / LANES).rev() {
            let place = source.values.add(first + plane * S::PLANE + vector * LANES);
            let x = L::load(place);
            let mut code = L::shift_right::<31>(L::bits(x));
            if S::BITS == 2 {
                // Negative where the magnitude is above the largest that counts as one unit: most - x.
                let minus = L::xor(L::magnitude(x), L::splat_int(u32::MAX));
                let large = L::shift_right::<30>(L::add_int(most, minus));
                code = L::or(code, L::and(large, L::splat_int(2)));
            }
            if FEEDBACK {
                L::store(place, L::sub(x, vectors.value::<S>(code)));
            }
            together = L::or(shift::<L, S, true>(together), code);
        }
        L::store_bytes(codes.as_mut_ptr().add(plane * LANES), together);
    }
    Finite::Yes
}

/// Adds the residual to a block; returns the sum of magnitudes over [`BLOCK`].
#[inline(always)]
unsafe fn shares<L: Lanes, const FEEDBACK: bool>(source: Source, first: usize) -> f32 {
    let mut sums = [L::splat(0.0); SUMS / LANES];
    for at in (first..first + BLOCK).step_by(SUMS) {
        for (half, sum) in sums.iter_mut().enumerate() {
            let at = at + half * LANES;
            let x = source.load::<L, FEEDBACK>(at);
            if FEEDBACK {
                L::store(source.values.add(at), x);
            }
            *sum = L::add(*sum, L::mul(L::from_bits(L::magnitude(x)), L::splat(SHARE)));
        }
    }
    L::sum(L::add(sums[0], sums[1]))
}

/// Shifts by one code, to the left or to the right.
#[inline(always)]
unsafe fn shift<L: Lanes, S: Signs, const LEFT: bool>(x: L::I) -> L::I {
    match (S::BITS, LEFT) {
        (1, true) => L::shift_left::<1>(x),
        (_, true) => L::shift_left::<2>(x),
        (1, false) => L::shift_right::<1>(x),
        (_, false) => L::shift_right::<2>(x),
    }
}

/// Decoded magnitudes as bits in every lane.
struct Units<L: Lanes> {
    one: L::I,
    /// Bits in which one unit and three differ.
    three: L::I,
}

impl<L: Lanes> Units<L> {
    #[inline(always)]
    unsafe fn of(unit: Unit) -> Units<L> {
        let (one, three) = (unit.one.to_bits(), unit.three.to_bits());
        Units { one: L::splat_int(one), three: L::splat_int(one ^ three) }
    }

    /// Decodes the lowest code of every lane; higher bits are ignored.
    #[inline(always)]
    unsafe fn value<S: Signs>(&self, codes: L::I) -> L::F {
        let mut bits = L::xor(L::shift_left::<31>(codes), self.one);
        if S::BITS == 2 {
            let large = L::shift_right_signed::<31>(L::shift_left::<30>(codes));
            bits = L::xor(bits, L::and(large, self.three));
        }
        L::from_bits(bits)
    }
}

#[inline(always)]
pub(in crate::kernel) unsafe fn sign_decode<L: Lanes, S: Signs>(
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    let blocks = values.len() / BLOCK;
    let to = values.as_mut_ptr();
    for block in 0..blocks {
        let bytes = &encoded[block * S::BLOCK_BYTES..][..S::BLOCK_BYTES];
        let to = to.add(block * BLOCK);
        match write {
            Write::Set => decode_block::<L, S, false>(bytes, to),
            Write::Add => decode_block::<L, S, true>(bytes, to),
        }
    }
    signs::decode::<S>(&encoded[blocks * S::BLOCK_BYTES..], write, &mut values[blocks * BLOCK..]);
}

#[inline(always)]
unsafe fn decode_block<L: Lanes, S: Signs, const ADD: bool>(bytes: &[u8], to: *mut f32) {
    let (head, codes) = bytes.split_at(SCALE_BYTES);
    let unit = Unit::new(read_f32(head));
    let vectors = Units::<L>::of(unit);
    for plane in 0..BLOCK / S::PLANE {
        let mut together = L::load_i8(codes.as_ptr().add(plane * LANES));
        for vector in 0..S::PLANE / LANES {
            let to = to.add(plane * S::PLANE + vector * LANES);
            let x = vectors.value::<S>(together);
            L::store(to, if ADD { L::add(L::load(to), x) } else { x });
            together = shift::<L, S, false>(together);
        }
    }
}
