//! Fields of all blocks, from registers to bytes.

use super::batch::{Batch, Registers};
use super::frame::Place;
use super::loops::{self, View};
use super::pack::{GROUP, pack};
use super::program::{Operand, Step};
use super::random;
use super::wire::Wire;
use crate::Input;
use crate::indices::Indices;
use crate::kernel::{BF16, F16, F32, Format, FormatLanes, imp};

/// Writes a field of all blocks. False if it is a number that is not finite.
#[inline(always)]
pub(crate) fn emit(
    batch: &Batch<'_>,
    registers: &Registers,
    field: usize,
    value: Operand,
    output: &mut [u8],
) -> bool {
    let place = batch.frame.fields[field];
    match place.wire {
        Wire::F32 if place.count == 1 => {
            let view = batch.numbers(registers, value);
            ones(batch, view, place.offset, output);
            loops::largest(view.data) < F32::LIMIT
        }
        Wire::F32 => floats::<F32>(batch, batch.numbers(registers, value), place, output),
        Wire::F16 => floats::<F16>(batch, batch.numbers(registers, value), place, output),
        Wire::Bf16 => floats::<BF16>(batch, batch.numbers(registers, value), place, output),
        _ => {
            wholes(batch, batch.wholes(registers, value), field, output);
            true
        }
    }
}

/// Writes numbers of all blocks in a format. False if it does not hold one of them.
#[inline(always)]
fn floats<F: FormatLanes>(
    batch: &Batch<'_>,
    view: View<'_, f32>,
    place: Place,
    output: &mut [u8],
) -> bool {
    let mut max = 0;
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * place.count..][..place.count];
        max = max.max(imp().cast_encode::<F>(Input::Plain(numbers), bytes));
    }
    max < F::LIMIT
}

/// Writes one f32 of every block.
#[inline(always)]
fn ones(batch: &Batch<'_>, view: View<'_, f32>, offset: usize, output: &mut [u8]) {
    for (block, number) in view.data[..batch.blocks].iter().enumerate() {
        if let Some(bytes) = output[block * batch.frame.bytes + offset..].first_chunk_mut::<4>() {
            *bytes = number.to_le_bytes();
        }
    }
}

#[inline(always)]
fn wholes(batch: &Batch<'_>, view: View<'_, i32>, field: usize, output: &mut [u8]) {
    let place = batch.frame.fields[field];
    let blocks = output.chunks_exact_mut(batch.frame.bytes);
    for (bytes, codes) in blocks.zip(view.data.chunks_exact(place.count)) {
        let bytes = &mut bytes[place.offset..place.offset + place.bytes];
        let (least, most) = place.wire.range();
        let fit = |code: i32| code.max(least).min(most);
        match place.wire {
            Wire::Bits { width: 1, .. } => pack::<1, _>(codes, bytes, fit),
            Wire::Bits { width: 2, .. } => pack::<2, _>(codes, bytes, fit),
            Wire::Bits { width: 4, .. } => pack::<4, _>(codes, bytes, fit),
            Wire::Bits { width: 8, .. } => {
                for (byte, code) in bytes.iter_mut().zip(codes) {
                    *byte = fit(*code) as u8;
                }
            }
            Wire::Bits { .. } => {
                for (bytes, code) in bytes.chunks_exact_mut(2).zip(codes) {
                    bytes.copy_from_slice(&(fit(*code) as u16).to_le_bytes());
                }
            }
            _ => {
                let mut writer = Indices::new(place.count, batch.frame.elements).writer(bytes);
                codes.iter().for_each(|index| writer.push(*index as u32));
            }
        }
    }
}

/// Writes a mask field of all blocks from the sign bits of numbers.
#[inline(always)]
pub(crate) fn negative(batch: &Batch<'_>, view: View<'_, f32>, field: usize, output: &mut [u8]) {
    let place = batch.frame.fields[field];
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * view.step..][..view.step];
        pack::<1, _>(numbers, bytes, |x| (x.to_bits() >> 31) as i32);
    }
}

/// Writes a field of few bits of all blocks from numbers, rounded.
#[inline(always)]
pub(crate) fn round(batch: &Batch<'_>, view: View<'_, f32>, field: usize, output: &mut [u8]) {
    let place = batch.frame.fields[field];
    let (least, most) = place.wire.range();
    let fit = |x: f32| loops::round(x).max(least).min(most);
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * view.step..][..view.step];
        match place.wire {
            Wire::Bits { width: 2, .. } => pack::<2, _>(numbers, bytes, fit),
            _ => pack::<4, _>(numbers, bytes, fit),
        }
    }
}

/// Writes a field of few bits of all blocks from numbers times one number per block, rounded to
/// either side.
#[inline(always)]
pub(crate) fn round_random(
    batch: &Batch<'_>,
    (view, factor): (View<'_, f32>, View<'_, f32>),
    field: usize,
    output: &mut [u8],
) {
    let place = batch.frame.fields[field];
    let (least, most) = place.wire.range();
    let group_bytes = place.wire.bytes(GROUP);
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * view.step..][..view.step];
        let (factor, first) = (factor.one(block), batch.first + (block * view.step) as u64);
        let starts = (first..).step_by(GROUP);
        for ((numbers, bytes), first) in
            numbers.chunks(GROUP).zip(bytes.chunks_mut(group_bytes)).zip(starts)
        {
            // In place, so that what is written is not waited for longer than it must be.
            let mut group = random::group(batch.key, first);
            let codes = &mut group.0;
            let code =
                |x: f32, random: i32| loops::round_random(x * factor, random).max(least).min(most);
            match numbers.first_chunk::<GROUP>() {
                Some(numbers) => {
                    for at in 0..GROUP {
                        codes[at] = code(numbers[at], codes[at]);
                    }
                }
                None => {
                    for (at, x) in numbers.iter().enumerate() {
                        codes[at] = code(*x, codes[at]);
                    }
                }
            }
            match place.wire {
                Wire::Bits { width: 2, .. } => pack::<2, _>(&codes[..numbers.len()], bytes, |x| x),
                _ => pack::<4, _>(&codes[..numbers.len()], bytes, |x| x),
            }
        }
    }
}

/// Writes a field of few bits of all blocks: the code of the first step that holds.
#[inline(always)]
pub(crate) fn steps(
    batch: &Batch<'_>,
    registers: &Registers,
    (steps, other): ([Step; 2], Operand),
    field: usize,
    output: &mut [u8],
) {
    let place = batch.frame.fields[field];
    let (least, most) = place.wire.range();
    let view = batch.numbers(registers, steps[0].element());
    let bounds = steps.map(|step| batch.numbers(registers, step.bound()));
    let codes = [steps[0].code, steps[1].code, other].map(|code| batch.wholes(registers, code));
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * view.step..][..view.step];
        let [one, two, other] = codes.map(|code| code.one(block).max(least).min(most));
        let a = (steps[0].bits(bounds[0].one(block)), one);
        let b = (steps[1].bits(bounds[1].one(block)), two);
        let fit = |x: f32| {
            let holds =
                |((sign, most), _): ((u32, f32), i32)| f32::from_bits(x.to_bits() ^ sign) <= most;
            let second = if holds(b) { b.1 } else { other };
            if holds(a) { a.1 } else { second }
        };
        match place.wire {
            Wire::Bits { width: 2, .. } => pack::<2, _>(numbers, bytes, fit),
            _ => pack::<4, _>(numbers, bytes, fit),
        }
    }
}
