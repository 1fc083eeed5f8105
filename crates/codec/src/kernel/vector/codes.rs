//! Loops of `codes` in vectors.

use thinwire_wire::random::Key;

use super::group::{VECTORS, pack, random_group, unpack};
use super::lanes::{CodeLanes, Lanes};
use super::source::{Source, rest};
use crate::kernel::codes::{self, block, group_len};
use crate::kernel::group::{GROUP, LANES};
use crate::{Finite, Input, Write};

/// Calls the loop for the width of the code, or the scalar one for more than 8 bits.
macro_rules! of_width {
    ($code:ident, $function:ident($($argument:expr),*), $other:expr) => {
        match $code.bits() {
            1 => $function::<L, C, 1>($($argument),*),
            2 => $function::<L, C, 2>($($argument),*),
            3 => $function::<L, C, 3>($($argument),*),
            4 => $function::<L, C, 4>($($argument),*),
            5 => $function::<L, C, 5>($($argument),*),
            6 => $function::<L, C, 6>($($argument),*),
            7 => $function::<L, C, 7>($($argument),*),
            8 => $function::<L, C, 8>($($argument),*),
            _ => $other,
        }
    };
}

#[inline(always)]
pub(in crate::kernel) unsafe fn code_encode<L: Lanes, C: CodeLanes>(
    code: C,
    input: Input<'_>,
    key: Key,
    output: &mut [u8],
) -> Finite {
    of_width!(code, encode(code, input, key, output), codes::encode(code, input, key, output))
}

#[inline(always)]
unsafe fn encode<L: Lanes, C: CodeLanes, const BITS: u32>(
    code: C,
    mut input: Input<'_>,
    key: Key,
    output: &mut [u8],
) -> Finite {
    let (blocks, block_bytes) = (input.len() / block::<C>(), codes::block_len(code, block::<C>()));
    let source = Source::of(&mut input);
    let mut finite = Finite::Yes;
    for block in 0..blocks {
        let bytes = &mut output[block * block_bytes..][..block_bytes];
        finite = finite.and(match input {
            Input::Plain(_) => encode_block::<L, C, BITS, false>(code, source, block, key, bytes),
            Input::Feedback { .. } => {
                encode_block::<L, C, BITS, true>(code, source, block, key, bytes)
            }
        });
    }
    let (input, output) = (rest(input, blocks * block::<C>()), &mut output[blocks * block_bytes..]);
    finite.and(codes::encode_from(code, blocks as u64, input, key, output))
}

/// Encodes a block in two passes; after the first one it is in the nearest cache.
#[inline(always)]
unsafe fn encode_block<L: Lanes, C: CodeLanes, const BITS: u32, const FEEDBACK: bool>(
    code: C,
    source: Source,
    block: usize,
    key: Key,
    bytes: &mut [u8],
) -> Finite {
    let first = block * codes::block::<C>();
    let scale = code.block_scale::<L, FEEDBACK>(source, first);
    let packed = codes::write_head::<C>(scale, bytes);
    let Some(scale) = scale else {
        packed.fill(0);
        return Finite::No;
    };
    for (at, packed) in packed.chunks_exact_mut(group_len(code, GROUP)).enumerate() {
        let mut random = [L::splat_int(0); VECTORS];
        if C::RANDOM {
            random = random_group::<L>(key, (block * C::GROUPS + at) as u64);
        }
        let mut codes = [L::splat_int(0); VECTORS];
        for vector in 0..VECTORS {
            let place = source.values.add(first + at * GROUP + vector * LANES);
            let x = L::load(place);
            codes[vector] = code.codes::<L>(x, scale, random[vector]);
            if FEEDBACK {
                L::store(place, L::sub(x, code.values::<L>(codes[vector], scale.scale)));
            }
        }
        pack::<L, BITS>(C::LAYOUT, &codes, packed);
    }
    Finite::Yes
}

#[inline(always)]
pub(in crate::kernel) unsafe fn code_decode<L: Lanes, C: CodeLanes>(
    code: C,
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    of_width!(
        code,
        decode(code, encoded, write, values),
        codes::decode(code, encoded, write, values)
    )
}

#[inline(always)]
unsafe fn decode<L: Lanes, C: CodeLanes, const BITS: u32>(
    code: C,
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    let (blocks, block_bytes) = (values.len() / block::<C>(), codes::block_len(code, block::<C>()));
    let to = values.as_mut_ptr();
    for at in 0..blocks {
        let bytes = &encoded[at * block_bytes..][..block_bytes];
        let to = to.add(at * block::<C>());
        match write {
            Write::Set => decode_block::<L, C, BITS, false>(code, bytes, to),
            Write::Add => decode_block::<L, C, BITS, true>(code, bytes, to),
        }
    }
    let values = &mut values[blocks * block::<C>()..];
    codes::decode(code, &encoded[blocks * block_bytes..], write, values);
}

#[inline(always)]
unsafe fn decode_block<L: Lanes, C: CodeLanes, const BITS: u32, const ADD: bool>(
    code: C,
    bytes: &[u8],
    to: *mut f32,
) {
    let (scale, packed) = codes::read_head::<C>(bytes);
    for (at, packed) in packed.chunks_exact(group_len(code, GROUP)).enumerate() {
        for (vector, codes) in unpack::<L, BITS>(C::LAYOUT, packed).into_iter().enumerate() {
            let to = to.add(at * GROUP + vector * LANES);
            let x = code.values::<L>(codes, scale);
            L::store(to, if ADD { L::add(L::load(to), x) } else { x });
        }
    }
}
