//! Between registers and bytes, and from registers to values.

use super::loops::{self, View};
use super::pack::{pack, unpack};
use super::program::{Operand, Source};
use super::run::{Batch, Put, Registers};
use super::wire::Wire;
use crate::Error;
use crate::indices::Indices;
use crate::kernel::{BF16, F16, F32, Format};

/// Writes a field of all blocks. False if it is a number that is not finite.
#[inline(always)]
pub(crate) fn emit(
    batch: &Batch<'_>,
    registers: &Registers,
    field: usize,
    value: Operand,
    output: &mut [u8],
) -> bool {
    match batch.frame.fields[field].wire {
        Wire::F32 => emit_numbers::<F32>(batch, batch.numbers(registers, value), field, output),
        Wire::F16 => emit_numbers::<F16>(batch, batch.numbers(registers, value), field, output),
        Wire::Bf16 => emit_numbers::<BF16>(batch, batch.numbers(registers, value), field, output),
        _ => {
            emit_wholes(batch, batch.wholes(registers, value), field, output);
            true
        }
    }
}

#[inline(always)]
fn emit_numbers<F: Format>(
    batch: &Batch<'_>,
    view: View<'_, f32>,
    field: usize,
    output: &mut [u8],
) -> bool {
    let place = batch.frame.fields[field];
    let blocks = output.chunks_exact_mut(batch.frame.bytes);
    for (bytes, numbers) in blocks.zip(view.data.chunks_exact(place.count)) {
        let bytes = &mut bytes[place.offset..place.offset + place.bytes];
        for (bytes, x) in bytes.chunks_exact_mut(F::BYTES).zip(numbers) {
            F::put(*x, bytes);
        }
    }
    loops::largest(view.data) < F::LIMIT
}

#[inline(always)]
fn emit_wholes(batch: &Batch<'_>, view: View<'_, i32>, field: usize, output: &mut [u8]) {
    let place = batch.frame.fields[field];
    let blocks = output.chunks_exact_mut(batch.frame.bytes);
    for (bytes, codes) in blocks.zip(view.data.chunks_exact(place.count)) {
        let bytes = &mut bytes[place.offset..place.offset + place.bytes];
        let (least, most) = place.wire.range();
        match place.wire {
            Wire::Bits { width: 1, .. } => pack::<1>(codes, bytes, (least, most)),
            Wire::Bits { width: 2, .. } => pack::<2>(codes, bytes, (least, most)),
            Wire::Bits { width: 4, .. } => pack::<4>(codes, bytes, (least, most)),
            Wire::Bits { width: 8, .. } => {
                for (byte, code) in bytes.iter_mut().zip(codes) {
                    *byte = (*code).max(least).min(most) as u8;
                }
            }
            Wire::Bits { .. } => {
                for (bytes, code) in bytes.chunks_exact_mut(2).zip(codes) {
                    bytes.copy_from_slice(&((*code).max(least).min(most) as u16).to_le_bytes());
                }
            }
            _ => {
                let mut writer = Indices::new(place.count, batch.frame.elements).writer(bytes);
                codes.iter().for_each(|index| writer.push(*index as u32));
            }
        }
    }
}

/// Reads a field of numbers of all blocks.
#[inline(always)]
pub(crate) fn take_numbers(batch: &Batch<'_>, field: usize, to: &mut [f32]) {
    match batch.frame.fields[field].wire {
        Wire::F16 => take_format::<F16>(batch, field, to),
        Wire::Bf16 => take_format::<BF16>(batch, field, to),
        _ => take_format::<F32>(batch, field, to),
    }
}

#[inline(always)]
fn take_format<F: Format>(batch: &Batch<'_>, field: usize, to: &mut [f32]) {
    let place = batch.frame.fields[field];
    let blocks = batch.encoded.chunks_exact(batch.frame.bytes);
    for (bytes, numbers) in blocks.zip(to.chunks_exact_mut(place.count)) {
        let bytes = &bytes[place.offset..place.offset + place.bytes];
        for (bytes, x) in bytes.chunks_exact(F::BYTES).zip(numbers) {
            *x = F::get(bytes);
        }
    }
}

