//! Loops of `levels` in vectors: blocks of small integers under a scale.

use thinwire_wire::random::Key;

use super::lanes::{Lanes, LevelsLanes};
use super::source::{Source, rest, sum_block};
use crate::kernel::bits::read_f32;
use crate::kernel::levels::{GROUP, Group, LANES, RANDOM_BITS, SCALE_BYTES, Scale};
use crate::kernel::scalar;
use crate::{Finite, Input, Write};

#[inline(always)]
pub(in crate::kernel) unsafe fn quantise<L: Lanes, Q: LevelsLanes>(
    mut input: Input<'_>,
    key: Option<Key>,
    output: &mut [u8],
) -> Finite {
    let blocks = input.len() / Q::BLOCK;
    let source = Source::of(&mut input);
    let mut finite = Finite::Yes;
    for block in 0..blocks {
        let bytes = &mut output[block * Q::BLOCK_BYTES..][..Q::BLOCK_BYTES];
        let at = block * Q::BLOCK;
        finite = finite.and(match (&input, key) {
            (Input::Plain(_), None) => {
                quantise_block::<L, Q, false, false>(source, at, None, bytes)
            }
            (Input::Plain(_), key) => quantise_block::<L, Q, false, true>(source, at, key, bytes),
            (_, None) => quantise_block::<L, Q, true, false>(source, at, None, bytes),
            (_, key) => quantise_block::<L, Q, true, true>(source, at, key, bytes),
        });
    }
    let (input, output) = (rest(input, blocks * Q::BLOCK), &mut output[blocks * Q::BLOCK_BYTES..]);
    finite.and(scalar::quantise_from::<Q>(blocks, input, key, output))
}

/// Encodes a block in two passes; after the first one it is in the nearest cache.
#[inline(always)]
unsafe fn quantise_block<L: Lanes, Q: LevelsLanes, const FEEDBACK: bool, const RANDOM: bool>(
    source: Source,
    first: usize,
    key: Option<Key>,
    bytes: &mut [u8],
) -> Finite {
    let (head, codes) = bytes.split_at_mut(SCALE_BYTES);
    let max = sum_block::<L, FEEDBACK>(source, first, Q::BLOCK);
    let Some(Scale { scale, inverse }) = Scale::of(max, Q::MAX, RANDOM) else {
        head.copy_from_slice(&f32::NAN.to_le_bytes());
        codes.fill(0);
        return Finite::No;
    };
    head.copy_from_slice(&scale.to_le_bytes());
    let to = codes.as_mut_ptr();
    let digits = if RANDOM { inverse * (1 << RANDOM_BITS) as f32 } else { inverse };
    let (inverse, scale) = (L::splat(digits), L::splat(scale));
    let mut random = [L::splat_int(0); GROUP / LANES];
    for pair in 0..Q::BLOCK / 32 {
        let at = first + pair * 32;
        if let (true, Some(key), 0) = (RANDOM, key, at % GROUP) {
            random = random_group::<L>(key, (at / GROUP) as u64);
        }
        let values = [source.values.add(at), source.values.add(at + LANES)];
        let mut codes = [L::splat_int(0); 2];
        for half in 0..2 {
            let x = L::load(values[half]);
            let mut code = L::round(L::mul(x, inverse));
            if RANDOM {
                let sum = L::add_int(code, random[(at % GROUP) / LANES + half]);
                let floor = L::shift_right_signed::<RANDOM_BITS>(sum);
                code = L::min(floor, L::splat_int(Q::MAX as u32));
            }
            if FEEDBACK {
                L::store(values[half], L::sub(x, L::mul(L::float(code), scale)));
            }
            codes[half] = code;
        }
        Q::store_codes::<L>(to, pair, codes);
    }
    Finite::Yes
}

/// Computes the numbers of `levels::random_group`.
#[inline(always)]
pub(super) unsafe fn random_group<L: Lanes>(key: Key, group: u64) -> [L::I; GROUP / LANES] {
    let (counter, [key0, key1]) = key.philox_input(group * LANES as u64);
    let mut c = counter.map(|word| L::splat_int(word));
    c[0] = L::add_int(c[0], L::iota());
    let mut keys = [key0, key1];
    for _ in 0..10 {
        let low = L::mul_wide(c[0], L::splat_int(0xD251_1F53));
        let high = L::mul_wide(c[2], L::splat_int(0xCD9E_8D57));
        c = [
            L::xor(L::xor(high.0, c[1]), L::splat_int(keys[0])),
            high.1,
            L::xor(L::xor(low.0, c[3]), L::splat_int(keys[1])),
            low.1,
        ];
        keys = [keys[0].wrapping_add(0x9E37_79B9), keys[1].wrapping_add(0xBB67_AE85)];
    }
    let lower = L::splat_int(0x7fff);
    let mut random = [lower; GROUP / LANES];
    for word in 0..4 {
        random[2 * word] = L::and(L::shift_right::<1>(c[word]), lower);
        random[2 * word + 1] = L::shift_right::<17>(c[word]);
    }
    random
}

#[inline(always)]
pub(in crate::kernel) unsafe fn random<L: Lanes>(key: Key, group: u64) -> Group {
    let mut words = Group([0; GROUP]);
    for (vector, random) in random_group::<L>(key, group).into_iter().enumerate() {
        L::store(words.0.as_mut_ptr().add(vector * LANES).cast(), L::from_bits(random));
    }
    words
}

#[inline(always)]
pub(in crate::kernel) unsafe fn dequantise<L: Lanes, Q: LevelsLanes>(
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    let blocks = values.len() / Q::BLOCK;
    let to = values.as_mut_ptr();
    for block in 0..blocks {
        let (head, codes) = encoded[block * Q::BLOCK_BYTES..].split_at(SCALE_BYTES);
        let scale = read_f32(head);
        let codes = codes[..Q::BLOCK_BYTES - SCALE_BYTES].as_ptr();
        let (to, scale) = (to.add(block * Q::BLOCK), L::splat(scale));
        match write {
            Write::Set => dequantise_block::<L, Q, false>(codes, scale, to),
            Write::Add => dequantise_block::<L, Q, true>(codes, scale, to),
        }
    }
    let encoded = &encoded[blocks * Q::BLOCK_BYTES..];
    scalar::dequantise::<Q>(encoded, write, &mut values[blocks * Q::BLOCK..]);
}

#[inline(always)]
unsafe fn dequantise_block<L: Lanes, Q: LevelsLanes, const ADD: bool>(
    codes: *const u8,
    scale: L::F,
    to: *mut f32,
) {
    for pair in 0..Q::BLOCK / 32 {
        let codes = Q::load_codes::<L>(codes, pair);
        for (half, code) in codes.into_iter().enumerate() {
            let to = to.add(pair * 32 + half * LANES);
            let x = L::mul(L::float(code), scale);
            L::store(to, if ADD { L::add(L::load(to), x) } else { x });
        }
    }
}
