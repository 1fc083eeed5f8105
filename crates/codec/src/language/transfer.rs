//! Between registers and bytes, and from registers to values.

use super::loops::{self, View};
use super::pack::{GROUP, pack, unpack};
use super::program::{Operand, Source, Step};
use super::random;
use super::run::{Batch, Put, Registers};
use super::wire::Wire;
use crate::indices::Indices;
use crate::kernel::{self, BF16, Cast, F16, F32, Format};
use crate::{Error, Input, Write};

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
    match cast(place.wire) {
        Some((_, limit)) if place.is_one_f32() => {
            let view = batch.numbers(registers, value);
            emit_ones(batch, view, place.offset, output);
            loops::largest(view.data) < limit
        }
        Some((cast, limit)) => {
            let view = batch.numbers(registers, value);
            let mut largest = 0;
            for block in 0..batch.blocks {
                let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
                let numbers = &view.data[block * place.count..][..place.count];
                largest = largest.max((cast.encode)(Input::Plain(numbers), bytes));
            }
            largest < limit
        }
        None => {
            emit_wholes(batch, batch.wholes(registers, value), field, output);
            true
        }
    }
}

/// Writes one f32 of every block.
#[inline(always)]
fn emit_ones(batch: &Batch<'_>, view: View<'_, f32>, offset: usize, output: &mut [u8]) {
    for (block, number) in view.data[..batch.blocks].iter().enumerate() {
        if let Some(bytes) = output[block * batch.frame.bytes + offset..].first_chunk_mut::<4>() {
            *bytes = number.to_le_bytes();
        }
    }
}

/// The loops of a number format, and the bits of what it does not hold.
#[inline(always)]
fn cast(wire: Wire) -> Option<(&'static Cast, u32)> {
    let kernels = kernel::imp();
    match wire {
        Wire::F32 => Some((&kernels.f32, F32::LIMIT)),
        Wire::F16 => Some((&kernels.f16, F16::LIMIT)),
        Wire::Bf16 => Some((&kernels.bf16, BF16::LIMIT)),
        _ => None,
    }
}

#[inline(always)]
fn emit_wholes(batch: &Batch<'_>, view: View<'_, i32>, field: usize, output: &mut [u8]) {
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
pub(crate) fn emit_negative(
    batch: &Batch<'_>,
    view: View<'_, f32>,
    field: usize,
    output: &mut [u8],
) {
    let place = batch.frame.fields[field];
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * view.step..][..view.step];
        pack::<1, _>(numbers, bytes, |x| (x.to_bits() >> 31) as i32);
    }
}

/// Writes a field of few bits of all blocks from numbers, rounded.
#[inline(always)]
pub(crate) fn emit_round(batch: &Batch<'_>, view: View<'_, f32>, field: usize, output: &mut [u8]) {
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
pub(crate) fn emit_round_random(
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
            let mut codes = random::group(batch.key, first);
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
pub(crate) fn emit_steps(
    batch: &Batch<'_>,
    registers: &Registers,
    (steps, other): ([Step; 2], Operand),
    field: usize,
    output: &mut [u8],
) {
    let place = batch.frame.fields[field];
    let (least, most) = place.wire.range();
    let view = batch.numbers(registers, steps[0].element());
    for block in 0..batch.blocks {
        let bytes = &mut output[block * batch.frame.bytes + place.offset..][..place.bytes];
        let numbers = &view.data[block * view.step..][..view.step];
        let code = |operand| batch.wholes(registers, operand).one(block).max(least).min(most);
        let [a, b] = steps.map(|step| {
            let bound = batch.numbers(registers, step.bound()).one(block);
            (step.bits(bound), code(step.code))
        });
        let other = code(other);
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

/// Reads a field of numbers of all blocks.
#[inline(always)]
pub(crate) fn take_numbers(batch: &Batch<'_>, field: usize, to: &mut [f32]) {
    let place = batch.frame.fields[field];
    let Some((cast, _)) = cast(place.wire) else { return };
    if place.is_one_f32() {
        for (block, number) in to[..batch.blocks].iter_mut().enumerate() {
            let bytes = &batch.encoded[block * batch.frame.bytes + place.offset..];
            *number = bytes.first_chunk::<4>().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
        }
        return;
    }
    for block in 0..batch.blocks {
        let bytes = &batch.encoded[block * batch.frame.bytes + place.offset..][..place.bytes];
        (cast.decode)(bytes, Write::Set, &mut to[block * place.count..][..place.count]);
    }
}

/// Reads a field of whole numbers, a mask, or indices of all blocks.
///
/// # Errors
/// If it holds indices that do not exist.
#[inline(always)]
pub(crate) fn take_wholes(batch: &Batch<'_>, field: usize, to: &mut [i32]) -> Result<(), Error> {
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

fn take_indices(count: usize, elements: usize, bytes: &[u8], to: &mut [i32]) -> Result<(), Error> {
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