/// Reads a field of whole numbers, a mask, or indices of all blocks.
///
/// # Errors
/// If it holds indices that do not exist.
#[inline(always)]
pub(crate) fn take_wholes(batch: &Batch<'_>, field: usize, to: &mut [i32]) -> Result<(), Error> {
    let place = batch.frame.fields[field];
    let blocks = batch.encoded.chunks_exact(batch.frame.bytes);
    for (bytes, to) in blocks.zip(to.chunks_exact_mut(place.count)) {
        let bytes = &bytes[place.offset..place.offset + place.bytes];
        match place.wire {
            Wire::Bits { width: 1, .. } => unpack::<1, false>(bytes, to),
            Wire::Bits { width: 2, signed: false } => unpack::<2, false>(bytes, to),
            Wire::Bits { width: 2, signed: true } => unpack::<2, true>(bytes, to),
            Wire::Bits { width: 4, signed: false } => unpack::<4, false>(bytes, to),
            Wire::Bits { width: 4, signed: true } => unpack::<4, true>(bytes, to),
            Wire::Bits { width: 8, signed } => take_bytes(bytes, signed, to),
            Wire::Bits { signed, .. } => take_pairs(bytes, signed, to),
            _ => take_indices(place.count, batch.frame.elements, bytes, to)?,
        }
    }
    Ok(())
}

#[inline(always)]
fn take_bytes(bytes: &[u8], signed: bool, to: &mut [i32]) {
    let extend = if signed { 24 } else { 0 };
    for (to, byte) in to.iter_mut().zip(bytes) {
        *to = i32::from(*byte) << extend >> extend;
    }
}

#[inline(always)]
fn take_pairs(bytes: &[u8], signed: bool, to: &mut [i32]) {
    let extend = if signed { 16 } else { 0 };
    for (to, pair) in to.iter_mut().zip(bytes.chunks_exact(2)) {
        *to = i32::from(u16::from_le_bytes([pair[0], pair[1]])) << extend >> extend;
    }
}

fn take_indices(
    count: usize,
    elements: usize,
    bytes: &[u8],
    to: &mut [i32],
) -> Result<(), Error> {
    for (to, index) in to.iter_mut().zip(Indices::new(count, elements).read(bytes)) {
        *to = index? as i32;
    }
    Ok(())
}

/// Ends decoding with a number per element.
#[inline(always)]
pub(crate) fn put(
    batch: &Batch<'_>,
    registers: &Registers,
    value: Operand,
    put: Put,
    values: &mut [f32],
) {
    let view = batch.numbers(registers, value);
    if !matches!(value.source, Source::Constant(_)) && view.step == batch.frame.elements {
        let pairs = values.iter_mut().zip(view.data);
        return match put {
            Put::Set => pairs.for_each(|(x, y)| *x = *y),
            Put::Add => pairs.for_each(|(x, y)| *x += *y),
            Put::Subtract => pairs.for_each(|(x, y)| *x -= *y),
        };
    }
    for (block, values) in values.chunks_exact_mut(batch.frame.elements).enumerate() {
        let number = view.data[block * view.step];
        match put {
            Put::Set => values.fill(number),
            Put::Add => values.iter_mut().for_each(|x| *x += number),
            Put::Subtract => values.iter_mut().for_each(|x| *x -= number),
        }
    }
}

/// Ends decoding with numbers at indices.
#[inline(always)]
pub(crate) fn put_at(
    batch: &Batch<'_>,
    registers: &Registers,
    (indices, numbers): (Operand, Operand),
    put: Put,
    values: &mut [f32],
) {
    if put == Put::Set {
        values.fill(0.0);
    }
    let (indices, numbers) = (batch.wholes(registers, indices), batch.numbers(registers, numbers));
    for (block, values) in values.chunks_exact_mut(batch.frame.elements).enumerate() {
        let indices = &indices.data[block * indices.step..][..indices.step];
        for (at, index) in indices.iter().enumerate() {
            let number = match numbers.step {
                0 | 1 => numbers.data[block * numbers.step],
                step => numbers.data[block * step + at],
            };
            let value = &mut values[*index as usize];
            *value = match put {
                Put::Set => number,
                Put::Add => *value + number,
                Put::Subtract => *value - number,
            };
        }
    }
}
