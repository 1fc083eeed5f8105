//! Fields of all blocks, from bytes to registers or to the values that `decode` yields.

use super::batch::{Batch, Put, Registers};
use super::frame::Place;
use super::loops::View;
use super::pack::unpack;
use super::program::{Operand, Source};
use super::wire::Wire;
use crate::indices::Indices;
use crate::kernel::bits::read_f32;
use crate::kernel::{BF16, F16, F32, FormatLanes, imp};
use crate::{Error, Write};

/// Reads a field of numbers of all blocks.
#[inline(always)]
pub(crate) fn numbers(batch: &Batch<'_>, field: usize, to: &mut [f32]) {
    let place = batch.frame.fields[field];
    match place.wire {
        // A scale per block: calling a kernel for each would cost more than the loop.
        Wire::F32 if place.count == 1 => {
            for (block, number) in to[..batch.blocks].iter_mut().enumerate() {
                *number = read_f32(&batch.encoded[batch.bytes(place, block)]);
            }
        }
        Wire::F32 => floats::<F32>(batch, place, to),
        Wire::F16 => floats::<F16>(batch, place, to),
        _ => floats::<BF16>(batch, place, to),
    }
}

/// Reads numbers of all blocks from a format.
#[inline(always)]
fn floats<F: FormatLanes>(batch: &Batch<'_>, place: Place, to: &mut [f32]) {
    for block in 0..batch.blocks {
        let to = &mut to[block * place.count..][..place.count];
        imp().cast_decode::<F>(&batch.encoded[batch.bytes(place, block)], Write::Set, to);
    }
}

/// Reads a field of integers, a mask, or indices of all blocks.
///
/// # Errors
/// If a field has indices of elements that do not exist.
#[inline(always)]
pub(crate) fn ints(batch: &Batch<'_>, field: usize, to: &mut [i32]) -> Result<(), Error> {
    let place = batch.frame.fields[field];
    for (block, to) in to.chunks_exact_mut(place.count).enumerate() {
        let bytes = &batch.encoded[batch.bytes(place, block)];
        match place.wire {
            Wire::Bits { width: 8, signed } => {
                let extend = if signed { 24 } else { 0 };
                for (to, byte) in to.iter_mut().zip(bytes) {
                    *to = i32::from(*byte) << extend >> extend;
                }
            }
            Wire::Bits { width: 16, signed } => {
                let extend = if signed { 16 } else { 0 };
                for (to, pair) in to.iter_mut().zip(bytes.as_chunks().0) {
                    *to = i32::from(u16::from_le_bytes(*pair)) << extend >> extend;
                }
            }
            Wire::Bits { .. } => read(place.wire, bytes, to, |to, code| *to = code),
            _ => indices(batch.frame.elements, bytes, to)?,
        }
    }
    Ok(())
}

fn indices(elements: usize, bytes: &[u8], to: &mut [i32]) -> Result<(), Error> {
    let layout = Indices::new(to.len(), elements);
    for (to, index) in to.iter_mut().zip(layout.read(bytes)) {
        *to = index? as i32;
    }
    Ok(())
}

/// Reads codes of at most 4 bits, each to its place with `put`.
#[inline(always)]
fn read<T: Copy>(wire: Wire, bytes: &[u8], to: &mut [T], put: impl Fn(&mut T, i32)) {
    match wire {
        Wire::Bits { width: 1, .. } => unpack::<1, false, _>(bytes, to, put),
        Wire::Bits { width: 2, signed: false } => unpack::<2, false, _>(bytes, to, put),
        Wire::Bits { width: 2, signed: true } => unpack::<2, true, _>(bytes, to, put),
        Wire::Bits { signed: false, .. } => unpack::<4, false, _>(bytes, to, put),
        _ => unpack::<4, true, _>(bytes, to, put),
    }
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
        let numbers = &view.data[..values.len()];
        return match put {
            Put::Set => values.copy_from_slice(numbers),
            Put::Add => imp().add(values, numbers),
            Put::Subtract => imp().add_scaled(values, numbers, -1.0),
        };
    }
    for (block, values) in values.chunks_exact_mut(batch.frame.elements).enumerate() {
        let number = view.one(block);
        match put {
            Put::Set => values.fill(number),
            Put::Add => values.iter_mut().for_each(|x| *x += number),
            Put::Subtract => values.iter_mut().for_each(|x| *x -= number),
        }
    }
}

/// Ends decoding with one of two numbers per block for every element, chosen by a mask field.
#[inline(always)]
pub(crate) fn put_select(
    batch: &Batch<'_>,
    field: usize,
    a: View<'_, f32>,
    b: View<'_, f32>,
    put: Put,
    values: &mut [f32],
) {
    put_codes(batch, field, put, values, |block| {
        let (a, b) = (a.one(block), b.one(block));
        move |code| if code != 0 { a } else { b }
    });
}

/// Ends decoding with a field of integers times one number per block.
#[inline(always)]
pub(crate) fn put_scaled(
    batch: &Batch<'_>,
    field: usize,
    scale: View<'_, f32>,
    put: Put,
    values: &mut [f32],
) {
    put_codes(batch, field, put, values, |block| {
        let scale = scale.one(block);
        move |code| code as f32 * scale
    });
}

/// Ends decoding with the numbers that `value_of` a block gives for the codes of a field.
#[inline(always)]
fn put_codes<F: Fn(i32) -> f32>(
    batch: &Batch<'_>,
    field: usize,
    put: Put,
    values: &mut [f32],
    value_of: impl Fn(usize) -> F,
) {
    let place = batch.frame.fields[field];
    for (block, values) in values.chunks_exact_mut(batch.frame.elements).enumerate() {
        let (bytes, value) = (&batch.encoded[batch.bytes(place, block)], value_of(block));
        match put {
            Put::Set => read(place.wire, bytes, values, |x, code| *x = value(code)),
            Put::Add => read(place.wire, bytes, values, |x, code| *x += value(code)),
            Put::Subtract => read(place.wire, bytes, values, |x, code| *x -= value(code)),
        }
    }
}

/// Ends decoding with numbers at indices.
#[inline(always)]
pub(crate) fn put_at(
    batch: &Batch<'_>,
    registers: &Registers,
    indices: Operand,
    numbers: Operand,
    put: Put,
    values: &mut [f32],
) {
    if put == Put::Set {
        values.fill(0.0);
    }
    let (indices, numbers) = (batch.ints(registers, indices), batch.numbers(registers, numbers));
    for (block, values) in values.chunks_exact_mut(batch.frame.elements).enumerate() {
        let indices = &indices.data[block * indices.step..][..indices.step];
        for (at, index) in indices.iter().enumerate() {
            let number = match numbers.step {
                0 | 1 => numbers.one(block),
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
