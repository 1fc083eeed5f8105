//! Loops of number formats in vectors.

use super::lanes::{FormatLanes, Lanes};
use super::source::{Source, rest};
use crate::kernel::group::LANES;
use crate::kernel::scalar;
use crate::{Input, Write};

#[inline(always)]
pub(in crate::kernel) unsafe fn cast_encode<L: Lanes, F: FormatLanes>(
    mut input: Input<'_>,
    output: &mut [u8],
) -> u32 {
    assert_eq!(output.len(), input.len() * F::BYTES);
    let whole = input.len() / LANES * LANES;
    let source = Source::of(&mut input);
    let to = output.as_mut_ptr();
    let found = match input {
        Input::Plain(_) => encode_whole::<L, F, false>(source, to, whole),
        Input::Feedback { .. } => encode_whole::<L, F, true>(source, to, whole),
    };
    found.max(scalar::cast_encode::<F>(rest(input, whole), &mut output[whole * F::BYTES..]))
}

#[inline(always)]
unsafe fn encode_whole<L: Lanes, F: FormatLanes, const FEEDBACK: bool>(
    source: Source,
    output: *mut u8,
    length: usize,
) -> u32 {
    let mut max = L::splat_int(0);
    for at in (0..length).step_by(LANES) {
        let x = source.load::<L, FEEDBACK>(at);
        let bytes = output.add(at * F::BYTES);
        F::store::<L>(bytes, x);
        max = L::max(max, L::magnitude(x));
        if FEEDBACK {
            L::store(source.values.add(at), L::sub(x, F::load::<L>(bytes)));
        }
    }
    L::max_lane(max)
}

#[inline(always)]
pub(in crate::kernel) unsafe fn cast_decode<L: Lanes, F: FormatLanes>(
    encoded: &[u8],
    write: Write,
    values: &mut [f32],
) {
    assert_eq!(encoded.len(), values.len() * F::BYTES);
    let whole = values.len() / LANES * LANES;
    let (from, to) = (encoded.as_ptr(), values.as_mut_ptr());
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
    scalar::cast_decode::<F>(&encoded[whole * F::BYTES..], write, &mut values[whole..]);
}
