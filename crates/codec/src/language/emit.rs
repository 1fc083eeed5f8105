//! Fields of all blocks, from registers to bytes.

use super::batch::{Batch, Registers};
use super::frame::Place;
use super::loops::{self, View};
use super::pack::{GROUP, pack};
use super::program::Operand;
use super::random;
use super::wire::Wire;
use crate::Input;
use crate::indices::Indices;
use crate::kernel::{BF16, F16, F32, Format, FormatLanes, imp};

/// Writes a field of all blocks; returns whether its format holds all numbers.
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
        // A scale per block: calling a kernel for each would cost more than the loop.
        Wire::F32 if place.count == 1 => {
            let numbers = &batch.numbers(registers, value).data[..batch.blocks];
            for (block, number) in numbers.iter().enumerate() {
                output[batch.bytes(place, block)].copy_from_slice(&number.to_le_bytes());
            }
            imp().max_magnitude(numbers) < F32::LIMIT
        }
        Wire::F32 => floats::<F32>(batch, batch.numbers(registers, value), place, output),
        Wire::F16 => floats::<F16>(batch, batch.numbers(registers, value), place, output),
        Wire::Bf16 => floats::<BF16>(batch, batch.numbers(registers, value), place, output),
        Wire::Indices => {
            let indices = batch.ints(registers, value).data;
            for (block, indices) in indices.chunks_exact(place.count).enumerate() {
                let layout = Indices::new(place.count, batch.frame.elements);
                let mut writer = layout.writer(&mut output[batch.bytes(place, block)]);
                indices.iter().for_each(|index| writer.push(*index as u32));
            }
            true
        }
        Wire::Bits { .. } => {
            let (min, max) = place.wire.range();
            let codes = batch.ints(registers, value).data.chunks_exact(place.count);
            for (block, codes) in codes.enumerate() {
                let bytes = &mut output[batch.bytes(place, block)];
                write(place.wire, codes, bytes, |code| code.max(min).min(max));
            }
            true
        }
    }
}

/// Writes numbers of all blocks in a format; returns whether the format holds all of them.
#[inline(always)]
fn floats<F: FormatLanes>(
    batch: &Batch<'_>,
    view: View<'_, f32>,
    place: Place,
    output: &mut [u8],
) -> bool {
    let mut max = 0;
    for block in 0..batch.blocks {
        let numbers = &view.data[block * place.count..][..place.count];
        let bytes = &mut output[batch.bytes(place, block)];
        max = max.max(imp().cast_encode::<F>(Input::Plain(numbers), bytes));
    }
    max < F::LIMIT
}

/// Writes the codes of some values of a block.
#[inline(always)]
fn write(wire: Wire, values: &[i32], bytes: &mut [u8], code: impl Fn(i32) -> i32) {
    match wire {
        Wire::Bits { width: 1, .. } => pack::<1>(values, bytes, code),
        Wire::Bits { width: 2, .. } => pack::<2>(values, bytes, code),
        Wire::Bits { width: 4, .. } => pack::<4>(values, bytes, code),
        Wire::Bits { width: 8, .. } => {
            for (byte, value) in bytes.iter_mut().zip(values) {
                *byte = code(*value) as u8;
            }
        }
        _ => {
            for (bytes, value) in bytes.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&(code(*value) as u16).to_le_bytes());
            }
        }
    }
}

/// Writes a field of few bits of all blocks from numbers times one number per block, rounded at
/// random.
#[inline(always)]
pub(crate) fn round_random(
    batch: &Batch<'_>,
    view: View<'_, f32>,
    factor: View<'_, f32>,
    field: usize,
    output: &mut [u8],
) {
    let place = batch.frame.fields[field];
    let (min, max) = place.wire.range();
    let group_bytes = place.wire.bytes(GROUP);
    for block in 0..batch.blocks {
        let bytes = &mut output[batch.bytes(place, block)];
        let numbers = &view.data[block * view.step..][..view.step];
        let (factor, first) = (factor.one(block), batch.first + (block * view.step) as u64);
        let starts = (first..).step_by(GROUP);
        for ((numbers, bytes), first) in
            numbers.chunks(GROUP).zip(bytes.chunks_mut(group_bytes)).zip(starts)
        {
            // Codes replace their random numbers, so that they stay in registers or the cache.
            let mut group = random::group(batch.key, first);
            let codes = &mut group.0[..numbers.len()];
            for (code, x) in codes.iter_mut().zip(numbers) {
                *code = loops::round_random(x * factor, *code).max(min).min(max);
            }
            write(place.wire, codes, bytes, |code| code);
        }
    }
}
