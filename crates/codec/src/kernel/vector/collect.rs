//! Loop that collects large elements in vectors.

use super::lanes::Lanes;
use super::source::{Source, rest};
use crate::Input;
use crate::kernel::group::LANES;
use crate::kernel::scalar::{self, Candidate};

#[inline(always)]
pub(in crate::kernel) unsafe fn collect<L: Lanes>(
    mut input: Input<'_>,
    first: u32,
    threshold: u32,
    found: &mut Vec<Candidate>,
) {
    let whole = input.len() / WORD * WORD;
    let source = Source::of(&mut input);
    found.reserve(whole + AT_ONCE);
    match input {
        Input::Plain(_) => collect_whole::<L, false>(source, whole, first, threshold, found),
        Input::Feedback { .. } => {
            collect_whole::<L, true>(source, whole, first, threshold, found);
        }
    }
    scalar::collect(rest(input, whole), first + whole as u32, threshold, found);
}

/// Elements that are compared before any is written.
const WORD: usize = 4 * LANES;
/// Elements that are written at once, found or not: a mispredicted branch costs more.
const AT_ONCE: usize = 4;

/// Collects from `length` elements; `found` has room for `length` more and [`AT_ONCE`].
#[inline(always)]
unsafe fn collect_whole<L: Lanes, const FEEDBACK: bool>(
    source: Source,
    length: usize,
    first: u32,
    threshold: u32,
    found: &mut Vec<Candidate>,
) {
    let mut to = found.as_mut_ptr().add(found.len());
    let below = L::splat_int(threshold - 1);
    for at in (0..length).step_by(WORD) {
        let mut word = 0;
        for vector in 0..WORD / LANES {
            let at = at + vector * LANES;
            let x = source.load::<L, FEEDBACK>(at);
            if FEEDBACK {
                L::store(source.values.add(at), x);
            }
            word |= u64::from(L::above(L::magnitude(x), below)) << (vector * LANES);
        }
        let end = to.add(word.count_ones() as usize);
        loop {
            for place in 0..AT_ONCE {
                let at = at + word.trailing_zeros() as usize % WORD;
                let bits = (*source.values.add(at)).to_bits();
                to.add(place).write(Candidate { index: first + at as u32, bits });
                word &= word.wrapping_sub(1);
            }
            if word == 0 {
                break;
            }
            to = to.add(AT_ONCE);
        }
        to = end;
    }
    found.set_len(to.offset_from_unsigned(found.as_ptr()));
}
