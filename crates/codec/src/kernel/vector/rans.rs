//! rANS in vectors: 16 of the 32 states at a time.

use super::lanes::Lanes;
use crate::kernel::group::LANES;
use crate::kernel::rans::{
    self, BIAS_BITS, COMPLEMENT_BITS, DecodeTable, EncodeTable, Encoder, LOWEST, STATES, TOTAL,
    TOTAL_BITS,
};

/// Most bytes that a group of symbols takes.
const GROUP_BYTES: usize = 2 * STATES;

#[inline(always)]
unsafe fn load<L: Lanes>(from: *const u32) -> L::I {
    L::bits(L::load(from.cast()))
}

#[inline(always)]
unsafe fn store<L: Lanes>(to: *mut u32, x: L::I) {
    L::store(to.cast(), L::from_bits(x));
}

#[inline(always)]
pub(in crate::kernel) unsafe fn rans_encode<L: Lanes>(
    coder: &mut Encoder<'_>,
    table: &EncodeTable,
    symbols: &[u8],
) {
    let mut whole = symbols.len() / STATES * STATES;
    rans::rans_encode(coder, table, &symbols[whole..]);
    let states = coder.states.as_mut_ptr();
    let mut halves = [load::<L>(states), load::<L>(states.add(LANES))];
    while whole > 0 && coder.at >= GROUP_BYTES {
        whole -= STATES;
        for (half, x) in halves.iter_mut().enumerate().rev() {
            let from = symbols.as_ptr().add(whole + half * LANES);
            let symbol = L::and(L::load_i8(from.cast()), L::splat_int(0xff));
            let end = coder.output.as_mut_ptr().add(coder.at);
            let words;
            (*x, words) = encode::<L>(*x, symbol, table, end);
            coder.at -= 2 * words;
        }
    }
    store::<L>(states, halves[0]);
    store::<L>(states.add(LANES), halves[1]);
    rans::rans_encode(coder, table, &symbols[..whole]);
}

/// Encodes one symbol into each state; returns the states and how many words were written before `end`.
#[inline(always)]
unsafe fn encode<L: Lanes>(
    x: L::I,
    symbol: L::I,
    table: &EncodeTable,
    end: *mut u8,
) -> (L::I, usize) {
    let step = L::gather_int(table.steps.as_ptr(), symbol);
    let reciprocal = L::gather_int(table.reciprocals.as_ptr(), symbol);
    let bias = L::and(step, L::splat_int((1 << BIAS_BITS) - 1));
    let complement =
        L::and(L::shift_right::<BIAS_BITS>(step), L::splat_int((1 << COMPLEMENT_BITS) - 1));
    let shift = L::shift_right::<{ BIAS_BITS + COMPLEMENT_BITS }>(step);
    let frequency = L::sub_int(L::splat_int(TOTAL), complement);
    // Frequencies are below the total, so the limit is no negative number.
    let most = L::sub_int(L::shift_left::<{ 31 - TOTAL_BITS }>(frequency), L::splat_int(1));
    let (x, words) = L::put_words(x, most, end);
    let quotient = L::shift_right_by(L::mul_wide(x, reciprocal).0, shift);
    (L::add_int(L::add_int(x, bias), L::mul_wide(quotient, complement).1), words)
}

#[inline(always)]
pub(in crate::kernel) unsafe fn rans_decode<L: Lanes>(
    coder: &mut rans::Decoder<'_>,
    table: &DecodeTable,
    symbols: &mut [u8],
) {
    let whole = symbols.len() / STATES * STATES;
    let states = coder.states.as_mut_ptr();
    let mut halves = [load::<L>(states), load::<L>(states.add(LANES))];
    let mut done = 0;
    // The scalar loop takes the last words one by one, and notices if there are too few.
    while done < whole && coder.at + GROUP_BYTES <= coder.words.len() {
        for (half, x) in halves.iter_mut().enumerate() {
            let place = L::and(*x, L::splat_int(TOTAL - 1));
            let entry = L::gather_int(table.0.as_ptr(), place);
            L::store_bytes(symbols.as_mut_ptr().add(done + half * LANES), entry);
            let frequency = L::and(L::shift_right::<8>(entry), L::splat_int(TOTAL - 1));
            let product = L::mul_wide(L::shift_right::<TOTAL_BITS>(*x), frequency).1;
            let next = L::add_int(product, L::shift_right::<20>(entry));
            let words;
            (*x, words) = L::take_words(next, LOWEST, coder.words.as_ptr().add(coder.at));
            coder.at += 2 * words;
        }
        done += STATES;
    }
    store::<L>(states, halves[0]);
    store::<L>(states.add(LANES), halves[1]);
    rans::rans_decode(coder, table, &mut symbols[done..]);
}
