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

/// Reads a field of all blocks.
///
/// # Errors
/// If it holds indices that do not exist.
#[inline(always)]
pub(crate) fn take(
    batch: &Batch<'_>,
    registers: &mut Registers,
    field: usize,
    output: Option<Operand>,
    encoded: &[u8],
) -> Result<(), Error> {
    let mut result = Ok(());
    match batch.frame.fields[field].wire {
        Wire::F32 => batch.write(registers, output, |_, to| {
            take_numbers::<F32>(batch, field, encoded, to);
        }),
        Wire::F16 => batch.write(registers, output, |_, to| {
            take_numbers::<F16>(batch, field, encoded, to);
        }),
        Wire::Bf16 => batch.write(registers, output, |_, to| {
            take_numbers::<BF16>(batch, field, encoded, to);
        }),
        Wire::Indices => batch.write_wholes(registers, output, |_, to| {
            result = take_indices(batch, field, encoded, to);
        }),
        _ => batch.write_wholes(registers, output, |_, to| {
            take_wholes(batch, field, encoded, to);
        }),
    }
    result
}

#[inline(always)]
fn take_numbers<F: Format>(batch: &Batch<'_>, field: usize, encoded: &[u8], to: &mut [f32]) {
    let place = batch.frame.fields[field];
    let blocks = encoded.chunks_exact(batch.frame.bytes);
    for (bytes, numbers) in blocks.zip(to.chunks_exact_mut(place.count)) {
        let bytes = &bytes[place.offset..place.offset + place.bytes];
        for (bytes, x) in bytes.chunks_exact(F::BYTES).zip(numbers) {
            *x = F::get(bytes);
        }
    }
}

#[inline(always)]
fn take_wholes(batch: &Batch<'_>, field: usize, encoded: &[u8], to: &mut [i32]) {
    let place = batch.frame.fields[field];
    let blocks = encoded.chunks_exact(batch.frame.bytes);
    for (bytes, codes) in blocks.zip(to.chunks_exact_mut(place.count)) {
        let bytes = &bytes[place.offset..place.offset + place.bytes];
        let pairs = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        let (bytes_of_8, bytes_of_16) = (bytes.iter(), bytes.chunks_exact(2));
        let Wire::Bits { width, signed } = place.wire else { continue };
        match (width, signed) {
            (1, _) => unpack::<1, false>(bytes, codes),
            (2, false) => unpack::<2, false>(bytes, codes),
            (2, true) => unpack::<2, true>(bytes, codes),
            (4, false) => unpack::<4, false>(bytes, codes),
            (4, true) => unpack::<4, true>(bytes, codes),
            (8, false) => codes.iter_mut().zip(bytes_of_8).for_each(|(to, x)| *to = i32::from(*x)),
            (8, true) => {
                codes.iter_mut().zip(bytes_of_8).for_each(|(to, x)| *to = i32::from(*x as i8));
            }
            (_, false) => {
                codes.iter_mut().zip(bytes_of_16).for_each(|(to, x)| *to = i32::from(pairs(x)));
            }
            (_, true) => codes
                .iter_mut()
                .zip(bytes_of_16)
                .for_each(|(to, x)| *to = i32::from(pairs(x) as i16)),
        }
    }
}

fn take_indices(
    batch: &Batch<'_>,
    field: usize,
    encoded: &[u8],
    to: &mut [i32],
) -> Result<(), Error> {
    let place = batch.frame.fields[field];
    let layout = Indices::new(place.count, batch.frame.elements);
    let blocks = encoded.chunks_exact(batch.frame.bytes);
    for (bytes, to) in blocks.zip(to.chunks_exact_mut(place.count)) {
        let indices = layout.read(&bytes[place.offset..place.offset + place.bytes]);
        for (to, index) in to.iter_mut().zip(indices) {
            *to = index? as i32;
        }
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
