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
        Wire::F32 if place.count == 1 => ones(batch, place, to),
        Wire::F32 => floats::<F32>(batch, place, to),
        Wire::F16 => floats::<F16>(batch, place, to),
        _ => floats::<BF16>(batch, place, to),
    }
}

/// Reads one f32 of every block.
#[inline(always)]
fn ones(batch: &Batch<'_>, place: Place, to: &mut [f32]) {
    for (block, number) in to[..batch.blocks].iter_mut().enumerate() {
        *number = read_f32(&batch.encoded[block * batch.frame.bytes + place.offset..]);
    }
}

/// Reads numbers of all blocks from a format.
#[inline(always)]
fn floats<F: FormatLanes>(batch: &Batch<'_>, place: Place, to: &mut [f32]) {
    for block in 0..batch.blocks {
        let bytes = &batch.encoded[block * batch.frame.bytes + place.offset..][..place.bytes];
        let to = &mut to[block * place.count..][..place.count];
        imp().cast_decode::<F>(bytes, Write::Set, to);
    }
}

/// Reads a field of whole numbers, a mask, or indices of all blocks.
///
/// # Errors
/// If it holds indices that do not exist.
#[inline(always)]
pub(crate) fn wholes(batch: &Batch<'_>, field: usize, to: &mut [i32]) -> Result<(), Error> {
    let place = batch.frame.fields[field];
    let set = |to: &mut i32, code: i32| *to = code;
    let blocks = batch.encoded.chunks_exact(batch.frame.bytes);
    for (bytes, to) in blocks.zip(to.chunks_exact_mut(place.count)) {
        let bytes = &bytes[place.offset..place.offset + place.bytes];
        match place.wire {
            Wire::Bits { width: 1, .. } => unpack::<1, false, _>(bytes, to, set),
            Wire::Bits { width: 2, signed: false } => unpack::<2, false, _>(bytes, to, set),
            Wire::Bits { width: 2, signed: true } => unpack::<2, true, _>(bytes, to, set),
            Wire::Bits { width: 4, signed: false } => unpack::<4, false, _>(bytes, to, set),
            Wire::Bits { width: 4, signed: true } => unpack::<4, true, _>(bytes, to, set),
            Wire::Bits { width: 8, signed } => whole_bytes(bytes, signed, to),
            Wire::Bits { signed, .. } => whole_pairs(bytes, signed, to),
            _ => indices_of(place.count, batch.frame.elements, bytes, to)?,
        }
    }
    Ok(())
}

#[inline(always)]
fn whole_bytes(bytes: &[u8], signed: bool, to: &mut [i32]) {
    let extend = if signed { 24 } else { 0 };
    for (to, byte) in to.iter_mut().zip(bytes) {
        *to = i32::from(*byte) << extend >> extend;
    }
}

#[inline(always)]
fn whole_pairs(bytes: &[u8], signed: bool, to: &mut [i32]) {
    let extend = if signed { 16 } else { 0 };
    for (to, pair) in to.iter_mut().zip(bytes.chunks_exact(2)) {
        *to = i32::from(u16::from_le_bytes([pair[0], pair[1]])) << extend >> extend;
    }
}

fn indices_of(count: usize, elements: usize, bytes: &[u8], to: &mut [i32]) -> Result<(), Error> {
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
        let count = values.len();
        let numbers = &view.data[..count];
        match put {
            Put::Set => values.copy_from_slice(numbers),
            Put::Add => {
                for at in 0..count {
                    values[at] += numbers[at];
                }
            }
            Put::Subtract => {
                for at in 0..count {
                    values[at] -= numbers[at];
                }
            }
        }
        return;
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

/// Ends decoding with one of two numbers per block for every element, as a mask field says.
#[inline(always)]
pub(crate) fn put_select(
    batch: &Batch<'_>,
    field: usize,
    (a, b): (View<'_, f32>, View<'_, f32>),
    put: Put,
    values: &mut [f32],
) {
    let (place, elements) = (batch.frame.fields[field], batch.frame.elements);
    for block in 0..batch.blocks {
        let bytes = &batch.encoded[block * batch.frame.bytes + place.offset..][..place.bytes];
        let values = &mut values[block * elements..][..elements];
        let (a, b) = (a.data[block * a.step], b.data[block * b.step]);
        let choose = |code: i32| if code != 0 { a } else { b };
        match put {
            Put::Set => unpack::<1, false, _>(bytes, values, |x, code| *x = choose(code)),
            Put::Add => unpack::<1, false, _>(bytes, values, |x, code| *x += choose(code)),
            Put::Subtract => unpack::<1, false, _>(bytes, values, |x, code| *x -= choose(code)),
        }
    }
}

/// Ends decoding with a field of whole numbers times one number per block.
#[inline(always)]
pub(crate) fn put_scaled(
    batch: &Batch<'_>,
    field: usize,
    scale: View<'_, f32>,
    put: Put,
    values: &mut [f32],
) {
    let (place, elements) = (batch.frame.fields[field], batch.frame.elements);
    for block in 0..batch.blocks {
        let bytes = &batch.encoded[block * batch.frame.bytes + place.offset..][..place.bytes];
        let values = &mut values[block * elements..][..elements];
        let scale = scale.data[block * scale.step];
        match put {
            Put::Set => scaled(place.wire, bytes, values, |x, code| *x = code * scale),
            Put::Add => scaled(place.wire, bytes, values, |x, code| *x += code * scale),
            Put::Subtract => scaled(place.wire, bytes, values, |x, code| *x -= code * scale),
        }
    }
}

#[inline(always)]
fn scaled(wire: Wire, bytes: &[u8], values: &mut [f32], put: impl Fn(&mut f32, f32)) {
    let put = |x: &mut f32, code: i32| put(x, code as f32);
    match wire {
        Wire::Bits { width: 2, signed: false } => unpack::<2, false, _>(bytes, values, put),
        Wire::Bits { width: 2, signed: true } => unpack::<2, true, _>(bytes, values, put),
        Wire::Bits { signed: false, .. } => unpack::<4, false, _>(bytes, values, put),
        _ => unpack::<4, true, _>(bytes, values, put),
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
