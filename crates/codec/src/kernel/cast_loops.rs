//! The loops of `format`, written once for vectors of 16 lanes: every element by itself.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every function here is unsafe for the same two reasons, which `Lanes` names"
)]

use super::lanes::{FormatLanes, Lanes};
use super::levels::LANES;
use super::loops::{Source, rest};
use super::scalar;
use crate::{Input, Write};

#[inline(always)]
pub(super) unsafe fn encode<L: Lanes, F: FormatLanes>(
    mut input: Input<'_>,
    output: &mut [u8],
) -> u32 {
    assert_eq!(output.len(), input.len() * F::BYTES);
    let whole = input.len() / LANES * LANES;
    let source = Source::of(&mut input);
    let found = {
        match input {
            Input::Plain(_) => encode_whole::<L, F, false>(source, output.as_mut_ptr(), whole),
            Input::Feedback { .. } => {
                encode_whole::<L, F, true>(source, output.as_mut_ptr(), whole)
            }
        }
    };
    found.max(scalar::encode::<F>(rest(input, whole), &mut output[whole * F::BYTES..]))
}

#[inline(always)]
unsafe fn encode_whole<L: Lanes, F: FormatLanes, const FEEDBACK: bool>(
    source: Source,
    output: *mut u8,
    length: usize,
) -> u32 {
    let mut largest = L::splat_int(0);
    for at in (0..length).step_by(LANES) {
        let x = source.load::<L, FEEDBACK>(at);
        let bytes = output.add(at * F::BYTES);
        F::store::<L>(bytes, x);
        largest = L::max(largest, L::magnitude(x));
        if FEEDBACK {
            L::store(source.values.add(at), L::sub(x, F::load::<L>(bytes)));
        }
    }
    L::largest(largest)
}

#[inline(always)]
pub(super) unsafe fn decode<L: Lanes, F: FormatLanes>(
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    assert_eq!(encoded.len(), values.len() * F::BYTES);
    let whole = values.len() / LANES * LANES;
    let (from, to) = (encoded.as_ptr(), values.as_mut_ptr());
    {
        match write {
            Write::Set => {
                for at in (0..whole).step_by(LANES) {
                    L::store(to.add(at), F::load::<L>(from.add(at * F::BYTES)));
                }
            }
            Write::Add => {
                for at in (0..whole).step_by(LANES) {
                    let x = F::load::<L>(from.add(at * F::BYTES));
                    L::store(to.add(at), L::add(L::load(to.add(at)), x));
                }
            }
        }
    }
    scalar::decode::<F>(&encoded[whole * F::BYTES..], write, &mut values[whole..]);
}
